//! Reports on a step, an epoch and a run.

use crate::Evaluation;

/// A training step: the forward pass, the backward pass and the update of the parameters for one batch.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// The number of the epoch, counted from 1.
    pub epoch: usize,
    /// The number of the step in its epoch, counted from 1.
    pub step: usize,
    /// The loss of this step.
    pub loss: f64,
    /// The mean loss of the epoch so far.
    pub mean_loss: f64,
    /// The accuracy of the epoch so far, if the task counts correct answers.
    pub accuracy: Option<f64>,
    /// The number of samples in this step.
    pub samples: usize,
    /// The learning rate of the first group of parameters.
    pub lr: f64,
    /// The norm of the gradients before they were clipped, if it was computed: see
    /// [`log_grad_norm`](crate::Trainer::log_grad_norm).
    pub grad_norm: Option<f64>,
    /// The training time in seconds since the run began, without validation.
    pub seconds: f64,
}

/// An epoch of training.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochReport {
    /// The number of the epoch, counted from 1.
    pub epoch: usize,
    /// The number of steps done.
    pub steps: usize,
    /// The number of samples seen.
    pub samples: usize,
    /// The mean training loss of the samples.
    pub loss: f64,
    /// The share of correct answers in training, if the task counts them.
    pub accuracy: Option<f64>,
    /// The factor on the learning rate at the last step.
    pub lr_factor: f64,
    /// The duration in seconds, without the validation.
    pub seconds: f64,
    /// The result on the validation set, if there is one.
    pub validation: Option<Evaluation>,
}

/// A whole run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// The epochs. The last one may be incomplete.
    pub epochs: Vec<EpochReport>,
    /// The number of steps done.
    pub steps: u64,
    /// The number of samples seen.
    pub samples: usize,
    /// The training time in seconds, without validation.
    pub seconds: f64,
    /// The number of steps that were skipped because a loss or a gradient was not finite.
    pub skipped: u64,
    /// Whether the stop flag ended the run early.
    pub stopped: bool,
    /// Whether early stopping ended the run.
    pub stopped_early: bool,
}
