//! The operands of GEMM, and how they are packed in the order in which the kernels read them.

use std::any::TypeId;
use std::marker::PhantomData;
use std::ops::Range;

use smallvec::SmallVec;

use super::kernel::{Micro, Real};
use super::transpose::Transpose;
use crate::access::Float;
use crate::isa::{Isa, per_isa, per_isa_256};

/// If columns are at least this many bytes apart, a matrix is assumed to come from memory rather than from a cache.
const FAR: usize = 8 << 10;
/// Addresses that are a multiple of this many bytes apart compete for the same set of an L1 cache.
const PAGE: usize = 4 << 10;

/// A strided matrix behind a pointer.
///
/// **Invariant**: while `'a` lasts, every element `(i, j)` within the size of the matrix may be read. The users of the
/// matrix know its size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mat<'a, S> {
    ptr: *const S,
    /// The distances between rows and between columns in bytes. They are not in elements, because a pair of elements
    /// need not start at a multiple of its size.
    rs: isize,
    cs: isize,
    life: PhantomData<&'a [S]>,
}

// SAFETY: a `Mat` is a shared borrow of `[S]`, and `S` is `Sync`.
unsafe impl<S: Sync> Sync for Mat<'_, S> {}
// SAFETY: as above.
unsafe impl<S: Sync> Send for Mat<'_, S> {}

impl<'a, S: Copy> Mat<'a, S> {
    /// Creates the matrix whose element `(i, j)` is `data[at + i * rs + j * cs]`.
    ///
    /// # Safety
    /// Users access only elements that lie inside `data`.
    pub(crate) unsafe fn new(data: &'a [S], at: usize, rs: isize, cs: isize) -> Self {
        let size = size_of::<S>() as isize;
        Mat {
            ptr: data.as_ptr().wrapping_add(at),
            rs: rs.wrapping_mul(size),
            cs: cs.wrapping_mul(size),
            life: PhantomData,
        }
    }

    /// Returns the submatrix that starts at element `(i, j)`.
    #[inline]
    pub(crate) fn from(&self, i: usize, j: usize) -> Self {
        let by = self.rs.wrapping_mul(i as isize).wrapping_add(self.cs.wrapping_mul(j as isize));
        Mat { ptr: self.ptr.wrapping_byte_offset(by), ..*self }
    }

    /// Returns the matrix with rows and columns exchanged.
    pub(crate) fn transposed(&self) -> Self {
        Mat { rs: self.cs, cs: self.rs, ..*self }
    }

    /// Returns the same memory as a matrix of larger elements, each of which covers `rows` by `cols` elements of this
    /// matrix.
    pub(super) fn cast<T>(&self, rows: isize, cols: isize) -> Mat<'a, T> {
        Mat { ptr: self.ptr.cast(), rs: self.rs.wrapping_mul(rows), cs: self.cs.wrapping_mul(cols), life: PhantomData }
    }

    /// Whether rows start one element apart.
    #[inline]
    pub(crate) fn has_adjacent_rows(&self) -> bool {
        self.rs == size_of::<S>() as isize
    }

    /// Whether columns start one element apart.
    #[inline]
    pub(crate) fn has_adjacent_cols(&self) -> bool {
        self.cs == size_of::<S>() as isize
    }

    /// Returns the distance from one row to the next in elements.
    #[inline]
    fn row_stride(&self) -> isize {
        self.rs / size_of::<S>() as isize
    }

    pub(crate) fn as_ptr(&self) -> *const S {
        self.ptr
    }

    /// # Safety
    /// `(i, j)` is an element of the matrix.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, i: usize, j: usize) -> S {
        // SAFETY: guaranteed by the caller.
        unsafe { *self.ptr.byte_offset(self.rs * i as isize + self.cs * j as isize) }
    }
}

/// The left operand of a product.
pub(crate) trait Left<T> {
    /// Writes the first `rows` rows of steps `k` to `out` in panels of `lda` rows, each as `[steps][lda]`. The panels
    /// lie `lda * k.len()` apart.
    ///
    /// # Safety
    /// The rows and steps lie inside the operand, and `out` has room for whole panels.
    unsafe fn pack(&self, isa: Isa, rows: usize, k: Range<usize>, lda: usize, out: &mut [T]);

    /// Returns the address of row 0 and the distance to the next row if kernels can read the rows in place. This
    /// requires that the rows are contiguous and do not compete for the same cache set.
    fn in_place(&self) -> Option<(*const T, isize)>;

    /// Returns the number of kernel steps for `ks` packed steps of a product.
    fn steps(&self, ks: usize) -> usize;

    /// Runs the kernel on packed operands.
    ///
    /// # Safety
    /// As for [`Real::run`].
    unsafe fn run(&self, isa: Isa, j: &Micro<T>);
}

impl<S: Pack> Left<S::Compute> for Mat<'_, S> {
    unsafe fn pack(&self, isa: Isa, rows: usize, k: Range<usize>, lda: usize, out: &mut [S::Compute]) {
        // SAFETY: guaranteed by the caller.
        unsafe { S::rows(isa, self.from(0, k.start), rows, k.len(), lda, out) }
    }

    fn in_place(&self) -> Option<(*const S::Compute, isize)> {
        let apart = !self.rs.unsigned_abs().is_multiple_of(PAGE);
        let same = TypeId::of::<S>() == TypeId::of::<S::Compute>();
        (same && self.has_adjacent_cols() && apart).then(|| (self.ptr.cast(), self.row_stride()))
    }

    fn steps(&self, ks: usize) -> usize {
        S::steps(ks)
    }

    unsafe fn run(&self, isa: Isa, j: &Micro<S::Compute>) {
        // SAFETY: guaranteed by the caller.
        unsafe { S::run(isa, j) }
    }
}

/// The right operand of a product, which can lay out its columns in panels.
pub(crate) trait Panels<T>: Sync {
    /// Writes rows `k` of columns `j` to `out` as `[k.len()][width]`, with zeros in the columns beyond `j`.
    ///
    /// # Safety
    /// The rows and columns lie inside the operand, `out` has room for one row more than is packed, and
    /// `j.len() <= width`.
    unsafe fn pack(&self, isa: Isa, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [T]);

    /// Returns the address of row `k`, column `j`, and the distance to the next row, if the columns of a row are
    /// contiguous.
    fn direct(&self, k: usize, j: usize) -> Option<(*const T, isize)>;

    /// Whether `direct` returns whole panels, including zeros beyond the last column.
    fn is_packed(&self) -> bool {
        false
    }
}

/// Transposes eight runs of eight elements each and widens them: `out[p * ld + r] = runs[r][p]`.
///
/// # Safety
/// As for [`Transpose::transpose8`].
#[inline(always)]
unsafe fn transpose<S: Float<Compute: Transpose>>(isa: Isa, runs: [*const S; 8], out: *mut S::Compute, ld: usize) {
    if TypeId::of::<S>() == TypeId::of::<S::Compute>() {
        // SAFETY: guaranteed by the caller. The two types are the same.
        return unsafe { S::Compute::transpose8(isa, runs.map(|r| r.cast()), out, ld) };
    }
    let mut wide = [[S::Compute::default(); 8]; 8];
    for (wide, run) in wide.iter_mut().zip(runs) {
        for (i, w) in wide.iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller.
            *w = unsafe { *run.add(i) }.widen();
        }
    }
    // SAFETY: the caller guarantees this for `out`, and each row of `wide` has 8 numbers.
    unsafe { S::Compute::transpose8(isa, wide.each_ref().map(|w| w.as_ptr()), out, ld) }
}

/// Packs `rows` rows of A for `ks` steps in panels of `lda` rows, each as `[ks][lda]`.
///
/// # Safety
/// `out` has room for whole panels, and the elements lie inside `a`.
#[inline(always)]
pub(super) unsafe fn pack_rows<S: Float<Compute: Transpose>>(
    isa: Isa,
    a: Mat<'_, S>,
    rows: usize,
    ks: usize,
    lda: usize,
    out: &mut [S::Compute],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if a.has_adjacent_rows() {
            return match lda {
                14 => pack_whole::<S, 14>(a, rows, ks, out),
                6 => pack_whole::<S, 6>(a, rows, ks, out),
                8.. => pack_columns::<S, 8>(a, rows, ks, lda, out),
                _ => pack_columns::<S, 4>(a, rows, ks, lda, out),
            };
        }
        for (i, out) in (0..rows).step_by(lda).zip(out.chunks_exact_mut((lda * ks).max(1))) {
            pack_strided(isa, a.from(i, 0), lda.min(rows - i), ks, lda, out);
        }
    }
}

/// Like [`pack_rows`], for rows that lie side by side. The elements of a step are read for all panels at once, because a
/// panel alone uses only a part of each cache line.
///
/// # Safety
/// As for [`pack_rows`]; rows lie one element apart.
#[inline(always)]
unsafe fn pack_columns<S: Float, const N: usize>(
    a: Mat<'_, S>,
    rows: usize,
    ks: usize,
    lda: usize,
    out: &mut [S::Compute],
) {
    let panels = out.chunks_exact_mut((lda * ks).max(1)).take(rows.div_ceil(lda));
    let mut panels: SmallVec<[_; 16]> = panels.map(|panel| panel.chunks_exact_mut(lda)).collect();
    for p in 0..ks {
        // SAFETY: the `rows` adjacent elements of step `p` lie inside `a`.
        let row = unsafe { std::slice::from_raw_parts(a.from(0, p).as_ptr(), rows) };
        for (from, panel) in row.chunks(lda).zip(&mut panels) {
            let Some(out) = panel.next() else { break };
            if from.len() < N {
                out.iter_mut().zip(from).for_each(|(o, x)| *o = x.widen());
                continue;
            }
            // Blocks of `N`, of which the last two may overlap.
            for r in (0..from.len() - N).step_by(N).chain([from.len() - N]) {
                let (from, out) = (&from[r..r + N], &mut out[r..r + N]);
                for i in 0..N {
                    out[i] = from[i].widen();
                }
            }
        }
    }
}

/// Like [`pack_columns`], for the panels of a kernel with `LDA` rows.
///
/// # Safety
/// As for [`pack_columns`].
#[inline(always)]
unsafe fn pack_whole<S: Float, const LDA: usize>(a: Mat<'_, S>, rows: usize, ks: usize, out: &mut [S::Compute]) {
    let (out, _) = out.as_chunks_mut::<LDA>();
    let last = rows / LDA * ks;
    for p in 0..ks {
        prefetch::<L1, S>(a.from(0, p + AHEAD).as_ptr(), rows);
        // SAFETY: the `rows` adjacent elements of step `p` lie inside `a`.
        let row = unsafe { std::slice::from_raw_parts(a.from(0, p).as_ptr(), rows) };
        let (panels, rest) = row.as_chunks::<LDA>();
        for (panel, out) in panels.iter().zip(out[p..].iter_mut().step_by(ks)) {
            *out = panel.map(|x| x.widen());
        }
        if !rest.is_empty() {
            out[last + p].iter_mut().zip(rest).for_each(|(o, x)| *o = x.widen());
        }
    }
}

/// Packs at most `lda` rows as `[ks][lda]`.
///
/// # Safety
/// `rows <= lda`, `out` is `ks * lda` long, and the elements lie inside `a`.
#[inline(always)]
pub(super) unsafe fn pack_strided<S: Float<Compute: Transpose>>(
    isa: Isa,
    a: Mat<'_, S>,
    rows: usize,
    ks: usize,
    lda: usize,
    out: &mut [S::Compute],
) {
    let mut p0 = 0;
    if a.has_adjacent_cols() {
        // Packs blocks of 8 rows, the last block first. What this block writes beyond `lda` belongs to the next step
        // and is later overwritten by that step's first block. Only stores that end inside `out` are made this way.
        // Missing rows repeat the last one.
        while p0 + 8 <= ks && (p0 + 7) * lda + rows.next_multiple_of(8) <= out.len() {
            for r0 in (0..rows).step_by(8).rev() {
                let runs = std::array::from_fn(|r| a.from((r0 + r).min(rows - 1), p0).as_ptr());
                // SAFETY: 8 adjacent elements of each row lie inside `a`; the loop's condition keeps stores inside
                // `out`.
                unsafe { transpose::<S>(isa, runs, out.as_mut_ptr().add(p0 * lda + r0), lda) };
            }
            p0 += 8;
        }
    }
    for (p, o) in out.chunks_exact_mut(lda).enumerate().skip(p0) {
        for (r, o) in o[..rows].iter_mut().enumerate() {
            // SAFETY: `(r, p)` lies inside `a`.
            *o = unsafe { a.get(r, p) }.widen();
        }
    }
}

/// Where [`prefetch`] puts elements, as the hint of x86-64: in all caches, or in all but the first.
const L1: i32 = 3;
pub(crate) const L2: i32 = 2;

/// Prefetches a run of `len` elements, for loops over more runs, or over runs further apart, than the hardware prefetcher
/// can follow. The run need not lie inside an allocation.
#[inline(always)]
pub(crate) fn prefetch<const HINT: i32, S>(run: *const S, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..len * size_of::<S>()).step_by(64) {
        // SAFETY: a prefetch reads nothing, so any address is allowed.
        unsafe { std::arch::x86_64::_mm_prefetch::<HINT>(run.cast::<i8>().wrapping_add(at)) };
    }
}

/// The number of runs ahead that are prefetched while runs are copied.
const AHEAD: usize = 12;

/// Copies whole rows of a panel, whose width is a multiple of `W`.
///
/// # Safety
/// Rows of `b` have `width` contiguous elements, and there are as many rows as `out` has room for.
#[inline(always)]
unsafe fn copy_rows<S: Float, const W: usize>(b: Mat<'_, S>, width: usize, out: &mut [S::Compute]) {
    debug_assert!(width.is_multiple_of(W));
    for (p, o) in out.chunks_exact_mut(width).enumerate() {
        prefetch::<L1, S>(b.from(p + AHEAD, 0).as_ptr(), width);
        // SAFETY: guaranteed by the caller.
        let row = unsafe { std::slice::from_raw_parts(b.from(p, 0).as_ptr(), width) };
        for (o, x) in o.as_chunks_mut::<W>().0.iter_mut().zip(row.as_chunks::<W>().0) {
            // All are read before any is written, so that vectors are copied.
            *o = x.map(|x| x.widen());
        }
    }
}

/// Packs a panel of B as `[ks][width]` with zeros beyond `cols`.
///
/// # Safety
/// `cols <= width`, `out` is at least `ks * width` long, and the elements lie inside `b`.
#[inline(always)]
pub(super) unsafe fn pack_panel<S: Float<Compute: Transpose>>(
    isa: Isa,
    b: Mat<'_, S>,
    ks: usize,
    cols: usize,
    width: usize,
    out: &mut [S::Compute],
) {
    let out = &mut out[..ks * width];
    let zero = S::Compute::default();
    if b.has_adjacent_cols() {
        if cols == width {
            // SAFETY: `width` adjacent elements of every row lie inside `b`. The width of a panel is a multiple of 4.
            unsafe {
                match width {
                    w if w.is_multiple_of(32) => copy_rows::<S, 32>(b, width, out),
                    w if w.is_multiple_of(8) => copy_rows::<S, 8>(b, width, out),
                    _ => copy_rows::<S, 4>(b, width, out),
                }
            }
            return;
        }
        for (p, o) in out.chunks_exact_mut(width).enumerate() {
            // SAFETY: `cols` adjacent elements of row `p` lie inside `b`.
            let row = unsafe { std::slice::from_raw_parts(b.from(p, 0).as_ptr(), cols) };
            let (head, tail) = o.split_at_mut(cols);
            for (o, &x) in head.iter_mut().zip(row) {
                *o = x.widen();
            }
            tail.fill(zero);
        }
        return;
    }
    let (mut steps, mut whole) = (0, 0);
    if b.has_adjacent_rows() {
        // Columns are contiguous in memory. They are packed 8 at a time, because more would compete for the same cache
        // sets.
        (steps, whole) = (ks / 8 * 8, cols / 8 * 8);
        let far = b.cs.unsigned_abs() >= FAR;
        for j in (0..whole).step_by(8) {
            for p in (0..steps).step_by(8) {
                let runs = std::array::from_fn(|q| b.from(p, j + q).as_ptr());
                if far && (p * size_of::<S>()).is_multiple_of(64) {
                    runs.iter().for_each(|run| prefetch::<L1, S>(run.wrapping_byte_add(512), 1));
                }
                // SAFETY: 8 adjacent elements of each column lie inside `b`, and `out` has room for 8 steps of 8
                // columns.
                unsafe { transpose::<S>(isa, runs, out.as_mut_ptr().add(p * width + j), width) };
            }
        }
    }
    let first = if whole == width { steps } else { 0 };
    for (p, o) in out.chunks_exact_mut(width).enumerate().skip(first) {
        let done = if p < steps { whole } else { 0 };
        for (j, o) in o.iter_mut().enumerate().skip(done) {
            // SAFETY: `(p, j)` lies inside `b` if `j < cols`.
            *o = if j < cols { unsafe { b.get(p, j) }.widen() } else { zero };
        }
    }
}

#[inline(always)]
pub(super) fn round<S: Float>(from: &[S::Compute], to: &mut [S]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = S::narrow(from));
}

/// The packing of a storage type, on every instruction set.
pub(crate) trait Pack: Float<Compute: Real> {
    /// See [`pack_rows`].
    ///
    /// # Safety
    /// As for [`pack_rows`].
    unsafe fn rows(isa: Isa, a: Mat<'_, Self>, rows: usize, ks: usize, lda: usize, out: &mut [Self::Compute]);

    /// See [`pack_panel`].
    ///
    /// # Safety
    /// As for [`pack_panel`].
    unsafe fn panel(isa: Isa, b: Mat<'_, Self>, ks: usize, cols: usize, width: usize, out: &mut [Self::Compute]);

    /// Rounds the numbers in `from` and stores them in `to`.
    fn round(isa: Isa, from: &[Self::Compute], to: &mut [Self]);

    /// Returns the number of kernel steps for `ks` packed steps of a product.
    #[inline(always)]
    fn steps(ks: usize) -> usize {
        ks
    }

    /// Runs the kernel on packed operands.
    ///
    /// # Safety
    /// As for [`Real::run`].
    #[inline(always)]
    unsafe fn run(isa: Isa, j: &Micro<Self::Compute>) {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::Compute::run(isa, j) }
    }
}

macro_rules! pack {
    ($($per_isa:ident $s:ty, $rows:ident, $panel:ident, $round:ident;)*) => {$(
        per_isa_256! {
            fn $rows(isa: Isa, a: Mat<'_, $s>, rows: usize, ks: usize, lda: usize, out: &mut [<$s as Float>::Compute]) =
                // SAFETY: only `Pack::rows` calls this, and its caller upholds the contract.
                |isa, a, rows, ks, lda, out| unsafe { pack_rows::<$s>(isa, a, rows, ks, lda, out) };
            fn $round(from: &[<$s as Float>::Compute], to: &mut [$s]) = round::<$s>;
        }
        $per_isa! {
            fn $panel(isa: Isa, b: Mat<'_, $s>, ks: usize, cols: usize, width: usize, out: &mut [<$s as Float>::Compute]) =
                // SAFETY: only `Pack::panel` calls this, and its caller upholds the contract.
                |isa, b, ks, cols, width, out| unsafe { pack_panel::<$s>(isa, b, ks, cols, width, out) };
        }
        impl Pack for $s {
            unsafe fn rows(isa: Isa, a: Mat<'_, Self>, rows: usize, ks: usize, lda: usize, out: &mut [Self::Compute]) {
                $rows(isa, isa, a, rows, ks, lda, out)
            }
            unsafe fn panel(isa: Isa, b: Mat<'_, Self>, ks: usize, cols: usize, width: usize, out: &mut [Self::Compute]) {
                $panel(isa, isa, b, ks, cols, width, out)
            }
            fn round(isa: Isa, from: &[Self::Compute], to: &mut [Self]) {
                $round(isa, from, to)
            }
        }
    )*};
}
pack! {
    per_isa f32, f32_rows, f32_panel, f32_round;
    per_isa f64, f64_rows, f64_panel, f64_round;
    per_isa_256 gradus_backend::f16, f16_rows, f16_panel, f16_round;
    per_isa_256 gradus_backend::bf16, bf16_rows, bf16_panel, bf16_round;
}

impl<S: Pack> Panels<S::Compute> for Mat<'_, S> {
    unsafe fn pack(&self, isa: Isa, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [S::Compute]) {
        // SAFETY: guaranteed by the caller.
        unsafe { S::panel(isa, self.from(k.start, j.start), k.len(), j.len(), width, out) }
    }

    #[inline]
    fn direct(&self, k: usize, j: usize) -> Option<(*const S::Compute, isize)> {
        let same = TypeId::of::<S>() == TypeId::of::<S::Compute>();
        (same && self.has_adjacent_cols()).then(|| (self.from(k, j).as_ptr().cast(), self.row_stride()))
    }
}
