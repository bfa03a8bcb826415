//! Buffers, and the pool that keeps freed ones for reuse.
//!
//! A [`Block`] is one wgpu buffer. A freed block is added to the list of its size class and serves the next allocation
//! of that class. It may be reused even while the device still works on it, because its next use comes later in the
//! queue.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradus_backend::{Buffer, BufferOwner, Error, ErrorKind, MemoryStats, Result};

use crate::faults::Faults;
use gradus_backend::late::Contents;

/// The smallest capacity of a block.
const SMALLEST: u64 = 256;
/// The pool may keep this much even if the program's peak is lower.
const FREE_BOUND: usize = 256 << 20;

/// One buffer of the device.
pub(crate) struct Block {
    pub(crate) raw: wgpu::Buffer,
    /// Never reused, because cached bind groups identify a buffer by it.
    pub(crate) id: u64,
    /// The last submission whose commands use this buffer.
    touched: AtomicU64,
    pub(crate) contents: Arc<Contents>,
}

/// The ids of destroyed blocks that cached bind groups may still use. The pool adds to the list, and the queue empties
/// it.
#[derive(Default)]
struct Gone(Mutex<Vec<u64>>);

impl Gone {
    fn add(&self, ids: impl Iterator<Item = u64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
    }

    /// The ids that were added since the last call.
    fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The pool. There is one per backend; its address is the backend's identity.
pub(crate) struct Pool {
    device: wgpu::Device,
    name: String,
    faults: Arc<Faults>,
    gone: Gone,
    /// The largest capacity of a block.
    most: u64,
    state: Mutex<State>,
    /// How many of the next allocations fail.
    #[cfg(test)]
    pub(crate) refused: AtomicU64,
}

#[derive(Default)]
struct State {
    // Blocks are boxed because they are handed out as raw pointers, which are turned back into boxes when they are
    // freed.
    #[allow(clippy::vec_box)]
    free: BTreeMap<u64, Vec<Box<Block>>>,
    stats: MemoryStats,
    budget: Option<usize>,
    next_id: u64,
}

/// The capacity for this many bytes. There are four steps per power of two, up to `most`, which is a multiple of
/// [`SMALLEST`]. `None` if `bytes` exceeds `most`.
fn capacity(bytes: usize, most: u64) -> Option<u64> {
    let bytes = (bytes as u64).max(SMALLEST);
    let step = 1u64 << (bytes - 1).ilog2().saturating_sub(2);
    (bytes <= most).then(|| bytes.next_multiple_of(step.max(SMALLEST)).min(most))
}

impl Pool {
    pub(crate) fn new(device: wgpu::Device, name: String, largest: u64, faults: Arc<Faults>) -> Arc<Pool> {
        let most = largest / SMALLEST * SMALLEST;
        Arc::new(Pool {
            device,
            name,
            faults,
            gone: Gone::default(),
            most,
            state: Mutex::default(),
            #[cfg(test)]
            refused: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn out_of_memory(&self, op: &str, bytes: usize, why: &str) -> Error {
        let m = format!("{bytes} bytes on {}: {why}", self.name);
        Error::new(ErrorKind::OutOfMemory { requested: bytes }, op, m)
    }

    /// Creates a buffer, or returns `None` if the device has no memory left.
    pub(crate) fn make(&self, size: u64, usage: wgpu::BufferUsages) -> Option<wgpu::Buffer> {
        #[cfg(test)]
        if self.refused.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok() {
            return None;
        }
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let raw = self.device.create_buffer(&descriptor);
        pollster::block_on(scope.pop()).is_none().then_some(raw)
    }

    /// A buffer of `bytes` bytes whose contents are unspecified but initialised. If the device has no memory left,
    /// `reclaim` is called once to let the device finish with dropped buffers. It must not use the pool.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: usize, reclaim: impl FnOnce()) -> Result<Buffer> {
        self.faults.check_lost("alloc")?;
        let Some(capacity) = capacity(bytes, self.most) else {
            let why = format!("a buffer of this device has at most {} bytes", self.most);
            return Err(self.out_of_memory("alloc", bytes, &why));
        };
        let mut state = self.state();
        let live = state.stats.in_use.saturating_add(bytes);
        if state.budget.is_some_and(|b| live > b) {
            return Err(self.out_of_memory("alloc", bytes, "the memory budget does not allow it"));
        }
        let ptr = if bytes == 0 {
            NonNull::dangling()
        } else {
            let block = match state.free.get_mut(&capacity).and_then(Vec::pop) {
                Some(mut block) => {
                    state.stats.cached -= capacity as usize;
                    block.renew();
                    block
                }
                None => self.create(&mut state, bytes, capacity, reclaim)?,
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

    fn create(&self, state: &mut State, bytes: usize, capacity: u64, reclaim: impl FnOnce()) -> Result<Box<Block>> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let make = || self.make(capacity, usage);
        let raw = make().or_else(|| {
            // Destroying the blocks kept for reuse may free enough memory.
            self.drop_free(state);
            reclaim();
            make()
        });
        self.faults.check_lost("alloc")?;
        let raw = raw.ok_or_else(|| self.out_of_memory("alloc", bytes, "the device has no more"))?;
        state.stats.system_allocations += 1;
        state.next_id += 1;
        Ok(Box::new(Block { raw, id: state.next_id, touched: AtomicU64::new(0), contents: Arc::default() }))
    }

    /// Whether this pool made the buffer.
    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(buffer.owner()), std::ptr::from_ref(self))
    }

    /// The block behind a buffer. Fails if another device made the buffer, or if it is empty and so has no block.
    pub(crate) fn block<'a>(&self, op: &str, buffer: &'a Buffer) -> Result<&'a Block> {
        if !self.owns(buffer) {
            let m = format!("a buffer of {} bytes belongs to another device than {}", buffer.bytes(), self.name);
            return Err(Error::new(ErrorKind::DeviceMismatch, op, m));
        }
        if buffer.bytes() == 0 {
            return Err(Error::argument(op, "a view of elements in an empty buffer"));
        }
        // SAFETY: this pool made the buffer with a leaked `Block` behind its pointer. The block lives until the buffer
        // is dropped; an exclusive reference to it is made only while the buffer is borrowed alone.
        Ok(unsafe { buffer.as_ptr().cast::<Block>().as_ref() })
    }

    /// See [`Backend::renew`](gradus_backend::Backend::renew).
    pub(crate) fn renew(&self, buffer: &mut Buffer) -> Result<()> {
        if buffer.bytes() > 0 {
            self.block("renew", buffer)?;
            // SAFETY: the buffer is of this pool and not empty, so its pointer is a leaked `Block`, which the caller has
            // borrowed alone.
            unsafe { buffer.as_ptr().cast::<Block>().as_mut() }.renew();
        }
        Ok(())
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.state().stats
    }

    pub(crate) fn set_budget(&self, bytes: Option<usize>) {
        self.state().budget = bytes;
    }

    /// The ids of the blocks destroyed since the last call.
    pub(crate) fn take_gone(&self) -> Vec<u64> {
        self.gone.take()
    }

    /// Destroys the blocks kept for reuse, which returns their memory to the device.
    pub(crate) fn trim(&self) {
        self.drop_free(&mut self.state());
    }

    fn drop_free(&self, state: &mut State) {
        state.stats.cached = 0;
        self.gone.add(std::mem::take(&mut state.free).into_values().flatten().map(|block| block.id));
    }
}

// SAFETY: `free` takes back the block that `alloc` leaked; wgpu buffers may be used from any thread.
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
        let capacity = block.raw.size() as usize;
        if state.stats.cached + capacity <= FREE_BOUND.max(state.stats.peak) {
            state.stats.cached += capacity;
            state.free.entry(capacity as u64).or_default().push(block);
        } else {
            self.gone.add(std::iter::once(block.id));
        }
    }
}

impl Block {
    /// Makes this the block of new contents. Records of earlier work may still refer to the old ones.
    fn renew(&mut self) {
        match Arc::get_mut(&mut self.contents) {
            Some(contents) => *contents = Contents::default(),
            None => self.contents = Arc::default(),
        }
    }

    /// Records that commands of submission `epoch` use this buffer.
    pub(crate) fn touch(&self, epoch: u64) {
        self.touched.store(epoch, Relaxed);
    }

    /// Whether commands of submission `epoch`, which is still to be submitted, use this buffer.
    pub(crate) fn is_touched(&self, epoch: u64) -> bool {
        self.touched.load(Relaxed) == epoch
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_up_to_the_largest_buffer_has_a_capacity() {
        let most = (i32::MAX as u64) / SMALLEST * SMALLEST;
        let of = |bytes: u64| capacity(bytes as usize, most);
        assert_eq!([0, 1, 256, 257].map(of), [256, 256, 256, 512].map(Some));
        assert_eq!([1 << 30, (1 << 30) + 1].map(of), [1 << 30, 5 << 28].map(Some));
        // The next step, 2 GiB, is larger than a buffer of such a device may be.
        assert_eq!([(7 << 28) + 1, most].map(of), [most; 2].map(Some));
        assert_eq!([most + 1, 1 << 31].map(of), [None; 2]);
    }
}
