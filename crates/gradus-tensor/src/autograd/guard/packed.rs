//! [`saved_tensors_hooks`]: user functions that pack saved values and unpack them again.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gradus_backend::{Error, ErrorKind, Here, Result};

use crate::autograd::Nested;
use crate::autograd::graph::node::Node;
use crate::autograd::graph::saved::{Which, overwritten};
use crate::autograd::mode::{self, GradModeGuard, PACK, plain};
use crate::autograd::region::access::Watch;
use crate::storage::next_epoch;
use crate::tensor::Spec;
use crate::{Device, Storage, Tensor};

type Stowed = dyn Any + Send + Sync;
type Pack = dyn Fn(&Tensor) -> Result<Box<Stowed>>;
type Unpack = dyn Fn(&Stowed) -> Result<Tensor> + Send + Sync;

/// A pair of hooks: one packs values and the other unpacks them.
struct Pair {
    pack: Box<Pack>,
    unpack: Arc<Unpack>,
}

thread_local! {
    /// This thread's pairs of hooks, sorted by number. A pair is `None` once its guard has been dropped. The last entry
    /// is never `None`; it is the pair in use.
    static PAIRS: RefCell<Vec<(u64, Option<Rc<Pair>>)>> = const { RefCell::new(vec![]) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Removes a pair of hooks when dropped. Nodes that are already recorded keep using it; see
/// [`saved_tensors_hooks_guard`].
#[must_use = "the hooks pack until the guard is dropped: bind it, `let _guard = saved_tensors_hooks_guard(..);`"]
pub struct SavedTensorsHooksGuard {
    number: u64,
    _mode: GradModeGuard,
}

impl fmt::Debug for SavedTensorsHooksGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SavedTensorsHooksGuard")
    }
}

impl Drop for SavedTensorsHooksGuard {
    fn drop(&mut self) {
        // Dropping the pair may run any code, so it is dropped after the borrow of the list has ended.
        let taken = PAIRS.try_with(|pairs| {
            let mut pairs = pairs.borrow_mut();
            let at = pairs.binary_search_by_key(&self.number, |p| p.0).ok()?;
            let taken = pairs[at].1.take();
            while pairs.pop_if(|p| p.1.is_none()).is_some() {}
            taken
        });
        drop(taken);
    }
}

/// Runs `f` and passes the values that it saves for a gradient through `pack`. The graph keeps what `pack` returns
/// instead of the value, for example the name of a file, bytes on the host, or numbers in half precision. When a
/// gradient reads the value, `unpack` turns it back into a tensor, once per pass, on the thread that runs the pass. If
/// pairs of hooks are nested, the innermost pair is used. Views and sums save no values, so nothing is packed for them.
///
/// `pack` receives inputs as they are, so it can tell parameters and data from computed tensors with `t.is_leaf()`.
/// Saved results carry no graph yet. Nothing that the hooks compute is recorded or packed. `unpack` must return a
/// tensor with the shape, dtype and device of the value. This tensor gets its edge from the node, so gradients of any
/// order flow through it.
///
/// Whether the unpacked values equal the original values is up to the hooks. It is checked, however, that **the packed
/// data has not changed**: if a tensor that `unpack` returns, or reads on this thread, was written after packing, the
/// gradient fails with an error that names the line of the write. For a [`checkpoint`](crate::autograd::checkpoint),
/// only the inputs are packed. The values inside it are dropped, and exist again briefly during the backward pass.
///
/// # Errors
/// The errors of `f`. If `pack` fails or overwrites its argument, the operation that saves the value fails and is not
/// recorded. If `unpack` fails or returns a tensor of another shape, dtype or device, the backward pass fails with an
/// error that names the hook, the node and its line, and the graph stays as it was.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &device)?.with_grad()?;
/// // Uses half the memory and keeps 8 significant bits of each value.
/// let (pack, unpack) = (|t: &Tensor| t.to_dtype(DType::BF16), |p: &Tensor| p.to_dtype(DType::F32));
/// let y = autograd::saved_tensors_hooks(pack, unpack, || (&x * &x)?.sum_all())?;
/// assert_eq!(y.backward()?.get(&x).unwrap().to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), Error>(())
/// ```
pub fn saved_tensors_hooks<P: Send + Sync + 'static, R>(
    pack: impl Fn(&Tensor) -> Result<P> + 'static,
    unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
    f: impl FnOnce() -> R,
) -> R {
    let _guard = saved_tensors_hooks_guard(pack, unpack);
    f()
}

/// Like [`saved_tensors_hooks`], but in effect until the guard is dropped.
pub fn saved_tensors_hooks_guard<P: Send + Sync + 'static>(
    pack: impl Fn(&Tensor) -> Result<P> + 'static,
    unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
) -> SavedTensorsHooksGuard {
    let number = NEXT.replace(NEXT.get() + 1);
    let unpack = move |stowed: &Stowed| match stowed.downcast_ref::<P>() {
        Some(p) => unpack(p),
        None => Err(Error::new(ErrorKind::Autograd, "saved_tensors_hooks", "the hooks do not belong together")),
    };
    let pair = Pair { pack: Box::new(move |t| Ok(Box::new(pack(t)?) as Box<Stowed>)), unpack: Arc::new(unpack) };
    PAIRS.with_borrow_mut(|pairs| pairs.push((number, Some(Rc::new(pair)))));
    SavedTensorsHooksGuard { number, _mode: mode::set(PACK, true) }
}

/// The number of packed values in the process. While it is 0, passes need not look for any.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// A saved value as a hook packed it.
pub(in crate::autograd) struct Packed {
    stowed: Box<Stowed>,
    unpack: Arc<Unpack>,
    /// The device of the value.
    device: Device,
    /// The epoch in which the value was packed. Tensors into which it was packed must not be written from then on.
    epoch: u64,
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Packed")
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The error of a hook, with a note about the value for which it was called.
#[track_caller]
fn failed(hook: &str, op: &str, what: Which, recorded: &Location<'_>, why: &Error) -> Error {
    let m = format!("the {hook} hook failed on {what} of {op}: {}", why.message());
    let e = Error::new(why.kind().clone(), "saved_tensors_hooks", m);
    e.note(format!("{op} was recorded at {recorded}")).with_source(why.clone())
}

impl Packed {
    /// Whether hooks are set on this thread.
    pub(in crate::autograd) fn hooked() -> bool {
        PAIRS.with_borrow(|pairs| !pairs.is_empty())
    }

    /// Whether any packed value exists in the process.
    pub(in crate::autograd) fn any() -> bool {
        LIVE.load(Ordering::Relaxed) > 0
    }

    /// Packs `kept`, whose storage had `version` when the operation read it.
    #[track_caller]
    pub(in crate::autograd) fn new(
        op: &str,
        recorded: &'static Location<'static>,
        what: Which,
        kept: &Tensor,
        version: u64,
    ) -> Result<Self> {
        let Some(pair) = PAIRS.with_borrow(|pairs| pairs.last()?.1.clone()) else {
            return Err(Error::new(ErrorKind::Autograd, "saved_tensors_hooks", "the hooks are gone"));
        };
        let stowed = {
            let _nested = Nested::enter("saved_tensors_hooks")?;
            let _mode = plain();
            (pair.pack)(kept).map_err(|why| kept.describe(failed("pack", op, what, recorded, &why), "value"))?
        };
        LIVE.fetch_add(1, Ordering::Relaxed);
        let packed = Packed { stowed, unpack: pair.unpack.clone(), device: kept.device().clone(), epoch: next_epoch() };
        let Some(write) = kept.overwritten(version) else { return Ok(packed) };
        let m = format!("{} overwrote {what} of {op} while it was packed", write.op);
        let e = kept.describe(Error::new(ErrorKind::Autograd, "saved_tensors_hooks", m), "value");
        Err(overwritten(e, op, recorded, what.to_string(), &write, version)
            .help("a pack hook leaves its argument as it is: write into a copy"))
    }

    /// The tensors of the packed value, if it is a tensor or a list of tensors. Empty otherwise.
    pub(in crate::autograd) fn tensors(&self) -> &[Tensor] {
        match self.stowed.downcast_ref::<Tensor>() {
            Some(one) => std::slice::from_ref(one),
            None => self.stowed.downcast_ref::<Vec<Tensor>>().map(Vec::as_slice).unwrap_or_default(),
        }
    }

    /// The unpacked tensor, with the version of its storage.
    #[cold]
    #[track_caller]
    pub(in crate::autograd) fn unpack(&self, node: &Node, what: Which, want: &Spec) -> Result<(Tensor, u64)> {
        let (op, recorded) = (node.name(), node.location());
        let watch = Watch::new();
        let result = {
            let _mode = plain();
            (self.unpack)(&*self.stowed)
        };
        let accesses = watch.finish();
        let t = result.map_err(|why| failed("unpack", op, what, recorded, &why)).here()?.detach();
        if t.spec() != *want || *t.device() != self.device {
            let m = format!("the unpack hook gave another shape, dtype or device for {what} of {op}");
            let e = Error::new(ErrorKind::Autograd, "saved_tensors_hooks", m);
            let e = t.describe(e.operand("packed", want.shape.dims(), want.dtype, &self.device), "unpacked");
            return Err(e
                .note(format!("{op} was recorded at {recorded}"))
                .help("give back a tensor like the one packed"));
        }
        let version = t.storage().version();
        let unchanged = |storage: &Storage, last: u64, place| match storage.overwritten_since(self.epoch, last, place) {
            None => Ok(()),
            Some(write) => {
                let m = format!("what was packed for {what} of {op} was overwritten by {}", write.op);
                let e = t.describe(Error::new(ErrorKind::Autograd, "saved_tensors_hooks", m), &what.to_string());
                Err(e
                    .note(format!("{op} was recorded at {recorded}"))
                    .note(format!("{} wrote at {}", write.op, write.location))
                    .help("pack into a tensor of its own for each value, and unpack into one that is made then"))
            }
        };
        let mut given = u64::MAX;
        for access in &accesses {
            let Some(storage) = access.storage() else { continue };
            // Writes by the hook itself do not count.
            let last = if access.wrote() { access.version() } else { u64::MAX };
            if Arc::ptr_eq(&storage, t.storage()) {
                given = last;
            }
            access.places().iter().try_for_each(|place| unchanged(&storage, last, place)).here()?;
        }
        unchanged(t.storage(), given, &t.footprint()).here()?;
        Ok((t, version))
    }
}
