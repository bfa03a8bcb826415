//! Draws from a distribution. The methods are in `random.rs` and `create.rs` of the crate.

use gradus_backend::{Backend, Distribution, Result, View, ViewMut};

use super::{Effect, Flow, InputSpec, Operation, Outputs, Spec, one};

/// Independent numbers of a distribution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Random {
    /// Which.
    pub distribution: Distribution,
    /// The seed of the stream.
    pub seed: u64,
    /// Where in the stream.
    pub offset: u64,
    /// What is filled.
    pub spec: Spec,
}

impl Operation for Random {
    fn name(&self) -> &str {
        "random"
    }

    fn infer(&self, _: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(self.spec.shape, self.spec.dtype))
    }

    fn forward(&self, backend: &dyn Backend, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.random(self.distribution, self.seed, self.offset, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn effect(&self) -> Effect {
        Effect::Draws
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}
