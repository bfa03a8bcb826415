//! The switches of a thread: whether operations are recorded, observed or traced.
//!
//! Every switch is a bit of one thread-local number, so an operation has to read only that number. A separate list
//! records the settings of the live guards.
//!
//! Every switch that users see comes in two forms: `no_grad(f)` runs a closure, and `no_grad_guard()` returns a
//! [`GradModeGuard`].

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use gradus_backend::{DType, Error, ErrorKind, Result};

/// Operations on tensors that require gradients are recorded.
const RECORD: u16 = 1;
/// The storages that operations read and write are noted (`checkpoint`).
pub(super) const NOTE_ACCESS: u16 = 2;
/// Nodes also remember inputs whose values their gradient does not need ([`strict`]).
pub(super) const STRICT: u16 = 4;
/// Overwriting a value that a graph needs is an error ([`strict_inplace`]).
pub(super) const REFUSE_WRITES: u16 = 8;
/// Overwriting a value that a graph needs first copies it for the graph ([`allow_mutation_on_saved_tensors`]).
pub(super) const COPY_ON_WRITE: u16 = 16;
/// Saved values pass through hooks (`saved_tensors_hooks`).
pub(super) const PACK: u16 = 32;
/// An observer sees the operands and results of operations (`find_nonfinite`, `explain_grad`).
pub(super) const OBSERVE: u16 = 64;
/// Nothing is recorded, not even inside `enable_grad` ([`inference`]).
const INFERENCE: u16 = 128;
/// Reading the elements of a tracked tensor is an error, because results computed from them would be missing from the
/// graph. Set while the gradient of a custom operation is itself differentiated.
pub(super) const REFUSE_READS: u16 = 256;
/// A user function runs while the locks of tensors are held (`dispatch_compute`).
pub(super) const HOLDS: u16 = 512;
/// A tracer sees the operations that run ([`trace`](crate::ops::trace)).
const TRACE: u16 = 1024;
/// Memory that was given back is filled before it is accessed ([`with_supply`](crate::with_supply)).
const SUPPLY: u16 = 4096;
/// Products compute in bf16 ([`autocast`]).
const AUTOCAST_BF16: u16 = 1 << 14;
/// Products compute in f16 ([`autocast`]).
const AUTOCAST_F16: u16 = 1 << 15;
/// The switches of [`autocast`], of which at most one is on.
pub(super) const AUTOCAST: u16 = AUTOCAST_BF16 | AUTOCAST_F16;
/// Reading the elements of any tensor on the host is an error ([`trace_closed`](crate::ops::trace_closed)).
const REFUSE_HOST: u16 = 2048;
/// The switches that protect saved values beyond checking their versions.
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

/// The switches of [`strict`], [`strict_inplace`] and [`allow_mutation_on_saved_tensors`], as a number that is equal
/// for equal settings.
#[inline]
pub fn saved_value_modes() -> u16 {
    MODE.get() & GUARDS
}

/// Whether accesses to storages are noted.
#[inline]
pub(crate) fn notes_access() -> bool {
    is_set(NOTE_ACCESS)
}

/// Whether accesses to storages are noted, must be checked against the locks that this thread holds, or may have to wait
/// for a supply.
#[inline]
pub(crate) fn checks_access() -> bool {
    is_set(NOTE_ACCESS | HOLDS | SUPPLY)
}

/// Whether memory that was given back is filled before it is accessed.
pub(crate) fn is_supplied() -> bool {
    is_set(SUPPLY)
}

/// Switches the supply of memory that was given back on or off until the guard is dropped.
pub(crate) fn supplying(on: bool) -> GradModeGuard {
    set(SUPPLY, on)
}

/// Until the guard is dropped, a user function runs while tensors are locked. There is no supply meanwhile, because it
/// may give back memory only where nothing is locked.
pub(crate) fn holding() -> GradModeGuard {
    set_switches(HOLDS | SUPPLY, HOLDS)
}

/// Until the guard is dropped, operations are not recorded, observed or traced, saved values are not guarded or packed,
/// and accesses to storages are neither noted nor refused. For functions that are not part of the user's computation.
pub(crate) fn beside() -> GradModeGuard {
    set_switches(RECORD | GUARDS | PACK | NOTE_ACCESS | OBSERVE | TRACE | REFUSE_READS | REFUSE_HOST | AUTOCAST, 0)
}

/// As [`beside`], but a captured step repeats what runs until the guard is dropped.
pub(crate) fn beside_in_step() -> GradModeGuard {
    match refuses_host_reads() {
        true => set_switches(RECORD | GUARDS | PACK | NOTE_ACCESS | OBSERVE | REFUSE_READS | AUTOCAST, 0),
        false => beside(),
    }
}

/// Whether reading the elements of a tracked tensor is an error.
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

/// Switches tracing on or off until the guard is dropped.
pub(crate) fn tracing(on: bool) -> GradModeGuard {
    set(TRACE, on)
}

/// Whether reading the elements of a tensor on the host is an error.
#[inline]
pub(crate) fn refuses_host_reads() -> bool {
    is_set(REFUSE_HOST)
}

/// Until the guard is dropped, reading the elements of a tensor on the host is an error.
pub(crate) fn refusing_host_reads() -> GradModeGuard {
    set(REFUSE_HOST, true)
}

/// Whether saved values are guarded or packed, so that [`Saved::guard`](super::Saved::guard) has work to do.
#[inline]
pub(crate) fn guards_saved() -> bool {
    is_set(GUARDS | PACK)
}

/// Whether saved values pass through hooks.
#[inline]
pub(crate) fn packs_saved() -> bool {
    is_set(PACK)
}

/// The switches of `mask` that are on.
pub(super) fn switches(mask: u16) -> u16 {
    MODE.get() & mask
}

/// Undoes the setting of a switch when dropped. Guards may be dropped in any order: for each switch, the newest
/// remaining guard decides.
///
/// A guard lasts for the rest of a scope, so it must be bound to a name: `let _ = no_grad_guard();` drops it at once.
/// The closure form, `no_grad(|| ..)`, cannot be misused in this way.
#[must_use = "the switch is set back when the guard is dropped: bind it, `let _guard = no_grad_guard();`, or pass a closure, `no_grad(|| ..)`"]
#[derive(Debug)]
pub struct GradModeGuard {
    setting: Setting,
    // Makes the type neither `Send` nor `Sync`: a guard belongs to its thread.
    _not_send: PhantomData<*const ()>,
}

/// Sets each switch of `mask` to its state in `on`. Once its guard has been dropped, `mask` is 0 and nothing is set.
#[derive(Debug, Clone, Copy)]
struct Setting {
    id: u64,
    mask: u16,
    on: u16,
}

thread_local! {
    /// The settings of the live guards, newest last. The mode is the default with these settings applied in order.
    static SETTINGS: RefCell<Vec<Setting>> = const { RefCell::new(Vec::new()) };
}

impl Drop for GradModeGuard {
    fn drop(&mut self) {
        // On a thread that is shutting down, the settings no longer exist and are not needed.
        let _ = SETTINGS.try_with(|settings| {
            let mut settings = settings.borrow_mut();
            let Ok(at) = settings.binary_search_by_key(&self.setting.id, |s| s.id) else { return };
            let mut open = settings[at].mask;
            (settings[at].mask, settings[at].on) = (0, 0);
            while settings.pop_if(|s| s.mask == 0).is_some() {}
            // Each switch that this guard had set returns to the newest remaining setting. If guards are nested, the
            // first setting found settles every switch.
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

/// Turns each switch of `mask` on if it is in `on`, and off otherwise, until the guard is dropped.
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

/// Until the guard is dropped, nothing is recorded, guarded or packed. For computations that are not part of the user's
/// program.
pub(super) fn plain() -> GradModeGuard {
    set_switches(RECORD | GUARDS | PACK | AUTOCAST, 0)
}

/// The mode of a backward pass, until the guard is dropped. A gradient has the dtype of the operation that it belongs
/// to, so nothing is cast.
pub(super) fn backward_mode(create_graph: bool) -> GradModeGuard {
    set_switches(RECORD | AUTOCAST, if create_graph { RECORD } else { 0 })
}

/// Runs `f` without recording: its results have no gradient and hold no graph.
///
/// The switch belongs to the thread, so whatever `f` does on other threads is recorded as usual. Inside `f`,
/// [`enable_grad`] turns recording on again, and so do functions that take a derivative, such as [`vjp`](crate::vjp).
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

/// Like [`no_grad`], but in effect until the guard is dropped.
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

/// Like [`enable_grad`], but in effect until the guard is dropped.
pub fn enable_grad_guard() -> GradModeGuard {
    set(RECORD, true)
}

/// Runs `f` and records nothing, whatever `f` does.
///
/// [`no_grad`] is only a default: code inside it can record again with [`enable_grad`] or by taking a derivative.
/// Inside `inference` it cannot: [`enable_grad`] has no effect, and functions that need a graph return an error that
/// says so. These are [`backward`](crate::Tensor::backward), [`grad`](crate::grad), [`vjp`](crate::vjp),
/// [`jvp`](crate::jvp), [`hvp`](crate::hvp), [`jacobian`](crate::jacobian) and [`hessian`](crate::hessian). A server
/// that runs a model inside `inference` therefore never holds a graph, whatever the model does.
///
/// Tensors created inside are ordinary tensors. They may enter a graph outside as constants, and leaves may be created
/// for later use. Writes are counted as always, so a graph notices if a value that it needs is overwritten.
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

/// Like [`inference`], but in effect until the guard is dropped.
pub fn inference_guard() -> GradModeGuard {
    set(INFERENCE, true)
}

/// Whether this thread is inside [`inference`].
pub fn is_inference() -> bool {
    is_set(INFERENCE)
}

/// Fails if this thread is inside [`inference`]. Called by functions that need a graph.
#[track_caller]
pub(crate) fn refuse_inference(op: &str) -> Result<()> {
    if !is_inference() {
        return Ok(());
    }
    let e = Error::new(ErrorKind::Autograd, op, "no gradient exists inside inference()");
    Err(e.help("take gradients outside of it, or use no_grad, which allows them"))
}

/// Runs `f` and checks all inputs of the operations that it records. A backward pass through these operations fails if
/// one of the inputs has been overwritten since, even an input whose value no gradient needs. The error names the
/// recorded operation, the operation that overwrote the input, and the source lines of both. A write to other elements
/// of the same storage is not an error.
///
/// Inputs are remembered weakly: they are not kept alive, and an input whose storage is gone is not checked. The guide
/// to [writing in place] compares the three switches for writes.
///
/// [writing in place]: https://github.com/gradus-rs/gradus/blob/main/docs/book/src/writes-in-place.md
pub fn strict<R>(f: impl FnOnce() -> R) -> R {
    let _guard = strict_guard();
    f()
}

/// Like [`strict`], but in effect until the guard is dropped.
pub fn strict_guard() -> GradModeGuard {
    set(STRICT, true)
}

/// Runs `f` and protects the values that it saves for a gradient: overwriting such a value in place fails before any
/// byte changes. The protection lasts as long as the graph that needs the value, and holds on every thread. The error
/// names the operation that needs the value and its source line. Writes elsewhere succeed, and so do all writes after a
/// backward pass has freed the graph or the graph has been dropped. Inside `f`, [`allow_mutation_on_saved_tensors`] is
/// off.
///
/// Values that [`saved_tensors_hooks`](super::saved_tensors_hooks) pack are not protected, but checked when they are
/// unpacked. The guide to [writing in place] compares the three switches for writes.
///
/// [writing in place]: https://github.com/gradus-rs/gradus/blob/main/docs/book/src/writes-in-place.md
pub fn strict_inplace<R>(f: impl FnOnce() -> R) -> R {
    let _guard = strict_inplace_guard();
    f()
}

/// Like [`strict_inplace`], but in effect until the guard is dropped.
pub fn strict_inplace_guard() -> GradModeGuard {
    set_switches(REFUSE_WRITES | COPY_ON_WRITE, REFUSE_WRITES)
}

/// Runs `f` and allows the values that it saves for a gradient to be overwritten: an in-place write over such a value
/// first copies the old value for the graph. This applies as long as the graph lives, and on every thread. Gradients of
/// any order are computed from the values that the operations read. Nodes that save the same tensor share the copy.
/// Inside `f`, [`strict_inplace`] is off.
///
/// A [`checkpoint`](super::checkpoint) reads its values again in place, so they cannot be copied: overwriting them
/// fails, as with [`strict_inplace`]. Values that [`saved_tensors_hooks`](super::saved_tensors_hooks) pack are left to
/// the hooks. The guide to [writing in place] compares the three switches for writes.
///
/// [writing in place]: https://github.com/gradus-rs/gradus/blob/main/docs/book/src/writes-in-place.md
pub fn allow_mutation_on_saved_tensors<R>(f: impl FnOnce() -> R) -> R {
    let _guard = allow_mutation_on_saved_tensors_guard();
    f()
}

/// Like [`allow_mutation_on_saved_tensors`], but in effect until the guard is dropped.
pub fn allow_mutation_on_saved_tensors_guard() -> GradModeGuard {
    set_switches(REFUSE_WRITES | COPY_ON_WRITE, COPY_ON_WRITE)
}

/// Runs `f` in mixed precision: products compute in `dtype`, bf16 or f16, and what needs the range or precision of f32
/// stays there. Parameters stay in f32, and so do their gradients. This takes half the memory for activations, and less
/// time where half precision is fast.
///
/// As in PyTorch on CUDA,
///
/// - products round their operands to `dtype`, and their results have it: `matmul`, `linear`, `einsum`, `addmm`,
///   `baddbmm`, convolutions and transposed convolutions, `scaled_dot_product_attention`
/// - these compute in f32, and so are their results: `softmax` and its kin, `layer_norm`, `group_norm`, `rms_norm`,
///   losses, `sum`, `prod`, `cumsum`, `cumprod`, `norm`, `normalize`, distances, `exp`, `expm1`, the logarithms, `pow`,
///   `recip`, `rsqrt`, `softplus`, `sinh`, `cosh`, `tan`, `asin` and `acos`
/// - everything else computes in the dtype of its operands, which promote
///
/// Recurrent layers, unlike in PyTorch, stay in f32.
///
/// Integers and f64 are never cast. Each use of a parameter casts it anew, and the casts are part of the graph, so
/// gradients are right to any order, in a [`checkpoint`](super::checkpoint) too. A backward pass casts nothing, whether
/// it runs inside or outside.
///
/// In f16, whose smallest normal number is 6e-5, small gradients vanish unless the loss is scaled, as `GradScaler` of
/// `gradus-nn` does. The switch belongs to the thread.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let w = Tensor::ones([2, 2], DType::F32, &device)?.with_grad()?;
/// let loss = autocast(DType::BF16, || {
///     let y = w.matmul(&w)?;
///     assert_eq!(y.dtype(), DType::BF16);
///     y.softmax(-1)?.sum_all()
/// })?;
/// assert_eq!(loss.dtype(), DType::F32);
/// assert_eq!(loss.backward()?.get(&w).unwrap().dtype(), DType::F32);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// The errors of `f`; any other dtype.
#[track_caller]
pub fn autocast<R>(dtype: DType, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let _guard = autocast_guard(dtype)?;
    f()
}

/// Like [`autocast`], but in effect until the guard is dropped.
#[track_caller]
pub fn autocast_guard(dtype: DType) -> Result<GradModeGuard> {
    match dtype {
        DType::BF16 => Ok(set_switches(AUTOCAST, AUTOCAST_BF16)),
        DType::F16 => Ok(set_switches(AUTOCAST, AUTOCAST_F16)),
        _ => {
            Err(Error::dtype("autocast", dtype, "bf16 or f16")
                .help("to compute in f32 inside autocast, use no_autocast"))
        }
    }
}

/// Runs `f` without [`autocast`]: it computes in the dtypes of its operands. What was computed outside may be in half
/// precision; cast it first where that is too little.
pub fn no_autocast<R>(f: impl FnOnce() -> R) -> R {
    let _guard = no_autocast_guard();
    f()
}

/// Like [`no_autocast`], but in effect until the guard is dropped.
pub fn no_autocast_guard() -> GradModeGuard {
    set_switches(AUTOCAST, 0)
}

/// The dtype that [`autocast`] computes products in, or `None` outside of it.
#[inline]
pub fn autocast_dtype() -> Option<DType> {
    match MODE.get() & AUTOCAST {
        0 => None,
        AUTOCAST_BF16 => Some(DType::BF16),
        _ => Some(DType::F16),
    }
}
