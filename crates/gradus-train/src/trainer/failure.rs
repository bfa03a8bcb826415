//! [`Failure`]: why a step failed.

use gradus_tensor::Error;

/// Why a step failed.
pub(super) enum Failure {
    /// A loss or a gradient is not finite. The step has changed nothing.
    NonFinite(NonFinite),
    Other(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Other(e)
    }
}

/// A loss, or a norm of gradients, that is not finite.
#[derive(Debug, Clone, Copy)]
pub(super) struct NonFinite {
    pub(super) value: f64,
    /// The index of the batch in the step that has this loss; `None` if the gradients are not finite.
    pub(super) batch: Option<usize>,
}
