//! [`trace`]: calls a function with every operation that runs.

use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gradus_backend::Result;

use super::{Op, Source};
use crate::autograd::{beside, is_traced, refuses_host_reads, refusing_host_reads, tracing};
use crate::{State, Tensor};

/// An operation that ran.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Traced<'a> {
    /// The operation, with its parameters.
    pub op: &'a Op,
    /// The tensors that the operation read. If it [updates](super::Effect::Updates) tensors, these come first, with
    /// their new values; an operand that shared memory with them is a copy.
    pub inputs: &'a [&'a Tensor],
    /// The tensors that the operation returned or wrote.
    pub outputs: &'a [&'a Tensor],
    /// Whether the outputs existed before: a write in place.
    pub in_place: bool,
    /// Whether a kernel ran. None runs for views and for results without elements.
    pub kernel: bool,
    /// The line of the call. In a backward pass, it is the line of the operation whose gradient is computed. For work
    /// that a layer or an optimiser does on its own behalf (initial parameters, running statistics, states), it is a
    /// line of that layer or optimiser.
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
        // The tracer is dropped while nothing is borrowed, since dropping what it holds may run operations.
        drop(TRACER.replace(self.0.take()));
    }
}

/// Runs `step`, and calls `seen` with every operation that runs on this thread meanwhile, after the operation has
/// ended. These include the operations of backward passes, recomputed regions and optimisers. The operations that
/// `seen` itself runs are not traced, recorded or observed. An outer `trace` sees none of these operations. An
/// operation that fails is not reported.
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
    /// The tensor that it held.
    pub before: Tensor,
    /// The tensor that it was given.
    pub after: Option<Tensor>,
}

/// A tensor that was made from numbers of the host, and a copy of it as it was then.
#[derive(Debug, Clone)]
pub struct Made {
    /// The tensor.
    pub tensor: Tensor,
    /// Its elements at first.
    pub copy: Tensor,
}

/// What a step used besides its operations, in order.
#[derive(Debug, Default)]
pub struct Uses {
    /// The uses of states.
    pub states: Vec<StateUse>,
    /// The tensors made from numbers of the host.
    pub made: Vec<Made>,
    /// Switches that decide what runs, such as whether a parameter is frozen, and what they said.
    pub switches: Vec<(Arc<AtomicBool>, bool)>,
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

/// Like [`trace`], for a step that will be replayed. Reading the elements of a tensor on the host is an error, because
/// what a program computes from them is not among its operations. Also returns what the step used besides operations.
pub fn trace_closed<R>(seen: impl FnMut(&Traced<'_>) + 'static, step: impl FnOnce() -> R) -> (R, Uses) {
    let _outer = OuterUses(USES.replace(Some(Uses::default())));
    let _mode = refusing_host_reads();
    let result = trace(seen, step);
    (result, USES.take().unwrap_or_default())
}

/// Whether [`trace_closed`] is tracing a step on this thread.
pub fn is_captured() -> bool {
    refuses_host_reads()
}

/// Tells a [`trace_closed`] on this thread that `state` holds `before` and, if there is one, is given `after`.
pub fn note_state(state: &State<Tensor>, before: &Tensor, after: Option<&Tensor>) {
    if is_traced() {
        USES.with_borrow_mut(|uses| {
            if let Some(uses) = uses {
                uses.states.push(StateUse { state: state.clone(), before: before.clone(), after: after.cloned() });
            }
        });
    }
}

/// Tells a [`trace_closed`] on this thread that the step depends on a switch.
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

/// Tells a [`trace_closed`] on this thread that `tensor` was made from numbers of the host.
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

/// Whether a tensor was made from numbers of the host by the step that [`trace_closed`] is tracing on this thread, and not
/// written since. Its elements are the same in each call.
#[cold]
pub(crate) fn is_constant(t: &Tensor) -> bool {
    let made = |m: &Made| Arc::ptr_eq(m.tensor.storage(), t.storage()) && t.storage().version() == 0;
    USES.with_borrow(|uses| uses.as_ref().is_some_and(|u| u.made.iter().any(made)))
}

/// Reports to the tracer an operation that has run.
#[cold]
pub(super) fn traced(ran: &Traced<'_>) {
    let _quiet = beside();
    // The tracer is taken out while it runs, since it may start a trace of its own.
    let Some(mut tracer) = TRACER.take() else { return };
    tracer(ran);
    drop(TRACER.replace(Some(tracer)));
}
