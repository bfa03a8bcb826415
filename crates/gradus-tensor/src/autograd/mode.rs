//! The switches of a thread: whether operations are recorded, observed or traced.
//!
//! All are bits of one thread-local number, which is all that an operation has to read. A list beside it holds what
//! guards have set.
//!
//! Every switch of the user has two forms: `no_grad(f)` runs a closure, `no_grad_guard()` gives a [`GradModeGuard`].

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use gradus_backend::{Error, ErrorKind, Result};

/// Operations on tensors that require gradients are recorded.
const RECORD: u16 = 1;
/// The storages that operations read and write are noted (`checkpoint`).
pub(super) const NOTE_ACCESS: u16 = 2;
/// Nodes also remember the inputs that their gradient does not need ([`strict`]).
pub(super) const STRICT: u16 = 4;
/// A write over a value that a graph needs fails ([`strict_inplace`]).
pub(super) const REFUSE_WRITES: u16 = 8;
/// A write over a value that a graph needs leaves the graph a copy ([`allow_mutation_on_saved_tensors`]).
pub(super) const COPY_ON_WRITE: u16 = 16;
/// Saved values go through hooks (`saved_tensors_hooks`).
pub(super) const PACK: u16 = 32;
/// An observer sees the operands and results of operations (`find_nonfinite`, `explain_grad`).
pub(super) const OBSERVE: u16 = 64;
/// Nothing is recorded, even inside `enable_grad` ([`inference`]).
const INFERENCE: u16 = 128;
/// Reading the numbers of a tracked tensor is an error: what is computed from them would be missing from the graph (in
/// the gradient of a custom operation that is itself differentiated).
pub(super) const REFUSE_READS: u16 = 256;
/// User functions run while the locks of tensors are held (`dispatch_compute`).
pub(super) const HOLDS: u16 = 512;
/// A tracer sees the operations that run ([`trace`](crate::ops::trace)).
const TRACE: u16 = 1024;
/// Switches that protect saved values beyond their versions.
pub(super) const GUARDS: u16 = STRICT | REFUSE_WRITES | COPY_ON_WRITE;

thread_local! {
    static MODE: Cell<u16> = const { Cell::new(RECORD) };
}

/// Whether this thread records operations on tensors that require gradients. On by default.
#[inline]
pub fn is_grad_enabled() -> bool {
    MODE.get() & (RECORD | INFERENCE) == RECORD
}

/// Whether any of these switches is on.
#[inline]
pub(super) fn is_set(bits: u16) -> bool {
    MODE.get() & bits != 0
}

/// Whether accesses to storages are noted.
#[inline]
pub(crate) fn notes_access() -> bool {
    is_set(NOTE_ACCESS)
}

/// Whether accesses to storages are noted, or must be checked against the locks that this thread holds.
#[inline]
pub(crate) fn checks_access() -> bool {
    is_set(NOTE_ACCESS | HOLDS)
}

/// For as long as a user function runs while locks of tensors are held.
pub(crate) fn holding() -> GradModeGuard {
    set(HOLDS, true)
}

/// For as long as a function runs that is not part of the user's computation: nothing is recorded, noted or refused.
pub(crate) fn beside() -> GradModeGuard {
    set_switches(RECORD | GUARDS | PACK | NOTE_ACCESS | OBSERVE | TRACE | REFUSE_READS, 0)
}

/// Whether the numbers of tracked tensors may not be read.
#[inline]
pub(crate) fn refuses_reads() -> bool {
    is_set(REFUSE_READS)
}

/// Whether operations are observed.
#[inline]
pub(crate) fn is_observed() -> bool {
    is_set(OBSERVE)
}

/// Whether operations are traced.
#[inline]
pub(crate) fn is_traced() -> bool {
    is_set(TRACE)
}

/// Whether operations are observed or traced.
#[inline]
pub(crate) fn is_watched() -> bool {
    is_set(OBSERVE | TRACE)
}

/// While operations are traced, or are not.
pub(crate) fn tracing(on: bool) -> GradModeGuard {
    set(TRACE, on)
}

/// Whether saved values are guarded or packed: whether [`Saved::guard`](super::Saved::guard) has anything to do.
#[inline]
pub(crate) fn guards_saved() -> bool {
    is_set(GUARDS | PACK)
}

/// Those of `mask` that are on.
pub(super) fn switches(mask: u16) -> u16 {
    MODE.get() & mask
}

/// Takes its setting back when dropped. Guards may be dropped in any order: those that are left hold, the newest first.
///
/// A guard is for the rest of a scope. It must be bound to a name: `let _ = no_grad_guard();` drops it at once. The form that
/// takes a closure, `no_grad(|| ..)`, cannot be misused like that.
#[must_use = "the switch is set back when the guard is dropped: bind it, `let _guard = no_grad_guard();`, or pass a closure, `no_grad(|| ..)`"]
#[derive(Debug)]
pub struct GradModeGuard {
    setting: Setting,
    // Belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

/// Sets the switches of `mask` to those in `on`; none once its guard is dropped.
#[derive(Debug, Clone, Copy)]
struct Setting {
    id: u64,
    mask: u16,
    on: u16,
}

thread_local! {
    /// The settings of living guards, the newest last. Applied to the default in order, they give the mode.
    static SETTINGS: RefCell<Vec<Setting>> = const { RefCell::new(Vec::new()) };
}

impl Drop for GradModeGuard {
    fn drop(&mut self) {
        // On a thread that is ending, the settings are gone and not needed.
        let _ = SETTINGS.try_with(|settings| {
            let mut settings = settings.borrow_mut();
            let Ok(at) = settings.binary_search_by_key(&self.setting.id, |s| s.id) else { return };
            let mut open = settings[at].mask;
            (settings[at].mask, settings[at].on) = (0, 0);
            while settings.pop_if(|s| s.mask == 0).is_some() {}
            // Each switch that it had set goes back to the newest remaining setting. Where guards nest, the first one
            // found decides.
            let mut mode = MODE.get() & !open | RECORD & open;
            for s in settings.iter().rev() {
                mode = mode & !(s.mask & open) | s.on & open;
                open &= !s.mask;
                if open == 0 {
                    break;
                }
            }
            MODE.set(mode);
        });
    }
}

/// Sets a switch until the guard is dropped.
pub(super) fn set(bit: u16, on: bool) -> GradModeGuard {
    set_switches(bit, if on { bit } else { 0 })
}

/// Turns the switches in `mask` on if they are in `on`, and off otherwise, until the guard is dropped.
pub(super) fn set_switches(mask: u16, on: u16) -> GradModeGuard {
    MODE.set(MODE.get() & !mask | on);
    let setting = SETTINGS.try_with(|settings| {
        let mut settings = settings.borrow_mut();
        let setting = Setting { id: settings.last().map_or(0, |s| s.id) + 1, mask, on };
        settings.push(setting);
        setting
    });
    GradModeGuard { setting: setting.unwrap_or(Setting { id: 0, mask, on }), _not_send: PhantomData }
}

/// Nothing is recorded, guarded or packed: for computations that are not part of the user's program.
pub(super) fn plain() -> GradModeGuard {
    set_switches(RECORD | GUARDS | PACK, 0)
}

/// Runs `f` without recording: its results have no gradient and hold no graph.
///
/// The switch belongs to the thread: what `f` does on other threads is recorded as usual. Inside, [`enable_grad`]
/// records again, and so do functions that take a derivative, such as [`vjp`](crate::vjp).
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![1.0f32], [1], &device)?.with_grad()?;
/// let y = no_grad(|| x.exp()? * 2.0)?;
/// assert!(!y.requires_grad());
/// assert!(x.exp()?.requires_grad());
/// # Ok::<(), Error>(())
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    let _guard = no_grad_guard();
    f()
}

/// [`no_grad`] until the guard is dropped.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// # let x = Tensor::from_vec(vec![1.0f32], [1], &device)?.with_grad()?;
/// let _guard = no_grad_guard();
/// assert!(!x.exp()?.requires_grad());
/// # Ok::<(), Error>(())
/// ```
pub fn no_grad_guard() -> GradModeGuard {
    set(RECORD, false)
}

/// Runs `f` with recording on, even inside [`no_grad`]. Inside [`inference`] it has no effect.
pub fn enable_grad<R>(f: impl FnOnce() -> R) -> R {
    let _guard = enable_grad_guard();
    f()
}

/// [`enable_grad`] until the guard is dropped.
pub fn enable_grad_guard() -> GradModeGuard {
    set(RECORD, true)
}

/// Runs `f` without recording, whatever `f` does.
///
/// [`no_grad`] is a default that the code inside may lift, with [`enable_grad`] or by asking for a derivative. This is a
/// promise that it cannot: [`enable_grad`] has no effect, and what needs a graph is an error that says so:
/// [`backward`](crate::Tensor::backward), [`grad`](crate::grad), [`vjp`](crate::vjp), [`jvp`](crate::jvp),
/// [`hvp`](crate::hvp), [`jacobian`](crate::jacobian) and [`hessian`](crate::hessian). So a server that runs a model under
/// it holds no graph, whatever that model does.
///
/// Tensors made inside are ordinary ones: they may enter a graph outside, as constants; leaves may be made for later
/// use; and writes are counted as always, so that a graph notices when a value it needs is overwritten.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![1.0f32], [1], &device)?.with_grad()?;
/// inference(|| {
///     let y = enable_grad(|| x.exp())?;
///     assert!(!y.requires_grad());
///     assert!(vjp(|x| x[0].exp(), &[&x], &[&x]).is_err());
///     Ok::<(), Error>(())
/// })?;
/// # Ok::<(), Error>(())
/// ```
pub fn inference<R>(f: impl FnOnce() -> R) -> R {
    let _guard = inference_guard();
    f()
}

/// [`inference`] until the guard is dropped.
pub fn inference_guard() -> GradModeGuard {
    set(INFERENCE, true)
}

/// Whether this thread is inside [`inference`].
pub fn is_inference() -> bool {
    is_set(INFERENCE)
}

/// Refuses what needs a graph inside [`inference`].
#[track_caller]
pub(crate) fn refuse_inference(op: &str) -> Result<()> {
    if !is_inference() {
        return Ok(());
    }
    let e = Error::new(ErrorKind::Autograd, op, "no gradient exists inside inference()");
    Err(e.help("take gradients outside of it, or use no_grad, which allows them"))
}

/// Runs `f`. A backward pass through what it records fails where any input was overwritten since, even one whose value no
/// gradient needs. The error names the operation, the one that overwrote, and both source lines; writes beside the input's
/// elements are no errors.
///
/// Inputs are remembered weakly: nothing is kept alive, and an input whose storage is gone is not checked. The three switches
/// for writes are side by side in [writing in place](https://github.com/gradus-rs/gradus/blob/main/docs/writes-in-place.md).
pub fn strict<R>(f: impl FnOnce() -> R) -> R {
    let _guard = strict_guard();
    f()
}

/// [`strict`] until the guard is dropped.
pub fn strict_guard() -> GradModeGuard {
    set(STRICT, true)
}

/// Runs `f`, and protects the values that it saves for a gradient: a write in place over one fails, before a byte changes, for
/// as long as the graph that needs it lives, on every thread. The error names the operation that needs the value and its source
/// line. Writes elsewhere succeed, and so do all writes once the graph was freed by a backward pass or dropped. Inside,
/// [`allow_mutation_on_saved_tensors`] is off.
///
/// What [`saved_tensors_hooks`](super::saved_tensors_hooks) pack is not protected, but checked when it is unpacked. The three
/// switches for writes are side by side in [writing in place](https://github.com/gradus-rs/gradus/blob/main/docs/writes-in-place.md).
pub fn strict_inplace<R>(f: impl FnOnce() -> R) -> R {
    let _guard = strict_inplace_guard();
    f()
}

/// [`strict_inplace`] until the guard is dropped.
pub fn strict_inplace_guard() -> GradModeGuard {
    set_switches(REFUSE_WRITES | COPY_ON_WRITE, REFUSE_WRITES)
}

/// Runs `f`, and lets the values that it saves for a gradient be overwritten: a write in place over one first leaves the graph
/// a copy of the old value, for as long as the graph lives, on every thread. Gradients, of any order, are those of the values
/// that were read. Nodes that save the same tensor share the copy. Inside, [`strict_inplace`] is off.
///
/// A [`checkpoint`](super::checkpoint) reads its values again, so they cannot be copied: a write over one fails, as with
/// [`strict_inplace`]. What [`saved_tensors_hooks`](super::saved_tensors_hooks) pack belongs to the hooks. The three switches
/// for writes are side by side in [writing in place](https://github.com/gradus-rs/gradus/blob/main/docs/writes-in-place.md).
pub fn allow_mutation_on_saved_tensors<R>(f: impl FnOnce() -> R) -> R {
    let _guard = allow_mutation_on_saved_tensors_guard();
    f()
}

/// [`allow_mutation_on_saved_tensors`] until the guard is dropped.
pub fn allow_mutation_on_saved_tensors_guard() -> GradModeGuard {
    set_switches(REFUSE_WRITES | COPY_ON_WRITE, COPY_ON_WRITE)
}
