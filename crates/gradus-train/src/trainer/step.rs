//! One step: forward and backward passes, clipping, and the update of the parameters.

use gradus_data::Parts;
use gradus_nn::{Module, Optimizer, clip_grad_value, clip_to_norm, grad_norm};
use gradus_tensor::{Error, Gradients, Here, Result, all_or_nothing, autograd::NonFiniteReport, find_nonfinite};

use super::failure::{Failure, NonFinite};
use super::options::{OnNonFinite, Trainer};
use super::passes::{Passes, Place};
use crate::Task;
use crate::task::Tally;

/// The result of a step.
pub(super) struct Stepped {
    /// The mean loss over the samples of the step.
    pub(super) loss: f64,
    /// The sums over the batches of the step.
    pub(super) tally: Tally,
    pub(super) grad_norm: Option<f64>,
}

impl Trainer {
    /// Makes one step from these batches with this factor on the learning rate, and this momentum if there is one. If
    /// it fails, nothing has changed.
    #[track_caller]
    pub(super) fn step_at<M, B, T>(
        &self,
        rates: (f64, Option<f64>),
        model: &mut M,
        optimizer: &mut dyn Optimizer,
        task: &T,
        batches: &[Parts<B>],
        passes: &mut Passes<B>,
    ) -> std::result::Result<Stepped, Failure>
    where
        M: Module + ?Sized,
        T: Task<M, B> + ?Sized,
    {
        let mut trouble = None;
        let done = all_or_nothing(|| {
            let refuse = |e: &'static str| Err(Error::argument("trainer", e));
            let (mut tally, mut total): (Tally, Option<Gradients>) = (Tally::default(), None);
            // The loss of the last batch, the number of samples of the first batch, and that of all batches.
            let (mut last, mut first, mut samples) = (0.0, 0, 0);
            for (index, batch) in batches.iter().enumerate() {
                let place = Place { index, of: batches.len(), first };
                let passed = match passes.run(&*model, task, batch, place) {
                    Ok(passed) => passed,
                    Err(Failure::NonFinite(found)) => {
                        trouble = Some(found);
                        return refuse("the loss is not finite");
                    }
                    Err(Failure::Other(e)) => return Err(e),
                };
                let own = passed.weight;
                (first, samples) = (if index == 0 { own } else { first }, samples + own);
                match &mut total {
                    Some(total) => total.add(passed.gradients)?,
                    None => total = Some(passed.gradients),
                }
                tally.add(&passed.counts, passed.loss);
                last = passed.loss;
            }
            let Some(mut gradients) = total else { return refuse("a step has no batches") };
            let as_counted = first * batches.len();
            if as_counted != samples {
                gradients.scale(as_counted as f64 / samples as f64)?;
            }
            let grad_norm = match self.clip(&mut gradients, optimizer)? {
                Some(value) if !value.is_finite() => {
                    trouble = Some(NonFinite { value, batch: None });
                    return refuse("the gradient is not finite");
                }
                norm => norm,
            };
            update(rates, optimizer, &gradients)?;
            self.ranks.iter().try_for_each(|ranks| ranks.stepped())?;
            // A single batch needs no mean: its loss is returned without another rounding.
            let loss = if batches.len() == 1 { last } else { tally.loss() };
            Ok(Stepped { loss, tally, grad_norm })
        });
        match (done.here(), trouble) {
            (Ok(done), _) => Ok(done),
            (Err(_), Some(trouble)) => Err(Failure::NonFinite(trouble)),
            (Err(e), None) => Err(Failure::Other(e)),
        }
    }

    /// Clips the gradients. Returns their norm before clipping, if it is needed. If the norm is not finite, nothing is
    /// clipped.
    #[track_caller]
    fn clip(&self, gradients: &mut Gradients, optimizer: &dyn Optimizer) -> Result<Option<f64>> {
        let wants_norm = self.log_grad_norm || self.clip_norm.is_some() || self.on_non_finite != OnNonFinite::Error;
        let parameters = optimizer.parameters();
        // Measured before values are clamped, which makes infinities finite.
        let norm_of = |gradients: &Gradients| match &self.ranks {
            Some(ranks) => ranks.grad_norm(gradients, &parameters),
            None => grad_norm(gradients, &parameters, 2.0),
        };
        let mut norm = if wants_norm { Some(norm_of(gradients)?) } else { None };
        if norm.is_some_and(|norm| !norm.is_finite()) {
            return Ok(norm);
        }
        let measured = norm;
        if let Some(max) = self.clip_value {
            clip_grad_value(gradients, &parameters, max)?;
            norm = if self.clip_norm.is_some() { Some(norm_of(gradients)?) } else { None };
        }
        if let (Some(norm), Some(max_norm)) = (norm, self.clip_norm) {
            clip_to_norm(gradients, &parameters, norm, max_norm)?;
        }
        Ok(measured)
    }
}

/// Updates the parameters with this factor on the learning rate, and this momentum. If that fails, the old ones are
/// restored.
#[track_caller]
fn update(
    (lr_factor, momentum): (f64, Option<f64>),
    optimizer: &mut dyn Optimizer,
    gradients: &Gradients,
) -> Result<()> {
    let before = (optimizer.lr_factor(), optimizer.momentum());
    let set = |optimizer: &mut dyn Optimizer, lr_factor, momentum: Option<f64>| {
        momentum.map_or(Ok(()), |momentum| optimizer.set_momentum(momentum))?;
        optimizer.set_lr_factor(lr_factor)
    };
    let stepped = set(optimizer, lr_factor, momentum).and_then(|()| optimizer.step(gradients));
    if stepped.is_err() {
        set(optimizer, before.0, momentum.and(before.1))?;
    }
    stepped
}

/// The error for a step that is not finite. To find the cause, the batch is run again, with checks, from the same
/// state.
#[track_caller]
pub(super) fn explained<M, B, T>(
    trouble: NonFinite,
    (epoch, step): (usize, usize),
    model: &mut M,
    task: &T,
    batches: &[Parts<B>],
) -> Error
where
    M: Module + ?Sized,
    T: Task<M, B> + ?Sized,
{
    let (what, value) = (if trouble.batch.is_some() { "loss" } else { "norm of the gradients" }, trouble.value);
    let mut e = Error::argument("trainer", format!("the {what} is {value} in epoch {epoch}, step {step}"));
    let suspects = match trouble.batch.and_then(|i| batches.get(i)) {
        Some(batch) => std::slice::from_ref(batch),
        None => batches,
    };
    let suspects: Vec<&B> = suspects.iter().flat_map(|batch| &batch.parts).collect();
    if let Some((report, layer)) = suspects.iter().find_map(|batch| first_operation(model, task, *batch)) {
        let layer = layer.map(|layer| format!(", in the layer {layer}")).unwrap_or_default();
        e = e.note(format!("first operation{layer}: {report}"));
    }
    match suspects.into_iter().find_map(|batch| task.diagnose(batch)) {
        Some(reason) => e.note(reason).help("clean the data; numbers of a sample have to be finite"),
        None => e.help("lower the learning rate, and look for extreme values in the data"),
    }
}

/// Runs the batch, and returns the first operation whose result is not finite, with its layer. The pass has no lasting
/// effects.
fn first_operation<M, B, T>(model: &mut M, task: &T, batch: &B) -> Option<(NonFiniteReport, Option<String>)>
where
    M: Module + ?Sized,
    T: Task<M, B> + ?Sized,
{
    let (mut found, mut layer) = (None, None);
    let undone: Result<()> = all_or_nothing(|| {
        found = find_nonfinite(|| {
            let outcome = task.run(model, batch).inspect_err(|e| layer = e.layer().map(|layer| layer.to_string()))?;
            outcome.loss.backward()
        })?;
        Err(Error::argument("trainer", "this pass is undone"))
    });
    drop(undone);
    found.map(|report| (report, layer))
}
