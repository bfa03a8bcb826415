//! `full`, `zeros`, `ones` and `fill_`: the same number in every element.

use gradus_backend::{Backend, Result, Scalar, View, ViewMut};

use super::{Flow, InputSpec, Operation, Outputs, Spec, one};

/// Sets every element to the same number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fill {
    /// The number.
    pub value: Scalar,
    /// The shape and dtype of the result.
    pub spec: Spec,
}

impl Operation for Fill {
    fn name(&self) -> &str {
        "full"
    }

    fn infer(&self, _: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(self.spec.shape, self.spec.dtype))
    }

    fn forward(&self, backend: &dyn Backend, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.fill(&mut outputs[0], self.value)
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}
