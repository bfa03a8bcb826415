//! Products that cuBLASLt computes: those of half precision that it computes faster, and whose matrices it can reach.

use gradus_backend::{DType, Layout, MergedAxes, Result, Scalar, View, ViewMut};

use crate::CudaBackend;
use crate::driver::{Matrix, Problem, is_stand_in};
use crate::operand::Operand;

/// Computes the product if the library is there and is the right choice. Returns whether it did.
pub(super) fn gemm(
    b: &CudaBackend,
    op: &str,
    factors: [Scalar; 2],
    operands: &[Operand<'_>; 3],
    batch: &MergedAxes,
) -> Result<bool> {
    if !b.options().cublaslt || hides(factors) {
        return Ok(false);
    }
    let Some((problem, addresses)) = problem(operands, batch) else { return Ok(false) };
    let Some(library) = b.library.get(&b.device, || b.memory().trim())? else { return Ok(false) };
    let factors = factors.map(|factor| factor.to_f64() as f32);
    let Some(product) = library.product(&problem, addresses, factors)? else { return Ok(false) };
    b.queue().multiply(op, &operands.map(|o| o.used), &product)
}

/// Whether a factor is 0 in f32, where the library would not read the matrices, and so lose infinities and NaN. A `beta` of 0
/// means that the result is not read.
fn hides([alpha, beta]: [Scalar; 2]) -> bool {
    let is_zero = |factor: Scalar| factor.to_f64() as f32 == 0.0;
    is_zero(alpha) || (is_zero(beta) && beta.to_f64() != 0.0)
}

/// The smallest size of an axis. Below it, most of a tile of the library's kernels would be empty.
const SMALLEST: usize = 16;
/// The smallest number of products. With fewer, the library's work on the host takes longer than our kernels.
const FEWEST: usize = 1 << 27;
/// The longest inner axis, since one sum of the library's may go along all of it. Tensor cores add 16 products to a sum at a
/// time, and each such addition may lose 2⁻²³ of the sum. Along 2¹⁷ elements there are 2¹³ of them, which lose at most 2⁻¹⁰ of
/// the sum of the magnitudes of all products.
const LONGEST: usize = 1 << 17;
/// The alignment in bytes of addresses, and of the distances of rows, that the library's fast kernels need.
const ALIGNMENT: isize = 16;
/// The smallest size of the axis that a matrix does not have for which an aligned copy of it takes less time than it saves. An
/// aligned product is some five times as fast.
const COPIED: usize = 256;

/// Whether the library computes as many products of these sizes faster, if all matrices are aligned.
fn is_faster([m, n, k]: [usize; 3], count: usize) -> bool {
    m.min(n).min(k) >= SMALLEST && m.saturating_mul(n).saturating_mul(k).saturating_mul(count) >= FEWEST
}

/// Whether the matrices of an operand begin at aligned places of its memory, and one of their axes is contiguous and the other one
/// aligned.
fn is_aligned(dtype: DType, layout: &Layout) -> bool {
    let (lead, steps, dims) = (layout.rank() - 2, layout.strides(), layout.dims());
    let whole = |step: isize| (step * dtype.size() as isize) % ALIGNMENT == 0;
    let lies =
        |fast: usize, slow: usize| (steps[fast] == 1 || dims[fast] == 1) && (whole(steps[slow]) || dims[slow] == 1);
    let one = lies(lead + 1, lead) || lies(lead, lead + 1);
    one && steps[..lead].iter().copied().chain([layout.offset() as isize]).all(whole)
}

/// Which matrices to copy to aligned places, so that the library computes `alpha * x * y + beta * out` fast; `None` for all other
/// products.
pub(super) fn to_copy(
    b: &CudaBackend,
    factors: [Scalar; 2],
    [x, y]: [View<'_>; 2],
    out: &ViewMut<'_>,
) -> Result<Option<[bool; 3]>> {
    let lead = out.layout.rank() - 2;
    let ([m, n], k) = ([out.layout.dims()[lead], out.layout.dims()[lead + 1]], y.layout.dims()[lead]);
    let is_one = out.layout.numel() == m * n && k <= LONGEST && !hides(factors);
    if !b.options().cublaslt || !matches!(x.dtype, DType::F16 | DType::BF16) || !is_one {
        return Ok(None);
    }
    let (fewest, faster) = if is_stand_in() { (2 * SMALLEST, true) } else { (COPIED, is_faster([m, n, k], 1)) };
    let wrong = [x.layout, y.layout, out.layout].map(|layout| !is_aligned(x.dtype, layout));
    // What a copy costs is to be saved along the axis that the matrix lacks. A result that is read too would be copied twice.
    let pays = [n >= fewest, m >= fewest, k >= fewest && factors[1].to_f64() == 0.0];
    let all = || wrong.iter().zip(pays).all(|(wrong, pays)| pays || !wrong);
    let found = || Ok(b.library.get(&b.device, || b.memory().trim())?.is_some());
    Ok((faster && wrong.contains(&true) && all() && found()?).then_some(wrong))
}

/// A matrix of an operand: its sizes, and the distances of neighbours along each axis.
#[derive(Clone, Copy)]
struct Strided {
    dims: [usize; 2],
    steps: [isize; 2],
    /// From one matrix of the batch to the next.
    batch: isize,
    ptr: u64,
}

impl Strided {
    fn transposed(self) -> Strided {
        let ([rows, cols], [row, col]) = (self.dims, self.steps);
        Strided { dims: [cols, rows], steps: [col, row], ..self }
    }

    /// The matrix stored by columns, if its columns are contiguous and do not overlap.
    fn by_columns(self) -> Option<Matrix> {
        let ([rows, cols], [row, col]) = (self.dims, self.steps);
        let ld = if cols == 1 { rows as isize } else { col };
        let is_matrix = (row == 1 || rows == 1) && ld >= rows as isize && self.batch >= 0;
        is_matrix.then(|| Matrix {
            rows: rows as u64,
            cols: cols as u64,
            ld: ld as i64,
            step: self.batch as i64,
            is_transposed: false,
            alignment: 1 << self.ptr.trailing_zeros().min(8),
        })
    }

    /// The same, or its transpose.
    fn factor(self) -> Option<Matrix> {
        let turned = || self.transposed().by_columns().map(|m| Matrix { is_transposed: true, ..m });
        self.by_columns().or_else(turned)
    }
}

/// Whether each row, column and matrix of a batch lies beyond the end of the one before, or between its elements. A result has to
/// be so: its elements do not share memory then.
fn is_nested(m: &Matrix, count: usize) -> bool {
    let mut axes = [(m.ld, m.cols as i64), (m.step, count as i64)];
    axes.sort();
    let mut end = m.rows as i64;
    axes.iter().filter(|(_, size)| *size > 1).all(|(step, size)| {
        let is_beyond = *step >= end;
        end += step * (size - 1);
        is_beyond
    })
}

/// The product as one of the library's, with the addresses of its matrices. `None` if it is to be computed otherwise.
fn problem([p, q, r]: &[Operand<'_>; 3], batch: &MergedAxes) -> Option<(Problem, [u64; 3])> {
    if !matches!(p.dtype, DType::F16 | DType::BF16) || batch.rank() > 1 {
        return None;
    }
    let lead = r.layout.rank() - 2;
    let pair = |values: &[usize]| [values[lead], values[lead + 1]];
    let ([m, n], [k, _]) = (pair(r.layout.dims()), pair(q.layout.dims()));
    let aligned = || [p, q, r].iter().all(|o| is_aligned(o.dtype, o.layout));
    // A library that stands in for the driver has no speed, so over it, all are tried.
    if k > LONGEST || !(is_stand_in() || is_faster([m, n, k], batch.numel()) && aligned()) {
        return None;
    }
    let strided = |o: &Operand<'_>, at: usize| Strided {
        dims: pair(o.layout.dims()),
        steps: [o.layout.strides()[lead], o.layout.strides()[lead + 1]],
        batch: batch.steps[at].first().copied().unwrap_or(0),
        ptr: o.ptr,
    };
    let [a, b, c] = [strided(p, 0), strided(q, 1), strided(r, 2)];
    // A result that is stored by rows is the transpose of one that is stored by columns: that of the factors' transposes,
    // the other way round.
    let (a, b, c, to) = match c.transposed().by_columns() {
        Some(to) => (b.transposed(), a.transposed(), c, to),
        None => (a, b, c, c.by_columns()?),
    };
    let count = i32::try_from(batch.numel()).ok().filter(|_| is_nested(&to, batch.numel()))?;
    let problem = Problem { dtype: p.dtype, batch: count, a: a.factor()?, b: b.factor()?, c: to };
    Some((problem, [a.ptr, b.ptr, c.ptr]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_products_are_not_the_librarys() {
        assert!(is_faster([512; 3], 1) && is_faster([128; 3], 64) && is_faster([16, 50_257, 768], 1));
        assert!(!is_faster([15, 4096, 4096], 1) && !is_faster([511; 3], 1) && !is_faster([1024, 1024, 32], 1));
    }

    #[test]
    fn a_matrix_is_stored_by_columns_or_is_the_transpose_of_one_that_is() {
        let of = |dims, steps| Strided { dims, steps, batch: 0, ptr: 768 };
        let by_columns = of([3, 5], [1, 8]).factor().unwrap();
        assert_eq!((by_columns.rows, by_columns.cols, by_columns.ld, by_columns.is_transposed), (3, 5, 8, false));
        let by_rows = of([3, 5], [8, 1]).factor().unwrap();
        assert_eq!((by_rows.rows, by_rows.cols, by_rows.ld, by_rows.is_transposed), (5, 3, 8, true));
        assert_eq!((by_rows.alignment, of([1, 5], [9, 2]).factor().unwrap().ld), (256, 2));
        // Rows that overlap, neighbours that are apart on both axes, and steps backwards.
        for steps in [[4, 1], [10, 2], [8, -1], [-8, 1], [0, 1]] {
            assert!(of([3, 5], steps).factor().is_none(), "{steps:?}");
        }
        assert!(Strided { batch: -1, ..of([3, 5], [5, 1]) }.factor().is_none());
    }

    #[test]
    fn results_of_a_batch_may_lie_between_each_others_rows_but_not_on_them() {
        let of = |ld, step| Matrix { rows: 4, cols: 3, ld, step, is_transposed: false, alignment: 16 };
        assert!(is_nested(&of(4, 12), 2) && is_nested(&of(8, 4), 2) && is_nested(&of(4, 0), 1));
        assert!(!is_nested(&of(4, 8), 2) && !is_nested(&of(8, 4), 3) && !is_nested(&of(4, 0), 2));
    }
}
