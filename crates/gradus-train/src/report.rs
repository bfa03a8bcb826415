//! What a step, an epoch and a run did.

use crate::Evaluation;

/// A step: one batch forward, backward and into the parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Number of the epoch, from 1.
    pub epoch: usize,
    /// Number of the step in its epoch, from 1.
    pub step: usize,
    /// Loss of this step.
    pub loss: f64,
    /// Mean loss of the epoch so far.
    pub mean_loss: f64,
    /// Accuracy of the epoch so far, if the task counts right answers.
    pub accuracy: Option<f64>,
    /// Samples of this step.
    pub samples: usize,
    /// Seconds since the run began.
    pub seconds: f64,
}

/// An epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochReport {
    /// Its number, from 1.
    pub epoch: usize,
    /// Steps done.
    pub steps: usize,
    /// Samples seen.
    pub samples: usize,
    /// Mean training loss of its samples.
    pub loss: f64,
    /// Share of right answers in training, if the task counts them.
    pub accuracy: Option<f64>,
    /// Factor on the learning rate at its last step.
    pub lr_factor: f64,
    /// Seconds that it took, without the validation.
    pub seconds: f64,
    /// The result on the validation set, if there is one.
    pub validation: Option<Evaluation>,
}

/// What a run did.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The epochs, the last one perhaps cut short.
    pub epochs: Vec<EpochReport>,
    /// Steps done.
    pub steps: u64,
    /// Samples seen.
    pub samples: usize,
    /// Seconds of training, without validation.
    pub seconds: f64,
    /// Whether the stop flag ended it early.
    pub stopped: bool,
}
