//! Random numbers from a distribution. The methods are in the crate's `random.rs` and `create.rs`.

use gradus_backend::{Backend, Distribution, Result, View, ViewMut};

use super::{Effect, Flow, InputSpec, Operation, Outputs, Spec, one};

/// Independent random numbers from a distribution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Random {
    /// The distribution.
    pub distribution: Distribution,
    /// The seed of the stream.
    pub seed: u64,
    /// The position in the stream.
    pub offset: u64,
    /// The shape and dtype of the result.
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

    fn same_form(&self, other: &Self) -> bool {
        self.distribution == other.distribution && self.spec == other.spec
    }

    fn effect(&self) -> Effect {
        Effect::Draws
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}
