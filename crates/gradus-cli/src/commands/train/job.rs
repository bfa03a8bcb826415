//! [`Job`]: what a task trains. [`Results`]: what it measured.

use gradus::prelude::*;
use gradus::tasks::Spec;
use gradus::train::Validation;
use toml::Value;

use crate::args::TrainOptions;

pub(super) use gradus::tasks::Metric;

/// The task and the options of a run, with the defaults that the task has put in.
pub(super) struct Settings {
    /// The name of the task.
    pub(super) task: &'static str,
    pub(super) epochs: usize,
    pub(super) batch_size: usize,
    pub(super) lr: f64,
    pub(super) seed: u64,
    /// The options as `config.toml` lists them.
    pub(super) options: Vec<(&'static str, Value)>,
    /// A [hash](super::fingerprint::Fingerprint) of the training data: a run goes on only with the same data.
    pub(super) data: u64,
    /// Whether `--resume` can go on with the run.
    pub(super) resumes: bool,
}

impl Settings {
    /// The settings of a run: `epochs`, `batch_size` and `lr` are the defaults of the task, and `own` its own options.
    pub(super) fn new(
        task: &'static str,
        options: &TrainOptions,
        (epochs, batch_size, lr): (usize, usize, f64),
        own: Vec<(&'static str, Value)>,
    ) -> Settings {
        let epochs = options.epochs.unwrap_or(epochs);
        let batch_size = options.batch_size.unwrap_or(batch_size);
        let lr = options.lr.unwrap_or(lr);
        let whole = |number: usize| Value::from(i64::try_from(number).unwrap_or(i64::MAX));
        let mut all = own;
        all.extend([
            // A text, because TOML's integers cannot represent every seed.
            ("seed", Value::from(options.seed.to_string())),
            ("epochs", whole(epochs)),
            ("batch-size", whole(batch_size)),
            ("lr", Value::from(lr)),
            ("device", Value::from(options.common.device.clone())),
        ]);
        Settings { task, epochs, batch_size, lr, seed: options.seed, options: all, data: 0, resumes: true }
    }

    /// The schedule of the learning rate for epochs of `steps`: it rises during one `part`th of the run, then falls along
    /// a cosine to the share `least` of its maximum.
    pub(super) fn schedule(&self, steps: usize, part: u64, least: f64) -> Result<Schedule> {
        let steps = (self.epochs as u64).saturating_mul(steps as u64);
        let warmup = steps / part;
        Ok(Schedule::cosine((steps - warmup).max(1), least)?.after_warmup(warmup))
    }
}

/// What a task trains.
pub(super) struct Job<'a, M, D: Dataset, T> {
    pub(super) settings: Settings,
    pub(super) model: M,
    pub(super) optimizer: Box<dyn Optimizer>,
    pub(super) loader: DataLoader<D>,
    pub(super) validation: Option<&'a dyn Validation<M, T>>,
    pub(super) task: T,
    /// With the task's schedule; all else is added to it.
    pub(super) trainer: Trainer,
    /// What the model file says of the model.
    pub(super) spec: Spec,
    /// Files that are known before the training: name, contents, and what they are.
    pub(super) files: Vec<(&'static str, Vec<u8>, String)>,
    /// The most bytes that the pictures and texts of the report take.
    pub(super) report_bytes: usize,
    /// Whether the state is saved after each epoch even without `--resume`, and not only from time to time: for tasks
    /// whose epochs are long.
    pub(super) keeps_checkpoints: bool,
    /// The word for a sample in the progress line, such as `img`.
    pub(super) unit: &'static str,
    /// The line before the training.
    pub(super) intro: String,
}

/// What a task measured after the training.
#[derive(Default)]
pub(super) struct Results {
    pub(super) metrics: Vec<Metric>,
    /// The lines about them for the terminal.
    pub(super) lines: Vec<String>,
    /// The page, with title, subtitle, confusion matrix and examples.
    pub(super) page: RunReport,
    /// What `config.toml` says of the network.
    pub(super) network: Vec<(&'static str, Value)>,
    /// What `config.toml` says of the data, such as `training_samples`.
    pub(super) counts: Vec<(&'static str, usize)>,
    /// The arguments of a next command, where `{out}` stands for the folder.
    pub(super) next: Vec<String>,
}
