//! Decides whether a result is correct: equal to the oracle's, or as close as a naive implementation's.

use gradus_backend::host::{converted, wide};
use gradus_backend::{DType, Scalar};

/// How far a result may be from the oracle's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// Equal; NaN equals NaN, and zeros are equal.
    Exact,
    /// Equal, including the sign of zeros.
    Bits,
    /// At most this many ULPs away.
    Ulps(u64),
    /// For sums of this many products: one rounding error per product, relative to the sum of the magnitudes.
    Linear(usize),
    /// A small multiple of the largest error of the naive oracle, and of the rounding error of the largest result or, if
    /// the case has magnitudes, of the element's.
    Naive,
    /// Like `Naive`, for a call with an operand that is itself an earlier result, rounded to its dtype.
    NaiveStored,
}

/// Half the distance from 1 to the next float (the unit roundoff).
pub(crate) fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-53),
        DType::F32 => 2f64.powi(-24),
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 0.0,
    }
}

/// The smallest positive float.
fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(1),
        DType::F32 => 2f64.powi(-149),
        DType::F16 => 2f64.powi(-24),
        DType::BF16 => 2f64.powi(-133),
        _ => 0.0,
    }
}

/// The allowed errors for the elements of one tensor. `reference` holds f64 values for floats. `naive` are the results of
/// the naive oracle, and `magnitudes` those of the case's call for magnitudes, if the bound takes them.
pub(crate) fn tolerances(
    bound: Bound,
    dtype: DType,
    reference: &[Scalar],
    naive: Option<&[Scalar]>,
    magnitudes: Option<&[Scalar]>,
) -> Vec<f64> {
    let (u, u_out) = (unit_roundoff(dtype.compute()), unit_roundoff(dtype));
    let finite = |v: &&f64| v.is_finite();
    let floats = |values: &[Scalar]| values.iter().map(|v| v.to_f64()).collect::<Vec<f64>>();
    let [reference, naive, magnitudes] =
        [reference, naive.unwrap_or_default(), magnitudes.unwrap_or_default()].map(floats);
    let scale = reference.iter().map(|v| v.abs()).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let naive = reference.iter().zip(&naive).map(|(a, b)| (a - b).abs()).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let one = |(i, r): (usize, &f64)| {
        let magnitude = magnitudes.get(i).filter(finite).map_or(0.0, |m| m.abs());
        let computed = match bound {
            Bound::Linear(terms) => (terms + 2) as f64 * u * magnitude,
            Bound::Naive => 4.0 * naive + 16.0 * u * scale.max(magnitude),
            Bound::NaiveStored => 4.0 * naive + (16.0 * u + 4.0 * u_out) * scale,
            _ => return 0.0,
        };
        computed + 1.001 * u_out * Some(r).filter(finite).map_or(0.0, |r| r.abs()) + smallest(dtype)
    };
    reference.iter().enumerate().map(one).collect()
}

/// Describes how `got` differs from `want` by more than `tolerance`; `None` if it does not.
pub(crate) fn mismatch(bound: Bound, dtype: DType, got: Scalar, want: Scalar, tolerance: f64) -> Option<String> {
    if !dtype.is_float() {
        let right = wide(got, dtype) == wide(want, dtype);
        return (!right).then(|| format!("{}, expected {}", wide(got, dtype), wide(want, dtype)));
    }
    let rounded = converted(want, dtype).to_f64();
    let (got, want) = (got.to_f64(), want.to_f64());
    let same = got == rounded || (got.is_nan() && rounded.is_nan());
    let right = match bound {
        Bound::Exact => same,
        Bound::Bits => same && (got.is_nan() || got.is_sign_negative() == rounded.is_sign_negative()),
        Bound::Ulps(n) => same || steps(got, rounded, dtype).is_some_and(|s| s <= n),
        Bound::Linear(_) | Bound::Naive | Bound::NaiveStored => same || (got - want).abs() <= tolerance,
    };
    if right {
        return None;
    }
    let allowed = match bound {
        Bound::Exact | Bound::Bits => String::new(),
        Bound::Ulps(n) => format!(" (within {n} ulp)"),
        _ => format!(" (within {tolerance:e}, off by {:e})", (got - want).abs()),
    };
    Some(format!("{got:?}, expected {rounded:?}{allowed}"))
}

/// The number of floats of `dtype` from `a` to `b`, both of which must be exact in `dtype`; `None` if either is NaN.
fn steps(a: f64, b: f64, dtype: DType) -> Option<u64> {
    if a.is_nan() || b.is_nan() {
        return None;
    }
    // Converts sign and magnitude to two's complement, so that neighbouring floats differ by 1.
    let ordered = |v: f64| -> i128 {
        let (magnitude, negative) = match dtype {
            DType::F64 => (i128::from(v.abs().to_bits()), v.is_sign_negative()),
            DType::F32 => (i128::from((v.abs() as f32).to_bits()), v.is_sign_negative()),
            DType::F16 => (i128::from(gradus_backend::f16::from_f64(v.abs()).to_bits()), v.is_sign_negative()),
            _ => (i128::from(gradus_backend::bf16::from_f64(v.abs()).to_bits()), v.is_sign_negative()),
        };
        if negative { -magnitude } else { magnitude }
    };
    u64::try_from((ordered(a) - ordered(b)).abs()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f(v: f64) -> Scalar {
        Scalar::Float(v)
    }

    #[test]
    fn neighbours_are_one_step_apart_across_zero_too() {
        assert_eq!(steps(1.0, f64::from(1f32.next_up()), DType::F32), Some(1));
        assert_eq!(steps(-smallest(DType::F16), smallest(DType::F16), DType::F16), Some(2));
        assert_eq!(steps(f64::MAX, f64::INFINITY, DType::F64), Some(1));
        assert_eq!(steps(f64::NAN, 1.0, DType::F64), None);
    }

    #[test]
    fn bounds_tell_right_from_wrong() {
        let wrong = |bound, got, want| mismatch(bound, DType::F32, f(got), f(want), 1e-6).is_some();
        assert!(!wrong(Bound::Exact, -0.0, 0.0) && wrong(Bound::Bits, -0.0, 0.0));
        assert!(!wrong(Bound::Exact, f64::NAN, f64::NAN) && wrong(Bound::Exact, f64::NAN, 1.0));
        assert!(!wrong(Bound::Naive, 1.0 + 1e-7, 1.0) && wrong(Bound::Naive, 1.0 + 1e-5, 1.0));
        assert!(wrong(Bound::Naive, f64::INFINITY, 1.0) && wrong(Bound::Naive, 1.0, f64::INFINITY));
        assert!(wrong(Bound::Naive, f64::NAN, 1.0) && !wrong(Bound::Naive, f64::INFINITY, 1e300));
        assert!(mismatch(Bound::Exact, DType::U64, Scalar::Int(-1), Scalar::Int(-1), 0.0).is_none());
    }
}
