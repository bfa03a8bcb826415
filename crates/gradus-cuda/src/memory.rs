//! Buffers, and the pool that keeps freed ones for reuse.
//!
//! A [`Block`] is one allocation of the device. A freed block is added to the list of its size class and serves the
//! next allocation of that class. It may be reused even while the device still works on it, because all work runs in
//! the order of one stream.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{env, fmt};

use gradus_backend::late::Contents;
use gradus_backend::{Buffer, BufferOwner, Error, ErrorKind, MemoryStats, Result};

use crate::driver::Device;

/// The smallest capacity of a block.
const SMALLEST: usize = 256;
/// The pool may keep this much even if the program's peak is lower.
const FREE_BOUND: usize = 256 << 20;
/// If set, every buffer is an allocation of exactly its size, and nothing is kept for reuse, so that a tool that checks
/// accesses sees where a buffer ends and when it is freed.
const EXACT: &str = "GRADUS_CUDA_EXACT";

/// One allocation of the device.
pub(crate) struct Block {
    /// The address on the device, aligned to 256 bytes.
    pub(crate) ptr: u64,
    capacity: usize,
    pub(crate) contents: Arc<Contents>,
}

/// The pool. There is one per backend; its address is the backend's identity.
pub(crate) struct Pool {
    device: Arc<Device>,
    exact: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    // Blocks are boxed because they are handed out as raw pointers, which are turned back into boxes when they are
    // freed.
    #[allow(clippy::vec_box)]
    free: BTreeMap<usize, Vec<Box<Block>>>,
    stats: MemoryStats,
    budget: Option<usize>,
}

/// The capacity for this many bytes. There are four steps per power of two.
fn capacity(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(SMALLEST);
    let step = 1usize << (bytes - 1).ilog2().saturating_sub(2);
    bytes.checked_next_multiple_of(step.max(SMALLEST))
}

impl Pool {
    pub(crate) fn new(device: Arc<Device>) -> Arc<Pool> {
        let exact = env::var_os(EXACT).is_some_and(|v| v == "1");
        Arc::new(Pool { device, exact, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn out_of_memory(&self, bytes: usize, why: &str) -> Error {
        let m = format!("{bytes} bytes on {}: {why}", self.device.label);
        Error::new(ErrorKind::OutOfMemory { requested: bytes }, "alloc", m)
    }

    /// A buffer of `bytes` bytes. Its contents are unspecified. If the device has no memory left, what the pool keeps
    /// is given back first.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        self.device.check_lost("alloc")?;
        let capacity = if self.exact { Some(bytes) } else { capacity(bytes) };
        let capacity = capacity.ok_or_else(|| self.out_of_memory(bytes, "no device has so many"))?;
        let mut state = self.state();
        let live = state.stats.in_use.saturating_add(bytes);
        if state.budget.is_some_and(|b| live > b) {
            return Err(self.out_of_memory(bytes, "the memory budget does not allow it"));
        }
        let ptr = if bytes == 0 {
            NonNull::dangling()
        } else {
            let block = match state.free.get_mut(&capacity).and_then(Vec::pop) {
                Some(mut block) => {
                    state.stats.cached -= capacity;
                    // Records of earlier work may still refer to the old contents.
                    match Arc::get_mut(&mut block.contents) {
                        Some(contents) => *contents = Contents::default(),
                        None => block.contents = Arc::default(),
                    }
                    block
                }
                None => self.create(&mut state, bytes, capacity)?,
            };
            NonNull::from(Box::leak(block)).cast()
        };
        let stats = &mut state.stats;
        stats.in_use = live;
        stats.peak = stats.peak.max(live);
        stats.buffers += 1;
        // SAFETY: the pointer is a leaked `Block` that belongs to this buffer alone and is taken back by `free` below.
        // With 0 bytes, it is never dereferenced.
        Ok(unsafe { Buffer::from_raw(ptr, bytes, self.clone()) })
    }

    fn create(&self, state: &mut State, bytes: usize, capacity: usize) -> Result<Box<Block>> {
        let mut made = self.device.allocate(capacity)?;
        if made.is_none() {
            self.drop_free(state);
            made = self.device.allocate(capacity)?;
        }
        let ptr = made.ok_or_else(|| {
            let total = self.device.summary.memory;
            let why = format!("the device, which has {total} bytes in all, has no more");
            self.out_of_memory(bytes, &why).help("use smaller batches, accumulate gradients, or free tensors")
        })?;
        state.stats.system_allocations += 1;
        Ok(Box::new(Block { ptr, capacity, contents: Arc::default() }))
    }

    /// The block behind a buffer. Fails if another device made the buffer, or if it is empty and so has no block.
    pub(crate) fn block<'a>(&self, op: &str, buffer: &'a Buffer) -> Result<&'a Block> {
        if !std::ptr::addr_eq(Arc::as_ptr(buffer.owner()), std::ptr::from_ref(self)) {
            let m =
                format!("a buffer of {} bytes belongs to another device than {}", buffer.bytes(), self.device.label);
            return Err(Error::new(ErrorKind::DeviceMismatch, op, m));
        }
        if buffer.bytes() == 0 {
            return Err(Error::argument(op, "a view of elements in an empty buffer"));
        }
        // SAFETY: this pool made the buffer with a leaked `Block` behind its pointer. The block lives until the buffer
        // is dropped, and only shared references to it are given out.
        Ok(unsafe { buffer.as_ptr().cast::<Block>().as_ref() })
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.state().stats
    }

    pub(crate) fn set_budget(&self, bytes: Option<usize>) {
        self.state().budget = bytes;
    }

    /// Gives the blocks kept for reuse back to the device, after all work that is queued.
    pub(crate) fn trim(&self) {
        self.drop_free(&mut self.state());
    }

    fn drop_free(&self, state: &mut State) {
        state.stats.cached = 0;
        std::mem::take(&mut state.free).into_values().flatten().for_each(|block| self.give_back(&block));
    }

    fn give_back(&self, block: &Block) {
        // SAFETY: the block was allocated by this device, and its owner is dropping it.
        unsafe { self.device.free(block.ptr) }
    }
}

// SAFETY: `free` takes back the block that `alloc` leaked; memory of the device may be used from any thread.
unsafe impl BufferOwner for Pool {
    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        let mut state = self.state();
        state.stats.in_use -= bytes;
        state.stats.buffers -= 1;
        if bytes == 0 {
            return;
        }
        // SAFETY: a pointer of this pool with a size above 0 is a `Block` that `alloc` leaked, and it is given back
        // once.
        let block = unsafe { Box::from_raw(ptr.cast::<Block>().as_ptr()) };
        let capacity = block.capacity;
        if !self.exact && state.stats.cached + capacity <= FREE_BOUND.max(state.stats.peak) {
            state.stats.cached += capacity;
            state.free.entry(capacity).or_default().push(block);
        } else {
            self.give_back(&block);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.trim();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.device.label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_four_capacities_for_each_power_of_two() {
        assert_eq!([0, 1, 256, 257].map(capacity), [256, 256, 256, 512].map(Some));
        assert_eq!([1 << 30, (1 << 30) + 1].map(capacity), [1 << 30, 5 << 28].map(Some));
        assert_eq!(capacity(usize::MAX), None);
    }
}
