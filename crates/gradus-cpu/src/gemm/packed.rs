//! Right operands that lie in panels: packed once for all tiles of a large product, or laid out so by the caller.

use std::marker::PhantomData;
use std::ops::Range;

use super::kernel::Real;
use super::pack::Panels;
use crate::CpuBackend;
use crate::isa::Isa;

/// The number of elements that a task should pack.
const TASK: usize = 1 << 15;

/// Some columns of an operand, with all of its rows, packed in panels. The panels of each block of `step` rows lie one
/// after the other.
#[derive(Debug)]
pub(crate) struct Packed<'a, T> {
    data: &'a [T],
    step: usize,
    width: usize,
    panels: usize,
}

/// Returns the number of elements that `cols` columns of `k` rows take up when packed.
pub(crate) fn size(k: usize, cols: usize, step: usize, width: usize) -> usize {
    k.div_ceil(step) * cols.div_ceil(width) * room(step, width)
}

/// Returns the number of elements from one panel to the next. This includes one extra row, which packing may write.
fn room(step: usize, width: usize) -> usize {
    (step + 1) * width
}

impl<'a, T: Real> Packed<'a, T> {
    /// Packs columns `cols` of `b`, which has `k` rows, into `data`, which has [`size`] elements, on all threads.
    ///
    /// # Safety
    /// The rows and columns lie inside `b`.
    pub(crate) unsafe fn new(
        cpu: &CpuBackend,
        b: &dyn Panels<T>,
        k: usize,
        cols: Range<usize>,
        step: usize,
        data: &'a mut [T],
    ) -> Self {
        let width = T::panel(cpu.isa());
        let (panels, room) = (cols.len().div_ceil(width), room(step, width));
        cpu.parallel_chunks(
            &mut data[..size(k, cols.len(), step, width)],
            (TASK / room).max(1) * room,
            |chunk, out| {
                let first = chunk * (TASK / room).max(1);
                for (i, out) in (first..).zip(out.chunks_exact_mut(room)) {
                    let (k0, j) = (i / panels * step, cols.start + i % panels * width);
                    // SAFETY: the rows and columns lie inside `b`, `out` has room for one row more than is packed, and
                    // at most `width` columns are packed.
                    unsafe { b.pack(cpu.isa(), k0..k.min(k0 + step), j..cols.end.min(j + width), width, out) };
                }
            },
        );
        Packed { data, step, width, panels }
    }
}

impl<T: Real> Panels<T> for Packed<'_, T> {
    unsafe fn pack(&self, _: Isa, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [T]) {
        debug_assert!(width == self.width && j.start.is_multiple_of(width));
        // SAFETY: guaranteed by the caller.
        unsafe { copy(self, k, j, width, out) }
    }

    #[inline]
    fn direct(&self, k: usize, j: usize) -> Option<(*const T, isize)> {
        let panel = k / self.step * self.panels + j / self.width;
        let at = panel * room(self.step, self.width) + k % self.step * self.width;
        Some((self.data[at..].as_ptr(), self.width as isize))
    }

    fn is_packed(&self) -> bool {
        true
    }
}

/// Copies rows `k` of the panel that starts at column `j.start`.
///
/// # Safety
/// As for [`Panels::pack`].
unsafe fn copy<T: Real>(b: &dyn Panels<T>, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [T]) {
    if let Some((from, _)) = b.direct(k.start, j.start) {
        // SAFETY: a panel has `k.len()` rows of `width` elements.
        out[..k.len() * width].copy_from_slice(unsafe { std::slice::from_raw_parts(from, k.len() * width) });
    }
}

/// A matrix whose panels `[k, width]` lie `apart` elements apart.
///
/// **Invariant**: while `'a` lasts, every element of every panel may be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lying<'a, T> {
    first: *const T,
    apart: isize,
    width: usize,
    life: PhantomData<&'a [T]>,
}

// SAFETY: a `Lying` is a shared borrow of `[T]`, and `T` is `Sync`.
unsafe impl<T: Sync> Sync for Lying<'_, T> {}

impl<'a, T> Lying<'a, T> {
    /// The matrix whose first panel starts at `first`.
    ///
    /// # Safety
    /// Every element of the panels that users of the matrix read stays readable for `'a`.
    pub(super) unsafe fn new(first: *const T, apart: isize, width: usize) -> Self {
        Lying { first, apart, width, life: PhantomData }
    }
}

impl<T: Real> Panels<T> for Lying<'_, T> {
    unsafe fn pack(&self, _: Isa, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [T]) {
        // SAFETY: guaranteed by the caller.
        unsafe { copy(self, k, j, width, out) }
    }

    #[inline]
    fn direct(&self, k: usize, j: usize) -> Option<(*const T, isize)> {
        let panel = self.first.wrapping_offset(self.apart.wrapping_mul((j / self.width) as isize));
        Some((panel.wrapping_add(k * self.width + j % self.width), self.width as isize))
    }

    fn is_packed(&self) -> bool {
        true
    }
}
