//! [`trace`]: a function sees every operation that runs.

use std::cell::RefCell;
use std::panic::Location;

use super::Op;
use crate::Tensor;
use crate::autograd::{beside, tracing};

/// An operation that ran.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Traced<'a> {
    /// With its parameters.
    pub op: &'a Op,
    /// What it read. One that [updates](super::Effect::Updates) tensors has these first, with their new values; an operand that
    /// shared memory with them is a copy.
    pub inputs: &'a [&'a Tensor],
    /// What it gave or wrote.
    pub outputs: &'a [&'a Tensor],
    /// Whether the outputs were there before: a write in place.
    pub in_place: bool,
    /// Whether a kernel ran. None does for views and for results without elements.
    pub kernel: bool,
    /// The line that asked for it; in a backward pass that of the operation whose gradient is taken.
    /// Of what a layer or an optimiser does for itself (first parameters, running statistics, states) it is a line of theirs.
    pub location: &'static Location<'static>,
}

type Tracer = Box<dyn FnMut(&Traced<'_>)>;

thread_local! {
    static TRACER: RefCell<Option<Tracer>> = const { RefCell::new(None) };
}

/// Puts the tracer that was there before back.
struct Outer(Option<Tracer>);

impl Drop for Outer {
    fn drop(&mut self) {
        // Dropped when nothing is borrowed: what it holds may run operations.
        drop(TRACER.replace(self.0.take()));
    }
}

/// Runs `step`, and calls `seen` with every operation that runs on this thread meanwhile, when it has ended: those of the user,
/// of backward passes, recomputed regions and optimisers. Nothing that `seen` itself does is traced, recorded or observed. An
/// outer `trace` sees none of all these, and nobody sees an operation that failed.
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

/// An operation ran.
#[cold]
pub(super) fn traced(ran: &Traced<'_>) {
    let _quiet = beside();
    // Not borrowed while it runs: it may trace something itself.
    let Some(mut tracer) = TRACER.take() else { return };
    tracer(ran);
    drop(TRACER.replace(Some(tracer)));
}
