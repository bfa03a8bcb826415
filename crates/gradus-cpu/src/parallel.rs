//! The only way to use several threads: [`CpuBackend::parallel_for`].
//!
//! Work is divided by size, never by the number of threads. The ranges passed to a body depend only on `items` and
//! `grain`, so the body computes the same results for each range on any number of threads.

use std::marker::PhantomData;
use std::ops::Range;

use crate::CpuBackend;

impl CpuBackend {
    /// Calls `body` for `0..grain`, `grain..2 * grain` and so on up to `items`, on all threads, and returns when all
    /// calls are done.
    pub(crate) fn parallel_for(&self, items: usize, grain: usize, body: impl Fn(Range<usize>) + Sync) {
        #[cfg(not(unoptimized))]
        self.threads().run(items, grain.max(1), &body);
        #[cfg(unoptimized)]
        crate::unoptimized::watched(|| self.threads().run(items, grain.max(1), &body));
    }

    /// Splits `out` into chunks of `size` elements and calls `body` with the number and the contents of each, on all
    /// threads.
    pub(crate) fn parallel_chunks<T: Send>(&self, out: &mut [T], size: usize, body: impl Fn(usize, &mut [T]) + Sync) {
        let size = size.max(1);
        let len = out.len();
        let parts = Disjoint::new(out);
        self.parallel_for(len, size, |range| {
            let c = range.start / size;
            // SAFETY: `parallel_for` hands out each range once, and ranges do not overlap.
            body(c, unsafe { parts.slice(range) });
        });
    }
}

/// A mutable slice in which tasks write parts that do not overlap.
pub(crate) struct Disjoint<'a, T> {
    ptr: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: this is a `&mut [T]` handed out in parts. The contract of every method ensures that only one thread at a time
// accesses an element.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { ptr: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Returns the elements in `range`. Panics if they do not lie within the slice.
    ///
    /// # Safety
    /// While the result lives, nothing else may read or write these elements.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range lies inside the slice, as asserted, and the caller promises that nothing aliases it.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }

    /// Writes element `i`. Panics if it does not lie within the slice.
    ///
    /// # Safety
    /// Nothing else may read or write this element at the same time.
    pub(crate) unsafe fn write(&self, i: usize, value: T) {
        assert!(i < self.len);
        // SAFETY: the element lies inside the slice, as asserted, and the caller promises that no other access races
        // with it.
        unsafe { *self.ptr.add(i) = value }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_item_is_visited_once_in_the_same_ranges_on_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let cpu = CpuBackend::with_threads(threads).unwrap();
            for (items, grain) in [(0, 3), (1, 3), (3, 3), (10, 3), (1000, 7)] {
                let seen = Mutex::new(Vec::new());
                cpu.parallel_for(items, grain, |r| seen.lock().unwrap().push((r.start, r.end)));
                let mut seen = seen.into_inner().unwrap();
                seen.sort_unstable();
                let want: Vec<_> = (0..items).step_by(grain).map(|s| (s, items.min(s + grain))).collect();
                assert_eq!(seen, want);
            }
            let mut out = vec![0usize; 1000];
            cpu.parallel_chunks(&mut out, 64, |c, part| part.iter_mut().enumerate().for_each(|(i, v)| *v = c * 64 + i));
            assert!(out.iter().enumerate().all(|(i, &v)| i == v));
        }
    }

    #[test]
    fn nested_and_concurrent_calls_finish() {
        let cpu = CpuBackend::with_threads(3).unwrap();
        let total = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    cpu.parallel_for(50, 1, |_| {
                        cpu.parallel_for(10, 1, |r| {
                            total.fetch_add(r.len(), Ordering::Relaxed);
                        });
                    })
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 50 * 10);
    }

    #[test]
    fn a_panic_in_a_body_reaches_the_caller() {
        let cpu = CpuBackend::with_threads(2).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            cpu.parallel_for(100, 1, |r| assert!(r.start != 63, "here"));
        }));
        assert!(caught.is_err());
    }
}
