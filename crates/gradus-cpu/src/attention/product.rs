//! The matrix products of a tile. Their operands are packed for the GEMM kernels, and hidden parts are skipped.

use std::ops::Range;

use super::kernel::AttentionNumber;
use super::problem::{Problem, Tile};
use crate::gemm::{K_BLOCK, Micro, Real, Store, THIN_ROWS, k_step, thin_vectors};
use crate::isa::Isa;
use crate::stored::{Part, Stored};

/// The maximum number of keys that a single matrix product sums over. A panel of this many rows fits in the L1 cache.
const STEP: usize = 128;
/// The size of a small L1 cache in bytes.
const L1: usize = 32 << 10;

/// The size of a kernel: the maximum number of rows that it computes, and the width of its panels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    rows: usize,
    width: usize,
    vectors: usize,
}

impl Size {
    /// Returns the size for many rows.
    pub(super) fn full<T: Real>(isa: Isa) -> Self {
        Size { rows: T::rows(isa), width: T::panel(isa), vectors: 2 }
    }

    /// Returns the size for `rows` rows (at least 1). For a small number of rows, the panels are wider if they fit in
    /// the L1 cache.
    pub(super) fn of<T: Real>(isa: Isa, rows: usize) -> Self {
        if rows <= THIN_ROWS {
            let vectors = thin_vectors(rows);
            let width = T::panel(isa) / 2 * vectors;
            if STEP * width * size_of::<T>() <= L1 {
                return Size { rows, width, vectors };
            }
        }
        Size::full::<T>(isa)
    }

    /// Returns the number of elements in `m` packed rows of `steps` steps.
    pub(super) fn left_len(self, m: usize, steps: usize) -> usize {
        m.next_multiple_of(self.rows) * steps
    }

    /// Rounds `n` columns up to whole panels.
    pub(super) fn padded(self, n: usize) -> usize {
        n.next_multiple_of(self.width)
    }

    /// Packs `m` rows of `a` into panels that cover all steps.
    ///
    /// # Safety
    /// The rows and steps lie inside `a`.
    pub(super) unsafe fn pack_left<T>(self, isa: Isa, a: Part<'_, T>, m: usize, steps: usize, out: &mut [T]) {
        for i in (0..m).step_by(self.rows) {
            let (rows, out) = (self.rows.min(m - i), &mut out[i * steps..][..self.rows * steps]);
            // SAFETY: guaranteed by the caller. `out` has room for `steps` times the rows of a panel.
            unsafe { a.from(i, 0).rows(isa, [rows, steps], self.rows, out) };
        }
    }

    /// Packs `n` columns of `b` into panels that cover all steps, with zeros beyond the last column.
    ///
    /// # Safety
    /// The columns and steps lie inside `b`.
    pub(super) unsafe fn pack_right<T>(self, isa: Isa, b: Part<'_, T>, steps: usize, n: usize, out: &mut [T]) {
        for j in (0..n).step_by(self.width) {
            let (cols, out) = (self.width.min(n - j), &mut out[j * steps..][..self.width * steps]);
            // SAFETY: guaranteed by the caller. `out` has room for `steps` times the width of a panel.
            unsafe { b.from(0, j).panel(isa, [steps, cols], self.width, out) };
        }
    }
}

/// Rows of the left operand: row `i` at step `p` is `data[i / rows * panel + p * lda + i % rows]`, where `rows` is the
/// kernel's number of rows.
#[derive(Debug, Clone, Copy)]
struct Left<'a, T> {
    data: &'a [T],
    panel: usize,
    lda: usize,
}

/// Columns of the right operand: column `j` at step `p` is `data[j / width * panel + p * width + j % width]`, where
/// `width` is a panel's width.
#[derive(Debug, Clone, Copy)]
struct Right<'a, T> {
    data: &'a [T],
    panel: usize,
}

/// Where a product is stored. Element `(i, j)` goes to `c[i * ldc + j]` and is combined with the old value as `store`
/// specifies. Rows of `c` have room for whole panels of columns.
#[derive(Debug)]
struct Target<'a, T> {
    c: &'a mut [T],
    ldc: usize,
    store: Store,
    alpha: T,
}

/// Computes a product of `m` rows and `n` columns. `steps` returns the steps that matter to a group of rows, or `None`
/// to leave the results of these rows unchanged.
fn multiply<T: Real>(
    isa: Isa,
    size: Size,
    [m, n]: [usize; 2],
    a: Left<'_, T>,
    b: Right<'_, T>,
    to: Target<'_, T>,
    steps: &dyn Fn(Range<usize>) -> Option<Range<usize>>,
) {
    let Size { rows: mr, width, vectors } = size;
    let begins: [isize; K_BLOCK] = std::array::from_fn(|p| (p * a.lda) as isize);
    for j in (0..n).step_by(width) {
        for i in (0..m).step_by(mr) {
            let rows = mr.min(m - i);
            let Some(steps) = steps(i..i + rows) else { continue };
            let k = steps.len();
            assert!(k <= K_BLOCK);
            let a_len = if k == 0 { 0 } else { (k - 1) * a.lda + rows };
            let a_part = &a.data[i / mr * a.panel + steps.start * a.lda..][..a_len];
            let b_part = &b.data[j / width * b.panel + steps.start * width..][..k * width];
            let c_part = &mut to.c[i * to.ldc + j..][..(rows - 1) * to.ldc + width];
            let micro = Micro {
                rows,
                vectors,
                k,
                a: a_part.as_ptr(),
                row: 1,
                split: 0,
                gap: 0,
                steps: begins.as_ptr(),
                b: b_part.as_ptr(),
                ldb: width as isize,
                next: b_part.as_ptr(),
                next_by: 0,
                c: c_part.as_mut_ptr(),
                ldc: to.ldc as isize,
                store: to.store,
                alpha: to.alpha,
                beta: T::ZERO,
            };
            // SAFETY: the parts hold what the kernel reads and writes: `k` steps of `rows` rows and of a panel, and
            // `rows` rows of a panel's width.
            unsafe { T::run(isa, &micro) };
        }
    }
}

impl<T: AttentionNumber> Problem<'_, T> {
    /// Sets `out[i * ld + j] = alpha * (row i . column j)` for the keys in `span` that a tile sees, where `j` counts
    /// from the start of `span`. The rows are the packed rows of the tile, and the columns are those of a matrix
    /// `[depth, lk]`, of which `panel` holds one panel at a time. Elements that a query does not see may keep their old
    /// values.
    pub(super) fn against_keys(
        &self,
        tile: Tile,
        rows: &[T],
        (columns, depth): (Part<'_, T>, usize),
        span: Range<usize>,
        alpha: T,
        panel: &mut [T],
        (out, ld): (&mut [T], usize),
    ) {
        let isa = self.cpu.isa();
        let size @ Size { rows: mr, width, .. } = Size::of::<T>(isa, tile.len);
        let step = k_step(depth).max(1);
        for j in span.clone().step_by(width) {
            // SAFETY: keys of the span are columns of the matrix, which has `depth` rows.
            unsafe { size.pack_right(isa, columns.from(0, j), depth, width.min(span.end - j), panel) };
            for k in (0..depth.max(1)).step_by(step) {
                let len = step.min(depth - k);
                let a = Left { data: &rows[k * mr..], panel: depth * mr, lda: mr };
                let b = Right { data: &panel[k * width..], panel: 0 };
                let store = if k == 0 { Store::Set } else { Store::Add };
                let to = Target { c: &mut out[j - span.start..], ldc: ld, store, alpha };
                multiply(isa, size, [tile.len, width], a, b, to, &|rows| {
                    (self.reached(tile.first + rows.end - 1) > j).then_some(0..len)
                });
            }
        }
    }

    /// Adds `alpha * s[i][j] * (row j)`, summed over the keys `j` in `span`, to each row `i` of `out`. The rows `j` are
    /// those of a matrix `[lk, width]`. `work` has room for the packed operands, which take up
    /// [`over_keys_len`](Problem::over_keys_len) elements.
    pub(super) fn over_keys(
        &self,
        tile: Tile,
        (s, ld): (&[T], usize),
        span: Range<usize>,
        (matrix, width): (Part<'_, T>, usize),
        alpha: T,
        work: &mut [T],
        (out, ldc): (&mut [T], usize),
    ) {
        let isa = self.cpu.isa();
        let size = Size::of::<T>(isa, tile.len);
        let (left, right) = work.split_at_mut(size.left_len(tile.len, STEP));
        for j in span.clone().step_by(STEP) {
            let len = STEP.min(span.end - j);
            // SAFETY: for every query of the tile, `s` holds a row of `ld` scores, which covers all keys of the span.
            // These keys are rows of the matrix.
            unsafe {
                size.pack_left(isa, Part::new(&Stored(s), j - span.start, [ld as isize, 1]), tile.len, len, left);
                size.pack_right(isa, matrix.from(j, 0), len, width, right);
            }
            let a = Left { data: &*left, panel: size.rows * len, lda: size.rows };
            let b = Right { data: &*right, panel: size.width * len };
            let to = Target { c: &mut *out, ldc, store: Store::Add, alpha };
            multiply(isa, size, [tile.len, width], a, b, to, &|rows| {
                let end = self.reached(tile.first + rows.end - 1).saturating_sub(j).min(len);
                (end > 0).then_some(0..end)
            });
        }
    }

    /// Adds `alpha * s[i][j] * (row i)`, summed over the queries `i` of a tile, to row `j` of `out` for each key `j` in
    /// `span`, where `j` counts from the start of `span`. The rows `i` are packed as the right operand of a product
    /// with many rows.
    pub(super) fn over_queries(
        &self,
        tile: Tile,
        (s, ld): (&[T], usize),
        span: Range<usize>,
        (right, width): (&[T], usize),
        alpha: T,
        (out, ldc): (&mut [T], usize),
    ) {
        let isa = self.cpu.isa();
        let size = Size::full::<T>(isa);
        let a = Left { data: s, panel: size.rows, lda: ld };
        let b = Right { data: right, panel: size.width * tile.len };
        multiply(isa, size, [span.len(), width], a, b, Target { c: out, ldc, store: Store::Add, alpha }, &|rows| {
            let first = self.first_query(span.start + rows.start).saturating_sub(tile.first);
            (first < tile.len).then_some(first..tile.len)
        });
    }

    /// Returns the number of elements that [`over_keys`](Problem::over_keys) packs.
    pub(super) fn over_keys_len(&self, tile: Tile, width: usize) -> usize {
        let size = Size::of::<T>(self.cpu.isa(), tile.len);
        size.left_len(tile.len, STEP) + STEP * size.padded(width)
    }
}
