//! [`Ranks`]: the processes that share a run.

use std::ops::Range;
use std::sync::Arc;

use gradus_nn::{Buffer, Module, Optimizer, Parameter, RandomState, grad_norm};
use gradus_tensor::{Error, ErrorKind, Gradients, Here, Result, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;

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
    /// [`parts`](Ranks::parts) of this rank, in their order, with the share of the part in the batch and a function for its
    /// backward pass. It returns the mean loss over the part times that share, and what the function gives for this product.
    fn backward(&self, model: &dyn Module, samples: usize, pass: &mut Pass<'_>) -> Result<(Tensor, Gradients)>;

    /// Replaces each number by its sum over all ranks.
    fn sum(&self, numbers: &mut [f64]) -> Result<()>;

    /// The bytes that rank `from` gives.
    fn broadcast(&self, from: usize, bytes: Vec<u8>) -> Result<Vec<u8>>;

    /// Makes the calls of all other ranks fail, with `why` in their errors: this rank ends because of an error that it alone has.
    fn give_up(&self, why: &str);

    /// Whether each rank holds only a part of the parameters, their gradients and the state of the optimiser while a model
    /// is trained. If so, `FullyShardedDataParallel` of the crate `gradus-dist` implements the methods below, which are
    /// called on all ranks.
    fn divides(&self) -> bool {
        false
    }

    /// Divides the named parameters of a model, and makes the optimiser one of this rank's parts of them.
    fn divide(&self, _parameters: Vec<(String, Parameter)>, _optimizer: &mut dyn Optimizer) -> Result<()> {
        Ok(())
    }

    /// Undoes [`divide`](Ranks::divide): the parameters have their values, and the optimiser is one of them, on all ranks.
    fn join(&self, _parameters: Vec<(String, Parameter)>, _optimizer: &mut dyn Optimizer) -> Result<()> {
        Ok(())
    }

    /// What this rank holds of the divided parameters. [`stepped`](Ranks::stepped) is called after writing into it.
    fn pieces(&self) -> Result<Vec<Piece>> {
        Ok(vec![])
    }

    /// Runs `f`, in which parameters have their values when they are needed.
    fn supplied(&self, f: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        f()
    }

    /// The norm of the gradients of `parameters`, which the optimiser has; the parts of all ranks count.
    fn grad_norm(&self, gradients: &Gradients, parameters: &[Parameter]) -> Result<f64> {
        grad_norm(gradients, parameters, 2.0)
    }

    /// Called after each step of the optimiser, and when the values of pieces were set.
    fn stepped(&self) -> Result<()> {
        Ok(())
    }
}

/// Some elements of a parameter, which a rank holds, for [`Ranks::pieces`]. There may be none.
#[derive(Debug, Clone)]
pub struct Piece {
    /// The name of the parameter.
    pub name: String,
    /// The shape of the whole parameter.
    pub shape: Vec<usize>,
    /// The first of the elements, in row-major order.
    pub start: usize,
    /// The elements as a vector, which the optimiser has in place of the parameter.
    pub part: Parameter,
}

/// Computes a part of a batch, for [`Ranks::backward`].
pub type Pass<'a> = dyn FnMut(f64, &Backward<'_>) -> Result<(Tensor, Gradients)> + 'a;

/// Computes the gradients of a loss, as [`Tensor::backward`] does, for a [`Pass`]. Ranks may take gradients as soon as they
/// are complete, to exchange them while the others are computed, and do not return these. Where the pass is captured, they
/// take them from its replays too.
pub type Backward<'a> = dyn Fn(&Tensor) -> Result<Gradients> + 'a;

/// The ranks of a run, if several processes share it.
pub(crate) type Shared = Option<Arc<dyn Ranks>>;

/// Ranks that divide the parameters, if there are such.
pub(crate) fn dividing(ranks: &Shared) -> Option<&dyn Ranks> {
    ranks.as_deref().filter(|ranks| ranks.divides())
}

/// What all ranks have, in their order. If one failed, the others get an error that names it with its message.
#[track_caller]
pub(crate) fn all_have<T>(ranks: &dyn Ranks, op: &'static str, mine: Result<T>) -> Result<Result<Vec<T>>>
where
    T: Serialize + DeserializeOwned,
{
    let broken = |e: serde_json::Error| Error::new(ErrorKind::Format, op, e.to_string());
    let own = serde_json::to_vec(&mine.as_ref().map_err(|e| e.message().to_owned())).map_err(broken).here()?;
    let (mut all, mut failed) = (vec![], None);
    for rank in 0..ranks.size() {
        let bytes = ranks.broadcast(rank, if rank == ranks.rank() { own.clone() } else { vec![] })?;
        match serde_json::from_slice::<std::result::Result<T, String>>(&bytes).map_err(broken).here()? {
            Ok(one) => all.push(one),
            Err(m) => drop(failed.get_or_insert(format!("rank {rank}: {m}"))),
        }
    }
    Ok(match (mine, failed) {
        (Err(e), _) => Err(e.note(format!("this is rank {} of {}", ranks.rank(), ranks.size()))),
        (Ok(_), Some(m)) => Err(Error::new(ErrorKind::Peer, op, m).help("the error of that rank says more").here()),
        (Ok(_), None) => Ok(all),
    })
}

/// Runs `f` where parameters have their values when they are needed.
pub(crate) fn supplied<R>(ranks: Option<&dyn Ranks>, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let Some(ranks) = ranks else { return f() };
    let (mut f, mut result) = (Some(f), None);
    ranks.supplied(&mut || {
        if let Some(f) = f.take() {
            result = Some(f()?);
        }
        Ok(())
    })?;
    result.ok_or_else(|| Error::argument("ranks", "nothing was run"))
}

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
