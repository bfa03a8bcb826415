//! Buffers, and the pool that keeps freed ones for reuse.
//!
//! A [`Block`] is one allocation of the device. A freed block is added to the list of its size class and serves the
//! next allocation of that class. It may be reused even while the device still works on it, because all work runs in
//! the order of one stream.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::{env, fmt};

use gradus_backend::late::{Access, Contents};
use gradus_backend::{Buffer, BufferOwner, Error, ErrorKind, MemoryStats, Reclaim, Result};

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
    pub(crate) place: Arc<Place>,
}

/// What is known of a block without a borrow of it: the contents of the buffer that has it, or had it last. `None` after
/// its memory was given back to the device.
#[derive(Debug, Default)]
pub(crate) struct Place {
    contents: Mutex<Option<Arc<Contents>>>,
    /// Whether nobody needs what the block holds, so that the next write replaces it, even if it writes only a part.
    is_renewed: AtomicBool,
}

impl Place {
    pub(crate) fn contents(&self) -> Option<Arc<Contents>> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that what the block holds is needed from now on.
    pub(crate) fn written(&self) {
        self.is_renewed.store(false, Relaxed);
    }

    fn set(&self, contents: Option<Arc<Contents>>) {
        *self.contents.lock().unwrap_or_else(PoisonError::into_inner) = contents;
    }
}

impl Block {
    /// Makes this the block of a new buffer. Records of earlier work may still refer to the contents of the old one.
    fn renew(&mut self) {
        self.place.written();
        self.contents = Arc::default();
        self.place.set(Some(self.contents.clone()));
    }

    /// What work that is being queued does to the contents, given how it uses the buffer.
    pub(crate) fn accessed(&self, access: Access) -> Access {
        match access {
            Access::Write if self.place.is_renewed.load(Relaxed) => Access::Replace,
            access => access,
        }
    }

    /// Notes that work was queued which uses the buffer in this way.
    pub(crate) fn queued(&self, access: Access) {
        if access != Access::Read {
            self.place.written();
        }
    }
}

/// The pool. There is one per backend; its address is the backend's identity.
pub(crate) struct Pool {
    this: Weak<Pool>,
    pub(crate) device: Arc<Device>,
    exact: bool,
    /// Memory to take back when it runs short.
    reclaimed: Mutex<Vec<Weak<dyn Reclaim>>>,
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
        Arc::new_cyclic(|this| Pool {
            this: this.clone(),
            device,
            exact,
            reclaimed: Mutex::default(),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn out_of_memory(&self, bytes: usize, why: &str) -> Error {
        let m = format!("{bytes} bytes on {}: {why}", self.device.label);
        Error::new(ErrorKind::OutOfMemory { requested: bytes }, "alloc", m)
    }

    /// A buffer of `bytes` bytes. Its contents are unspecified. If the device has no memory left, what the pool keeps is given
    /// back first, and then what graphs and plans keep, if there may be enough with that.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        match self.spare(bytes) {
            Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) && self.reclaim(bytes) => {
                self.allocated(bytes).inspect(|buffer| self.note(buffer))
            }
            made => made,
        }
    }

    /// The same, without taking back what graphs and plans keep.
    pub(crate) fn spare(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        self.device.check_lost("alloc")?;
        match self.reused(bytes) {
            Some(buffer) => Ok(buffer),
            None => self.allocated(bytes).inspect(|buffer| self.note(buffer)),
        }
    }

    /// Registers memory that may be had back when there is no more.
    pub(crate) fn register(&self, one: Weak<dyn Reclaim>) {
        let mut all = self.reclaimed.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(one);
    }

    /// Takes back what was registered, and what this thread keeps, unless `bytes` bytes are too many even then. Returns whether
    /// there was anything.
    fn reclaim(&self, bytes: usize) -> bool {
        let all: Vec<_> = {
            let all = self.reclaimed.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        let kept = |temporary: &mut Temporary| temporary.kept.iter().map(Buffer::bytes).sum();
        let most = all.iter().map(|one| one.bytes()).sum::<usize>() + self.with_kept(kept).unwrap_or(0);
        let state = self.state();
        let allowed =
            state.stats.in_use.saturating_sub(most).saturating_add(bytes) <= state.budget.unwrap_or(usize::MAX);
        let there = self.device.free_memory().unwrap_or(usize::MAX);
        let is_enough = allowed && there.saturating_add(state.stats.cached).saturating_add(most) >= bytes;
        drop(state);
        is_enough && {
            let cleared = all.iter().filter(|one| one.clear()).count();
            drop_kept() || cleared > 0
        }
    }

    fn allocated(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
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
                    block.renew();
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
        let (contents, place) = (Arc::default(), Arc::default());
        let mut block = Box::new(Block { ptr, capacity, contents, place });
        block.renew();
        Ok(block)
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
        // is dropped; an exclusive reference to it is made only while the buffer is borrowed alone, or has no user.
        Ok(unsafe { buffer.as_ptr().cast::<Block>().as_ref() })
    }

    /// See [`Backend::renew`](gradus_backend::Backend::renew). A recording must list the first write as one that replaces
    /// the contents, because starting a graph renews nothing; so this is noted until the write.
    pub(crate) fn renew(&self, buffer: &mut Buffer) -> Result<()> {
        if buffer.bytes() > 0 {
            self.block("renew", buffer)?.place.is_renewed.store(true, Relaxed);
        }
        Ok(())
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
        block.place.set(None);
        // SAFETY: the block was allocated by this device, and its owner is dropping it.
        unsafe { self.device.free(block.ptr) }
    }
}

/// What calls have allocated on a thread.
#[derive(Default)]
pub(crate) struct Temporary {
    /// The contents of each buffer, in the order of their allocation.
    pub(crate) contents: Vec<Arc<Contents>>,
    /// The buffers that were freed and have not been allocated again.
    pub(crate) kept: Vec<Buffer>,
    /// The number of buffers that are not freed.
    pub(crate) live: usize,
}

thread_local! {
    static KEPT: RefCell<Option<(Arc<Pool>, Temporary)>> = const { RefCell::new(None) };
}

/// Drops what this thread keeps, if it does. Returns whether it did.
fn drop_kept() -> bool {
    // The buffers are freed after the borrow, because their pool looks here whether it is to keep them.
    let kept = KEPT.try_with(RefCell::take).ok().flatten();
    kept.is_some()
}

/// As long as this lives, temporary buffers of a pool are kept when this thread frees them, for a graph that uses them
/// again. They serve later allocations of the same size.
pub(crate) struct Keeping(());

impl Keeping {
    /// `None` if this thread keeps buffers already.
    pub(crate) fn begin(pool: &Arc<Pool>) -> Option<Keeping> {
        KEPT.with_borrow_mut(|kept| {
            if kept.is_some() {
                return None;
            }
            *kept = Some((pool.clone(), Temporary::default()));
            Some(Keeping(()))
        })
    }

    /// What was kept; `None` if memory was short, or if a buffer was freed that is older.
    pub(crate) fn end(self) -> Option<Temporary> {
        KEPT.take().map(|(_, temporary)| temporary)
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        drop_kept();
    }
}

impl Pool {
    /// Calls `f` with what this thread keeps of this pool, if it does.
    fn with_kept<R>(&self, f: impl FnOnce(&mut Temporary) -> R) -> Option<R> {
        // A thread that ends keeps nothing.
        let kept = KEPT.try_with(|kept| match &mut *kept.borrow_mut() {
            Some((pool, temporary)) if std::ptr::eq(&**pool, self) => Some(f(temporary)),
            _ => None,
        });
        kept.ok().flatten()
    }

    /// A kept buffer of this size, as if it were new. Tools that check accesses see each buffer once.
    fn reused(&self, bytes: usize) -> Option<Buffer> {
        self.with_kept(|temporary| {
            let at = temporary.kept.iter().position(|buffer| buffer.bytes() == bytes && !self.exact)?;
            let buffer = temporary.kept.swap_remove(at);
            // SAFETY: the buffer is of this pool and not empty, so its pointer is a leaked `Block`, which nobody else uses.
            let block = unsafe { buffer.as_ptr().cast::<Block>().as_mut() };
            block.renew();
            temporary.contents.push(block.contents.clone());
            temporary.live += 1;
            Some(buffer)
        })?
    }

    /// Notes a new buffer, if this thread keeps buffers.
    fn note(&self, buffer: &Buffer) {
        self.with_kept(|temporary| {
            if let Ok(block) = self.block("alloc", buffer) {
                temporary.contents.push(block.contents.clone());
                temporary.live += 1;
            }
        });
    }

    /// Keeps a buffer that is being freed, if it was allocated since this thread keeps buffers; `again` makes it once more.
    /// The end of an older buffer ends that.
    fn keeps(&self, block: &Block, again: impl FnOnce(Arc<Pool>) -> Buffer) -> bool {
        let kept = self.with_kept(|temporary| {
            let is_temporary = temporary.contents.iter().rev().any(|life| Arc::ptr_eq(life, &block.contents));
            let this = self.this.upgrade().filter(|_| is_temporary)?;
            temporary.kept.push(again(this));
            temporary.live -= 1;
            Some(())
        });
        if kept == Some(None) {
            drop_kept();
        }
        kept == Some(Some(()))
    }
}

// SAFETY: `free` takes back the block that `alloc` leaked; memory of the device may be used from any thread.
unsafe impl BufferOwner for Pool {
    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        if bytes > 0 && KEPT.try_with(|kept| kept.borrow().is_some()) == Ok(true) {
            // SAFETY: a pointer of this pool with a size above 0 is a `Block` that `alloc` leaked.
            let block = unsafe { ptr.cast::<Block>().as_ref() };
            // SAFETY: this is the buffer that is freed; if it is made, it is kept, and frees its memory in its turn.
            if self.keeps(block, |this| unsafe { Buffer::from_raw(ptr, bytes, this) }) {
                return;
            }
        }
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
