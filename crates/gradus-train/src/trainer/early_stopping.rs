//! [`EarlyStopping`]: ends a run that stops improving. [`Monitor`]: the metric that decides this.

use crate::EpochReport;

/// The metric that decides which epoch is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Monitor {
    /// The mean training loss; lower is better.
    Loss,
    /// The accuracy in training; higher is better.
    Accuracy,
    /// The loss on the validation set; lower is better.
    ValidationLoss,
    /// The accuracy on the validation set; higher is better.
    ValidationAccuracy,
}

impl Monitor {
    /// The value of the metric in this epoch; `None` if it was not computed.
    pub fn of(self, epoch: &EpochReport) -> Option<f64> {
        match self {
            Monitor::Loss => Some(epoch.loss),
            Monitor::Accuracy => epoch.accuracy,
            Monitor::ValidationLoss => epoch.validation.map(|v| v.loss),
            Monitor::ValidationAccuracy => epoch.validation.and_then(|v| v.accuracy),
        }
    }

    /// Whether `value` is better than `best` by more than `min_delta`. NaN never is.
    pub(super) fn is_better(self, value: f64, best: Option<f64>, min_delta: f64) -> bool {
        let Some(best) = best else { return !value.is_nan() };
        match self {
            Monitor::Loss | Monitor::ValidationLoss => value < best - min_delta,
            Monitor::Accuracy | Monitor::ValidationAccuracy => value > best + min_delta,
        }
    }
}

/// Ends a run after `patience` epochs in a row in which the [monitored](crate::Trainer::monitor) metric has not
/// improved on its best value by more than `min_delta`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EarlyStopping {
    /// The number of epochs without an improvement after which the run ends. 0 counts as 1. 3 by default.
    pub patience: usize,
    /// The amount that an improvement must exceed. 0 by default.
    pub min_delta: f64,
}

impl Default for EarlyStopping {
    fn default() -> Self {
        EarlyStopping { patience: 3, min_delta: 0.0 }
    }
}
