//! Tensors `[batch, heads, rows, columns]`, seen as one matrix per head.

use gradus_backend::{Layout, View};

use crate::isa::Isa;
use crate::stored::{Part, Sink, Source};

/// The matrices of a tensor `[batch, heads, rows, columns]`, all of whose elements are in `source`.
#[derive(Clone, Copy)]
pub(super) struct Matrices<'a, T> {
    pub(super) source: &'a dyn Source<T>,
    pub(super) layout: &'a Layout,
}

impl<'a, T> Matrices<'a, T> {
    /// Returns the matrix of a head.
    pub(super) fn of(&self, b: usize, h: usize) -> Part<'a, T> {
        let s = self.layout.strides();
        Part::new(self.source, position(self.layout, [b, h, 0]), [s[2], s[3]])
    }
}

/// An output tensor `[batch, heads, rows, columns]`. Each row is written by one task.
pub(super) struct Output<'a, T> {
    pub(super) sink: &'a dyn Sink<T>,
    pub(super) layout: Layout,
}

impl<T> Output<'_, T> {
    /// Lets `make` write the row at the indices `row`. `work` has the length of the row.
    ///
    /// # Safety
    /// No other task writes this row.
    pub(super) unsafe fn write(&self, isa: Isa, row: [usize; 3], work: &mut [T], mut make: impl FnMut(&mut [T])) {
        if !work.is_empty() {
            let (at, step) = (position(&self.layout, row), self.layout.strides()[3]);
            // SAFETY: guaranteed by the caller. No two elements of an output share a position, which `slice_mut`
            // checks.
            unsafe { self.sink.write(isa, at, step, work, &mut make) };
        }
    }
}

/// Combines the elements of three tensors with their layouts.
pub(super) fn matrices<'a, T>(sources: [&'a dyn Source<T>; 3], views: [View<'a>; 3]) -> [Matrices<'a, T>; 3] {
    std::array::from_fn(|i| Matrices { source: sources[i], layout: views[i].layout })
}

/// Returns the position of the element at these indices of the first three axes and index 0 of the fourth.
pub(super) fn position(layout: &Layout, index: [usize; 3]) -> usize {
    index.iter().zip(layout.strides()).fold(layout.offset(), |at, (&i, &s)| at.wrapping_add_signed(s * i as isize))
}
