//! [`Trainer`]: trains a model step by step, in epochs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use gradus_data::{DataLoader, Dataset, Sample};
use gradus_nn::{Module, Optimizer, Schedule};
use gradus_tensor::{Error, Gradients, Here, Result, all_or_nothing};

use crate::task::Tally;
use crate::{EpochReport, Event, Logger, Run, StepReport, Task, evaluate};

/// Trains a model on a dataset, epoch by epoch.
///
/// The model, the optimiser and the loader determine the run: starting from the same ones gives the same bits.
#[must_use = "a trainer does nothing until `fit`, and setting an option gives a new trainer"]
#[derive(Clone)]
pub struct Trainer {
    epochs: usize,
    schedule: Schedule,
    stop: Option<Arc<AtomicBool>>,
}

impl Trainer {
    /// A trainer for this many epochs, with a constant learning rate. Errors if there are 0 epochs.
    #[track_caller]
    pub fn new(epochs: usize) -> Result<Self> {
        if epochs == 0 {
            return Err(Error::argument("trainer", "0 epochs train nothing; it is at least 1"));
        }
        Ok(Trainer { epochs, schedule: Schedule::constant(), stop: None })
    }

    /// Lets the learning rate follow `schedule`, whose steps are counted from the start of the run.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Ends the run before the next step once `flag` is true.
    pub fn stop_when(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop = Some(flag);
        self
    }

    fn stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Makes one step at the learning rate of the schedule. If the step fails, the old rate is restored.
    #[track_caller]
    fn step(&self, steps: u64, optimizer: &mut dyn Optimizer, gradients: &Gradients) -> Result<()> {
        let before = optimizer.lr_factor();
        self.schedule.apply(steps, optimizer)?;
        let stepped = optimizer.step(gradients);
        if stepped.is_err() {
            optimizer.set_lr_factor(before)?;
        }
        stepped
    }

    /// Trains `model`. If there is a `validation` loader, evaluates the model on it after each epoch.
    ///
    /// # Errors
    /// Returns the errors of the dataset, the model and the loggers. An empty dataset is an error too, and so is a loss
    /// that is not finite, with the epoch and the step.
    ///
    /// A step that fails changes nothing: parameters, running statistics, the random numbers of layers and the
    /// optimiser keep the state of the previous step ([`all_or_nothing`]). The exception is a device that fails in the
    /// middle of [`Optimizer::step`]; the error then says so.
    #[track_caller]
    pub fn fit<M, D, T>(
        &self,
        model: &mut M,
        optimizer: &mut dyn Optimizer,
        train: &DataLoader<D>,
        validation: Option<&DataLoader<D>>,
        task: &T,
        loggers: &mut [&mut dyn Logger],
    ) -> Result<Run>
    where
        M: Module + ?Sized,
        D: Dataset + 'static,
        D::Item: Sample,
        T: Task<M, <D::Item as Sample>::Batch> + ?Sized,
    {
        if train.is_empty() {
            let m = format!("{} samples give no batch of {}", train.dataset().len(), train.batch_size());
            return Err(Error::argument("trainer", m).help("give more samples or a smaller batch size"));
        }
        let mut tell = |event: Event<'_>| loggers.iter_mut().try_for_each(|logger| logger.log(event));
        let mut run = Run { epochs: Vec::new(), steps: 0, samples: 0, seconds: 0.0, stopped: false };
        tell(Event::Start { epochs: self.epochs, steps: train.len(), samples: train.samples() }).here()?;
        for epoch in 1..=self.epochs {
            if self.stopped() {
                break;
            }
            tell(Event::EpochStart { epoch }).here()?;
            model.train();
            let (start, mut tally, mut steps) = (Instant::now(), Tally::default(), 0);
            for batch in train.epoch(epoch as u64)? {
                if self.stopped() {
                    break;
                }
                let batch = batch.here()?;
                let (outcome, loss) = all_or_nothing(|| {
                    let outcome = task.run(model, &batch)?;
                    let loss = outcome.loss.item()?;
                    if !loss.is_finite() {
                        return Err(not_finite(loss, epoch, steps + 1, task.diagnose(&batch)));
                    }
                    self.step(run.steps, optimizer, &outcome.loss.backward()?)?;
                    Ok((outcome, loss))
                })
                .here()?;
                tally.add(&outcome, loss);
                steps += 1;
                run.steps += 1;
                tell(Event::Step(&StepReport {
                    epoch,
                    step: steps,
                    loss,
                    mean_loss: tally.loss(),
                    accuracy: tally.accuracy(),
                    samples: outcome.samples,
                    seconds: run.seconds + start.elapsed().as_secs_f64(),
                }))
                .here()?;
            }
            if steps == 0 {
                break;
            }
            let seconds = start.elapsed().as_secs_f64();
            run.samples += tally.samples;
            run.seconds += seconds;
            let validation = match validation {
                Some(loader) if !self.stopped() => Some(evaluate(model, loader, task)?),
                _ => None,
            };
            let report = EpochReport {
                epoch,
                steps,
                samples: tally.samples,
                loss: tally.loss(),
                accuracy: tally.accuracy(),
                lr_factor: self.schedule.factor(run.steps - 1),
                seconds,
                validation,
            };
            tell(Event::EpochEnd(&report)).here()?;
            run.epochs.push(report);
        }
        run.stopped = run.steps < (self.epochs as u64).saturating_mul(train.len() as u64);
        tell(Event::End(&run)).here()?;
        Ok(run)
    }
}

#[track_caller]
fn not_finite(loss: f64, epoch: usize, step: usize, reason: Option<String>) -> Error {
    let e = Error::argument("trainer", format!("the loss is {loss} in epoch {epoch}, step {step}"));
    match reason {
        Some(reason) => e.note(reason).help("clean the data; numbers of a sample have to be finite"),
        None => e.help("lower the learning rate, and look for extreme values in the data"),
    }
}

impl fmt::Debug for Trainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer")
            .field("epochs", &self.epochs)
            .field("schedule", &self.schedule)
            .finish_non_exhaustive()
    }
}
