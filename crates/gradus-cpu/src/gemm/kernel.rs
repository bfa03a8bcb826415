//! The innermost loops of GEMM: a few rows of A times a panel of B, in registers.
//!
//! **One definition of a sum.** For each block of `k` (see [`blocking`](super::block)), every element of a product is a
//! chain of fused multiply-adds that starts at 0 and proceeds in ascending `k`. No kernel splits the chain, so the bits
//! of an element depend neither on the kernel, nor on the instruction set, nor on the rows and columns around it.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::{Add, Mul};

use gradus_backend::{DType, Element};

use super::transpose::Transpose;
use crate::access::Float;
use crate::isa::{Isa, Level};
use crate::sum::Summable;

/// How the result is combined with the old value of C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// `c = alpha * sum`; the old value is not read.
    Set,
    /// `c = alpha * sum + c`.
    Add,
    /// `c = alpha * sum + beta * c`.
    Scale,
    /// `c = alpha * sum`, where the chain of the sum starts at the old value of `c` instead of 0.
    Chain,
}

/// One call of a kernel: `rows` rows of A times one panel of B.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Micro<T> {
    /// Number of rows, from 1 to [`Real::rows`].
    pub(crate) rows: usize,
    /// Width of the panel in vectors: 1, 2, or [`thin_vectors`] for this number of rows.
    pub(crate) vectors: usize,
    /// Length of the chains.
    pub(crate) k: usize,
    /// Row `r` at step `p` is `a[steps[p] + r * row]`. Rows from `split` on lie `gap` elements further on; if there are
    /// more than [`FREE_ROWS`] rows and `gap` is not 0, `split` is half of them.
    pub(crate) a: *const T,
    pub(crate) row: isize,
    pub(crate) split: usize,
    pub(crate) gap: isize,
    pub(crate) steps: *const isize,
    /// Row `p` of the panel starts at `b[p * ldb]`.
    pub(crate) b: *const T,
    pub(crate) ldb: isize,
    /// Memory to prefetch: step `p` prefetches the cache line of `next[p * next_by]`. Any address is allowed.
    pub(crate) next: *const T,
    pub(crate) next_by: usize,
    /// Row `r` of the result starts at `c[r * ldc]`.
    pub(crate) c: *mut T,
    pub(crate) ldc: isize,
    pub(crate) store: Store,
    pub(crate) alpha: T,
    pub(crate) beta: T,
}

/// The maximum number of rows of a kernel that may be split anywhere, since the offsets of so many stay in registers.
pub(crate) const FREE_ROWS: usize = 6;

/// The maximum number of rows for which there are kernels with wider panels.
pub(crate) const THIN_ROWS: usize = 3;

/// Returns the width in vectors of the panels for a small number of rows. This width keeps enough sums in flight to
/// hide the latency of the multiply-adds.
pub(crate) fn thin_vectors(rows: usize) -> usize {
    if rows == 1 { 8 } else { 4 }
}

/// A type that GEMM computes in: f32 or f64.
pub(crate) trait Real:
    Float<Compute = Self> + Summable<Acc = Self> + Transpose + Mul<Output = Self> + Add<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
    /// The dtype of this type.
    const DTYPE: DType;

    fn from_f64(x: f64) -> Self;

    /// Returns `self * a + b`, rounded once.
    fn fused(self, a: Self, b: Self) -> Self;

    /// Returns the maximum number of rows of a kernel on this instruction set.
    fn rows(isa: Isa) -> usize;

    /// Returns the width of a panel on this instruction set.
    fn panel(isa: Isa) -> usize;

    /// Runs the kernel of this instruction set.
    ///
    /// # Safety
    /// Every element that the fields of `j` describe is readable, and those of `c` are also writable.
    unsafe fn run(isa: Isa, j: &Micro<Self>);
}

impl Store {
    /// Returns the new value of an element of C, given the sum and a function that reads the old value.
    #[inline(always)]
    pub(crate) fn apply<T: Real>(self, alpha: T, sum: T, beta: T, old: impl FnOnce() -> T) -> T {
        match self {
            Store::Set | Store::Chain => alpha * sum,
            Store::Add => alpha * sum + old(),
            Store::Scale => alpha * sum + beta * old(),
        }
    }
}

/// Calls `$go::<rows, vectors>`.
macro_rules! dispatch {
    ($j:expr, $go:ident, [$($r:literal)*]) => {
        match ($j.rows, $j.vectors) {
            (1, 8) => $go::<1, 8>($j),
            (2, 4) => $go::<2, 4>($j),
            (3, 4) => $go::<3, 4>($j),
            $(($r, 1) => $go::<$r, 1>($j),)*
            $(($r, 2) => $go::<$r, 2>($j),)*
            (rows, vectors) => unreachable!("a kernel of {rows} rows of {vectors} vectors"),
        }
    };
}

/// Defines a kernel over vector registers. It has `rows * vectors` vectors of sums in flight at once.
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis $name:ident, $t:ty, $feature:literal, $lanes:literal, $rows:tt, $zero:ident, $set1:ident, $load:ident, $store:ident,
     $fma:ident, $mul:ident, $add:ident) => {
        $(#[$meta])*
        /// # Safety
        /// As for [`Real::run`]. The processor must also have the features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $feature)]
        $vis unsafe fn $name(j: &Micro<$t>) {
            /// # Safety
            /// As for the kernel; `R` and `V` are the job's rows and vectors.
            #[target_feature(enable = $feature)]
            unsafe fn go<const R: usize, const V: usize>(j: &Micro<$t>) {
                let mut sum = [[$zero(); V]; R];
                if j.store != Store::Chain {
                    // The result is prefetched while the sums are computed.
                    for r in 0..R {
                        for v in 0..V {
                            let c = j.c.wrapping_offset(j.ldc * r as isize).wrapping_add(v * $lanes);
                            _mm_prefetch::<_MM_HINT_T0>(c.cast());
                        }
                    }
                } else {
                    for r in 0..R {
                        for v in 0..V {
                            // SAFETY: row `r < rows` of C has a panel's width of elements, as the caller promises.
                            sum[r][v] = unsafe { $load(j.c.offset(j.ldc * r as isize).add(v * $lanes)) };
                        }
                    }
                }
                // The strides are converted to bytes, because address modes can scale them by 1 and 2. A stride that no
                // row uses may overflow here, so the multiplication wraps.
                let [down, gap] = [j.row, j.gap].map(|elements| elements.wrapping_mul(size_of::<$t>() as isize));
                let mut offsets = [0isize; R];
                if R <= FREE_ROWS {
                    for r in 0..R {
                        let offset = down.wrapping_mul(r as isize).wrapping_add(if r >= j.split { gap } else { 0 });
                        // Hidden from LLVM, which would otherwise compute the offsets from one another in the loop and
                        // run out of registers.
                        offsets[r] = std::hint::black_box(offset);
                    }
                }
                let (mut b, mut next) = (j.b, j.next);
                for p in 0..j.k {
                    // SAFETY: step `p < k` reads `R` elements of A and a row of the panel, as the caller promises.
                    unsafe {
                        _mm_prefetch::<_MM_HINT_T1>(next.cast());
                        let mut row = [$zero(); V];
                        for v in 0..V {
                            row[v] = $load(b.add(v * $lanes));
                        }
                        let mut a = j.a.offset(*j.steps.add(p));
                        for r in 0..R {
                            let offset = if R <= FREE_ROWS {
                                offsets[r]
                            } else {
                                // One address serves three rows, because more addresses would not stay in registers.
                                if r > 0 && r % 3 == 0 {
                                    a = a.wrapping_byte_offset(down.wrapping_mul(3));
                                }
                                if R % 2 == 0 && r == R / 2 {
                                    a = a.wrapping_byte_offset(gap);
                                }
                                down.wrapping_mul((r % 3) as isize)
                            };
                            let x = $set1(*a.wrapping_byte_offset(offset));
                            for v in 0..V {
                                sum[r][v] = $fma(x, row[v], sum[r][v]);
                            }
                        }
                    }
                    b = b.wrapping_offset(j.ldb);
                    next = next.wrapping_add(j.next_by);
                }
                let (alpha, beta) = ($set1(j.alpha), $set1(j.beta));
                // There is one loop for each variant of `Store`, so that the choice is not made in the innermost loop.
                // SAFETY: row `r < rows` of C has a panel's width of elements, as the caller promises.
                unsafe {
                    let row = |r: usize| j.c.offset(j.ldc * r as isize);
                    match j.store {
                        Store::Set | Store::Chain => {
                            for r in 0..R {
                                for v in 0..V {
                                    $store(row(r).add(v * $lanes), $mul(alpha, sum[r][v]));
                                }
                            }
                        }
                        Store::Add => {
                            for r in 0..R {
                                for v in 0..V {
                                    let c = row(r).add(v * $lanes);
                                    $store(c, $add($mul(alpha, sum[r][v]), $load(c)));
                                }
                            }
                        }
                        Store::Scale => {
                            for r in 0..R {
                                for v in 0..V {
                                    let c = row(r).add(v * $lanes);
                                    $store(c, $add($mul(alpha, sum[r][v]), $mul(beta, $load(c))));
                                }
                            }
                        }
                    }
                }
            }
            // SAFETY: guaranteed by the caller.
            unsafe { dispatch!(j, go, $rows) }
        }
    };
}

kernel!(f32_avx512, f32, "avx512f,avx2,fma", 16, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], _mm512_setzero_ps, _mm512_set1_ps,
    _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_add_ps);
kernel!(f64_avx512, f64, "avx512f,avx2,fma", 8, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], _mm512_setzero_pd, _mm512_set1_pd,
    _mm512_loadu_pd, _mm512_storeu_pd, _mm512_fmadd_pd, _mm512_mul_pd, _mm512_add_pd);
kernel!(f32_avx2, f32, "avx2,fma", 8, [1 2 3 4 5 6], _mm256_setzero_ps, _mm256_set1_ps,
    _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_mul_ps, _mm256_add_ps);
kernel!(f64_avx2, f64, "avx2,fma", 4, [1 2 3 4 5 6], _mm256_setzero_pd, _mm256_set1_pd,
    _mm256_loadu_pd, _mm256_storeu_pd, _mm256_fmadd_pd, _mm256_mul_pd, _mm256_add_pd);

/// Computes two steps of a chain of bf16 products. The upper halves of the words come first.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn two_steps(a: __m512, b: __m512, sum: __m512) -> __m512 {
    // SAFETY: both types have 64 bytes, and every bit pattern is valid for both.
    let words = |x: __m512| unsafe { std::mem::transmute::<__m512, __m512bh>(x) };
    _mm512_dpbf16_ps(sum, words(a), words(b))
}

kernel!(/// The kernel of f32 for words of two bf16 (see [`super::paired`]).
    ///
    pub(super) bf16_avx512, f32, "avx512f,avx2,fma,avx512bf16", 16, [1 2 3 4 5 6 7 8 9 10 11 12 13 14],
    _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, two_steps, _mm512_mul_ps, _mm512_add_ps);

/// The number of lanes of a "vector" in the portable kernel.
const LANES: usize = 4;

/// The kernel in plain Rust, with the same chains.
///
/// # Safety
/// As for [`Real::run`].
unsafe fn portable<T: Real>(j: &Micro<T>) {
    /// # Safety
    /// As for the kernel; `R` and `V` are the job's rows and vectors.
    unsafe fn go<T: Real, const R: usize, const V: usize>(j: &Micro<T>) {
        let mut sum = [[[T::ZERO; LANES]; V]; R];
        if j.store == Store::Chain {
            for (r, sum) in sum.iter_mut().enumerate() {
                for (i, s) in sum.as_flattened_mut().iter_mut().enumerate() {
                    // SAFETY: row `r < rows` of C has a panel's width of elements, as the caller promises.
                    *s = unsafe { *j.c.offset(j.ldc * r as isize).add(i) };
                }
            }
        }
        let mut b = j.b;
        for p in 0..j.k {
            // SAFETY: as below.
            let a = unsafe { j.a.offset(*j.steps.add(p)) };
            for (r, sum) in sum.iter_mut().enumerate() {
                let gap = if r >= j.split { j.gap } else { 0 };
                let at = j.row.wrapping_mul(r as isize).wrapping_add(gap);
                for (v, sum) in sum.iter_mut().enumerate() {
                    for (l, sum) in sum.iter_mut().enumerate() {
                        // SAFETY: step `p < k` reads `R` elements of A and a row of the panel, as the caller promises.
                        *sum = unsafe { (*a.offset(at)).fused(*b.add(v * LANES + l), *sum) };
                    }
                }
            }
            b = b.wrapping_offset(j.ldb);
        }
        for (r, sum) in sum.iter().enumerate() {
            for (i, &s) in sum.as_flattened().iter().enumerate() {
                // SAFETY: row `r < rows` of C has a panel's width of elements, as the caller promises.
                unsafe {
                    let c = j.c.offset(j.ldc * r as isize).add(i);
                    *c = j.store.apply(j.alpha, s, j.beta, || *c);
                }
            }
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (j.rows, j.vectors) {
            (1, 8) => go::<T, 1, 8>(j),
            (2, 4) => go::<T, 2, 4>(j),
            (3, 4) => go::<T, 3, 4>(j),
            (1, 1) => go::<T, 1, 1>(j),
            (2, 1) => go::<T, 2, 1>(j),
            (3, 1) => go::<T, 3, 1>(j),
            (4, 1) => go::<T, 4, 1>(j),
            (1, 2) => go::<T, 1, 2>(j),
            (2, 2) => go::<T, 2, 2>(j),
            (3, 2) => go::<T, 3, 2>(j),
            (4, 2) => go::<T, 4, 2>(j),
            (rows, vectors) => unreachable!("a kernel of {rows} rows of {vectors} vectors"),
        }
    }
}

macro_rules! real {
    ($t:ty, $lanes512:literal, $avx512:ident, $avx2:ident) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const DTYPE: DType = <$t as Element>::DTYPE;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }

            #[inline(always)]
            fn fused(self, a: Self, b: Self) -> Self {
                self.mul_add(a, b)
            }

            #[inline]
            fn rows(isa: Isa) -> usize {
                match isa.level() {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => 14,
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => 6,
                    Level::Portable => 4,
                }
            }

            #[inline]
            fn panel(isa: Isa) -> usize {
                match isa.level() {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => 2 * $lanes512,
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => $lanes512,
                    Level::Portable => 2 * LANES,
                }
            }

            #[inline]
            unsafe fn run(isa: Isa, j: &Micro<Self>) {
                // SAFETY: an `Isa` of this level exists only if this machine was found to have the features. The rest
                // is guaranteed by the caller.
                unsafe {
                    match isa.level() {
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx512 => $avx512(j),
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx2 => $avx2(j),
                        Level::Portable => portable(j),
                    }
                }
            }
        }
    };
}
real!(f32, 16, f32_avx512, f32_avx2);
real!(f64, 8, f64_avx512, f64_avx2);
