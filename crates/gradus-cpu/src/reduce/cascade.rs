//! The pairwise combination of results.

use super::kernels::Kernels;
use crate::isa::Isa;

/// Combines results pairwise as they arrive. As soon as two neighbouring groups of `2^k` results are complete, their
/// combinations are combined. The groups that are left are combined at the end.
pub(super) struct Cascade<'a> {
    pub(super) k: &'a Kernels,
    pub(super) isa: Isa,
    /// The stack of results, each of which has `width` accumulators.
    pub(super) stack: *mut u8,
    pub(super) width: usize,
    pub(super) depth: usize,
    pub(super) seen: usize,
}

impl Cascade<'_> {
    /// The number of levels that is enough for any number of results.
    pub(super) const LEVELS: usize = 64;

    /// Returns the address to which the next result must be written.
    pub(super) fn top(&self) -> *mut u8 {
        self.stack.wrapping_add(self.depth * self.width * self.k.acc_size)
    }

    /// Adds the result that was written to [`top`](Cascade::top).
    ///
    /// # Safety
    /// The stack has room for [`LEVELS`](Cascade::LEVELS) results, and `top` holds one.
    pub(super) unsafe fn push(&mut self) {
        self.depth += 1;
        self.seen += 1;
        for _ in 0..self.seen.trailing_zeros() {
            // SAFETY: guaranteed by the caller. There are at least two results, because `seen` is a multiple of two.
            unsafe { self.combine() };
        }
    }

    /// Combines the two topmost results.
    ///
    /// # Safety
    /// There are at least two results on the stack.
    unsafe fn combine(&mut self) {
        self.depth -= 1;
        let (k, isa) = (self.k, self.isa);
        let b = self.top();
        // SAFETY: these are two neighbouring results on the stack.
        unsafe { (k.merge)(isa, b.wrapping_sub(self.width * k.acc_size), b, self.width) };
    }

    /// Combines all results into the first place of the stack.
    ///
    /// # Safety
    /// As for [`push`](Cascade::push). There is at least one result.
    pub(super) unsafe fn finish(&mut self) {
        while self.depth > 1 {
            // SAFETY: there are at least two results.
            unsafe { self.combine() };
        }
    }
}
