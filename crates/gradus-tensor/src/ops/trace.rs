//! [`trace`]: calls a function with every operation that runs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use gradus_backend::{Error, Result};

use super::{Op, Source};
use crate::autograd::{beside, is_traced, refuses_host_reads, refusing_host_reads, tracing};
use crate::{Generator, State, Storage, Tensor};

/// An operation that ran.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Traced<'a> {
    /// The operation, with its parameters.
    pub op: &'a Op,
    /// The tensors that the operation read. If it [updates](super::Effect::Updates) tensors, these come first and hold
    /// their new values. An operand that shared memory with them is passed as a copy.
    pub inputs: &'a [&'a Tensor],
    /// The tensors that the operation returned or wrote.
    pub outputs: &'a [&'a Tensor],
    /// Whether the operation ran in place, on outputs that existed before.
    pub in_place: bool,
    /// Whether a kernel ran. Views and results without elements need none.
    pub kernel: bool,
    /// The line of the call. In a backward pass, it is the line of the operation whose gradient is computed. For
    /// internal work of a layer or optimiser (initial parameters, running statistics, states), it is a line of its
    /// source code.
    pub location: &'static Location<'static>,
    /// The host state from which its parameters were taken, if there is any.
    pub source: Option<&'a Arc<dyn Source>>,
}

type Tracer = Box<dyn FnMut(&Traced<'_>)>;

thread_local! {
    static TRACER: RefCell<Option<Tracer>> = const { RefCell::new(None) };
}

/// Restores the previous tracer when it is dropped.
struct Outer(Option<Tracer>);

impl Drop for Outer {
    fn drop(&mut self) {
        // The tracer is dropped after `TRACER` is released, because dropping the values that it holds may run
        // operations.
        drop(TRACER.replace(self.0.take()));
    }
}

/// Runs `step`, and calls `seen` after each operation that runs on this thread in the meantime. These include the
/// operations of backward passes, recomputed regions and optimisers. The operations that `seen` itself runs are not
/// traced, recorded or observed. An outer `trace` sees none of these operations. An operation that fails is not
/// reported.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::{cell::RefCell, rc::Rc, sync::Arc};
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec([1.0f32, 2.0], [2], &device)?.with_grad()?;
/// let names = Rc::new(RefCell::new(vec![]));
/// let seen = names.clone();
/// ops::trace(move |ran| seen.borrow_mut().push(ran.op.name().to_owned()), || x.exp()?.sum_all()?.backward())?;
/// let backward = ["full", "reshape", "expand", "exp_backward"];
/// assert_eq!(names.take(), [&["exp", "sum", "reshape"][..], &backward].concat());
/// # Ok::<(), Error>(())
/// ```
pub fn trace<R>(seen: impl FnMut(&Traced<'_>) + 'static, step: impl FnOnce() -> R) -> R {
    let _outer = Outer(TRACER.replace(Some(Box::new(seen))));
    let _mode = tracing(true);
    step()
}

/// A use of a [`State`] that holds a tensor, such as the running statistics of a layer.
#[derive(Debug, Clone)]
pub struct StateUse {
    /// The state.
    pub state: State<Tensor>,
    /// The tensor that the state held.
    pub before: Tensor,
    /// The tensor that was assigned to it, if any.
    pub after: Option<Tensor>,
    /// Whether another tensor than the one in the state has the same memory, such as a parameter.
    pub is_shared: bool,
}

/// A tensor that was created from host numbers, and a copy of its first contents.
#[derive(Debug, Clone)]
pub struct Made {
    /// The tensor.
    pub tensor: Tensor,
    /// A copy of its first contents.
    pub copy: Tensor,
}

/// The things that a step used besides its operations, each kind in order of use.
#[derive(Debug, Default)]
pub struct Uses {
    /// The uses of states.
    pub states: Vec<StateUse>,
    /// The random states that were used, each with its position before the first use.
    pub randoms: Vec<(State<Generator>, Generator)>,
    /// The tensors that were created from host numbers.
    pub made: Vec<Made>,
    /// Switches that decide what runs, such as whether a parameter is frozen, with their values.
    pub switches: Vec<(Arc<AtomicBool>, bool)>,
    /// The storages that were [filled](Storage::fill) and not given back since.
    filled: HashMap<*const Storage, Filled>,
    /// The first thing that a replay could not follow. The step may have ignored its error, as `Display` does.
    pub refused: Option<Error>,
    lenient: bool,
}

impl Uses {
    /// Whether the step filled memory that lives on and was not given back.
    pub fn leaves_filled(&self) -> bool {
        self.filled.values().any(|filled| filled.storage.strong_count() > 0)
    }
}

/// A storage that was filled.
#[derive(Debug)]
struct Filled {
    /// Itself: the handle keeps its address from being used again.
    storage: Weak<Storage>,
    /// That of the values.
    values: Weak<Storage>,
}

/// What [`trace_closed`] does with things that a replay could not follow, such as reading a tensor on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// They are errors. The first of them is also returned in [`Uses::refused`].
    Strict,
    /// They happen as without a trace, and the first of them is returned in [`Uses::refused`].
    Lenient,
}

thread_local! {
    static USES: RefCell<Option<Uses>> = const { RefCell::new(None) };
}

/// Puts the uses of an outer step back when it is dropped.
struct OuterUses(Option<Uses>);

impl Drop for OuterUses {
    fn drop(&mut self) {
        drop(USES.replace(self.0.take()));
    }
}

/// Like [`trace`], for a step that will be replayed. Reading the elements of a tensor on the host is
/// [refused](refuse), because computations of the host are not among the traced operations. Also returns what else the
/// step used.
pub fn trace_closed<R>(closed: Closed, seen: impl FnMut(&Traced<'_>) + 'static, step: impl FnOnce() -> R) -> (R, Uses) {
    let uses = Uses { lenient: closed == Closed::Lenient, ..Uses::default() };
    let _outer = OuterUses(USES.replace(Some(uses)));
    let _mode = refusing_host_reads();
    let result = trace(seen, step);
    (result, USES.take().unwrap_or_default())
}

/// Whether [`trace_closed`] is tracing a step on this thread.
pub fn is_captured() -> bool {
    refuses_host_reads()
}

/// Reports to a [`trace_closed`] on this thread something that a replay could not follow. Returns the error, unless the
/// trace is [lenient](Closed::Lenient) or there is none.
#[track_caller]
pub fn refuse(why: impl FnOnce() -> Error) -> Result<()> {
    if !is_captured() {
        return Ok(());
    }
    let e = why().at(Location::caller());
    USES.with_borrow_mut(|uses| match uses {
        Some(uses) => {
            uses.refused.get_or_insert_with(|| e.clone());
            if uses.lenient { Ok(()) } else { Err(e) }
        }
        None => Err(e),
    })
}

/// Reports to a [`trace_closed`] on this thread that `state` holds `before` and, if `after` is present, that it is
/// assigned `after`.
pub fn note_state(state: &State<Tensor>, before: &Tensor, after: Option<&Tensor>) {
    if is_traced() {
        USES.with_borrow_mut(|uses| {
            if let Some(uses) = uses {
                let is_shared = Arc::strong_count(before.storage()) > 1;
                let (state, before, after) = (state.clone(), before.clone(), after.cloned());
                uses.states.push(StateUse { state, before, after, is_shared });
            }
        });
    }
}

/// Reports to a [`trace_closed`] on this thread that the random state `state` is about to be read or moved.
pub fn note_random(state: &State<Generator>) {
    if is_captured() {
        USES.with_borrow_mut(|uses| {
            if let Some(uses) = uses
                && !uses.randoms.iter().any(|(known, _)| known.id() == state.id())
            {
                uses.randoms.push((state.clone(), state.get()));
            }
        });
    }
}

/// Reports to a [`trace_closed`] on this thread that the step depends on a switch.
pub fn note_switch(switch: &Arc<AtomicBool>) {
    if is_captured() {
        USES.with_borrow_mut(|uses| {
            if let Some(uses) = uses
                && !uses.switches.iter().any(|(known, _)| Arc::ptr_eq(known, switch))
            {
                uses.switches.push((switch.clone(), switch.load(Ordering::Relaxed)));
            }
        });
    }
}

/// Reports to a [`trace_closed`] on this thread that `tensor` was created from host numbers.
#[cold]
#[track_caller]
pub(crate) fn note_made(tensor: &Tensor) -> Result<()> {
    if USES.with_borrow(Option::is_none) {
        return Ok(());
    }
    let copy = {
        let _quiet = beside();
        tensor.copy()?
    };
    USES.with_borrow_mut(|uses| {
        uses.iter_mut().for_each(|u| u.made.push(Made { tensor: tensor.clone(), copy: copy.clone() }))
    });
    Ok(())
}

/// Whether the step that [`trace_closed`] is tracing on this thread created this tensor from host numbers and has not
/// written to it since. If so, its elements are the same in each call.
#[cold]
pub(crate) fn is_constant(t: &Tensor) -> bool {
    let made = |m: &Made| Arc::ptr_eq(m.tensor.storage(), t.storage()) && t.storage().version() == 0;
    USES.with_borrow(|uses| uses.as_ref().is_some_and(|u| u.made.iter().any(made)))
}

/// Reports to a [`trace_closed`] on this thread that `storage` was filled with the values of another, which is gone.
pub(crate) fn note_filled(storage: &Arc<Storage>, values: Weak<Storage>) {
    USES.with_borrow_mut(|uses| {
        if let Some(uses) = uses {
            uses.filled.insert(Arc::as_ptr(storage), Filled { storage: Arc::downgrade(storage), values });
        }
    });
}

/// Reports to a [`trace_closed`] on this thread that the memory of `storage` was given back.
pub(crate) fn note_given_back(storage: &Storage) {
    USES.with_borrow_mut(|uses| {
        if let Some(uses) = uses {
            uses.filled.remove(&ptr::from_ref(storage));
        }
    });
}

/// The storage that holds the values of `storage` for the step that [`trace_closed`] is tracing on this thread: the one that
/// it was last [filled](Storage::fill) from in this step, of which only the weak handle is left, or itself.
pub fn storage_of_values(storage: &Arc<Storage>) -> Weak<Storage> {
    let filled = |uses: &Option<Uses>| Some(uses.as_ref()?.filled.get(&Arc::as_ptr(storage))?.values.clone());
    USES.with_borrow(filled).unwrap_or_else(|| Arc::downgrade(storage))
}

/// Reports to the tracer an operation that has run.
#[cold]
pub(super) fn traced(ran: &Traced<'_>) {
    let _quiet = beside();
    // The tracer is taken out while it runs, since it may itself start a trace.
    let Some(mut tracer) = TRACER.take() else { return };
    tracer(ran);
    drop(TRACER.replace(Some(tracer)));
}
