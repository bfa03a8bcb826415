//! The observer of a thread, through which [`find_nonfinite`](crate::autograd::find_nonfinite) and
//! [`explain_grad`](crate::autograd::explain_grad) see the operations that run.
//!
//! Without an observer, an operation only has to test one bit of the thread's mode. While the observer itself computes,
//! the bit is off, so its own operations are not observed.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;

use gradus_backend::Result;

use crate::Tensor;
use crate::autograd::diagnose::explain::Paths;
use crate::autograd::diagnose::nonfinite::{self, Search, Seed, Written};
use crate::autograd::diagnose::spread::Spreads;
use crate::autograd::graph::node::{Edge, Node};
use crate::autograd::graph::saved::Context;
use crate::autograd::mode::{
    GradModeGuard, NOTE_ACCESS, OBSERVE, is_grad_enabled, is_inference, is_set, is_watched, no_grad_guard, set,
};
use crate::ops::{InPlace, Op};

pub(in crate::autograd) enum Observer {
    NonFinite(Search),
    Paths(Paths),
}

/// One operation that ran.
pub(in crate::autograd) struct Ran<'a> {
    /// The operation. Its `Debug` form includes the parameters.
    pub(in crate::autograd) op: &'a dyn fmt::Debug,
    pub(in crate::autograd) location: &'static Location<'static>,
    pub(in crate::autograd) inputs: &'a [&'a Tensor],
    pub(in crate::autograd) outputs: &'a [Tensor],
    pub(in crate::autograd) spreads: Spreads,
    /// Whether each output carries a gradient.
    pub(in crate::autograd) carries: &'a dyn Fn(usize) -> bool,
    pub(in crate::autograd) mode: Mode,
}

/// The state of the thread's switches when an operation ran.
pub(in crate::autograd) struct Mode {
    pub(in crate::autograd) recording: bool,
    pub(in crate::autograd) inference: bool,
}

thread_local! {
    static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
}

/// A name shown instead of an operation.
struct Named(&'static str);

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

thread_local! {
    /// The composite operation that is running, and the line that called it.
    static WHOLE: Cell<Option<(&'static str, &'static Location<'static>)>> = const { Cell::new(None) };
}

/// While this exists, operations are reported as parts of a composite operation.
pub(crate) struct PartsOf(Option<(&'static str, &'static Location<'static>)>);

impl PartsOf {
    /// `None` if no operation is observed or traced.
    #[inline]
    pub(crate) fn new(op: &'static str, location: &'static Location<'static>) -> Option<Self> {
        is_watched().then(|| PartsOf(WHOLE.replace(Some((op, location)))))
    }
}

/// The line that called the composite operation that is running.
pub(crate) fn line_of_whole() -> Option<&'static Location<'static>> {
    WHOLE.get().map(|(_, location)| location)
}

impl Drop for PartsOf {
    fn drop(&mut self) {
        WHOLE.set(self.0);
    }
}

/// Observes this thread until it is finished or dropped. Until then, an outer observer is suspended.
pub(in crate::autograd) struct Observing {
    /// The outer observer, to be restored; `None` once it has been restored.
    outer: Option<Option<Observer>>,
    _mode: GradModeGuard,
}

impl Observing {
    pub(in crate::autograd) fn start(observer: Observer) -> Self {
        let outer = OBSERVER.with_borrow_mut(|o| o.replace(observer));
        Observing { outer: Some(outer), _mode: set(OBSERVE, true) }
    }

    /// Ends the observation and returns the observer.
    pub(in crate::autograd) fn finish(mut self) -> Option<Observer> {
        let outer = self.outer.take().flatten();
        OBSERVER.with_borrow_mut(|o| std::mem::replace(o, outer))
    }
}

impl Drop for Observing {
    fn drop(&mut self) {
        if let Some(outer) = self.outer.take() {
            OBSERVER.set(outer);
        }
    }
}

/// Calls the observer without observing its own operations. The observer is set aside during the call because it reads
/// tensors, and a function that watches their device may start a search of its own.
fn with_observer<R>(f: impl FnOnce(&mut Observer) -> R) -> Option<R> {
    let _quiet = (set(NOTE_ACCESS, false), no_grad_guard());
    let mut aside = Observing { outer: Some(OBSERVER.take()), _mode: set(OBSERVE, false) };
    aside.outer.as_mut()?.as_mut().map(f)
}

/// Reports an operation that ran. If the observer returns an error, the operation fails with it.
#[cold]
#[track_caller]
pub(crate) fn ran_operation(op: &Op, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<()> {
    let carries = |i: usize| outputs.get(i).is_some_and(|t| t.dtype().is_float() && op.differentiable(i));
    let whole = WHOLE.get().map(|(name, location)| (Named(name), location));
    let (shown, location): (&dyn fmt::Debug, _) = match &whole {
        Some((name, location)) => (name, *location),
        None => (op, Location::caller()),
    };
    let region = is_set(NOTE_ACCESS);
    let mode = Mode { recording: is_grad_enabled(), inference: is_inference() };
    let ran = Ran { op: shown, location, inputs, outputs, spreads: Spreads::of(op), carries: &carries, mode };
    let told = with_observer(|o| match o {
        Observer::NonFinite(search) => search.on_operation(&ran),
        Observer::Paths(paths) => {
            paths.on_operation(&ran, region);
            Ok(())
        }
    });
    told.unwrap_or(Ok(()))
}

/// Called before an operation writes tensors in place. Returns the old values for [`after_write`].
#[cold]
pub(crate) fn before_write(
    op: &Op,
    how: InPlace,
    location: &'static Location<'static>,
    written: &[&Tensor],
    read: &[&Tensor],
) -> Option<Box<Written>> {
    with_observer(|o| match o {
        Observer::NonFinite(search) => search.before_write(how.name(), op, location, written, read),
        Observer::Paths(paths) => {
            paths.wrote(how.name(), !op.reads_outputs(), location, written, read);
            None
        }
    })?
}

/// Called after the operation has written the tensors.
#[cold]
pub(crate) fn after_write(before: Box<Written>, written: &[&Tensor]) {
    with_observer(|o| {
        if let Observer::NonFinite(search) = o {
            search.after_write(*before, written);
        }
    });
}

/// A backward pass under observation. Operations of the engine itself are not observed.
pub(in crate::autograd) struct Pass {
    /// The user's seeds, each with the number of its node and of the output.
    seeds: Vec<Seed>,
    _quiet: GradModeGuard,
}

impl Pass {
    /// `None` if there is no observer.
    #[inline]
    #[track_caller]
    pub(in crate::autograd) fn begin(roots: &[(Edge, Tensor)]) -> Result<Option<Pass>> {
        if is_set(OBSERVE) { Pass::observed(roots).map(Some) } else { Ok(None) }
    }

    #[cold]
    #[track_caller]
    fn observed(roots: &[(Edge, Tensor)]) -> Result<Pass> {
        let _quiet = set(OBSERVE, false);
        let seeds = with_observer(|o| match o {
            Observer::NonFinite(_) => nonfinite::seeds(roots),
            Observer::Paths(_) => Ok(vec![]),
        });
        Ok(Pass { seeds: seeds.unwrap_or(Ok(vec![]))?, _quiet })
    }

    /// Marks that user code is running: a hook of this node, a custom gradient, or a checkpointed region.
    pub(in crate::autograd) fn user_code(&self, node: &Node) -> UserCode {
        let inside = format!("the gradient of {}, recorded at {}", node.name(), node.location);
        let outer =
            with_observer(|o| if let Observer::NonFinite(search) = o { search.inside.replace(inside) } else { None });
        UserCode { outer: outer.flatten(), _mode: set(OBSERVE, true) }
    }

    /// [`user_code`](Pass::user_code) if the gradient of this node is user code, otherwise `None`.
    pub(in crate::autograd) fn rule(&self, node: &Node) -> Option<UserCode> {
        matches!(node.op, Some(Op::Rule(_))).then(|| self.user_code(node))
    }

    /// Reports that the gradients of a node's outputs are complete.
    #[track_caller]
    pub(in crate::autograd) fn complete(&self, node: &Node, grads: &[Option<Tensor>]) -> Result<()> {
        let told = with_observer(|o| match o {
            Observer::NonFinite(search) => search.complete(node, grads, &self.seeds),
            Observer::Paths(paths) => {
                paths.complete(node, grads);
                Ok(())
            }
        });
        told.unwrap_or(Ok(()))
    }

    /// Reports the gradients of a node's outputs or inputs after its hooks have run.
    #[track_caller]
    pub(in crate::autograd) fn hooked(&self, node: &Node, of: &str, grads: &[Option<Tensor>]) -> Result<()> {
        let told = with_observer(|o| match o {
            Observer::NonFinite(search) => search.hooked(node, of, grads),
            Observer::Paths(_) => Ok(()),
        });
        told.unwrap_or(Ok(()))
    }

    /// Reports the gradients that a node computed for its inputs.
    #[track_caller]
    pub(in crate::autograd) fn on_gradients(
        &self,
        ctx: &Context<'_>,
        grads: &[Option<Tensor>],
        found: &[Option<Tensor>],
    ) -> Result<()> {
        let told = with_observer(|o| match o {
            Observer::NonFinite(search) => search.gradients(ctx, grads, found),
            Observer::Paths(paths) => {
                paths.gradients(ctx, found);
                Ok(())
            }
        });
        told.unwrap_or(Ok(()))
    }
}

/// While this exists, operations are observed as those of user code inside a backward pass.
pub(in crate::autograd) struct UserCode {
    outer: Option<String>,
    _mode: GradModeGuard,
}

impl Drop for UserCode {
    fn drop(&mut self) {
        let outer = self.outer.take();
        with_observer(|o| {
            if let Observer::NonFinite(search) = o {
                search.inside = outer;
            }
        });
    }
}
