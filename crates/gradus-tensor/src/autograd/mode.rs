//! Switches of a thread: whether operations are recorded, and whether they are watched.
//!
//! All are bits of one thread-local number, so that an operation which asks for them reads just that.

use std::cell::Cell;
use std::marker::PhantomData;

use gradus_backend::{Error, ErrorKind, Result};

/// Operations on tensors that require gradients are recorded.
const RECORD: u8 = 1;
/// The storages that operations read and write are noted (`checkpoint`).
pub(super) const NOTE_ACCESS: u8 = 2;
/// Somebody looks at what operations read and give (`find_nonfinite`, `explain_grad`).
pub(super) const OBSERVE: u8 = 4;
/// Nothing is recorded, whatever is asked for ([`inference`]).
const INFERENCE: u8 = 8;

thread_local! {
    static MODE: Cell<u8> = const { Cell::new(RECORD) };
}

/// Whether this thread records operations on tensors that require gradients. On by default.
#[inline]
pub fn is_grad_enabled() -> bool {
    MODE.get() & (RECORD | INFERENCE) == RECORD
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

/// Whether operations are observed.
#[inline]
pub(crate) fn is_observed() -> bool {
    is_set(OBSERVE)
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

/// Records on this thread until the guard is dropped, also inside [`no_grad`]. Inside [`inference`] it changes nothing.
pub fn enable_grad() -> GradModeGuard {
    set(RECORD, true)
}

/// Records nothing on this thread until the guard is dropped, whatever the code inside does.
///
/// [`no_grad`] is a default that the code inside may lift, with [`enable_grad`] or by asking for a derivative. This is a
/// promise that it cannot: [`enable_grad`] has no effect, and what needs a graph is an error that says so:
/// [`backward`](crate::Tensor::backward), [`grad`](crate::grad), [`vjp`](crate::vjp), [`jvp`](crate::jvp),
/// [`hvp`](crate::hvp), [`jacobian`](crate::jacobian) and [`hessian`](crate::hessian). So a server that runs a model under
/// it holds no graph, whatever that model does.
///
/// Tensors made inside are ordinary ones: they may enter a graph outside, as constants; leaves may be made for later use;
/// and writes are counted inside as outside, so that a value which a graph needs is never overwritten unseen.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![1.0f32], [1], &device)?.require_grad()?;
/// let guard = inference();
/// let _again = enable_grad();
/// assert!(!x.exp()?.requires_grad());
/// assert!(vjp(|x| x[0].exp(), &[&x], &[&x]).is_err());
/// drop(guard);
/// # Ok::<(), Error>(())
/// ```
pub fn inference() -> GradModeGuard {
    set(INFERENCE, true)
}

/// Whether this thread is inside [`inference`].
pub fn is_inference() -> bool {
    is_set(INFERENCE)
}

/// Refuses what needs a graph inside [`inference`].
pub(crate) fn refuse_inference(op: &str) -> Result<()> {
    if !is_inference() {
        return Ok(());
    }
    let e = Error::new(ErrorKind::Autograd, op, "no gradient exists inside inference()");
    Err(e.help("take gradients outside of the guard, or use no_grad(), which allows them"))
}
