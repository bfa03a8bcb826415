//! [`Passes`]: the forward and backward pass of a batch, replayed where that is possible.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gradus_data::Parts;
use gradus_graph::Captured;
use gradus_nn::{Module, Optimizer, Parameter};
use gradus_tensor::backend::log;
use gradus_tensor::{Error, Gradients, Here, Result, Tensor, ops};

use super::failure::{Failure, NonFinite};
use super::options::Trainer;
use crate::Task;
use crate::ranks::{Backward, Handles, Ranks, Shared, dividing};
use crate::task::Counts;

/// The tensors of a batch, if it consists of nothing else.
pub(super) type TensorsOf<B> = fn(&B) -> Option<Vec<&Tensor>>;

/// The batch of a step that a pass is for: its index, the number of batches, and the number of samples of the first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) index: usize,
    pub(super) of: usize,
    pub(super) first: usize,
}

/// What a pass computed.
pub(super) struct Passed {
    pub(super) loss: f64,
    pub(super) counts: Counts,
    pub(super) gradients: Gradients,
    /// The number of samples by which the pass is weighted in its step.
    pub(super) weight: usize,
}

/// A pass over one batch: its mean loss, its counts, and the gradients of the loss as it was scaled.
struct Pass {
    loss: Tensor,
    counts: Counts,
    gradients: Gradients,
}

/// The host values of a pass, which a replay repeats.
#[derive(Debug, Clone, PartialEq)]
struct Fixed {
    samples: usize,
    counts_correct: bool,
    /// Whether each parameter of the optimiser has a gradient.
    has_gradient: Arc<[bool]>,
}

/// The number of replays after which a form of the batch is checked again: a smaller last batch, which comes once in an
/// epoch, is replayed too.
const OFTEN: u64 = 3;

/// Runs passes, and replays them once two of them did the same.
pub(super) struct Passes<B> {
    /// `None` if passes run eagerly.
    captured: Option<Captured<Fixed>>,
    parameters: Vec<Parameter>,
    tensors: TensorsOf<B>,
    ranks: Shared,
    stop: Option<Arc<AtomicBool>>,
    /// Whether one of the ranks was to stop when the last pass was done.
    stop_of_ranks: bool,
}

impl<B> Passes<B> {
    pub(super) fn new<M, T>(trainer: &Trainer, optimizer: &dyn Optimizer, task: &T, tensors: TensorsOf<B>) -> Self
    where
        M: Module + ?Sized,
        T: Task<M, B> + ?Sized,
    {
        let wanted = trainer.captures.unwrap_or(true);
        let may = trainer.captures.is_some() || task.is_fixed();
        if wanted && !may {
            eager("the task may use values that change; Trainer::captured() or Task::is_fixed says that they do not");
        }
        let divided = dividing(&trainer.ranks).is_some();
        if wanted && may && divided {
            eager("the parameters are divided among the ranks");
        }
        let captured = (wanted && may && !divided).then(Captured::or_eager);
        let (ranks, stop) = (trainer.ranks.clone(), trainer.stop.clone());
        Passes { captured, parameters: optimizer.parameters(), tensors, ranks, stop, stop_of_ranks: false }
    }

    fn is_told_to_stop(&self) -> bool {
        self.stop.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Whether no further step is to be done. Ranks agree on that in each pass, so that all stop after the same step.
    pub(super) fn are_to_stop(&self) -> bool {
        if self.ranks.is_some() { self.stop_of_ranks } else { self.is_told_to_stop() }
    }

    /// Checks forms that were replayed often against the model and the task again, which may have changed between two
    /// epochs.
    pub(super) fn recheck(&mut self) {
        self.captured.iter_mut().for_each(|captured| captured.recheck_replayed(OFTEN));
    }

    /// Forgets what was traced, because the state was replaced.
    pub(super) fn clear(&mut self) {
        self.captured.iter_mut().for_each(Captured::clear);
    }

    /// Prints how many passes were replayed, if `GRADUS_LOG` lists `graph`.
    pub(super) fn log(&self) {
        if let Some(captured) = self.captured.as_ref().filter(|_| log::wanted("graph")) {
            log::print(&format!("trainer: {} passes were replayed", captured.replays()));
        }
    }

    /// Runs the pass of a batch, or this process's parts of it.
    #[track_caller]
    pub(super) fn run<M, T>(
        &mut self,
        model: &M,
        task: &T,
        batch: &Parts<B>,
        place: Place,
    ) -> std::result::Result<Passed, Failure>
    where
        M: Module + ?Sized,
        T: Task<M, B> + ?Sized,
    {
        if let Some(ranks) = self.ranks.clone() {
            return self.shared(&*ranks, model, task, batch, place);
        }
        let batch = batch.parts.first().ok_or_else(|| Error::argument("trainer", "a batch has no samples"))?;
        let backward = |loss: &Tensor, samples| weighted(loss, samples, place)?.backward();
        let pass = self.pass(model, task, batch, form(place), &backward)?;
        let (loss, counts) = (finite(pass.loss.item()?, place)?, pass.counts);
        Ok(Passed { loss, counts, gradients: pass.gradients, weight: counts.samples.max(1) })
    }

    /// The pass of a batch that ranks share: its loss, counts and gradients are those of all ranks.
    #[track_caller]
    fn shared<M, T>(
        &mut self,
        ranks: &dyn Ranks,
        model: &M,
        task: &T,
        batch: &Parts<B>,
        place: Place,
    ) -> std::result::Result<Passed, Failure>
    where
        M: Module + ?Sized,
        T: Task<M, B> + ?Sized,
    {
        let weight = batch.samples.max(1);
        let (mut parts, mut counts) = (batch.parts.iter(), Counts::default());
        let mut pass = |share: f64, backward: &Backward<'_>| -> Result<(Tensor, Gradients)> {
            let part = parts.next().ok_or_else(|| Error::argument("trainer", "a batch has too few parts"))?;
            // Parts of one size have different shares in batches of different sizes.
            let backward = |loss: &Tensor, _| backward(&loss.mul(share).here()?);
            let pass = self.pass(model, task, part, SHARED | weight as u64, &backward)?;
            counts.merge(&pass.counts);
            Ok((pass.loss.mul(share)?, pass.gradients))
        };
        let (loss, mut gradients) = ranks.backward(&Handles::of(model), batch.samples, &mut pass)?;
        let (counts, stop) = counts.over(ranks, self.is_told_to_stop())?;
        self.stop_of_ranks = stop;
        let loss = finite(loss.item()?, place)?;
        if place.of > 1 {
            gradients.scale(share(weight, place))?;
        }
        Ok(Passed { loss, counts, gradients, weight })
    }

    /// Runs a batch forwards and backwards: `backward` takes its loss and its number of samples.
    #[track_caller]
    fn pass<M, T>(
        &mut self,
        model: &M,
        task: &T,
        batch: &B,
        form: u64,
        backward: &dyn Fn(&Tensor, usize) -> Result<Gradients>,
    ) -> Result<Pass>
    where
        M: Module + ?Sized,
        T: Task<M, B> + ?Sized,
    {
        let inputs = self.captured.as_ref().and_then(|_| (self.tensors)(batch));
        let (Some(captured), Some(inputs)) = (&mut self.captured, inputs) else {
            if self.captured.take().is_some() {
                eager("a batch holds more than tensors");
            }
            let outcome = task.run(model, batch)?;
            let gradients = backward(&outcome.loss, outcome.samples)?;
            return Ok(Pass { loss: outcome.loss.detach(), counts: Counts::of(&outcome)?, gradients });
        };
        let (parameters, is_shared) = (&self.parameters, self.ranks.is_some());
        // The gradients of a pass that ran. Those of a replay are made from its results.
        let mut made = None;
        let (results, fixed) = captured.call(form, &inputs, |_| {
            let outcome = task.run(model, batch)?;
            let gradients = backward(&outcome.loss, outcome.samples)?;
            let found: Vec<Option<&Tensor>> = parameters.iter().map(|p| gradients.get(p.tensor())).collect();
            // Ranks may have taken them.
            if !is_shared && found.iter().all(Option::is_none) {
                ops::refuse(|| Error::argument("trainer", "no parameter of the optimiser has a gradient"))?;
            }
            let mut results = vec![outcome.loss.detach()];
            results.extend(outcome.correct.iter().map(Tensor::detach));
            results.extend(found.iter().flatten().map(|g| g.detach()));
            let fixed = Fixed {
                samples: outcome.samples,
                counts_correct: outcome.correct.is_some(),
                has_gradient: found.iter().map(Option::is_some).collect(),
            };
            made = Some(gradients);
            Ok((results, fixed))
        })?;
        let mut results = results.into_iter();
        let mut next = || results.next().ok_or_else(|| Error::argument("trainer", "a replay has too few results"));
        let loss = next()?;
        let correct = fixed.counts_correct.then(&mut next).transpose()?;
        let counts = Counts::new(fixed.samples, correct.as_ref())?;
        let gradients = match made {
            Some(gradients) => gradients,
            None => {
                let mut gradients = Gradients::default();
                for (p, _) in self.parameters.iter().zip(fixed.has_gradient.iter()).filter(|(_, has)| **has) {
                    gradients.insert(p.tensor(), next()?)?;
                }
                gradients
            }
        };
        Ok(Pass { loss, counts, gradients })
    }
}

/// Prints why steps run eagerly, if `GRADUS_LOG` lists `graph`.
fn eager(why: &str) {
    if log::wanted("graph") {
        log::print(&format!("trainer: steps run eagerly: {why}"));
    }
}

/// The loss, or the failure of a loss that is not finite.
fn finite(value: f64, place: Place) -> std::result::Result<f64, Failure> {
    if value.is_finite() { Ok(value) } else { Err(Failure::NonFinite(NonFinite { value, batch: Some(place.index) })) }
}

/// The loss of a batch, weighted by its share in that of its step.
#[track_caller]
fn weighted(loss: &Tensor, samples: usize, place: Place) -> Result<Tensor> {
    let own = samples.max(1);
    match place.of {
        1 => Ok(loss.clone()),
        n if place.index == 0 || own == place.first => loss.div(n as f64).here(),
        _ => loss.mul(share(own, place)).here(),
    }
}

/// The share of a batch in its step. Each batch is weighted by its number of samples. The total is known only after the
/// last batch. Until then, all batches are assumed to be as large as the first, which is usually true; otherwise the
/// gradients are rescaled at the end.
fn share(own: usize, place: Place) -> f64 {
    let first = if place.index == 0 { own } else { place.first };
    own as f64 / first as f64 / place.of as f64
}

/// Sets the numbers of passes that ranks share apart from those of [`form`].
const SHARED: u64 = 1 << 63;

/// A number that differs between passes whose losses are weighted differently although their batches have equal shapes.
fn form(place: Place) -> u64 {
    match (place.of, place.index) {
        (1, _) => 0,
        (n, 0) => (n as u64) << 40,
        (n, _) => (n as u64) << 40 | (place.first as u64 + 1),
    }
}
