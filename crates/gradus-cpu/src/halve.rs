//! Reduces the partial results of several rows at once. Each step combines the upper half of every row with its lower
//! half, until one result per row is left. As rows get shorter, the remaining halves of two rows share a vector. The
//! code uses intrinsics because LLVM compiles the halving of a single row to scalar operations.

use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::lanes::{LANES, ROWS, halved, larger};

/// The minimum number of rows for which vectors pay off.
#[cfg(target_arch = "x86_64")]
const FEWEST: usize = 4;

/// A number type whose partial results can be reduced by halving: each step combines the upper half with the lower
/// half. Only the results of the first `count` rows are meaningful.
pub(crate) trait Halve: Copy {
    /// Returns the sum of each row.
    fn sums(isa: Isa, rows: &[[Self; LANES]; ROWS], count: usize) -> [Self; ROWS];
    /// Returns the largest number of each row. Each comparison keeps the number in the lower lane unless the other one
    /// is larger.
    fn largest(isa: Isa, rows: &[[Self; LANES]; ROWS], count: usize) -> [Self; ROWS];
}

/// Reduces each row by itself.
#[inline(always)]
fn one_by_one<T: Copy>(rows: &[[T; LANES]; ROWS], count: usize, combine: impl Fn(T, T) -> T) -> [T; ROWS] {
    let mut out = [rows[0][0]; ROWS];
    for (out, row) in out.iter_mut().zip(rows).take(count) {
        *out = halved(*row, &combine);
    }
    out
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Halving with vectors of f32. The functions compute sums or, if `LARGEST` is true, maxima.

    use std::arch::x86_64::*;

    use super::{LANES, ROWS};

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn combine_512<const LARGEST: bool>(a: __m512, b: __m512) -> __m512 {
        if LARGEST { _mm512_max_ps(b, a) } else { _mm512_add_ps(a, b) }
    }

    /// Reduces sixteen rows. Row `4 q + r` is passed at index `4 r + q`, so that the result of each row ends up in its
    /// own lane.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn halve_512<const LARGEST: bool>(mut v: [__m512; ROWS]) -> __m512 {
        for i in 0..8 {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            v[i] = combine_512::<LARGEST>(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
        }
        for i in 0..4 {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            v[i] = combine_512::<LARGEST>(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        }
        for i in 0..2 {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            v[i] = combine_512::<LARGEST>(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b));
        }
        let (a, b) = (v[0], v[1]);
        combine_512::<LARGEST>(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn rows_512<const LARGEST: bool>(rows: &[[f32; LANES]; ROWS]) -> [f32; ROWS] {
        let (mut v, mut out) = ([_mm512_setzero_ps(); ROWS], [0.0; ROWS]);
        for r in 0..4 {
            for q in 0..4 {
                // SAFETY: a row has sixteen elements.
                v[4 * r + q] = unsafe { _mm512_loadu_ps(rows[4 * q + r].as_ptr()) };
            }
        }
        // SAFETY: `out` has room for sixteen elements.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), halve_512::<LARGEST>(v)) };
        out
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn combine_256<const LARGEST: bool>(a: __m256, b: __m256) -> __m256 {
        if LARGEST { _mm256_max_ps(b, a) } else { _mm256_add_ps(a, b) }
    }

    /// Reduces eight rows of eight partial results. Row `4 q + r` is passed at index `2 r + q`, so that the result of
    /// each row ends up in its own lane.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn halve_256<const LARGEST: bool>(mut v: [__m256; 8]) -> __m256 {
        for i in 0..4 {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            v[i] = combine_256::<LARGEST>(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
        }
        for i in 0..2 {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            v[i] = combine_256::<LARGEST>(_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b));
        }
        let (a, b) = (v[0], v[1]);
        combine_256::<LARGEST>(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn rows_256<const LARGEST: bool>(rows: &[[f32; LANES]; ROWS]) -> [f32; ROWS] {
        let mut out = [0.0; ROWS];
        for first in [0, 8] {
            let mut v = [_mm256_setzero_ps(); 8];
            for r in 0..4 {
                for q in 0..2 {
                    let row = rows[first + 4 * q + r].as_ptr();
                    // SAFETY: a row has sixteen elements.
                    let (low, high) = unsafe { (_mm256_loadu_ps(row), _mm256_loadu_ps(row.add(8))) };
                    v[2 * r + q] = combine_256::<LARGEST>(low, high);
                }
            }
            // SAFETY: `out` has room for eight elements from `first` on.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(first), halve_256::<LARGEST>(v)) };
        }
        out
    }
}

macro_rules! of_f32 {
    ($name:ident, $largest:literal, $combine:expr) => {
        #[inline(always)]
        fn $name(isa: Isa, rows: &[[f32; LANES]; ROWS], count: usize) -> [f32; ROWS] {
            #[cfg(target_arch = "x86_64")]
            if count >= FEWEST {
                match isa.level() {
                    // SAFETY: an `Isa` of this level exists only if this machine was found to have the features.
                    Level::Avx512 => return unsafe { x86::rows_512::<$largest>(rows) },
                    // SAFETY: as above.
                    Level::Avx2 => return unsafe { x86::rows_256::<$largest>(rows) },
                    Level::Portable => {}
                }
            }
            let _ = isa;
            one_by_one(rows, count, $combine)
        }
    };
}

impl Halve for f32 {
    of_f32!(sums, false, |a, b| a + b);
    of_f32!(largest, true, larger);
}

impl Halve for f64 {
    #[inline(always)]
    fn sums(_: Isa, rows: &[[f64; LANES]; ROWS], count: usize) -> [f64; ROWS] {
        one_by_one(rows, count, |a, b| a + b)
    }
    #[inline(always)]
    fn largest(_: Isa, rows: &[[f64; LANES]; ROWS], count: usize) -> [f64; ROWS] {
        one_by_one(rows, count, larger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_halved_in_one_order_on_every_instruction_set() {
        let rows: [[f32; LANES]; ROWS] =
            std::array::from_fn(|r| std::array::from_fn(|j| ((r * 31 + j * 17) % 23) as f32 / 7.0 - 1.3));
        let mut odd = rows;
        (odd[3][5], odd[7][0], odd[9][8]) = (f32::NAN, f32::NAN, f32::INFINITY);
        // The same reduction tree, written recursively.
        fn tree(lanes: &[f32], combine: &impl Fn(f32, f32) -> f32) -> f32 {
            match lanes {
                [one] => *one,
                _ => {
                    let (low, high) = lanes.split_at(lanes.len() / 2);
                    tree(&low.iter().zip(high).map(|(&a, &b)| combine(a, b)).collect::<Vec<_>>(), combine)
                }
            }
        }
        let add = |a: f32, b: f32| a + b;
        for isa in Isa::available() {
            for count in 1..=ROWS {
                for r in 0..count {
                    let bits = |v: [f32; ROWS]| v[r].to_bits();
                    assert_eq!(bits(f32::sums(isa, &rows, count)), tree(&rows[r], &add).to_bits());
                    assert_eq!(bits(f32::largest(isa, &odd, count)), tree(&odd[r], &larger::<f32>).to_bits());
                }
            }
        }
    }
}
