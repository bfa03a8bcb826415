//! Whether operations are recorded: a switch a thread.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether this thread records operations on tensors that require gradients. On by default.
pub fn is_grad_enabled() -> bool {
    ENABLED.get()
}

/// Restores the switch as it was, when dropped.
#[must_use = "recording is switched back when the guard is dropped: bind it, `let _guard = no_grad();`"]
#[derive(Debug)]
pub struct GradModeGuard {
    before: bool,
    // Belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for GradModeGuard {
    fn drop(&mut self) {
        ENABLED.set(self.before);
    }
}

fn set(enabled: bool) -> GradModeGuard {
    GradModeGuard { before: ENABLED.replace(enabled), _not_send: PhantomData }
}

/// Records nothing on this thread until the guard is dropped.
pub fn no_grad() -> GradModeGuard {
    set(false)
}

/// Records on this thread until the guard is dropped, also inside [`no_grad`].
pub fn enable_grad() -> GradModeGuard {
    set(true)
}
