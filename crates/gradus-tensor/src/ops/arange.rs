//! `arange`: evenly spaced integers. The method is in the crate's `create.rs`.

use gradus_backend::{Backend, Result, View, ViewMut};

use super::{Flow, InputSpec, Operation, Outputs, Spec, one};

/// The integers `start`, `start + step`, `start + 2 * step` and so on, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Arange {
    /// The first integer.
    pub start: i64,
    /// The difference between neighbours.
    pub step: i64,
    /// The shape and dtype of the result.
    pub spec: Spec,
}

impl Operation for Arange {
    fn name(&self) -> &str {
        "arange"
    }

    fn infer(&self, _: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(self.spec.shape, self.spec.dtype))
    }

    fn forward(&self, backend: &dyn Backend, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.arange(self.start, self.step, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}
