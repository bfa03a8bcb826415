//! Products of integers, computed with wrapping arithmetic in the elements' own size.

use super::block::{MatMut, Product};
use super::pack::Mat;
use crate::CpuBackend;
use crate::order::Word;

/// An unsigned integer with wrapping arithmetic.
pub(crate) trait Int: Word {
    fn mul_wrapping(self, b: Self) -> Self;
    fn add_wrapping(self, b: Self) -> Self;
}

macro_rules! int {
    ($($t:ty)*) => {$(
        impl Int for $t {
            #[inline(always)]
            fn mul_wrapping(self, b: Self) -> Self {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn add_wrapping(self, b: Self) -> Self {
                self.wrapping_add(b)
            }
        }
    )*};
}
int!(u64 u32 u16 u8);

/// The number of columns in a row of sums, which stays in the L1 cache.
const COLS: usize = 256;
/// The number of multiply-adds that a task should perform.
const TASK: usize = 1 << 16;

/// Computes `count` products of the same size. `operands(i)` returns A, B and C of product `i`.
///
/// # Safety
/// As for [`products`](super::products::products).
pub(crate) unsafe fn products<'a, T: Int>(
    cpu: &CpuBackend,
    count: usize,
    p: &Product<T>,
    operands: impl Fn(usize) -> (Mat<'a, T>, Mat<'a, T>, MatMut<'a, T>) + Sync,
) {
    let grain = (TASK / p.n.saturating_mul(p.k).max(1)).max(1);
    cpu.parallel_for(count * p.m, grain, |rows| {
        for row in rows {
            let (a, b, c) = operands(row / p.m);
            let i = row % p.m;
            for j0 in (0..p.n).step_by(COLS) {
                let mut sums = [T::default(); COLS];
                let sums = &mut sums[..COLS.min(p.n - j0)];
                for s in 0..p.k {
                    // SAFETY: `(i, s)` lies inside `a`, and the columns lie inside row `s` of `b`.
                    unsafe {
                        let x = a.get(i, s);
                        if b.has_adjacent_cols() {
                            let row = std::slice::from_raw_parts(b.from(s, j0).as_ptr(), sums.len());
                            for (sum, &y) in sums.iter_mut().zip(row) {
                                *sum = sum.add_wrapping(x.mul_wrapping(y));
                            }
                        } else {
                            for (j, sum) in sums.iter_mut().enumerate() {
                                *sum = sum.add_wrapping(x.mul_wrapping(b.get(s, j0 + j)));
                            }
                        }
                    }
                }
                for (j, &sum) in sums.iter().enumerate() {
                    // SAFETY: `(i, j0 + j)` lies inside `c`, and each row belongs to one task.
                    unsafe {
                        let c = c.at(i, j0 + j);
                        let new = p.alpha.mul_wrapping(sum);
                        let zero = p.beta == T::default();
                        *c = if zero { new } else { new.add_wrapping(p.beta.mul_wrapping(*c)) };
                    }
                }
            }
        }
    });
}
