//! [`Trainer::fit`]: the loop over epochs and steps.

use std::panic::Location;
use std::time::Instant;

use gradus_data::{DataLoader, Dataset, Sample};
use gradus_nn::{Module, Optimizer};
use gradus_tensor::{Error, Here, Result};

use super::early_stopping::Monitor;
use super::failure::Failure;
use super::options::{OnNonFinite, Trainer};
use super::passes::Passes;
use super::progress::Progress;
use super::saving::Saving;
use super::step::explained;
use crate::ranks::{dividing, supplied};
use crate::{EpochReport, Event, Logger, Run, StepReport, Task, Validation};

/// The number of steps in a row that may be skipped because they are not finite.
const MOST_IN_A_ROW: u32 = 10;

impl Trainer {
    /// Trains `model`. If there is a `validation` set, evaluates the model on it after each epoch. It may hold batches
    /// of another type than the training set.
    ///
    /// # Errors
    /// Returns the errors of the dataset, the model, the loggers and the checkpoints. Also fails if the dataset is
    /// empty, if the monitored metric is not computed, or if the name of a [`state`](Trainer::state) is invalid. A loss
    /// that is not finite is an error that names the epoch, the step and the operation, unless
    /// [`on_non_finite`](Trainer::on_non_finite) is set to something else.
    ///
    /// A step that fails changes nothing: parameters, running statistics, the random numbers of layers and the
    /// optimiser keep the state of the previous step ([`all_or_nothing`](gradus_tensor::all_or_nothing)). The exception
    /// is a device failure in the middle of [`Optimizer::step`]; the error then says so. With ranks that divide the
    /// parameters ([`Ranks::divides`](crate::Ranks::divides)), these stay divided after an error: model and optimiser are to
    /// be made anew.
    #[track_caller]
    pub fn fit<M, D, T>(
        &self,
        model: &mut M,
        optimizer: &mut dyn Optimizer,
        train: &DataLoader<D>,
        validation: Option<&dyn Validation<M, T>>,
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
        if self.ranks.is_none() {
            self.check_rolls_back()?;
        }
        if let (Some(monitor @ (Monitor::ValidationLoss | Monitor::ValidationAccuracy)), None) =
            (self.monitor, validation)
        {
            let m = format!("the monitored number is {monitor:?}, and there is no validation set");
            return Err(Error::argument("trainer", m).help("give a validation set, or monitor another number"));
        }
        self.check_states()?;
        let quick = self.fast_dev_run;
        let (epochs, batches) = if quick { (1, self.accumulate.min(train.len())) } else { (self.epochs, train.len()) };
        let mut tell =
            |event: Event<'_>| loggers.iter_mut().try_for_each(|logger| logger.log(event)).map_err(|e| self.told(e));
        let settings = [
            ("batch_size", train.batch_size().to_string()),
            ("samples", train.dataset().len().to_string()),
            ("batches", train.len().to_string()),
            ("sampler", format!("{:?}", train.sampler())),
            ("shuffle_seed", train.seed().to_string()),
            ("drop_last", train.drop_last().to_string()),
        ];
        let config = self.all_settings(&settings);
        let mut saving = self.open(model, optimizer, train.device(), &config).here()?;
        let mut resumed = saving.as_mut().and_then(|saving| saving.resumed.take());
        if let Some(ranks) = &self.ranks {
            self.share(&**ranks, model, optimizer, train.device(), &config, &mut resumed)?;
            ranks.divide(model.named_parameters(), optimizer).here()?;
            if ranks.divides() {
                saving = self.open_parts(ranks, saving, &*model, optimizer, &config)?;
            }
        }
        tell(Event::Start { epochs, steps: batches.div_ceil(self.accumulate), samples: train.samples() }).here()?;
        let mut passes = Passes::new(self, &*optimizer, task, D::Item::tensors);
        let goes_on = resumed.is_some();
        let (mut progress, mut run) = resumed.unwrap_or_default();
        progress.epoch = progress.epoch.max(1);
        if let Some(saving) = saving.as_ref().filter(|_| goes_on) {
            let (epoch, step, damaged) = (progress.epoch, run.steps, saving.passed_over());
            tell(Event::Resumed { epoch, step, run: &run, damaged }).here()?;
        }
        // When the last checkpoint was saved, and whether steps were done since.
        let (mut saved_at, mut is_saved) = (Instant::now(), true);
        while progress.epoch <= epochs && !progress.is_done && !self.stopped()? {
            let epoch = progress.epoch;
            tell(Event::EpochStart { epoch }).here()?;
            model.train();
            passes.recheck();
            let (start, before) = (Instant::now(), progress.seconds_of_epoch);
            let mut rest =
                self.batches(train, epoch as u64, progress.batches)?.take(batches.saturating_sub(progress.batches));
            while progress.batches < batches {
                // At most `accumulate` batches.
                let mut group = Vec::new();
                for batch in rest.by_ref().take(self.accumulate) {
                    group.push(batch.here().map_err(|e| self.told(e))?);
                }
                if group.is_empty() || passes.are_to_stop() {
                    break;
                }
                let rates = (self.schedule.factor(run.steps), self.schedule.momentum(run.steps));
                match self.step_at(rates, model, optimizer, task, &group, &mut passes) {
                    Ok(done) => {
                        let (samples, loss) = (done.tally.samples, done.loss);
                        progress.tally.merge(&done.tally);
                        progress.batches += group.len();
                        progress.steps_of_epoch += 1;
                        progress.in_a_row = 0;
                        progress.seconds_of_epoch = before + start.elapsed().as_secs_f64();
                        run.steps += 1;
                        tell(Event::Step(&StepReport {
                            epoch,
                            step: progress.steps_of_epoch,
                            loss,
                            mean_loss: progress.tally.loss(),
                            accuracy: progress.tally.accuracy(),
                            samples,
                            lr: optimizer.lr().first().copied().unwrap_or(0.0),
                            grad_norm: done.grad_norm,
                            seconds: run.seconds + progress.seconds_of_epoch,
                        }))
                        .here()?;
                        is_saved = false;
                        let is_due = self.save_every.is_some_and(|every| run.steps.is_multiple_of(every))
                            || self.save_interval.is_some_and(|interval| saved_at.elapsed() >= interval);
                        let is_free = |open: &Saving| self.on_non_finite == OnNonFinite::RollBack || !open.is_busy();
                        let wanted = is_due && saving.as_ref().is_some_and(is_free);
                        let now = (&*model, &*optimizer);
                        let done = self.save_if(wanted, &mut saving, now, (&progress, &run), false)?;
                        if self.go_on(done, &mut saving, &mut tell)? {
                            (saved_at, is_saved) = (Instant::now(), true);
                        }
                    }
                    Err(Failure::Other(e)) => return Err(e),
                    Err(Failure::NonFinite(trouble)) => {
                        let at = (epoch, progress.steps_of_epoch + 1);
                        progress.in_a_row += 1;
                        if self.on_non_finite == OnNonFinite::Error || progress.in_a_row >= MOST_IN_A_ROW {
                            let ranks = self.ranks.as_deref();
                            let e = supplied(ranks, || Ok(explained(trouble, at, model, task, &group))).here()?;
                            let e = e.at(Location::caller());
                            let many =
                                format!("the steps before it were not finite either: {} in a row", progress.in_a_row);
                            return Err(if progress.in_a_row > 1 { e.note(many) } else { e });
                        }
                        progress.batches += group.len();
                        progress.skipped += 1;
                        run.skipped += 1;
                        if self.on_non_finite == OnNonFinite::RollBack {
                            if let Some(saving) = &saving {
                                self.roll_back(saving, model, optimizer)?;
                            }
                            // Ranks that divide the parameters have rolled their parts back.
                            if let Some(ranks) = self.ranks.as_ref().filter(|ranks| !ranks.divides()) {
                                self.share(&**ranks, model, optimizer, train.device(), &config, &mut None)?;
                            }
                            passes.clear();
                        }
                        tell(Event::Skipped { epoch, step: at.1, value: trouble.value }).here()?;
                    }
                }
            }
            // An epoch whose validation was skipped is not complete: a run that resumes validates first.
            if (passes.are_to_stop() || self.stopped()?) && (progress.batches < batches || validation.is_some()) {
                if progress.steps_of_epoch > 0 {
                    let now = (&*model, &*optimizer);
                    let done = self.save_if(true, &mut saving, now, (&progress, &run), false)?;
                    is_saved |= self.go_on(done, &mut saving, &mut tell)?;
                    let report = self.report(&progress, &run, None);
                    (run.samples, run.seconds) = (run.samples + report.samples, run.seconds + report.seconds);
                    tell(Event::EpochEnd(&report)).here()?;
                    run.epochs.push(report);
                }
                break;
            }
            if progress.steps_of_epoch == 0 {
                let m = format!("no step of epoch {epoch} could be done: none was finite");
                return Err(Error::argument("trainer", m).help("lower the learning rate, or look at the data"));
            }
            let ranks = self.ranks.as_deref();
            let validation = validation.map(|set| set.evaluate(model, task, quick.then_some(1), ranks)).transpose()?;
            let report = self.report(&progress, &run, validation);
            (run.samples, run.seconds) = (run.samples + report.samples, run.seconds + report.seconds);
            tell(Event::EpochEnd(&report)).here()?;
            let is_best = self.judge(&report, &mut progress)?;
            run.epochs.push(report);
            progress = Progress {
                epoch: epoch + 1,
                batches: 0,
                steps_of_epoch: 0,
                seconds_of_epoch: 0.0,
                tally: Default::default(),
                ..progress
            };
            let now = (&*model, &*optimizer);
            let done = self.save_if(self.save_epochs, &mut saving, now, (&progress, &run), is_best)?;
            if self.go_on(done, &mut saving, &mut tell)? {
                (saved_at, is_saved) = (Instant::now(), true);
            }
        }
        run.stopped_early = progress.is_done;
        run.stopped = !run.stopped_early && progress.epoch <= epochs;
        let done = self.save_if(!is_saved, &mut saving, (&*model, &*optimizer), (&progress, &run), false)?;
        self.go_on(done, &mut saving, &mut tell)?;
        let done = saving.as_mut().map_or(Ok(Ok(())), Saving::finish)?;
        self.go_on(done.map(|()| false), &mut saving, &mut tell)?;
        drop(saving.take());
        if let Some(ranks) = &self.ranks {
            ranks.join(model.named_parameters(), optimizer).here()?;
        }
        passes.log();
        tell(Event::End(&run)).here()?;
        Ok(run)
    }

    fn report(&self, progress: &Progress, run: &Run, validation: Option<crate::Evaluation>) -> EpochReport {
        EpochReport {
            epoch: progress.epoch,
            steps: progress.steps_of_epoch,
            samples: progress.tally.samples,
            loss: progress.tally.loss(),
            accuracy: progress.tally.accuracy(),
            lr_factor: self.schedule.factor(run.steps.saturating_sub(1)),
            seconds: progress.seconds_of_epoch,
            validation,
        }
    }

    /// Whether the epoch is the best so far. Counts the epochs without an improvement. Errors if the monitored metric
    /// is missing.
    #[track_caller]
    fn judge(&self, report: &EpochReport, progress: &mut Progress) -> Result<bool> {
        let without = if report.validation.is_some() { Monitor::ValidationLoss } else { Monitor::Loss };
        let monitor = self.monitor.unwrap_or(without);
        let Some(value) = monitor.of(report) else {
            let m = format!("the monitored number is {monitor:?}, and epoch {} has none", report.epoch);
            let e = Error::argument("trainer", m);
            return Err(e.help("monitor a loss, or let the task count correct answers in `Outcome::correct`"));
        };
        if let Some(rule) = self.early_stopping {
            if monitor.is_better(value, progress.best_by_delta, rule.min_delta) {
                (progress.best_by_delta, progress.waited) = (Some(value), 0);
            } else {
                progress.waited += 1;
                progress.is_done = progress.waited >= rule.patience.max(1);
            }
        }
        let is_best = monitor.is_better(value, progress.best, 0.0);
        if is_best {
            progress.best = Some(value);
        }
        Ok(is_best)
    }

    /// After an attempt to save a checkpoint, whether there was one. If it failed: errors, or goes on without checkpoints.
    #[track_caller]
    fn go_on(
        &self,
        done: Result<bool>,
        saving: &mut Option<Saving>,
        tell: &mut dyn FnMut(Event<'_>) -> Result<()>,
    ) -> Result<bool> {
        match done {
            Err(error) if saving.as_ref().is_some_and(|saving| saving.may_fail) => {
                *saving = None;
                tell(Event::Unsaved { error: &error })?;
                Ok(true)
            }
            // Ranks that divide the parameters have all got it.
            Err(error) if dividing(&self.ranks).is_none() => Err(self.told(error)),
            done => done,
        }
    }
}
