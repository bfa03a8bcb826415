//! An allocator that counts bytes, and refuses large allocations beyond a limit.
//!
//! A refused allocation aborts the process (`handle_alloc_error`) unless the code used a fallible function such as
//! `try_reserve`. The search looks for such aborts. Small allocations are never refused, because no program can handle
//! that.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Allocations of at least this size can be refused.
pub const LARGE: usize = 64 << 10;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
static TELL: AtomicBool = AtomicBool::new(false);

/// The system's allocator, with a limit.
#[derive(Debug)]
pub struct Limited;

/// The number of bytes allocated now.
pub fn live() -> usize {
    LIVE.load(Relaxed)
}

/// The largest number of bytes allocated at once since the last [`reset_peak`].
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// Resets the peak to the current number of bytes.
pub fn reset_peak() {
    PEAK.store(live(), Relaxed);
}

/// From now on, refuses large allocations that would raise the number of allocated bytes above `bytes`.
pub fn set_limit(bytes: usize) {
    LIMIT.store(bytes, Relaxed);
}

/// Sets whether a refusal prints a backtrace.
pub fn tell_refusals(on: bool) {
    TELL.store(on, Relaxed);
}

/// Counts `size` more bytes, or returns false if they are refused.
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

/// Prints the place of a refused allocation. Allocations made while printing are not reported.
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

// SAFETY: memory comes from the system's allocator and returns to it with the caller's layouts; the counters do not
// touch the caller's memory.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller upholds the requirements of `System`.
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
