//! [`Trainer`] and its options.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gradus_file::{Disk, Os};
use gradus_nn::{Schedule, StateDict};
use gradus_tensor::{Error, Result};

use super::early_stopping::{EarlyStopping, Monitor};
use crate::ranks::{Ranks, Shared};

/// Reads a part of the state for a checkpoint.
type Read = dyn Fn() -> Result<StateDict>;

/// Restores a part of the state.
type Put = dyn Fn(&StateDict) -> Result<()>;

/// A part of the user's own state, with the functions that read and restore it.
#[derive(Clone)]
pub(super) struct OwnState {
    pub(super) name: String,
    pub(super) read: Arc<Read>,
    pub(super) put: Arc<Put>,
}

/// Trains a model on a dataset, epoch by epoch.
///
/// The model, the optimiser and the loader determine the run: the same three yield the same bits. With
/// [`resume`](Trainer::resume), a run that was killed continues in the middle of its epoch, with the same bits as
/// without the interruption.
///
/// ```no_run
/// # use gradus_train::*; use gradus_tensor::Result;
/// # fn f() -> Result<()> {
/// let trainer = Trainer::new(20)?
///     .clip_norm(1.0)?
///     .early_stopping(EarlyStopping { patience: 3, ..Default::default() })
///     .resume("out/checkpoints");
/// # Ok(()) }
/// ```
#[must_use = "a trainer does nothing until `fit`, and setting an option gives a new trainer"]
#[derive(Clone)]
pub struct Trainer {
    pub(super) epochs: usize,
    pub(super) schedule: Schedule,
    pub(super) stop: Option<Arc<AtomicBool>>,
    pub(super) accumulate: usize,
    pub(super) clip_norm: Option<f64>,
    pub(super) clip_value: Option<f64>,
    pub(super) log_grad_norm: bool,
    pub(super) on_non_finite: OnNonFinite,
    pub(super) monitor: Option<Monitor>,
    pub(super) early_stopping: Option<EarlyStopping>,
    pub(super) folder: Option<PathBuf>,
    pub(super) resumes: bool,
    pub(super) save_every: Option<u64>,
    pub(super) save_interval: Option<Duration>,
    pub(super) save_epochs: bool,
    pub(super) save_deadline: Duration,
    pub(super) checkpoints_may_fail: bool,
    pub(super) keep: usize,
    pub(super) config: BTreeMap<String, String>,
    pub(super) states: Vec<OwnState>,
    pub(super) fast_dev_run: bool,
    /// Whether steps are captured; `None` if that depends on the task.
    pub(super) captures: Option<bool>,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) ranks: Shared,
}

/// What the trainer does with a loss or a gradient that is NaN or infinite. In each case the step changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnNonFinite {
    /// The run ends with an error. The batch is run again with checks, and the error names the first operation whose
    /// result is not finite, its line and its layer. Gradients are checked only if another option requires their norm.
    #[default]
    Error,
    /// The run continues with the next batch. Ten such steps in a row are an error.
    Skip,
    /// The model, the optimiser and the random numbers are restored from the last checkpoint, and the run continues
    /// with the next batch. Ten such steps in a row are an error. Requires [`Trainer::checkpoints`].
    RollBack,
}

impl Trainer {
    /// A trainer for this many epochs, with a constant learning rate. Errors if there are 0 epochs.
    #[track_caller]
    pub fn new(epochs: usize) -> Result<Self> {
        if epochs == 0 {
            return Err(Error::argument("trainer", "0 epochs train nothing; it is at least 1"));
        }
        Ok(Trainer {
            epochs,
            schedule: Schedule::constant(),
            stop: None,
            accumulate: 1,
            clip_norm: None,
            clip_value: None,
            log_grad_norm: false,
            on_non_finite: OnNonFinite::Error,
            monitor: None,
            early_stopping: None,
            folder: None,
            resumes: false,
            save_every: None,
            save_interval: None,
            save_epochs: true,
            save_deadline: Duration::from_secs(600),
            checkpoints_may_fail: false,
            keep: 2,
            config: BTreeMap::new(),
            states: Vec::new(),
            fast_dev_run: false,
            captures: None,
            disk: Arc::new(Os),
            ranks: None,
        })
    }

    /// Makes the learning rate follow `schedule`, whose steps are counted from the start of the run.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Ends the run before the next step once `flag` is true. If there are checkpoints, the state is saved.
    pub fn stop_when(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop = Some(flag);
        self
    }

    /// Makes one step of the optimiser from the mean gradient over all samples of `batches` batches, so that they count
    /// as one large batch. The last step of an epoch uses the remaining batches. Errors if it is 0.
    #[track_caller]
    pub fn accumulate(mut self, batches: usize) -> Result<Self> {
        if batches == 0 {
            return Err(Error::argument("trainer", "a step from the gradients of 0 batches; it is at least 1"));
        }
        self.accumulate = batches;
        Ok(self)
    }

    /// Scales the gradients before each step, so that their total norm is at most `max_norm`; see
    /// [`clip_grad_norm`](gradus_nn::clip_grad_norm). Errors unless it is above 0.
    #[track_caller]
    pub fn clip_norm(mut self, max_norm: f64) -> Result<Self> {
        if max_norm.is_nan() || max_norm <= 0.0 {
            return Err(Error::argument("trainer", format!("clip_norm is {max_norm}; it is above 0")));
        }
        self.clip_norm = Some(max_norm);
        Ok(self)
    }

    /// Clamps each element of the gradients to `-max ..= max` before each step, and before
    /// [`clip_norm`](Trainer::clip_norm) if both are set. Errors unless it is above 0.
    #[track_caller]
    pub fn clip_value(mut self, max: f64) -> Result<Self> {
        if max.is_nan() || max <= 0.0 {
            return Err(Error::argument("trainer", format!("clip_value is {max}; it is above 0")));
        }
        self.clip_value = Some(max);
        Ok(self)
    }

    /// Reports the norm of the gradients, before they are clipped, in each [`StepReport`](crate::StepReport).
    pub fn log_grad_norm(mut self) -> Self {
        self.log_grad_norm = true;
        self
    }

    /// Sets what happens if a loss or a gradient is not finite.
    pub fn on_non_finite(mut self, policy: OnNonFinite) -> Self {
        self.on_non_finite = policy;
        self
    }

    /// Sets the metric that decides which epoch is the best. [`fit`](Trainer::fit) errors if it is not computed: a
    /// metric of validation without a validation set, or an accuracy that the task does not count. By default it is the
    /// validation loss if there is a validation set, and the training loss otherwise.
    pub fn monitor(mut self, monitor: Monitor) -> Self {
        self.monitor = Some(monitor);
        self
    }

    /// Ends the run when the monitored metric stops improving.
    pub fn early_stopping(mut self, rule: EarlyStopping) -> Self {
        self.early_stopping = Some(rule);
        self
    }

    /// Saves a checkpoint in the folder `path` after each epoch. The newest two and the best one are kept. A folder
    /// that already has checkpoints is an error; use [`resume`](Trainer::resume) to continue from them.
    pub fn checkpoints(mut self, path: impl Into<PathBuf>) -> Self {
        self.folder = Some(path.into());
        self.resumes = false;
        self
    }

    /// Continues from the newest checkpoint in the folder `path`, and saves further checkpoints there, as with
    /// [`checkpoints`](Trainer::checkpoints). If there are none yet, a new run begins. It is an error if the model, the
    /// optimiser or the settings differ from those of the run that was saved; the error names what differs.
    pub fn resume(mut self, path: impl Into<PathBuf>) -> Self {
        self.folder = Some(path.into());
        self.resumes = true;
        self
    }

    /// Saves a checkpoint after every `steps` steps as well. A checkpoint that would slow the run down is skipped (see
    /// [`Checkpoints::is_busy`](crate::Checkpoints::is_busy)), unless the policy is to [roll
    /// back](OnNonFinite::RollBack). Errors if `steps` is 0.
    #[track_caller]
    pub fn save_every(mut self, steps: u64) -> Result<Self> {
        if steps == 0 {
            return Err(Error::argument("trainer", "a checkpoint every 0 steps; it is at least 1"));
        }
        self.save_every = Some(steps);
        Ok(self)
    }

    /// Saves a checkpoint also after the first step that ends when this much time has passed since the last one. A
    /// checkpoint that would slow the run down is skipped.
    pub fn save_interval(mut self, interval: Duration) -> Self {
        self.save_interval = Some(interval);
        self
    }

    /// Sets whether a checkpoint is saved after each epoch, which is the default. Without them, checkpoints are those of
    /// [`save_every`](Trainer::save_every) and [`save_interval`](Trainer::save_interval), and one when the run
    /// ends or is [stopped](Trainer::stop_when). For runs of many short epochs.
    pub fn save_epochs(mut self, on: bool) -> Self {
        self.save_epochs = on;
        self
    }

    /// Sets how long ranks that divide the parameters wait for the file of the slowest rank, before they begin the next
    /// checkpoint and when the run ends: 10 minutes unless set. If a disk takes longer, the checkpoint is not saved, and all
    /// ranks get an error that names the rank and its file.
    pub fn save_deadline(mut self, deadline: Duration) -> Self {
        self.save_deadline = deadline;
        self
    }

    /// Lets the run go on without further checkpoints if one cannot be saved, for example because the disk is full. By
    /// default, this ends the run. Loggers are told with [`Event::Unsaved`](crate::Event::Unsaved).
    pub fn checkpoints_may_fail(mut self) -> Self {
        self.checkpoints_may_fail = true;
        self
    }

    /// Sets how many of the newest checkpoints are kept in addition to the best one; at least 1, and 2 by default.
    pub fn keep(mut self, newest: usize) -> Self {
        self.keep = newest.max(1);
        self
    }

    /// Saves a setting of your own with each checkpoint. A run that resumes must have the same settings.
    pub fn config(mut self, name: impl Into<String>, value: impl fmt::Display) -> Self {
        self.config.insert(name.into(), value.to_string());
        self
    }

    /// Saves a state of your own with each checkpoint, such as that of a loss scaler or of running averages. `read`
    /// copies it, and `put` restores it when the run resumes. Names consist of letters, digits, `_` and `-` and must be
    /// unique; [`fit`](Trainer::fit) errors otherwise.
    pub fn state(
        mut self,
        name: impl Into<String>,
        read: impl Fn() -> Result<StateDict> + 'static,
        put: impl Fn(&StateDict) -> Result<()> + 'static,
    ) -> Self {
        self.states.push(OwnState { name: name.into(), read: Arc::new(read), put: Arc::new(put) });
        self
    }

    /// Runs only one step and one batch of validation, and saves nothing. This is a quick test of everything that a run
    /// calls.
    pub fn fast_dev_run(mut self) -> Self {
        self.fast_dev_run = true;
        self
    }

    /// Runs each step operation by operation. By default, steps are captured if the task says that it
    /// [is fixed](crate::Task::is_fixed), and if batches consist of tensors: after two steps on batches of the same shapes,
    /// further steps repeat the forward and backward passes of these, which is faster and computes the same bits on the
    /// CPU. At the start of each epoch, one step for each shape that was replayed three times runs the task again, and if
    /// its operations have changed, all are captured anew. With `GRADUS_LOG=graph`, a line says why steps are not captured.
    ///
    /// Choose this if the model or the task uses host values that change within an epoch, or has effects of its own, such
    /// as printing. Reading a tensor on the host in a task is noticed and needs no choice.
    pub fn eager(mut self) -> Self {
        self.captures = Some(false);
        self
    }

    /// Captures steps even if the task does not say that it [is fixed](crate::Task::is_fixed), such as a function. What
    /// the task uses besides the model and the batch, such as variables and statics, must not change within an epoch.
    pub fn captured(mut self) -> Self {
        self.captures = Some(true);
        self
    }

    /// Writes checkpoints to the given disk; see [`Checkpoints::open_on`](crate::Checkpoints::open_on).
    pub fn disk(mut self, disk: Arc<dyn Disk>) -> Self {
        self.disk = disk;
        self
    }

    /// Shares each step with other processes. All of them call [`fit`](Trainer::fit) with the same settings and as many
    /// samples, or all get an error. They begin with the model and the optimiser of rank 0, whose settings of
    /// [checkpoints](Trainer::checkpoints) count. It writes them and goes on from them; if parameters are
    /// [divided](crate::Ranks::divides), all do, each a part, in the same folder. Each rank reads the samples that it computes.
    /// All validate a part of the batches. All stop after the same step if one is told to [stop](Trainer::stop_when): that in
    /// which it was told, or the next. Loggers are called on every rank.
    ///
    /// With `DataParallel` of the crate `gradus-dist`, any number of ranks computes the same bits, and a run can be
    /// resumed on another number. These are other bits than without ranks, since gradients are added in another order. The loss of a
    /// batch is the mean of the losses of its parts, weighted by their samples: for a task whose loss is a mean over
    /// something else, such as tokens that are not masked, it is another number than without ranks. Batch normalisation
    /// sees a part, which needs more than one row where inputs are `[n, c]`.
    pub fn ranks(mut self, ranks: Arc<dyn Ranks>) -> Self {
        self.ranks = Some(ranks);
        self
    }

    /// Whether this process, or another that shares the run, is to stop.
    #[track_caller]
    pub(super) fn stopped(&self) -> Result<bool> {
        let mine = self.stop.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed));
        let Some(ranks) = &self.ranks else { return Ok(mine) };
        let mut count = [f64::from(u8::from(mine))];
        ranks.sum(&mut count)?;
        Ok(count[0] > 0.0)
    }

    /// Whether this process writes the checkpoints.
    pub(super) fn saves(&self) -> bool {
        self.ranks.as_ref().is_none_or(|ranks| ranks.rank() == 0)
    }
}

impl fmt::Debug for Trainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer")
            .field("epochs", &self.epochs)
            .field("schedule", &self.schedule)
            .field("accumulate", &self.accumulate)
            .field("checkpoints", &self.folder)
            .finish_non_exhaustive()
    }
}
