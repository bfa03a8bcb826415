//! The caching pool behind every buffer of this backend.
//!
//! A freed block goes to the free list of its size class and serves the next allocation of that class. A program in a
//! steady state therefore never asks the system for memory. This matters because the first access to fresh pages costs
//! more than most kernels. Small blocks are kept in shards, each behind a lock of its own that is almost never
//! contended. Large blocks share one set of lists, which is bounded in size and evicts the least recently used class
//! first. Memory is always initialised, because fresh blocks come zeroed and used ones hold old data. A slice over a
//! whole buffer is therefore sound for every type whose bit patterns are all valid values.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradus_backend::{Buffer, BufferOwner, ClaimCount, Error, ErrorKind, MemoryStats, Result};

/// Minimum alignment of a block: the size of a cache line and of the widest vector.
const ALIGN: usize = 64;
/// Alignment of blocks above [`SMALL`].
const PAGE: usize = 4096;
/// Size of a huge page. Blocks of at least twice this size are aligned to it and ask for huge pages.
const HUGE: usize = 2 << 20;
/// Largest capacity of the blocks that are kept in the shards.
const SMALL: usize = 64 << 10;
/// Number of size classes up to [`SMALL`].
const SMALL_CLASSES: usize = 41;
/// Number of size classes.
const CLASSES: usize = 229;
/// Number of shards. Each thread has one that it tries first.
const SHARDS: usize = 8;
/// The maximum number of bytes that a shard keeps.
const SHARD_BOUND: usize = 4 << 20;
/// Large cached blocks and memory in use may always take up this many bytes together, however low the program's peak
/// is. The memory budget still applies.
const FREE_BOUND: usize = 64 << 20;
/// Size of the header before a block, which holds the address that the system returned.
const HEADER: usize = 16;

/// Returns the size class of an allocation and the capacity of that class. Capacities start at 64 bytes and have four
/// steps per octave.
fn class(bytes: usize) -> (usize, usize) {
    if bytes <= ALIGN {
        return (0, ALIGN);
    }
    let s = bytes - 1;
    let octave = s.ilog2() as usize;
    let step = octave - 2;
    let quarter = s >> step; // 4..8
    ((octave - 6) * 4 + quarter - 3, (quarter + 1) << step)
}

/// Alignment of a block of this capacity.
fn alignment(capacity: usize) -> usize {
    match capacity {
        0..=SMALL => ALIGN,
        c if c < 2 * HUGE => PAGE,
        _ => HUGE,
    }
}

/// The layout requested from the system for a block of this capacity, if there is a valid one.
fn system_layout(capacity: usize) -> Option<Layout> {
    let total = capacity.checked_add(alignment(capacity) + HEADER)?;
    Layout::from_size_align(total, HEADER).ok()
}

/// Allocates a zeroed block from the system.
fn system_alloc(capacity: usize) -> Option<NonNull<u8>> {
    let layout = system_layout(capacity)?;
    // SAFETY: the layout has a size above 0.
    let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    let align = alignment(capacity);
    let shift = (raw.as_ptr() as usize + HEADER).next_multiple_of(align) - raw.as_ptr() as usize;
    // SAFETY: HEADER <= shift <= align + HEADER - 1, because `raw` is a multiple of HEADER. The block and the header in
    // front of it therefore lie inside the allocation. The header is aligned for a pointer because the address of the
    // block and HEADER are both multiples of 16.
    let block = unsafe {
        let block = raw.add(shift);
        block.cast::<NonNull<u8>>().sub(1).write(raw);
        block
    };
    if align == HUGE {
        advise_huge(block, capacity);
    }
    Some(block)
}

/// Returns a block to the system.
///
/// # Safety
/// `block` came from [`system_alloc`] with this capacity, and nothing uses it any more.
unsafe fn system_free(block: NonNull<u8>, capacity: usize) {
    if let Some(layout) = system_layout(capacity) {
        // SAFETY: `system_alloc` stored the address of its allocation in the header, and allocated with this same
        // layout.
        unsafe {
            let raw = block.cast::<NonNull<u8>>().sub(1).read();
            dealloc(raw.as_ptr(), layout);
        }
    }
}

/// Asks for huge pages. If the system refuses, nothing changes.
#[cfg(all(target_os = "linux", not(miri)))]
fn advise_huge(block: NonNull<u8>, capacity: usize) {
    use std::ffi::{c_int, c_void};
    // SAFETY: the signature is that of the system's C library.
    unsafe extern "C" {
        fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int;
    }
    const MADV_HUGEPAGE: c_int = 14;
    // SAFETY: the range consists of whole pages of one live allocation, and this advice changes neither contents nor
    // mapping.
    unsafe { madvise(block.as_ptr().cast(), capacity / HUGE * HUGE, MADV_HUGEPAGE) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn advise_huge(_: NonNull<u8>, _: usize) {}

/// Free blocks of one shard, by class.
struct Shard {
    lists: [Vec<NonNull<u8>>; SMALL_CLASSES],
    cached: usize,
    /// The number of buffers allocated minus the number freed through this shard. Only the sum over all shards is
    /// meaningful.
    buffers: isize,
}

/// Free blocks above [`SMALL`], by class.
struct Large {
    lists: Vec<List>,
    cached: usize,
    clock: u64,
}

#[derive(Default)]
struct List {
    blocks: Vec<NonNull<u8>>,
    last_use: u64,
}

// SAFETY: a free block belongs only to the list that holds it, and any thread may access it.
unsafe impl Send for Shard {}
// SAFETY: as for `Shard`.
unsafe impl Send for Large {}

/// Keeps a value on cache lines of its own.
#[repr(align(128))]
struct Padded<T>(T);

/// The memory pool of a backend. Each backend has its own pool, whose address serves as the backend's identity.
pub(crate) struct Pool {
    shards: [Padded<Mutex<Shard>>; SHARDS],
    large: Mutex<Large>,
    in_use: Padded<AtomicUsize>,
    peak: AtomicUsize,
    budget: AtomicUsize,
    system_allocations: AtomicU64,
}

/// The index of the shard that this thread tries first.
fn shard_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: Cell<usize> = const { Cell::new(usize::MAX) });
    // A thread that is ending no longer has thread-local values, but may still free buffers.
    SHARD
        .try_with(|s| {
            if s.get() == usize::MAX {
                s.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
            }
            s.get()
        })
        .unwrap_or(0)
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(crate) fn new() -> Arc<Pool> {
        let shard = |_| Padded(Mutex::new(Shard { lists: std::array::from_fn(|_| Vec::new()), cached: 0, buffers: 0 }));
        let lists = (0..CLASSES).map(|_| List::default()).collect();
        Arc::new(Pool {
            shards: std::array::from_fn(shard),
            large: Mutex::new(Large { lists, cached: 0, clock: 0 }),
            in_use: Padded(AtomicUsize::new(0)),
            peak: AtomicUsize::new(0),
            budget: AtomicUsize::new(usize::MAX),
            system_allocations: AtomicU64::new(0),
        })
    }

    /// Allocates a buffer of `bytes` bytes with unspecified but initialised contents.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let live = self.count("alloc", bytes)?;
        let Some(ptr) = self.take(bytes) else {
            self.in_use.0.fetch_sub(bytes, Relaxed);
            return Err(self.out_of_memory("alloc", bytes, "the system has no more memory"));
        };
        self.raise_peak(live);
        // SAFETY: the block has room for `bytes` bytes, is in no free list, and stays allocated until `free` takes it
        // back.
        Ok(unsafe { Buffer::from_raw(ptr, bytes, self.clone()) })
    }

    /// If the budget allows it, adds `bytes` to the number of bytes in use and returns the new total. `op` is the
    /// operation that requested them.
    #[inline]
    fn count(&self, op: &str, bytes: usize) -> Result<usize> {
        if bytes > isize::MAX as usize / 4 {
            return Err(self.out_of_memory(op, bytes, "no machine has as much"));
        }
        let live = self.in_use.0.fetch_add(bytes, Relaxed) + bytes;
        if live > self.budget.load(Relaxed) {
            self.in_use.0.fetch_sub(bytes, Relaxed);
            return Err(self.out_of_memory(op, bytes, "the memory budget does not allow it"));
        }
        Ok(live)
    }

    fn raise_peak(&self, live: usize) {
        if live > self.peak.load(Relaxed) {
            self.peak.fetch_max(live, Relaxed);
        }
    }

    /// Returns the pool's free blocks to the system if they and the memory in use together exceed the budget.
    fn keep_within_budget(&self) {
        let budget = self.budget.load(Relaxed);
        if budget != usize::MAX && self.in_use.0.load(Relaxed).saturating_add(self.cached()) > budget {
            self.trim();
        }
    }

    /// Takes a block for `bytes` bytes from the pool or from the system.
    fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let (class, capacity) = class(bytes);
        let own = shard_index();
        let cached = {
            let mut shard = lock(&self.shards[own].0);
            shard.buffers += 1;
            if bytes == 0 {
                return Some(dangling());
            }
            if class < SMALL_CLASSES {
                shard.pop(class, capacity)
            } else {
                drop(shard);
                lock(&self.large).pop(class, capacity)
            }
        };
        if cached.is_some() {
            return cached;
        }
        if class < SMALL_CLASSES {
            let others = (1..SHARDS).filter_map(|i| self.shards[(own + i) % SHARDS].0.try_lock().ok());
            if let Some(block) = others.into_iter().find_map(|mut s| s.pop(class, capacity)) {
                return Some(block);
            }
        }
        self.keep_within_budget();
        let block = system_alloc(capacity).or_else(|| {
            self.trim();
            system_alloc(capacity)
        });
        match block {
            Some(_) => {
                self.system_allocations.fetch_add(1, Relaxed);
            }
            None => lock(&self.shards[own].0).buffers -= 1,
        }
        block
    }

    #[cold]
    pub(crate) fn out_of_memory(&self, op: &str, requested: usize, reason: &str) -> Error {
        let s = self.stats();
        let m = format!("{requested} bytes asked for, but {reason}");
        let e = Error::new(ErrorKind::OutOfMemory { requested }, op, m)
            .note(format!("in use {} bytes in {} buffers, peak {} bytes", s.in_use, s.buffers, s.peak));
        let e = match self.budget.load(Relaxed) {
            usize::MAX => e,
            b => e.note(format!("budget {b} bytes")),
        };
        e.help("drop tensors that are not needed, use a smaller batch, or raise the budget (set_memory_budget)")
    }

    /// Bytes of free blocks in the pool.
    fn cached(&self) -> usize {
        let small: usize = self.shards.iter().map(|s| lock(&s.0).cached).sum();
        small + lock(&self.large).cached
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        let buffers: isize = self.shards.iter().map(|s| lock(&s.0).buffers).sum();
        let in_use = self.in_use.0.load(Relaxed);
        MemoryStats {
            in_use,
            peak: self.peak.load(Relaxed).max(in_use),
            cached: self.cached(),
            buffers: buffers.max(0) as usize,
            system_allocations: self.system_allocations.load(Relaxed),
        }
    }

    pub(crate) fn set_budget(&self, bytes: Option<usize>) {
        self.budget.store(bytes.unwrap_or(usize::MAX), Relaxed);
        self.keep_within_budget();
    }

    /// Returns every free block to the system.
    pub(crate) fn trim(&self) {
        for shard in &self.shards {
            lock(&shard.0).release();
        }
        lock(&self.large).evict(0);
    }
}

/// The address of a buffer of 0 bytes.
fn dangling() -> NonNull<u8> {
    #[repr(align(4096))]
    struct Page;
    NonNull::<Page>::dangling().cast()
}

impl Shard {
    fn pop(&mut self, class: usize, capacity: usize) -> Option<NonNull<u8>> {
        let block = self.lists[class].pop()?;
        self.cached -= capacity;
        Some(block)
    }

    fn release(&mut self) {
        for (i, list) in self.lists.iter_mut().enumerate() {
            for block in std::mem::take(list) {
                // SAFETY: blocks in the list of a class came from the system with that class's capacity, and are free.
                unsafe { system_free(block, capacity_of(i)) };
            }
        }
        self.cached = 0;
    }
}

impl Large {
    fn pop(&mut self, class: usize, capacity: usize) -> Option<NonNull<u8>> {
        self.clock += 1;
        let list = &mut self.lists[class];
        list.last_use = self.clock;
        let block = list.blocks.pop()?;
        self.cached -= capacity;
        Some(block)
    }

    fn push(&mut self, class: usize, capacity: usize, block: NonNull<u8>) {
        self.clock += 1;
        self.lists[class].last_use = self.clock;
        self.lists[class].blocks.push(block);
        self.cached += capacity;
    }

    /// Frees blocks, least recently used class first, until at most `bound` bytes are left.
    fn evict(&mut self, bound: usize) {
        while self.cached > bound {
            let filled = self.lists.iter_mut().enumerate().filter(|(_, l)| !l.blocks.is_empty());
            let Some((class, list)) = filled.min_by_key(|(_, l)| l.last_use) else { return };
            let capacity = capacity_of(class);
            if let Some(block) = list.blocks.pop() {
                // SAFETY: blocks in the list of a class came from the system with that class's capacity, and are free.
                unsafe { system_free(block, capacity) };
                self.cached -= capacity;
            }
        }
    }
}

/// Capacity of the blocks of a class: the inverse of [`class`].
fn capacity_of(class: usize) -> usize {
    match class {
        0 => ALIGN,
        c => {
            let (octave, quarter) = ((c - 1) / 4 + 6, (c - 1) % 4 + 4);
            (quarter + 1) << (octave - 2)
        }
    }
}

// SAFETY: a block stays allocated until `free` is called for its buffer, because it leaves its list when the buffer is
// created and only listed blocks are returned to the system. Plain memory may be used from any thread.
unsafe impl BufferOwner for Pool {
    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        let (class, capacity) = class(bytes);
        let live = self.in_use.0.fetch_sub(bytes, Relaxed) - bytes;
        let mut shard = lock(&self.shards[shard_index()].0);
        shard.buffers -= 1;
        if bytes == 0 {
            return;
        }
        if class < SMALL_CLASSES {
            if shard.cached + capacity <= SHARD_BOUND {
                shard.lists[class].push(ptr);
                shard.cached += capacity;
            } else {
                drop(shard);
                // SAFETY: the caller gives up the block, which `system_alloc` allocated with the capacity of this
                // class.
                unsafe { system_free(ptr, capacity) };
            }
            return;
        }
        drop(shard);
        let peak = self.peak.load(Relaxed);
        let held = FREE_BOUND.max(peak.saturating_add(peak / 4)).min(self.budget.load(Relaxed));
        let mut large = lock(&self.large);
        large.push(class, capacity, ptr);
        large.evict(held.saturating_sub(live));
    }
}

impl ClaimCount for Pool {
    fn claim(&self, op: &str, bytes: usize) -> Result<()> {
        let live = self.count(op, bytes)?;
        self.raise_peak(live);
        self.keep_within_budget();
        Ok(())
    }

    fn release(&self, bytes: usize) {
        self.in_use.0.fetch_sub(bytes, Relaxed);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.trim();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({:?})", self.stats())
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
