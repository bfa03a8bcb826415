//! Narrow rows, transposed so that a vector holds the same element of sixteen rows. Sixteen rows are then computed at
//! once, and no sum has to be taken across the lanes of a vector. The results have the same bits as for one row at a
//! time.

use crate::gemm::Transpose;
use crate::isa::Isa;
use crate::lanes::{LANES, ROWS};
use crate::vectors::Vectors;

/// The same element of every row, with one lane per row.
pub(crate) type Across<T> = [T; ROWS];

/// The number of [`Across`] values that are needed for rows of `len` elements.
pub(crate) fn size(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Sets `out[j][r] = x[r * len + j]` for the first `rows` rows, of which there are 1 to [`ROWS`]. The other lanes
/// repeat the last row. `out` has [`size`] elements, and those from `len` on are meaningless.
#[inline(always)]
pub(crate) fn transpose<T: Transpose>(isa: Isa, x: &[T], len: usize, rows: usize, out: &mut [Across<T>]) {
    assert!((1..=ROWS).contains(&rows) && x.len() >= rows * len && out.len() >= size(len));
    for r in (0..ROWS).step_by(8) {
        let mut starts = [0; 8];
        for (i, start) in starts.iter_mut().enumerate() {
            *start = (r + i).min(rows - 1) * len;
        }
        // The number of elements of each row that can be read eight at a time. The last eight may reach into the next
        // row.
        let whole = ((x.len() - starts[7]) / 8 * 8).min(size(len));
        for j in (0..whole).step_by(8) {
            let mut runs = [x.as_ptr(); 8];
            // This is a loop because a closure would not be compiled for AVX2.
            for (run, start) in runs.iter_mut().zip(starts) {
                *run = run.wrapping_add(start + j);
            }
            // SAFETY: `x` has 8 elements from each of these positions on, because it has 8 from the last of these
            // positions on. `out` has 8 rows from `j` on, each with 8 lanes from `r` on.
            unsafe { T::transpose8(isa, runs, out.as_mut_ptr().add(j).cast::<T>().add(r), ROWS) };
        }
        for j in whole..len {
            for (out, start) in out[j][r..r + 8].iter_mut().zip(starts) {
                *out = x[start + j];
            }
        }
    }
}

/// Sets `y[r * len + j] = from[j][r]` for the first `rows` rows.
#[inline(always)]
pub(crate) fn transpose_back<T: Transpose>(isa: Isa, from: &[Across<T>], len: usize, rows: usize, y: &mut [T]) {
    assert!(rows <= ROWS && y.len() >= rows * len && from.len() >= size(len));
    for r in (0..rows).step_by(8) {
        let by_blocks = if rows - r >= 8 { len / 8 * 8 } else { 0 };
        for j in (0..by_blocks).step_by(8) {
            let mut runs = [from.as_ptr().cast::<T>(); 8];
            for (i, run) in runs.iter_mut().enumerate() {
                *run = run.wrapping_add((j + i) * ROWS + r);
            }
            // SAFETY: rows `j` to `j + 8` of `from` have 8 lanes from `r` on, and 8 rows of `y` have 8 elements from
            // `j` on.
            unsafe { T::transpose8(isa, runs, y.as_mut_ptr().add(r * len + j), len) };
        }
        for r in r..rows.min(r + 8) {
            for (y, from) in y[r * len..(r + 1) * len].iter_mut().zip(from).skip(by_blocks) {
                *y = from[r];
            }
        }
    }
}

/// Replaces each lane by `f` of its index and its value.
#[inline(always)]
pub(crate) fn each<T: Copy>(lanes: &mut Across<T>, f: impl Fn(usize, T) -> T) {
    // `black_box` hides the lanes from LLVM, which would otherwise vectorise across elements and gather them.
    let lanes = std::hint::black_box(lanes);
    let mut made = *lanes;
    for (r, lane) in made.iter_mut().enumerate() {
        *lane = f(r, *lane);
    }
    *lanes = made;
}

/// Reduces each row as [`rows::tree`](crate::rows::tree) does: `map(elements, so_far)` adds the elements at each
/// position to a partial result, and `combine` then joins the partial results. `start` must be neutral: combining it
/// with a number must return that number.
#[inline(always)]
pub(crate) fn tree<V: Vectors, const N: usize>(
    v: V,
    rows: [&[Across<V::Number>]; N],
    start: V::Number,
    map: impl Fn([V::Vector; N], V::Vector) -> V::Vector,
    combine: impl Fn(V::Vector, V::Vector) -> V::Vector,
) -> Across<V::Number> {
    let len = rows[0].len();
    let mut lanes = [v.splat(start); LANES];
    for j in 0..len {
        let mut elements = [v.splat(start); N];
        for (element, row) in elements.iter_mut().zip(rows) {
            *element = v.load(&row[j]);
        }
        lanes[j % LANES] = map(elements, lanes[j % LANES]);
    }
    // The lanes from the next power of two on have no elements and can be skipped.
    let mut width = len.min(LANES).next_power_of_two() / 2;
    while width > 0 {
        for l in 0..width {
            lanes[l] = combine(lanes[l], lanes[l + width]);
        }
        width /= 2;
    }
    let mut out = [start; ROWS];
    v.store(lanes[0], &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::per_vectors;

    #[test]
    fn rows_are_turned_and_turned_back() {
        fn check<T: Transpose + PartialEq + std::fmt::Debug>(of: impl Fn(usize) -> T) {
            for isa in Isa::available() {
                for len in [1, 7, 8, 9, 24, 33] {
                    for rows in [1, 7, 8, 15, 16] {
                        // With and without elements after the rows.
                        for beyond in [0, 40] {
                            let x: Vec<T> = (0..rows * len + beyond).map(&of).collect();
                            let mut transposed = vec![[of(0); ROWS]; size(len)];
                            transpose(isa, &x, len, rows, &mut transposed);
                            for (j, transposed) in transposed[..len].iter().enumerate() {
                                assert!((0..ROWS).all(|r| transposed[r] == x[r.min(rows - 1) * len + j]));
                            }
                            let mut y = vec![of(1); rows * len + beyond];
                            transpose_back(isa, &transposed, len, rows, &mut y);
                            assert_eq!(y[..rows * len], x[..rows * len]);
                            assert!(y[rows * len..].iter().all(|&v| v == of(1)));
                        }
                    }
                }
            }
        }
        check(|i| i as f32);
        check(|i| i as f64);
    }

    #[test]
    fn sums_follow_the_tree() {
        per_vectors! { f32: fn sums(rows: &[Across<f32>]) -> Across<f32> =
        |v, rows| tree(v, [rows], 0.0, |[x], s| s + x, |a, b| a + b); }
        for len in [1, 8, 16, 17, 40] {
            let x: Vec<f32> = (0..ROWS * len).map(|i| (i as f32 * 0.37).sin()).collect();
            for isa in Isa::available() {
                let mut transposed = vec![[0.0; ROWS]; size(len)];
                transpose(isa, &x, len, ROWS, &mut transposed);
                for (row, sum) in x.chunks_exact(len).zip(sums(isa, &transposed[..len])) {
                    assert_eq!(sum.to_bits(), crate::rows::sum(row).to_bits());
                }
            }
        }
    }
}
