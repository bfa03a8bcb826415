//! An allocator that counts, and that refuses what is large and beyond a limit.
//!
//! What a program allocates without asking whether it may ends it there (`handle_alloc_error` aborts), which is what the
//! search is for. Small allocations are never refused: nobody can do without those.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Allocations from this size on are refused beyond the limit.
pub const LARGE: usize = 64 << 10;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
static TELL: AtomicBool = AtomicBool::new(false);

/// The allocator of the system, with a limit.
#[derive(Debug)]
pub struct Limited;

/// Bytes allocated now.
pub fn live() -> usize {
    LIVE.load(Relaxed)
}

/// The most bytes that were ever allocated since the last [`reset_peak`].
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// Forgets the peak so far.
pub fn reset_peak() {
    PEAK.store(live(), Relaxed);
}

/// From now on large allocations that would take the bytes allocated above `bytes` are refused.
pub fn set_limit(bytes: usize) {
    LIMIT.store(bytes, Relaxed);
}

/// Whether a refusal prints where it happened.
pub fn tell_refusals(on: bool) {
    TELL.store(on, Relaxed);
}

/// Counts `size` bytes more, unless they are refused.
fn take(size: usize) -> bool {
    let live = LIVE.fetch_add(size, Relaxed).saturating_add(size);
    if size >= LARGE && live > LIMIT.load(Relaxed) {
        LIVE.fetch_sub(size, Relaxed);
        tell(size);
        return false;
    }
    PEAK.fetch_max(live, Relaxed);
    true
}

/// Prints where an allocation was refused; what that allocates itself prints nothing.
fn tell(size: usize) {
    thread_local!(static TELLS: Cell<bool> = const { Cell::new(false) });
    if !TELL.load(Relaxed) || TELLS.replace(true) {
        return;
    }
    let limit = LIMIT.swap(usize::MAX, Relaxed);
    eprintln!("refused {size} bytes at\n{}", std::backtrace::Backtrace::force_capture());
    LIMIT.store(limit, Relaxed);
    TELLS.set(false);
}

// SAFETY: memory comes from the system's allocator and goes back to it, with the layouts that the caller gives; the counts
// beside it touch no memory of the caller's.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return null_mut();
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return null_mut();
        }
        // SAFETY: as above.
        let moved = unsafe { System.realloc(ptr, layout, size) };
        LIVE.fetch_sub(if moved.is_null() { size } else { layout.size() }, Relaxed);
        moved
    }
}
