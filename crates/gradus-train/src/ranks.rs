//! [`Ranks`]: the processes that share a run.

use std::ops::Range;
use std::sync::Arc;

use gradus_nn::{Buffer, Module, Parameter, RandomState};
use gradus_tensor::{Gradients, Result, Tensor};

/// The processes that train one model together, each a *rank*, as [`Trainer::ranks`](crate::Trainer::ranks) needs them.
/// `DataParallel` of the crate `gradus-dist` implements it. All ranks make the same calls in the same order, and an error
/// of a call is the end of the run on all of them.
pub trait Ranks: Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// The samples of a batch of `samples` that this rank computes, in parts of at least one sample.
    fn parts(&self, samples: usize) -> Vec<Range<usize>>;

    /// The mean loss over a batch of `samples` and its gradients, the same on all ranks. `pass` is called for each of the
    /// [`parts`](Ranks::parts) of this rank, in their order, with the share of the part in the batch. It returns the mean
    /// loss over the part times that share, and the gradients of this product.
    fn backward(&self, model: &dyn Module, samples: usize, pass: &mut Pass<'_>) -> Result<(Tensor, Gradients)>;

    /// Replaces each number by its sum over all ranks.
    fn sum(&self, numbers: &mut [f64]) -> Result<()>;

    /// The bytes that rank 0 gives.
    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>>;
}

/// Computes a part of a batch, for [`Ranks::backward`].
pub type Pass<'a> = dyn FnMut(f64) -> Result<(Tensor, Gradients)> + 'a;

/// The ranks of a run, if several processes share it.
pub(crate) type Shared = Option<Arc<dyn Ranks>>;

/// The parts of a batch of `samples` that this process computes.
pub(crate) fn parts(ranks: &Shared, samples: usize) -> Vec<Range<usize>> {
    match ranks {
        Some(ranks) => ranks.parts(samples),
        None => std::iter::once(0..samples).collect(),
    }
}

/// The state of a model, by handles: a model of any type as a `dyn Module`.
#[derive(Module)]
pub(crate) struct Handles {
    parameters: Vec<Parameter>,
    buffers: Vec<Buffer>,
    random: Vec<RandomState>,
}

impl Handles {
    pub(crate) fn of(model: &(impl Module + ?Sized)) -> Handles {
        Handles {
            parameters: model.parameters(),
            buffers: model.named_buffers().into_iter().map(|(_, buffer)| buffer).collect(),
            random: model.named_random_states().into_iter().map(|(_, state)| state).collect(),
        }
    }
}
