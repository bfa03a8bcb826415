//! [`HostMemory`]: plain memory of this process behind [`Buffer`]s, with safe access to the bytes.
//!
//! For backends that need no pool and no special memory: references, wrappers, tests. Every buffer is an allocation of
//! its own, aligned for every dtype and zeroed.

use std::alloc;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::{Buffer, BufferOwner, Error, ErrorKind, MemoryStats, Result};

const ALIGN: usize = 64;

/// An allocator of buffers that keeps count of them.
#[derive(Debug)]
pub struct HostMemory {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    stats: MemoryStats,
    budget: Option<usize>,
}

impl HostMemory {
    /// A memory without buffers or budget.
    pub fn new() -> Arc<Self> {
        Arc::new(HostMemory { counts: Mutex::default() })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A zeroed buffer of `bytes` bytes, 0 being legal; [`ErrorKind::OutOfMemory`] above the budget or when the system
    /// has no more.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let refused = |why: &str| {
            let m = format!("{bytes} bytes {why}");
            Error::new(ErrorKind::OutOfMemory { requested: bytes }, "alloc", m)
        };
        let mut counts = self.counts();
        let total = counts.stats.in_use.checked_add(bytes).ok_or_else(|| refused("are too many"))?;
        if let Some(budget) = counts.budget.filter(|&b| total > b) {
            return Err(refused(&format!("do not fit: {} of a budget of {budget} are in use", counts.stats.in_use)));
        }
        let ptr = if bytes == 0 {
            NonNull::dangling()
        } else {
            let layout = alloc::Layout::from_size_align(bytes, ALIGN).map_err(|_| refused("are too many"))?;
            // SAFETY: the layout has a size above 0.
            NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(|| refused("are not to be had"))?
        };
        let stats = &mut counts.stats;
        stats.in_use = total;
        stats.peak = stats.peak.max(total);
        stats.buffers += 1;
        stats.system_allocations += 1;
        // SAFETY: the memory was allocated above for this buffer alone, and lives until `free` below.
        Ok(unsafe { Buffer::from_raw(ptr, bytes, self.clone()) })
    }

    /// Whether a buffer was made by this memory.
    pub fn owns(self: &Arc<Self>, buffer: &Buffer) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(buffer.owner()), Arc::as_ptr(self))
    }

    /// The bytes of a buffer of this memory; `None` if it is another's.
    pub fn bytes<'a>(self: &Arc<Self>, buffer: &'a Buffer) -> Option<&'a [u8]> {
        // SAFETY: the buffer was made by `alloc`: its memory is valid, initialised and its own, and the borrow keeps it
        // from being written or freed.
        self.owns(buffer).then(|| unsafe { std::slice::from_raw_parts(buffer.as_ptr().as_ptr(), buffer.bytes()) })
    }

    /// The bytes of a buffer of this memory, writable; `None` if it is another's.
    pub fn bytes_mut<'a>(self: &Arc<Self>, buffer: &'a mut Buffer) -> Option<&'a mut [u8]> {
        // SAFETY: as for `bytes`, and the borrow is exclusive.
        self.owns(buffer).then(|| unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr().as_ptr(), buffer.bytes()) })
    }

    /// Counts of live buffers; nothing is cached.
    pub fn stats(&self) -> MemoryStats {
        self.counts().stats
    }

    /// The most bytes that buffers may hold; `None` lifts the limit. What is live stays.
    pub fn set_budget(&self, bytes: Option<usize>) {
        self.counts().budget = bytes;
    }
}

// SAFETY: `free` gives the memory back with the layout that `alloc` took it with; the memory is ordinary and belongs to
// no thread.
unsafe impl BufferOwner for HostMemory {
    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        let mut counts = self.counts();
        counts.stats.in_use -= bytes;
        counts.stats.buffers -= 1;
        if let Ok(layout) = alloc::Layout::from_size_align(bytes, ALIGN)
            && bytes > 0
        {
            // SAFETY: `alloc` allocated `ptr` with this layout, and nothing uses it any more.
            unsafe { alloc::dealloc(ptr.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_reachable_only_through_the_memory_that_made_them() {
        let (a, b) = (HostMemory::new(), HostMemory::new());
        let mut buffer = a.alloc(3).unwrap();
        a.bytes_mut(&mut buffer).unwrap()[2] = 7;
        assert_eq!(a.bytes(&buffer).unwrap(), [0, 0, 7]);
        assert!(b.bytes(&buffer).is_none());
        assert_eq!(a.bytes(&a.alloc(0).unwrap()).unwrap(), []);
    }

    #[test]
    fn counts_follow_and_the_budget_holds() {
        let memory = HostMemory::new();
        memory.set_budget(Some(10));
        let one = memory.alloc(8).unwrap();
        assert_eq!(memory.alloc(3).unwrap_err().kind(), &ErrorKind::OutOfMemory { requested: 3 });
        drop(one);
        assert!(memory.alloc(10).is_ok());
        assert!(memory.alloc(usize::MAX).is_err());
        let s = memory.stats();
        assert_eq!((s.in_use, s.peak, s.buffers, s.system_allocations), (0, 10, 0, 2));
    }
}
