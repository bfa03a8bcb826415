//! `contiguous(x)` and `copy(x)`: the values in row-major order in memory of their own. The gradient passes through
//! unchanged.

use std::sync::Arc;

use gradus_backend::{Backend, Result, View, ViewMut};

use super::{Context, Flow, Grads, InputSpec, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// A copy in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Contiguous;

impl Operation for Contiguous {
    fn name(&self) -> &str {
        "contiguous"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(*inputs[0].shape, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.copy_strided(inputs[0], &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn vjp(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        Ok(grads([g[0].clone()]))
    }
}

impl Tensor {
    /// The tensor itself if it is contiguous, otherwise a contiguous copy.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// This tensor, copied if it shares memory with `other`. For operations that promise a result in memory of its own.
    #[track_caller]
    pub(crate) fn apart_from(self, other: &Tensor) -> Result<Tensor> {
        if Arc::ptr_eq(self.storage(), other.storage()) { self.copy() } else { Ok(self) }
    }

    /// A contiguous copy in memory of its own.
    #[track_caller]
    pub fn copy(&self) -> Result<Tensor> {
        apply_one(Contiguous, &[self])
    }
}
