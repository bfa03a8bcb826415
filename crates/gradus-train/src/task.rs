//! [`Task`]: what a model is trained to do. [`evaluate`]: measures how well it does that.

use gradus_data::{DataLoader, Dataset, Sample};
use gradus_nn::{Forward, Module};
use gradus_tensor::{DType, Error, Here, Reduction, Result, Tensor, no_grad_guard};

use serde::{Deserialize, Serialize};

use crate::ranks::{Ranks, parts, supplied};
use crate::{ConfusionMatrix, measure};

/// The result of a model on a batch.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The loss to minimise: one number, the mean over the samples of the batch.
    pub loss: Tensor,
    /// The number of samples in the batch.
    pub samples: usize,
    /// The number of correct answers, a tensor of one element, if the task counts them. It is read after the step, so
    /// that counting does not keep a step from being captured.
    pub correct: Option<Tensor>,
}

/// What a model `M` is trained to do with batches `B`. A function `|model, batch| -> Result<Outcome>` is a task too.
pub trait Task<M: ?Sized, B> {
    /// Runs the model on a batch.
    fn run(&self, model: &M, batch: &B) -> Result<Outcome>;

    /// Whether [`run`](Task::run) does the same operations for all batches of the same shapes, as long as the model is
    /// the same. If so, the [trainer](crate::Trainer) captures its step: after two steps it repeats their operations, and
    /// no longer calls `run`. By default, a task is not fixed, and neither is a function: it may read a variable, a
    /// static or a clock. [`Trainer::captured`](crate::Trainer::captured) says that it does not.
    fn is_fixed(&self) -> bool {
        false
    }

    /// The reason why the loss of this batch is not finite, if the batch reveals it.
    fn diagnose(&self, _batch: &B) -> Option<String> {
        None
    }
}

impl<M: ?Sized, B, F: Fn(&M, &B) -> Result<Outcome>> Task<M, B> for F {
    #[track_caller]
    fn run(&self, model: &M, batch: &B) -> Result<Outcome> {
        self(model, batch)
    }
}

/// Classification: the cross-entropy between the model's output `[n, classes]` and labels `[n]`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Classification {
    /// The share of a label's probability that is spread over all classes, from 0 to 1.
    pub label_smoothing: f64,
}

impl<M: Forward + ?Sized> Task<M, (Tensor, Tensor)> for Classification {
    #[track_caller]
    fn run(&self, model: &M, (input, labels): &(Tensor, Tensor)) -> Result<Outcome> {
        let samples = labels.numel();
        if samples == 0 {
            return Err(Error::shape("classification", "the batch is empty")
                .operand("input", input.shape(), input.dtype(), input.device())
                .operand("labels", labels.shape(), labels.dtype(), labels.device())
                .help("a mean over no samples is not defined; give at least one"));
        }
        let logits = model.forward(input)?;
        let loss = logits.cross_entropy_with(labels, None, None, self.label_smoothing, Reduction::Mean)?;
        let correct = agreeing(&logits, labels)?;
        Ok(Outcome { loss, samples, correct: Some(correct) })
    }

    fn is_fixed(&self) -> bool {
        true
    }

    fn diagnose(&self, (input, _): &(Tensor, Tensor)) -> Option<String> {
        let values = input.to_dtype(DType::F64).ok()?.to_vec::<f64>().ok()?;
        let row = values.len() / input.shape().first().copied().unwrap_or(1).max(1);
        let at = values.iter().position(|v| !v.is_finite())?;
        Some(format!("sample {} of the batch holds a value of {}", at / row.max(1), values[at]))
    }
}

/// The number of rows whose largest logit is that of their label.
#[track_caller]
fn agreeing(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let predicted = logits.detach().argmax(1, false)?.to_dtype(DType::I64)?;
    predicted.eq(&labels.to_dtype(DType::I64)?)?.sum_all()
}

impl Classification {
    /// Counts the model's predictions on all batches of `loader`. Leaves the model in evaluation mode.
    #[track_caller]
    pub fn confusion<M, D>(model: &mut M, loader: &DataLoader<D>, classes: usize) -> Result<ConfusionMatrix>
    where
        M: Forward + ?Sized,
        D: Dataset + 'static,
        D::Item: Sample<Batch = (Tensor, Tensor)>,
    {
        let mut matrix = ConfusionMatrix::new(classes)?;
        measure(model, loader, &mut [&mut matrix])?;
        Ok(matrix)
    }
}

/// The result of a model on a dataset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The mean loss per sample.
    pub loss: f64,
    /// The share of correct answers, if the task counts them.
    pub accuracy: Option<f64>,
    /// The number of samples.
    pub samples: usize,
}

/// A set on which a model `M` can be evaluated for a task `T`: a [`DataLoader`] whose batches the task accepts.
pub trait Validation<M: ?Sized, T: ?Sized> {
    /// Runs the model on all batches, or on the first `batches` of them, without recording gradients. Leaves the model
    /// in evaluation mode. With `ranks`, each rank runs it on some of the batches, and all get the same result, which does
    /// not depend on their number. Errors if there are no batches.
    fn evaluate(
        &self,
        model: &mut M,
        task: &T,
        batches: Option<usize>,
        ranks: Option<&dyn Ranks>,
    ) -> Result<Evaluation>;
}

impl<M, D, T> Validation<M, T> for DataLoader<D>
where
    M: Module + ?Sized,
    D: Dataset + 'static,
    D::Item: Sample,
    T: Task<M, <D::Item as Sample>::Batch> + ?Sized,
{
    #[track_caller]
    fn evaluate(
        &self,
        model: &mut M,
        task: &T,
        batches: Option<usize>,
        ranks: Option<&dyn Ranks>,
    ) -> Result<Evaluation> {
        model.eval();
        let _guard = no_grad_guard();
        let (rank, size) = ranks.map_or((0, 1), |ranks| (ranks.rank(), ranks.size()));
        let mine = move |batch: usize, samples| if batch % size == rank { parts(&None, samples) } else { Vec::new() };
        let count = self.len().min(batches.unwrap_or(usize::MAX));
        // The loss of each batch, and its counts; zeros where another rank has them.
        let mut found = vec![[0.0; 1 + Counts::NUMBERS]; count];
        supplied(ranks, || {
            for (numbers, batch) in found.iter_mut().zip(self.epoch_in_parts(0, 0, mine)?) {
                for part in batch.here()?.parts {
                    let outcome = task.run(model, &part).here()?;
                    let [samples, correct, counted] = Counts::of(&outcome)?.to_numbers();
                    *numbers = [outcome.loss.item()?, samples, correct, counted];
                }
            }
            Ok(())
        })
        .here()?;
        ranks.map_or(Ok(()), |ranks| ranks.sum(found.as_flattened_mut()))?;
        let mut tally = Tally::default();
        for [loss, counts @ ..] in found {
            tally.add(&Counts::from_numbers(counts), loss);
        }
        if tally.samples == 0 {
            let e = Error::argument("evaluate", "the dataset is empty");
            return Err(e.help("an accuracy needs at least one sample"));
        }
        Ok(Evaluation { loss: tally.loss(), accuracy: tally.accuracy(), samples: tally.samples })
    }
}

/// Runs a model on all batches of `loader`, without recording gradients. Leaves the model in evaluation mode. Errors if
/// there are no batches.
#[track_caller]
pub fn evaluate<M, D, T>(model: &mut M, loader: &DataLoader<D>, task: &T) -> Result<Evaluation>
where
    M: Module + ?Sized,
    D: Dataset + 'static,
    D::Item: Sample,
    T: Task<M, <D::Item as Sample>::Batch> + ?Sized,
{
    Validation::evaluate(loader, model, task, None, None)
}

/// The numbers of samples and of correct answers of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) samples: usize,
    correct: Option<usize>,
}

impl Counts {
    #[track_caller]
    pub(crate) fn of(outcome: &Outcome) -> Result<Self> {
        Self::new(outcome.samples, outcome.correct.as_ref())
    }

    #[track_caller]
    pub(crate) fn new(samples: usize, correct: Option<&Tensor>) -> Result<Self> {
        let correct = correct.map(|count| count.detach().item()).transpose()?;
        Ok(Counts { samples, correct: correct.map(|count| count as usize) })
    }

    pub(crate) fn merge(&mut self, more: &Counts) {
        self.samples += more.samples;
        self.correct = match (self.correct, more.correct) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }

    /// The sum over all ranks, and whether `flag` is set on one of them.
    #[track_caller]
    pub(crate) fn over(self, ranks: &dyn Ranks, flag: bool) -> Result<(Counts, bool)> {
        let [samples, correct, counted] = self.to_numbers();
        let mut numbers = [samples, correct, counted, f64::from(u8::from(flag))];
        ranks.sum(&mut numbers)?;
        let [counts @ .., flags] = numbers;
        Ok((Counts::from_numbers(counts), flags > 0.0))
    }

    const NUMBERS: usize = 3;

    /// Numbers whose sums are those of the sum.
    fn to_numbers(self) -> [f64; Counts::NUMBERS] {
        let counted = f64::from(u8::from(self.correct.is_some()));
        [self.samples as f64, self.correct.unwrap_or(0) as f64, counted]
    }

    fn from_numbers([samples, correct, counted]: [f64; Counts::NUMBERS]) -> Counts {
        Counts { samples: samples as usize, correct: (counted > 0.0).then_some(correct as usize) }
    }
}

/// Sums over the batches of an epoch.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) samples: usize,
    loss: f64,
    counted: usize,
    correct: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, counts: &Counts, loss: f64) {
        self.samples += counts.samples;
        self.loss += loss * counts.samples as f64;
        if let Some(correct) = counts.correct {
            self.correct += correct;
            self.counted += counts.samples;
        }
    }

    pub(crate) fn merge(&mut self, more: &Tally) {
        self.samples += more.samples;
        self.loss += more.loss;
        self.correct += more.correct;
        self.counted += more.counted;
    }

    /// The mean loss per sample.
    pub(crate) fn loss(&self) -> f64 {
        self.loss / self.samples.max(1) as f64
    }

    pub(crate) fn accuracy(&self) -> Option<f64> {
        (self.counted > 0).then(|| self.correct as f64 / self.counted as f64)
    }
}
