//! Arithmetic on [`Scalar`]s on the host: checked integers, IEEE floats and exact comparison.
//!
//! A boolean counts as the integer 0 or 1. Two integers yield an integer, and an overflow is an error in every build
//! profile. If one operand is a float, the other is converted to a float.

use std::cmp::Ordering;

use crate::{Error, ErrorKind, Result, Scalar};

/// Two operands converted to a common kind.
enum Pair {
    Ints(i64, i64),
    Floats(f64, f64),
}

fn pair(a: Scalar, b: Scalar) -> Pair {
    match (a, b) {
        (Scalar::Float(_), _) | (_, Scalar::Float(_)) => Pair::Floats(a.to_f64(), b.to_f64()),
        _ => Pair::Ints(a.to_i64(), b.to_i64()),
    }
}

fn overflow(op: &str, a: Scalar, b: Scalar) -> Error {
    Error::new(ErrorKind::Overflow, op, format!("{a} and {b} give an integer outside the range of i64"))
        .help("use floats where the range is not enough")
}

fn arithmetic(
    op: &str,
    a: Scalar,
    b: Scalar,
    ints: impl Fn(i64, i64) -> Option<i64>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Scalar> {
    match pair(a, b) {
        Pair::Ints(x, y) => ints(x, y).map(Scalar::Int).ok_or_else(|| overflow(op, a, b)),
        Pair::Floats(x, y) => Ok(Scalar::Float(floats(x, y))),
    }
}

/// Compares `a` with `b` without rounding either; `None` if one is NaN.
fn compare(a: Scalar, b: Scalar) -> Option<Ordering> {
    match (a, b) {
        (Scalar::Float(x), Scalar::Float(y)) => x.partial_cmp(&y),
        (Scalar::Float(x), i) => int_with_float(i.to_i64(), x).map(Ordering::reverse),
        (i, Scalar::Float(y)) => int_with_float(i.to_i64(), y),
        (i, j) => Some(i.to_i64().cmp(&j.to_i64())),
    }
}

fn int_with_float(i: i64, f: f64) -> Option<Ordering> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if f.is_nan() {
        None
    } else if f >= LIMIT {
        Some(Ordering::Less)
    } else if f < -LIMIT {
        Some(Ordering::Greater)
    } else {
        // The floor fits in an i64. An integer equal to the floor is less than f if f has a fractional part.
        let floor = f.floor();
        Some(i.cmp(&(floor as i64)).then(if f > floor { Ordering::Less } else { Ordering::Equal }))
    }
}

// These are methods rather than operators because they return a `Result`. `eq` compares numbers, while `==` compares
// kinds and bits.
#[allow(clippy::should_implement_trait)]
impl Scalar {
    /// `self + other`. An integer overflow is an error.
    pub fn add(self, other: impl Into<Scalar>) -> Result<Scalar> {
        arithmetic("add", self, other.into(), i64::checked_add, |a, b| a + b)
    }

    /// `self - other`. An integer overflow is an error.
    pub fn sub(self, other: impl Into<Scalar>) -> Result<Scalar> {
        arithmetic("sub", self, other.into(), i64::checked_sub, |a, b| a - b)
    }

    /// `self * other`. An integer overflow is an error.
    pub fn mul(self, other: impl Into<Scalar>) -> Result<Scalar> {
        arithmetic("mul", self, other.into(), i64::checked_mul, |a, b| a * b)
    }

    /// True division, always a float. Dividing an integer by the integer zero is an error; division of floats follows
    /// IEEE.
    pub fn div(self, other: impl Into<Scalar>) -> Result<Scalar> {
        match pair(self, other.into()) {
            Pair::Ints(_, 0) => Err(Error::argument("div", format!("{self} is divided by the integer 0"))),
            Pair::Ints(a, b) => Ok(Scalar::Float(a as f64 / b as f64)),
            Pair::Floats(a, b) => Ok(Scalar::Float(a / b)),
        }
    }

    /// Remainder with the sign of `self`. An integer modulo the integer zero is an error; `i64::MIN` modulo -1 is 0.
    pub fn rem(self, other: impl Into<Scalar>) -> Result<Scalar> {
        match pair(self, other.into()) {
            Pair::Ints(_, 0) => Err(Error::argument("rem", format!("{self} is divided by the integer 0"))),
            Pair::Ints(a, b) => Ok(Scalar::Int(a.wrapping_rem(b))),
            Pair::Floats(a, b) => Ok(Scalar::Float(libm::fmod(a, b))),
        }
    }

    /// `self^other`. An integer raised to a non-negative integer is an integer, and overflow is an error; everything
    /// else is a float. `0^0` is 1.
    pub fn pow(self, other: impl Into<Scalar>) -> Result<Scalar> {
        let other = other.into();
        match pair(self, other) {
            Pair::Ints(a, b) if b >= 0 => {
                let power = match a {
                    // Powers of 0, 1 and -1 stay in range for every exponent.
                    0 | 1 => Some(if b == 0 { 1 } else { a }),
                    -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
                    _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
                };
                power.map(Scalar::Int).ok_or_else(|| overflow("pow", self, other))
            }
            _ => Ok(Scalar::Float(libm::pow(self.to_f64(), other.to_f64()))),
        }
    }

    /// Square root, as a float; NaN below 0.
    pub fn sqrt(self) -> Scalar {
        Scalar::Float(libm::sqrt(self.to_f64()))
    }

    /// Sine of the value in radians, as a float.
    pub fn sin(self) -> Scalar {
        Scalar::Float(libm::sin(self.to_f64()))
    }

    /// Cosine of the value in radians, as a float.
    pub fn cos(self) -> Scalar {
        Scalar::Float(libm::cos(self.to_f64()))
    }

    /// Tangent of the value in radians, as a float.
    pub fn tan(self) -> Scalar {
        Scalar::Float(libm::tan(self.to_f64()))
    }

    /// Natural logarithm, as a float; -inf at 0 and NaN below 0.
    pub fn log(self) -> Scalar {
        Scalar::Float(libm::log(self.to_f64()))
    }

    /// `e^self`, as a float.
    pub fn exp(self) -> Scalar {
        Scalar::Float(libm::exp(self.to_f64()))
    }

    fn rounded(self, f: fn(f64) -> f64) -> Scalar {
        if let Scalar::Float(v) = self { Scalar::Float(f(v)) } else { self }
    }

    /// The largest integer not above the value, as a scalar of the same kind.
    pub fn floor(self) -> Scalar {
        self.rounded(f64::floor)
    }

    /// The smallest integer not below the value, as a scalar of the same kind.
    pub fn ceil(self) -> Scalar {
        self.rounded(f64::ceil)
    }

    /// The nearest integer, with ties to even, as a scalar of the same kind.
    pub fn round(self) -> Scalar {
        self.rounded(f64::round_ties_even)
    }

    /// The absolute value, as a scalar of the same kind. Fails for `i64::MIN`, whose absolute value does not fit in an
    /// i64.
    pub fn abs(self) -> Result<Scalar> {
        match self {
            Scalar::Bool(_) => Ok(self),
            Scalar::Float(v) => Ok(Scalar::Float(v.abs())),
            Scalar::Int(v) => v.checked_abs().map(Scalar::Int).ok_or_else(|| {
                Error::new(ErrorKind::Overflow, "abs", format!("the magnitude of {v} is outside the range of i64"))
            }),
        }
    }

    /// Whether the numbers are exactly equal; false if either is NaN.
    pub fn eq(self, other: impl Into<Scalar>) -> bool {
        compare(self, other.into()) == Some(Ordering::Equal)
    }

    /// Whether the numbers are not exactly equal; true if either is NaN.
    pub fn ne(self, other: impl Into<Scalar>) -> bool {
        compare(self, other.into()) != Some(Ordering::Equal)
    }

    /// `self < other`, compared exactly; false if either is NaN.
    pub fn lt(self, other: impl Into<Scalar>) -> bool {
        compare(self, other.into()) == Some(Ordering::Less)
    }

    /// `self <= other`, compared exactly; false if either is NaN.
    pub fn le(self, other: impl Into<Scalar>) -> bool {
        matches!(compare(self, other.into()), Some(Ordering::Less | Ordering::Equal))
    }

    /// `self > other`, compared exactly; false if either is NaN.
    pub fn gt(self, other: impl Into<Scalar>) -> bool {
        compare(self, other.into()) == Some(Ordering::Greater)
    }

    /// `self >= other`, compared exactly; false if either is NaN.
    pub fn ge(self, other: impl Into<Scalar>) -> bool {
        matches!(compare(self, other.into()), Some(Ordering::Greater | Ordering::Equal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(v: i64) -> Scalar {
        Scalar::Int(v)
    }
    fn float(v: f64) -> Scalar {
        Scalar::Float(v)
    }

    #[test]
    fn sums_and_products_of_integers_are_checked_and_a_float_makes_a_float() {
        assert_eq!(int(2).add(3).unwrap(), int(5));
        assert_eq!(int(2).sub(3).unwrap(), int(-1));
        assert_eq!(int(2).mul(3).unwrap(), int(6));
        assert_eq!(Scalar::Bool(true).add(true).unwrap(), int(2));
        assert_eq!(int(2).add(0.5).unwrap(), float(2.5));
        assert_eq!(float(2.0).mul(3).unwrap(), float(6.0));
        assert_eq!(float(f64::MAX).add(f64::MAX).unwrap(), float(f64::INFINITY));
        for e in [int(i64::MAX).add(1), int(i64::MIN).sub(1), int(i64::MAX).mul(2), int(i64::MIN).mul(-1)] {
            assert_eq!(e.unwrap_err().kind(), &ErrorKind::Overflow);
        }
    }

    #[test]
    fn division_is_true_division_and_only_an_integer_zero_is_an_error() {
        assert_eq!(int(7).div(2).unwrap(), float(3.5));
        assert_eq!(int(6).div(2).unwrap(), float(3.0));
        assert_eq!(int(1).div(0.0).unwrap(), float(f64::INFINITY));
        assert_eq!(float(1.0).div(0).unwrap(), float(f64::INFINITY));
        assert_eq!(int(1).div(0).unwrap_err().kind(), &ErrorKind::InvalidArgument);
        assert!(int(1).div(false).is_err());
    }

    #[test]
    fn remainders_have_the_sign_of_the_dividend() {
        assert_eq!(int(-7).rem(3).unwrap(), int(-1));
        assert_eq!(int(7).rem(-3).unwrap(), int(1));
        assert_eq!(float(-7.5).rem(2).unwrap(), float(-1.5));
        assert_eq!(int(i64::MIN).rem(-1).unwrap(), int(0));
        assert_eq!(int(1).rem(0).unwrap_err().kind(), &ErrorKind::InvalidArgument);
        assert!(float(1.0).rem(0).unwrap().to_f64().is_nan());
    }

    #[test]
    fn powers_of_integers_stay_integers_while_they_can() {
        assert_eq!(int(3).pow(4).unwrap(), int(81));
        assert_eq!(int(0).pow(0).unwrap(), int(1));
        assert_eq!(float(0.0).pow(0).unwrap(), float(1.0));
        assert_eq!(int(2).pow(-1).unwrap(), float(0.5));
        assert_eq!(int(-2).pow(63).unwrap(), int(i64::MIN));
        assert_eq!(int(-1).pow(i64::MAX).unwrap(), int(-1));
        assert_eq!(int(0).pow(i64::MAX).unwrap(), int(0));
        assert!(float(-8.0).pow(0.5).unwrap().to_f64().is_nan());
        for e in [int(2).pow(63), int(2).pow(1i64 << 40)] {
            assert_eq!(e.unwrap_err().kind(), &ErrorKind::Overflow);
        }
    }

    #[test]
    fn functions_of_one_operand_are_floats_by_ieee() {
        assert_eq!(int(9).sqrt(), float(3.0));
        assert!(int(-1).sqrt().to_f64().is_nan());
        assert_eq!(int(0).sin(), float(0.0));
        assert_eq!(int(0).cos(), float(1.0));
        assert!((float(0.7).tan().to_f64() - 0.842_288_380_463_079).abs() < 1e-15);
        assert_eq!(int(0).log(), float(f64::NEG_INFINITY));
        assert_eq!(int(1).log(), float(0.0));
        assert_eq!(int(0).exp(), float(1.0));
        assert_eq!(float(1000.0).exp(), float(f64::INFINITY));
    }

    #[test]
    fn rounding_and_magnitude_keep_the_kind() {
        assert_eq!([float(2.5).floor(), float(2.5).ceil(), float(2.5).round()], [float(2.0), float(3.0), float(2.0)]);
        assert_eq!([float(3.5).round(), float(-0.5).round()], [float(4.0), float(-0.0)]);
        assert_eq!([int(7).floor(), int(7).ceil(), int(7).round()], [int(7); 3]);
        assert_eq!(int(-7).abs().unwrap(), int(7));
        assert_eq!(float(-0.0).abs().unwrap(), float(0.0));
        assert_eq!(Scalar::Bool(true).abs().unwrap(), Scalar::Bool(true));
        assert_eq!(int(i64::MIN).abs().unwrap_err().kind(), &ErrorKind::Overflow);
    }

    #[test]
    fn comparisons_are_exact_and_each_its_own() {
        let six = |a: Scalar, b: Scalar| [a.eq(b), a.ne(b), a.lt(b), a.le(b), a.gt(b), a.ge(b)];
        assert_eq!(six(int(1), float(1.0)), [true, false, false, true, false, true]);
        assert_eq!(six(int(1), float(1.5)), [false, true, true, true, false, false]);
        assert_eq!(six(int(-1), float(-1.5)), [false, true, false, false, true, true]);
        assert_eq!(six(int(1), float(f64::NAN)), [false, true, false, false, false, false]);
        assert_eq!(six(float(f64::NAN), float(f64::NAN)), [false, true, false, false, false, false]);
        // 2^53 + 1 is not representable as a float and rounds to 2^53.
        let odd = (1i64 << 53) + 1;
        assert_eq!(six(int(odd), float(9_007_199_254_740_992.0)), [false, true, false, false, true, true]);
        assert_eq!(six(float(9_007_199_254_740_992.0), int(odd)), [false, true, true, true, false, false]);
        assert_eq!(six(int(i64::MAX), float(2f64.powi(63))), [false, true, true, true, false, false]);
        assert_eq!(six(int(i64::MIN), float(-2f64.powi(63))), [true, false, false, true, false, true]);
        assert_eq!(six(int(0), float(f64::NEG_INFINITY)), [false, true, false, false, true, true]);
        assert_eq!(six(int(0), float(-0.0)), [true, false, false, true, false, true]);
        assert_eq!(six(Scalar::Bool(true), int(1)), [true, false, false, true, false, true]);
    }
}
