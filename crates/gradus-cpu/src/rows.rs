//! Rows of numbers in the compute type: loading, storing, and sums in a fixed tree.
//!
//! Sums have 16 partial sums, element `i` going to number `i % 16`, added as a tree at the end: the same bits for every
//! instruction set, and vectors on all of them.

use crate::access::{Float, load_strided, store_strided};
use crate::gemm::Real;
use crate::isa::{Isa, per_isa_256};
use crate::math;
use crate::parallel::Disjoint;

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

/// Reduces rows of one length in the fixed tree: `map(elements, so_far)` of each position of the rows into its partial
/// result, then `combine` of those.
#[inline(always)]
pub(crate) fn tree<T: Copy, const N: usize>(
    rows: [&[T]; N],
    start: T,
    map: impl Fn([T; N], T) -> T,
    combine: impl Fn(T, T) -> T,
) -> T {
    let n = rows[0].len();
    // Chunks of a known length: LLVM makes vectors of loops over them, and not of loops over positions.
    let rows = rows.map(|row| row[..n].as_chunks::<LANES>());
    let mut lanes = [start; LANES];
    for i in 0..n / LANES {
        let chunk = rows.map(|(whole, _)| &whole[i]);
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane = map(chunk.map(|c| c[l]), *lane);
        }
    }
    for (l, lane) in lanes.iter_mut().enumerate().take(n % LANES) {
        *lane = map(rows.map(|(_, rest)| rest[l]), *lane);
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
    tree([x], T::ZERO, |[x], s| s + x, |a, b| a + b)
}

/// The largest element of a row that is not NaN; -inf if there is none.
#[inline(always)]
pub(crate) fn largest<T: Elementary>(x: &[T]) -> T {
    let larger = |a: T, b: T| if b > a { b } else { a };
    tree([x], T::NEG_INFINITY, |[x], m| larger(m, x), larger)
}

/// Loading and storing rows of one storage type, on every instruction set.
pub(crate) trait Rows: Float<Compute: Elementary> {
    /// `out[i] = x[at + i * step]`, widened. Positions must lie inside `x` (checked).
    fn load(isa: Isa, x: &[Self], at: usize, step: isize, out: &mut [Self::Compute]);
    /// `out[at + i * step] = x[i]`, rounded. Positions must lie inside `out` (checked).
    fn store(isa: Isa, x: &[Self::Compute], out: &mut [Self], at: usize, step: isize);
    /// The same elements, where the storage type is the compute type.
    fn lying(x: &[Self]) -> Option<&[Self::Compute]>;
    /// The same elements, where the storage type is the compute type.
    fn lying_mut(x: &mut [Self]) -> Option<&mut [Self::Compute]>;

    /// A row of as many elements as `work` has: where it lies if it can be used there, else widened into `work`. Positions
    /// must lie inside `x` (checked).
    #[inline]
    fn read<'a>(isa: Isa, x: &'a [Self], at: usize, step: isize, work: &'a mut [Self::Compute]) -> &'a [Self::Compute] {
        if step == 1
            && let Some(row) = Self::lying(&x[at..at + work.len()])
        {
            return row;
        }
        Self::load(isa, x, at, step, work);
        work
    }

    /// Has `make` write a row of as many elements as `work` has: where it belongs if it can be made there, else into `work`,
    /// from where it is stored.
    ///
    /// # Safety
    /// The row is the calling task's alone.
    #[inline]
    unsafe fn write(
        isa: Isa,
        out: &Disjoint<'_, Self>,
        at: usize,
        step: isize,
        work: &mut [Self::Compute],
        make: impl FnOnce(&mut [Self::Compute]),
    ) {
        if step == 1 {
            // SAFETY: the caller's promise.
            let to = unsafe { out.slice(at..at + work.len()) };
            if let Some(row) = Self::lying_mut(to) {
                return make(row);
            }
            make(work);
            return Self::store(isa, work, to, 0, 1);
        }
        make(work);
        for (i, &v) in work.iter().enumerate() {
            // SAFETY: as above.
            unsafe { out.write(at.wrapping_add_signed(step * i as isize), Self::narrow(v)) };
        }
    }
}

macro_rules! rows {
    ($($s:ty, $c:ty, $load:ident, $store:ident, $lying:expr, $lying_mut:expr;)*) => {$(
        per_isa_256! {
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
            #[inline]
            fn lying(x: &[$s]) -> Option<&[$c]> {
                $lying(x)
            }
            #[inline]
            fn lying_mut(x: &mut [$s]) -> Option<&mut [$c]> {
                $lying_mut(x)
            }
        }
    )*};
}
rows! {
    f32, f32, load_f32, store_f32, Some, Some;
    f64, f64, load_f64, store_f64, Some, Some;
    gradus_backend::f16, f32, load_f16, store_f16, |_| None, |_| None;
    gradus_backend::bf16, f32, load_bf16, store_bf16, |_| None, |_| None;
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
