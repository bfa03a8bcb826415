//! The computation of one tile of C, with cache blocking and with incomplete panels at the edges.
//!
//! For each block of `k`, the tile's rows of A are packed once, unless kernels can read them in place, and stay in the
//! L2 cache. Each panel of B is packed into the L1 cache just before it is multiplied by all rows of the tile. Only the
//! size of `k` determines how it is divided into blocks.

use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::kernel::{Micro, Real, Store, THIN_ROWS, thin_vectors};
use super::pack::{Left, Mat, Pack, Panels};
use crate::isa::Isa;
use crate::scratch;

/// The longest chain of fused multiply-adds. Longer sums are sums of several chains.
pub(crate) const K_BLOCK: usize = 384;
/// The number of steps that a product with few rows processes at a time if B is read in place.
const THIN_STEPS: usize = 16;
/// The number of steps that a product with few rows processes at a time if B is packed.
const THIN_PACK: usize = 96;
/// If rows of B start at most this many bytes apart, reading them in place costs less than packing them.
const CLOSE: usize = 128;
/// The maximum number of rows of a kernel, over all instruction sets.
const ROWS: usize = 14;
/// The number of elements in the largest result of one kernel call.
const MICRO: usize = ROWS * 32;

/// `STEPS[lda]` holds the offset of each step in packed rows of A.
pub(super) static STEPS: [[isize; K_BLOCK]; ROWS + 1] = {
    let mut steps = [[0; K_BLOCK]; ROWS + 1];
    let mut i = 0;
    while i < (ROWS + 1) * K_BLOCK {
        steps[i / K_BLOCK][i % K_BLOCK] = (i / K_BLOCK * (i % K_BLOCK)) as isize;
        i += 1;
    }
    steps
};

/// A strided matrix that is written through a pointer.
#[derive(Debug)]
pub(crate) struct MatMut<'a, S> {
    ptr: *mut S,
    rs: isize,
    cs: isize,
    life: PhantomData<&'a mut [S]>,
}

impl<S> Clone for MatMut<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for MatMut<'_, S> {}

// SAFETY: by the contract of `MatMut::new`, no two users access the same element. If threads share a matrix, each
// element is therefore used by one of them, which `S: Send` permits.
unsafe impl<S: Send> Sync for MatMut<'_, S> {}
// SAFETY: as above.
unsafe impl<S: Send> Send for MatMut<'_, S> {}

impl<'a, S> MatMut<'a, S> {
    /// Creates the matrix whose element `(i, j)` lies `at + i * rs + j * cs` elements from the address `data`.
    ///
    /// # Safety
    /// Users access only elements of the slice that begins at `data`. The slice stays valid for `'a`, and nothing else
    /// accesses it meanwhile. No two users access the same element.
    pub(crate) unsafe fn new(data: *mut S, at: usize, rs: isize, cs: isize) -> Self {
        MatMut { ptr: data.wrapping_add(at), rs, cs, life: PhantomData }
    }

    /// Returns the submatrix that starts at element `(i, j)`.
    #[inline]
    pub(crate) fn from(&self, i: usize, j: usize) -> Self {
        let by = self.rs.wrapping_mul(i as isize).wrapping_add(self.cs.wrapping_mul(j as isize));
        MatMut { ptr: self.ptr.wrapping_offset(by), ..*self }
    }

    /// Returns the matrix whose element `(i, j)` lies `at + i * rs + j * cs` elements from the first element of this
    /// matrix.
    #[inline]
    pub(crate) fn matrix(&self, at: usize, rs: isize, cs: isize) -> Self {
        MatMut { ptr: self.ptr.wrapping_add(at), rs, cs, life: PhantomData }
    }

    /// The address of element `(0, 0)`.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut S {
        self.ptr
    }

    /// # Safety
    /// `(i, j)` is an element of the matrix.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, i: usize, j: usize) -> *mut S {
        // SAFETY: the element lies inside the data.
        unsafe { self.ptr.offset(self.rs * i as isize + self.cs * j as isize) }
    }
}

/// Sizes and factors of `c = alpha * (a @ b) + beta * c`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<T> {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) alpha: T,
    pub(crate) beta: T,
}

impl<T: Real> Product<T> {
    /// Returns the product `c = a @ b`.
    pub(crate) fn plain(m: usize, n: usize, k: usize) -> Self {
        Product { m, n, k, alpha: T::ONE, beta: T::ZERO }
    }
}

/// Computes one tile on this thread. The tile uses `p.n` columns of `b`, starting at column `j0`.
///
/// # Safety
/// The operands have the sizes in `p`, and nothing else accesses the elements of `c`.
pub(crate) unsafe fn tile<S: Pack, C: Pack<Compute = S::Compute>>(
    isa: Isa,
    p: &Product<S::Compute>,
    a: Mat<'_, S>,
    b: &dyn Panels<S::Compute>,
    j0: usize,
    c: MatMut<'_, C>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if TypeId::of::<C>() == TypeId::of::<S::Compute>() {
            // The two types are the same.
            let c = MatMut { ptr: c.ptr.cast(), rs: c.rs, cs: c.cs, life: PhantomData };
            wide_tile(isa, p, &a, b, j0, c, p.n);
        } else {
            narrow_tile(isa, p, &a, b, j0, &c);
        }
    }
}

/// A result in a type that is narrower than the one it is computed in.
trait Narrow<T> {
    /// Stores a row of sums as row `i`, rounded once. This destroys the sums.
    ///
    /// # Safety
    /// Row `i` has as many elements as `sums`, and nothing else accesses them.
    unsafe fn store(&self, isa: Isa, i: usize, sums: &mut [T], p: &Product<T>);
}

impl<C: Pack> Narrow<C::Compute> for MatMut<'_, C> {
    unsafe fn store(&self, isa: Isa, i: usize, sums: &mut [C::Compute], p: &Product<C::Compute>) {
        if self.cs == 1 && p.beta == C::Compute::ZERO {
            if p.alpha != C::Compute::ONE {
                sums.iter_mut().for_each(|sum| *sum = p.alpha * *sum);
            }
            // SAFETY: the row lies inside the data, and nothing else accesses it.
            return C::round(isa, sums, unsafe { std::slice::from_raw_parts_mut(self.at(i, 0), sums.len()) });
        }
        let store = if p.beta == C::Compute::ZERO { Store::Set } else { Store::Scale };
        for (j, &mut sum) in sums.iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let c = self.at(i, j);
                *c = C::narrow(store.apply(p.alpha, sum, p.beta, || (*c).widen()));
            }
        }
    }
}

/// Like [`tile`], but computes the sums in the compute type and rounds them once.
///
/// # Safety
/// As for [`tile`].
unsafe fn narrow_tile<T: Real>(
    isa: Isa,
    p: &Product<T>,
    a: &dyn Left<T>,
    b: &dyn Panels<T>,
    j0: usize,
    c: &dyn Narrow<T>,
) {
    let ld = p.n.next_multiple_of(T::panel(isa));
    scratch::with(p.m * ld, |sums: &mut [T]| {
        // SAFETY: the block holds `m` rows of `ld >= n` elements and belongs to this thread. The rest is guaranteed by
        // the caller.
        unsafe {
            let plain = Product { alpha: T::ONE, beta: T::ZERO, ..*p };
            let out = MatMut { ptr: sums.as_mut_ptr(), rs: ld as isize, cs: 1, life: PhantomData };
            wide_tile(isa, &plain, a, b, j0, out, ld);
            sums.chunks_exact_mut(ld).enumerate().for_each(|(i, row)| c.store(isa, i, &mut row[..p.n], p));
        }
    });
}

/// Returns the length of the blocks that `k > 0` is divided into. A `k` of at most [`K_BLOCK`] is one block. A longer
/// one is divided into blocks of equal length, rounded up to a multiple of 8 but at most [`K_BLOCK`].
pub(crate) fn k_step(k: usize) -> usize {
    if k <= K_BLOCK {
        return k;
    }
    k.div_ceil(k.div_ceil(K_BLOCK)).next_multiple_of(8).min(K_BLOCK)
}

/// Like [`tile`], but with C in the compute type. The first `room` of its columns (at least `p.n`) may be overwritten.
///
/// # Safety
/// As for [`tile`], and nothing else accesses the first `room` columns of C.
unsafe fn wide_tile<T: Real>(
    isa: Isa,
    p: &Product<T>,
    a: &dyn Left<T>,
    b: &dyn Panels<T>,
    j0: usize,
    c: MatMut<'_, T>,
    room: usize,
) {
    let first = if p.beta == T::ZERO { Store::Set } else { Store::Scale };
    if p.k == 0 {
        for i in 0..p.m {
            for j in 0..p.n {
                // SAFETY: `(i, j)` lies inside the tile.
                unsafe {
                    let c = c.at(i, j);
                    *c = if first == Store::Set { T::ZERO } else { p.beta * *c };
                }
            }
        }
        return;
    }
    let (mr, width) = (T::rows(isa), T::panel(isa));
    if p.m <= THIN_ROWS && p.n > width && !b.is_packed() {
        // SAFETY: guaranteed by the caller.
        return unsafe { thin_tile(isa, p, a, b, j0, c, first) };
    }
    let lda = mr.min(p.m);
    let step = k_step(p.k);
    // With few rows, packing B does not pay off if its rows are already contiguous. With any number it does not if they
    // lie close together.
    let (direct, close) = (p.m <= 2 * mr, CLOSE / size_of::<T>());
    let packed = b.is_packed();
    let in_place = a.in_place();
    let a_len = if in_place.is_some() { 0 } else { p.m.next_multiple_of(lda) * step };
    let b_len = width * (step + 1);
    scratch::with(a_len + b_len, |block: &mut [T]| {
        let (a_pack, b_pack) = block.split_at_mut(a_len);
        for k0 in (0..p.k).step_by(step) {
            let ks = step.min(p.k - k0);
            if in_place.is_none() {
                // SAFETY: the rows and steps lie inside `a`, and `a_pack` has room for whole panels of `step >= ks` steps.
                unsafe { a.pack(isa, p.m, k0..k0 + ks, lda, a_pack) };
            }
            let store = if k0 == 0 { first } else { Store::Add };
            for j in (0..p.n).step_by(width) {
                let cols = width.min(p.n - j);
                let lying = if packed || cols == width { b.direct(k0, j0 + j) } else { None };
                let lying = lying.filter(|&(_, ldb)| packed || direct || ldb.unsigned_abs() <= close);
                let (b_ptr, ldb) = lying.unwrap_or_else(|| {
                    // SAFETY: the steps and columns lie inside `b`, `b_pack` has room for a panel and one more row, and
                    // `cols <= width`.
                    unsafe { b.pack(isa, k0..k0 + ks, j0 + j..j0 + j + cols, width, &mut b_pack[..(ks + 1) * width]) };
                    (b_pack.as_ptr(), width as isize)
                });
                // Shared panels may be far from this core, so the first rows prefetch the next panel.
                let after = if packed && j + width < p.n { b.direct(k0, j0 + j + width) } else { None };
                for i in (0..p.m).step_by(lda) {
                    let (a_ptr, row, steps) = match in_place {
                        Some((a, row)) => {
                            (a.wrapping_offset(row.wrapping_mul(i as isize)).wrapping_add(k0), row, &STEPS[1])
                        }
                        None => (a_pack[i * ks..].as_ptr(), 1, &STEPS[lda]),
                    };
                    let rows = lda.min(p.m - i);
                    let (next, next_by) = match after {
                        Some((after, _)) if i < 2 * lda => {
                            (after.wrapping_add(i / lda * a.steps(ks) * width / 2), width / 2)
                        }
                        _ => (b_ptr, 0),
                    };
                    let (alpha, beta) = (p.alpha, p.beta);
                    let to = c.from(i, j);
                    let (vectors, wide) = if 2 * cols <= width { (1, width / 2) } else { (2, width) };
                    let micro = Micro {
                        rows,
                        vectors,
                        k: a.steps(ks),
                        a: a_ptr,
                        row,
                        split: 0,
                        gap: 0,
                        steps: steps.as_ptr(),
                        b: b_ptr,
                        ldb,
                        next,
                        next_by,
                        c: to.ptr,
                        ldc: to.rs,
                        store,
                        alpha,
                        beta,
                    };
                    // SAFETY: A and B hold `ks` steps, packed or in place. Panels of C for which there is room are
                    // written in place, and others through a buffer with room for the largest result.
                    unsafe {
                        if j + wide <= room && c.cs == 1 {
                            a.run(isa, &micro);
                        } else {
                            let mut sums = [const { MaybeUninit::<T>::uninit() }; MICRO];
                            let (out, ld) = (sums.as_mut_ptr().cast::<T>(), width as isize);
                            let one = T::ONE;
                            a.run(isa, &Micro { c: out, ldc: ld, store: Store::Set, alpha: one, ..micro });
                            for r in 0..rows {
                                let sums = std::slice::from_raw_parts(out.add(r * width), cols);
                                if c.cs == 1 {
                                    // A loop over slices, which LLVM vectorises.
                                    let row = std::slice::from_raw_parts_mut(to.at(r, 0), cols);
                                    for (c, &sum) in row.iter_mut().zip(sums) {
                                        *c = store.apply(alpha, sum, beta, || *c);
                                    }
                                    continue;
                                }
                                for (q, &sum) in sums.iter().enumerate() {
                                    let c = to.at(r, q);
                                    *c = store.apply(alpha, sum, beta, || *c);
                                }
                            }
                        }
                    }
                }
            }
        }
    });
}

/// Like [`wide_tile`], but for so few rows that packing B would cost more than the sums. The chains of a block of `k`
/// are kept in memory and extended by a few steps at a time, so that B is read in long runs.
///
/// # Safety
/// As for [`tile`]; `p.m <= THIN_ROWS` and `p.k > 0`.
unsafe fn thin_tile<T: Real>(
    isa: Isa,
    p: &Product<T>,
    a: &dyn Left<T>,
    b: &dyn Panels<T>,
    j0: usize,
    c: MatMut<'_, T>,
    first: Store,
) {
    let (most, vector) = (thin_vectors(p.m), T::panel(isa) / 2);
    let width = vector * most;
    let step = k_step(p.k);
    let ld = p.n.next_multiple_of(width);
    let adjacent = b.direct(0, j0).is_some();
    // If the rows of B are contiguous, a few rows are processed at a time, over all columns. Otherwise one panel is
    // processed at a time, packed in pieces that fit in the L1 cache.
    let piece = if adjacent { THIN_STEPS } else { THIN_PACK };
    // Contiguous columns that do not fill a panel are read in place too, in whole vectors; only the rest is packed.
    let vectors_at = |j: usize| match (p.n - j) / vector {
        left if left >= most || !adjacent => most,
        left => left.clamp(1, 2),
    };
    let (a_len, b_len, c_len) = (p.m * step, width * (piece + 1), p.m * ld);
    scratch::with(a_len + b_len + c_len, |block: &mut [T]| {
        let (a_pack, rest) = block.split_at_mut(a_len);
        let (b_pack, sums) = rest.split_at_mut(b_len);
        for k0 in (0..p.k).step_by(step) {
            let ks = step.min(p.k - k0);
            // SAFETY: the rows and steps lie inside `a`; `a_pack` has room for them.
            unsafe { a.pack(isa, p.m, k0..k0 + ks, p.m, a_pack) };
            sums.fill(T::ZERO);
            let mut chain = |s0: usize, j: usize| {
                let vectors = vectors_at(j);
                let width = vector * vectors;
                let (steps, cols) = (piece.min(ks - s0), width.min(p.n - j));
                let in_place = if cols == width { b.direct(k0 + s0, j0 + j) } else { None };
                let (b_ptr, ldb) = in_place.unwrap_or_else(|| {
                    let (rows, columns) = (k0 + s0..k0 + s0 + steps, j0 + j..j0 + j + cols);
                    // SAFETY: the steps and columns lie inside `b`, `b_pack` has room for a piece of a panel and one
                    // more row, and `cols <= width`.
                    unsafe { b.pack(isa, rows, columns, width, &mut b_pack[..(steps + 1) * width]) };
                    (b_pack.as_ptr(), width as isize)
                });
                let micro = Micro {
                    rows: p.m,
                    vectors,
                    k: a.steps(steps),
                    a: a_pack[a.steps(s0) * p.m..].as_ptr(),
                    row: 1,
                    split: 0,
                    gap: 0,
                    steps: STEPS[p.m].as_ptr(),
                    b: b_ptr,
                    ldb,
                    next: b_ptr,
                    next_by: 0,
                    c: sums[j..].as_mut_ptr(),
                    ldc: ld as isize,
                    store: Store::Chain,
                    alpha: T::ONE,
                    beta: T::ZERO,
                };
                // SAFETY: A and B hold `steps` steps, and rows of `sums` have room for whole panels.
                unsafe { a.run(isa, &micro) };
                j + width
            };
            if adjacent {
                for s0 in (0..ks).step_by(piece) {
                    let mut j = 0;
                    while j < p.n {
                        j = chain(s0, j);
                    }
                }
            } else {
                for j in (0..p.n).step_by(width) {
                    for s0 in (0..ks).step_by(piece) {
                        chain(s0, j);
                    }
                }
            }
            let store = if k0 == 0 { first } else { Store::Add };
            for (i, row) in sums.chunks_exact(ld).enumerate() {
                if c.cs == 1 {
                    // SAFETY: the row has `n` elements that nothing else accesses.
                    let to = unsafe { std::slice::from_raw_parts_mut(c.at(i, 0), p.n) };
                    for (c, &sum) in to.iter_mut().zip(row) {
                        *c = store.apply(p.alpha, sum, p.beta, || *c);
                    }
                    continue;
                }
                for (j, &sum) in row[..p.n].iter().enumerate() {
                    // SAFETY: `(i, j)` lies inside the tile.
                    unsafe {
                        let c = c.at(i, j);
                        *c = store.apply(p.alpha, sum, p.beta, || *c);
                    }
                }
            }
        }
    });
}
