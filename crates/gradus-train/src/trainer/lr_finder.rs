//! [`Trainer::find_lr`]: the learning-rate range test (Smith, 2017).

use gradus_data::{DataLoader, Dataset, Sample};
use gradus_nn::{Module, Optimizer};
use gradus_tensor::{Error, Here, Result};

use super::failure::Failure;
use super::options::Trainer;
use super::passes::Passes;
use crate::{Checkpoint, Task};

/// The decay of older losses in the smoothed loss.
const SMOOTHING: f64 = 0.98;

/// The search ends when the smoothed loss reaches this many times its minimum.
const DIVERGED: f64 = 4.0;

/// The numbers of points at the start and at the end of the curve that are ignored for the suggestion.
const SKIPPED: (usize, usize) = (10, 5);

/// The number of points on each side over which the slope of the curve is measured.
const WINDOW: usize = 5;

/// The learning rates that [`Trainer::find_lr`] tries: `steps` of them from `from` to `to`, in a geometric sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LrRange {
    /// The first learning rate. 1e-7 by default.
    pub from: f64,
    /// The last learning rate. 10 by default.
    pub to: f64,
    /// The number of steps, at least 2. 100 by default.
    pub steps: usize,
}

impl Default for LrRange {
    fn default() -> Self {
        LrRange { from: 1e-7, to: 10.0, steps: 100 }
    }
}

/// A step of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LrPoint {
    /// The learning rate of the first group of parameters.
    pub lr: f64,
    /// The loss before the step.
    pub loss: f64,
    /// The exponentially weighted mean of the losses up to this step, with decay 0.98.
    pub smoothed: f64,
}

/// The loss as the learning rate rises.
#[derive(Debug, Clone, PartialEq)]
pub struct LrFinder {
    /// The curve. It ends early if the loss rises to 4 times its minimum, or is not finite.
    pub curve: Vec<LrPoint>,
    /// The learning rate at which the smoothed loss falls fastest; `None` if it never falls, or if the curve is too
    /// short. The first 10 points and the last 5 do not count.
    pub suggestion: Option<f64>,
}

impl Trainer {
    /// Raises the learning rate step by step, and records the loss. The parameters and buffers of the model, the random
    /// numbers of its layers and the state of the optimiser are restored afterwards. The model stays in training mode.
    /// Changes that the task itself makes are not undone, and a [`state`](Trainer::state) is not restored.
    ///
    /// ```no_run
    /// # use gradus_train::*; use gradus_tensor::*; use gradus_data::*; use gradus_nn::*;
    /// # fn f(model: &mut Linear, optimizer: &mut AdamW, loader: &DataLoader<TensorDataset>) -> Result<()> {
    /// let found = Trainer::new(1)?.find_lr(model, optimizer, loader, &Classification::default(), LrRange::default())?;
    /// println!("try a learning rate of {:?}", found.suggestion);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of the dataset and the model. Fails if the range is not positive and increasing or has fewer
    /// than 2 steps, or if the first group of the optimiser has a learning rate of 0.
    #[track_caller]
    pub fn find_lr<M, D, T>(
        &self,
        model: &mut M,
        optimizer: &mut dyn Optimizer,
        train: &DataLoader<D>,
        task: &T,
        range: LrRange,
    ) -> Result<LrFinder>
    where
        M: Module + ?Sized,
        D: Dataset + 'static,
        D::Item: Sample,
        T: Task<M, <D::Item as Sample>::Batch> + ?Sized,
    {
        const OP: &str = "find_lr";
        let LrRange { from, to, steps } = range;
        if !(from > 0.0 && from < to && to.is_finite() && steps >= 2) {
            return Err(Error::argument(OP, format!("{steps} learning rates from {from} to {to}"))
                .help("give at least 2 steps, from a rate above 0 to a larger one"));
        }
        let base = optimizer.lr().first().copied().unwrap_or(0.0) / optimizer.lr_factor();
        if !(base > 0.0 && base.is_finite()) {
            return Err(Error::argument(OP, "the optimiser's learning rate is 0, and has no ratio to others"));
        }
        if train.is_empty() {
            return Err(Error::argument(OP, "the dataset has no batch").help("give at least one sample"));
        }
        let before = Checkpoint::of(model, optimizer)?;
        model.train();
        let found = self.search(model, optimizer, train, task, range, base);
        before.restore(model, optimizer)?;
        let curve = found?;
        Ok(LrFinder { suggestion: steepest(&curve), curve })
    }

    #[track_caller]
    fn search<M, D, T>(
        &self,
        model: &mut M,
        optimizer: &mut dyn Optimizer,
        train: &DataLoader<D>,
        task: &T,
        LrRange { from, to, steps }: LrRange,
        base: f64,
    ) -> Result<Vec<LrPoint>>
    where
        M: Module + ?Sized,
        D: Dataset + 'static,
        D::Item: Sample,
        T: Task<M, <D::Item as Sample>::Batch> + ?Sized,
    {
        let mut passes = Passes::new(self, &*optimizer, task, D::Item::tensors);
        // At most `steps` points.
        let mut curve: Vec<LrPoint> = Vec::new();
        let (mut epoch, mut batches) = (1, self.batches(train, 1, 0)?);
        let (mut sum, mut weight, mut least) = (0.0, 0.0, f64::INFINITY);
        for step in 0..steps {
            let lr = from * (to / from).powf(step as f64 / (steps - 1) as f64);
            let next = match batches.next() {
                None => {
                    epoch += 1;
                    batches = self.batches(train, epoch, 0)?;
                    batches.next()
                }
                next => next,
            };
            let Some(batch) = next else { break };
            let done = self.step_at((lr / base, None), model, optimizer, task, &[batch?], &mut passes);
            let loss = match done {
                Ok(done) => done.loss,
                Err(Failure::NonFinite(_)) => break,
                Err(Failure::Other(e)) => return Err(e).here(),
            };
            sum = SMOOTHING * sum + (1.0 - SMOOTHING) * loss;
            weight = SMOOTHING * weight + (1.0 - SMOOTHING);
            let smoothed = sum / weight;
            curve.push(LrPoint { lr, loss, smoothed });
            least = least.min(smoothed);
            if smoothed > DIVERGED * least && step > 0 {
                break;
            }
        }
        Ok(curve)
    }
}

/// The rate at which the smoothed loss falls fastest over the logarithm of the rate. The slope at a point is measured
/// from `WINDOW` points before it to `WINDOW` points after it, so that a single easy batch does not decide.
fn steepest(curve: &[LrPoint]) -> Option<f64> {
    let inner = curve.get(SKIPPED.0..curve.len().saturating_sub(SKIPPED.1))?;
    let slopes = inner.windows(2 * WINDOW + 1).filter_map(|w| {
        let (first, last) = (w.first()?, w.last()?);
        Some((w.get(WINDOW)?.lr, (last.smoothed - first.smoothed) / (last.lr / first.lr).ln()))
    });
    slopes.filter(|(_, slope)| *slope < 0.0).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(lr, _)| lr)
}
