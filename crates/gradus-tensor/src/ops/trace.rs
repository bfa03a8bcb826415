//! [`trace`]: a function sees every operation that runs.

use std::cell::RefCell;
use std::panic::Location;

use super::Op;
use crate::Tensor;
use crate::autograd::{is_traced, tracing};

/// An operation that ran.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Traced<'a> {
    /// With its parameters.
    pub op: &'a Op,
    /// What it read; one that [updates](super::Effect::Updates) what it writes has that first.
    pub inputs: &'a [&'a Tensor],
    /// What it gave or wrote.
    pub outputs: &'a [&'a Tensor],
    /// Whether the outputs were there before: a write in place.
    pub in_place: bool,
    /// Whether a kernel ran. None does for views and for results without elements.
    pub kernel: bool,
    /// The line that asked for it.
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
        TRACER.set(self.0.take());
    }
}

/// Runs `step`, and calls `seen` with every operation that runs on this thread meanwhile, when it has ended: those of the user,
/// of backward passes, recomputed regions and optimisers. Operations of `seen` itself are not traced, and an outer trace waits.
/// What fails is not seen.
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
    debug_assert!(is_traced());
    let _quiet = tracing(false);
    // Not borrowed while it runs: it may trace something itself.
    let Some(mut tracer) = TRACER.take() else { return };
    tracer(ran);
    TRACER.set(Some(tracer));
}
