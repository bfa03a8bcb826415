//! Switches of a thread: whether operations are recorded, and whether they are watched.
//!
//! All are bits of one thread-local number, so that an operation which asks for them reads just that.

use std::cell::Cell;
use std::marker::PhantomData;

/// Operations on tensors that require gradients are recorded.
const RECORD: u8 = 1;
/// The storages that operations read and write are noted (`checkpoint`).
pub(super) const NOTE_ACCESS: u8 = 2;

thread_local! {
    static MODE: Cell<u8> = const { Cell::new(RECORD) };
}

/// Whether this thread records operations on tensors that require gradients. On by default.
pub fn is_grad_enabled() -> bool {
    is_set(RECORD)
}

/// Whether a switch is on.
#[inline]
pub(super) fn is_set(bit: u8) -> bool {
    MODE.get() & bit != 0
}

/// Whether accesses to storages are noted.
#[inline]
pub(crate) fn notes_access() -> bool {
    is_set(NOTE_ACCESS)
}

/// Restores the switch as it was, when dropped.
#[must_use = "recording is switched back when the guard is dropped: bind it, `let _guard = no_grad();`"]
#[derive(Debug)]
pub struct GradModeGuard {
    bit: u8,
    before: bool,
    // Belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for GradModeGuard {
    fn drop(&mut self) {
        turn(self.bit, self.before);
    }
}

fn turn(bit: u8, on: bool) {
    MODE.set(if on { MODE.get() | bit } else { MODE.get() & !bit });
}

/// Sets a switch until the guard is dropped.
pub(super) fn set(bit: u8, on: bool) -> GradModeGuard {
    let before = is_set(bit);
    turn(bit, on);
    GradModeGuard { bit, before, _not_send: PhantomData }
}

/// Records nothing on this thread until the guard is dropped.
pub fn no_grad() -> GradModeGuard {
    set(RECORD, false)
}

/// Records on this thread until the guard is dropped, also inside [`no_grad`].
pub fn enable_grad() -> GradModeGuard {
    set(RECORD, true)
}
