//! [`Untracked`]: why a tensor is outside the graph. Errors about a missing gradient say it.

use crate::autograd::is_grad_enabled;

/// Why a tensor is outside the graph. A result of several tensors takes the reason that stands last in this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Untracked {
    /// None of the tensors it was computed from requires a gradient.
    Constant,
    /// It was computed by an operation without a derivative.
    Severed,
    /// It was computed from a frozen parameter.
    Frozen,
    /// By way of `detach`.
    Detached,
    /// It was computed while gradients were switched off.
    NoGrad,
    /// It was computed from a gradient of a pass without `create_graph`.
    Gradient,
}

use Untracked::{Constant, Detached, Frozen, Gradient, NoGrad, Severed};

impl Untracked {
    /// The number that an untracked tensor stores in place of a version: the later the reason in the list, the lower.
    pub(crate) const fn code(self) -> u64 {
        u64::MAX - self as u64
    }

    /// The reason with this number.
    pub(crate) fn of(code: u64) -> Untracked {
        let all = [Constant, Severed, Frozen, Detached, NoGrad, Gradient];
        all.into_iter().find(|why| why.code() == code).unwrap_or(Constant)
    }

    /// The reason for an untracked result of a tracked tensor.
    #[inline]
    pub(crate) fn now() -> Untracked {
        if is_grad_enabled() { Severed } else { NoGrad }
    }

    /// The message and the help of an error.
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
