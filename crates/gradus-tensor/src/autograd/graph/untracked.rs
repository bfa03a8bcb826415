//! [`Untracked`]: why a tensor is outside the graph. Errors about a missing gradient report it.

use crate::autograd::is_grad_enabled;

/// Why a tensor is outside the graph. If a tensor is computed from several others, it gets whichever of their reasons
/// comes last in this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Untracked {
    /// None of the tensors that it was computed from requires a gradient.
    Constant,
    /// It was computed by an operation without a derivative.
    Severed,
    /// It is a frozen parameter, or was computed from one.
    Frozen,
    /// It was detached, or was computed from a detached tensor.
    Detached,
    /// It was computed while gradients were switched off.
    NoGrad,
    /// It is a gradient that a pass without `create_graph` returned, or was computed from one.
    Gradient,
}

use Untracked::{Constant, Detached, Frozen, Gradient, NoGrad, Severed};

impl Untracked {
    /// The number that an untracked tensor stores instead of a version. Reasons later in the list have lower numbers.
    pub(crate) const fn code(self) -> u64 {
        u64::MAX - self as u64
    }

    /// The reason with this code.
    pub(crate) fn of(code: u64) -> Untracked {
        let all = [Constant, Severed, Frozen, Detached, NoGrad, Gradient];
        all.into_iter().find(|why| why.code() == code).unwrap_or(Constant)
    }

    /// The reason to record for an untracked result that was computed from a tracked tensor.
    #[inline]
    pub(crate) fn now() -> Untracked {
        if is_grad_enabled() { Severed } else { NoGrad }
    }

    /// The error message and its help text.
    pub(in crate::autograd) fn explain(self) -> (&'static str, &'static str) {
        match self {
            Constant => (
                "nothing that the tensor was computed from requires a gradient",
                "make leaves with with_grad()? before the computation, or use Parameters",
            ),
            Severed => (
                "the tensor was computed by way of an operation that has no derivative, such as a comparison or a cast to integers",
                "compute it by operations on floats",
            ),
            Detached => (
                "the tensor was computed from a detached one, and from nothing else that requires a gradient",
                "leave out detach() where the gradient is to flow",
            ),
            Frozen => (
                "the model is frozen: the tensor was computed from frozen parameters, and from nothing else that requires a gradient",
                "unfreeze what is to be trained: model.unfreeze(), or unfreeze_under(\"head\")? for a part",
            ),
            NoGrad => (
                "the tensor was computed while gradients were switched off, inside of no_grad or inference",
                "compute it outside, or inside of enable_grad(|| ..)",
            ),
            Gradient => (
                "the tensor was computed from a gradient that was not recorded itself: that of a pass without create_graph",
                "for a second derivative take the first with BackwardOptions::new().create_graph()",
            ),
        }
    }
}
