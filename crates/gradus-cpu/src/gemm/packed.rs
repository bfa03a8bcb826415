//! Right operands that lie in panels: packed once for all tiles of a large product, or laid out so by the caller.

use std::ops::Range;

use super::kernel::Real;
use super::pack::Panels;
use crate::CpuBackend;
use crate::isa::Isa;

/// The number of elements that a task should pack.
const TASK: usize = 1 << 15;

/// Some columns of an operand, with all of its rows, packed in panels. The panels of each block of `step` rows lie one
/// after the other, `apart` elements from one to the next.
#[derive(Debug)]
pub(crate) struct Packed<'a, T> {
    data: &'a [T],
    step: usize,
    width: usize,
    panels: usize,
    apart: usize,
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
        Packed { data, step, width, panels, apart: room }
    }

    /// The matrix with `k` rows whose panels `[k, width]` lie `apart` elements apart in `data`.
    ///
    /// # Safety
    /// Every panel that users of the matrix read lies inside `data`.
    pub(crate) unsafe fn lying(data: &'a [T], k: usize, width: usize, apart: usize) -> Self {
        // All rows are one block, so the number of panels in a block does not matter.
        Packed { data, step: k.max(1), width, panels: 0, apart }
    }
}

impl<T: Real> Panels<T> for Packed<'_, T> {
    unsafe fn pack(&self, _: Isa, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [T]) {
        debug_assert!(width == self.width && j.start.is_multiple_of(width));
        if let Some((from, _)) = self.direct(k.start, j.start) {
            // SAFETY: a panel has `k.len()` rows of `width` elements.
            out[..k.len() * width].copy_from_slice(unsafe { std::slice::from_raw_parts(from, k.len() * width) });
        }
    }

    #[inline]
    fn direct(&self, k: usize, j: usize) -> Option<(*const T, isize)> {
        let panel = k / self.step * self.panels + j / self.width;
        let at = panel * self.apart + k % self.step * self.width;
        Some((self.data[at..].as_ptr(), self.width as isize))
    }

    fn is_packed(&self) -> bool {
        true
    }
}
