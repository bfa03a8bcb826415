//! Rows of numbers in the compute type: loading, storing, and sums in a fixed tree.
//!
//! Sums have 16 partial sums, element `i` going to number `i % 16`, added as a tree at the end: the same bits for every
//! instruction set, and vectors on all of them.

use crate::access::{Float, load_strided, store_strided};
use crate::gemm::Real;
use crate::isa::{Isa, per_isa};
use crate::math;

/// Number of partial sums.
pub(crate) const LANES: usize = 16;

/// A compute type with the functions that rows need.
pub(crate) trait Elementary:
    Real + std::ops::Sub<Output = Self> + std::ops::Div<Output = Self> + PartialOrd + std::ops::Neg<Output = Self>
{
    const NEG_INFINITY: Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn is_finite(self) -> bool;
    fn to_f64(self) -> f64;
}

impl Elementary for f32 {
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
    #[inline(always)]
    fn exp(self) -> Self {
        math::exp(self)
    }
    #[inline(always)]
    fn ln(self) -> Self {
        math::log(self)
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Elementary for f64 {
    const NEG_INFINITY: Self = f64::NEG_INFINITY;
    #[inline(always)]
    fn exp(self) -> Self {
        libm::exp(self)
    }
    #[inline(always)]
    fn ln(self) -> Self {
        libm::log(self)
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
}

/// `combine` over `map(i)` for `i < n`, in the fixed tree.
#[inline(always)]
pub(crate) fn tree<T: Copy>(n: usize, start: T, mut map: impl FnMut(usize, T) -> T, combine: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; LANES];
    let whole = n / LANES * LANES;
    let mut i = 0;
    while i < whole {
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane = map(i + l, *lane);
        }
        i += LANES;
    }
    for (l, lane) in lanes.iter_mut().enumerate().take(n - whole) {
        *lane = map(whole + l, *lane);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            lanes[l] = combine(lanes[l], lanes[l + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// The sum of a row.
#[inline(always)]
pub(crate) fn sum<T: Real>(x: &[T]) -> T {
    tree(x.len(), T::ZERO, |i, s| s + x[i], |a, b| a + b)
}

/// The largest element of a row that is not NaN; -inf if there is none.
#[inline(always)]
pub(crate) fn largest<T: Elementary>(x: &[T]) -> T {
    let larger = |a: T, b: T| if b > a { b } else { a };
    tree(x.len(), T::NEG_INFINITY, |i, m| larger(m, x[i]), larger)
}

/// Loading and storing rows of one storage type, on every instruction set.
pub(crate) trait Rows: Float<Compute: Elementary> {
    /// `out[i] = x[at + i * step]`, widened. Positions must lie inside `x` (checked).
    fn load(isa: Isa, x: &[Self], at: usize, step: isize, out: &mut [Self::Compute]);
    /// `out[at + i * step] = x[i]`, rounded. Positions must lie inside `out` (checked).
    fn store(isa: Isa, x: &[Self::Compute], out: &mut [Self], at: usize, step: isize);
}

macro_rules! rows {
    ($($s:ty, $c:ty, $load:ident, $store:ident;)*) => {$(
        per_isa! {
            fn $load(x: &[$s], at: usize, step: isize, out: &mut [$c]) =
                |x, at, step, out| load_strided(x, at, step, out, |v: $s| v.widen());
            fn $store(x: &[$c], out: &mut [$s], at: usize, step: isize) =
                |x, out, at, step| store_strided(x, out, at, step, |v: $c| <$s as Float>::narrow(v));
        }
        impl Rows for $s {
            #[inline]
            fn load(isa: Isa, x: &[$s], at: usize, step: isize, out: &mut [$c]) {
                $load(isa, x, at, step, out)
            }
            #[inline]
            fn store(isa: Isa, x: &[$c], out: &mut [$s], at: usize, step: isize) {
                $store(isa, x, out, at, step)
            }
        }
    )*};
}
rows! {
    f32, f32, load_f32, store_f32;
    f64, f64, load_f64, store_f64;
    gradus_backend::f16, f32, load_f16, store_f16;
    gradus_backend::bf16, f32, load_bf16, store_bf16;
}

#[cfg(test)]
mod tests {
    #[test]
    fn sums_follow_the_tree_whatever_the_length() {
        for n in [0usize, 1, 15, 16, 17, 100] {
            let x: Vec<f64> = (0..n).map(|i| i as f64).collect();
            assert_eq!(super::sum(&x), (n * n.saturating_sub(1) / 2) as f64);
            assert_eq!(super::largest(&x), if n == 0 { f64::NEG_INFINITY } else { n as f64 - 1.0 });
        }
        assert_eq!(super::largest(&[1.0, f64::NAN, 3.0]), 3.0);
    }
}
