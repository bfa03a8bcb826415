//! [`ReduceLrOnPlateau`]: a lower learning rate when a metric no longer improves.

use gradus_tensor::{Error, Result};

use crate::StateDict;

const OP: &str = "reduce_lr_on_plateau";

/// Lowers the learning rate when a metric no longer improves, as PyTorch's `ReduceLROnPlateau`.
///
/// It gives a factor on the learning rates, initially 1. Multiply it with that of a [`Schedule`](crate::Schedule) to
/// have both. Its state is part of a run.
///
/// ```
/// # use gradus_nn::{Optimizer, Parameter, PlateauConfig, ReduceLrOnPlateau, Schedule, Sgd, SgdConfig};
/// # use gradus_tensor::*;
/// # let mut sgd = Sgd::new([], SgdConfig::default())?;
/// let warmup = Schedule::constant().after_warmup(10);
/// let mut plateau = ReduceLrOnPlateau::new(PlateauConfig { patience: 1, ..Default::default() })?;
/// for (epoch, loss) in [2.0, 1.0, 1.1, 1.2].into_iter().enumerate() {
///     sgd.set_lr_factor(warmup.factor(epoch as u64) * plateau.factor())?;
///     // .. train, and measure the loss ..
///     plateau.step(loss);
/// }
/// assert_eq!(plateau.factor(), 0.1);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ReduceLrOnPlateau {
    config: PlateauConfig,
    factor: f64,
    best: f64,
    num_bad_epochs: u64,
    cooldown_counter: u64,
}

/// The options of [`ReduceLrOnPlateau`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlateauConfig {
    /// Whether a smaller or a larger metric is better. Default smaller.
    pub mode: PlateauMode,
    /// What the learning rate is multiplied by, at least 0 and below 1. Default 0.1.
    pub factor: f64,
    /// The number of calls without an improvement after which the next one lowers the learning rate. Default 10.
    pub patience: u64,
    /// By how much the metric must be better to count as an improvement. Default 1e-4.
    pub threshold: f64,
    /// Whether the threshold is a share of the best metric or a difference. Default a share.
    pub threshold_mode: ThresholdMode,
    /// The number of calls after a change in which nothing is counted. Default 0.
    pub cooldown: u64,
    /// The lowest factor. Default 0. To reach a given lowest learning rate, divide it by the optimiser's learning rate.
    pub min_factor: f64,
    /// The factor is changed only if the change is larger than this. Default 1e-8. PyTorch compares learning rates:
    /// divide its value by the optimiser's learning rate.
    pub eps: f64,
}

/// Which metric [`ReduceLrOnPlateau`] takes for better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlateauMode {
    /// A smaller one, such as a loss.
    Min,
    /// A larger one, such as an accuracy.
    Max,
}

/// How [`ReduceLrOnPlateau`] measures an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThresholdMode {
    /// As a share of the best metric.
    Rel,
    /// As a difference.
    Abs,
}

impl Default for PlateauConfig {
    fn default() -> Self {
        PlateauConfig {
            mode: PlateauMode::Min,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            threshold_mode: ThresholdMode::Rel,
            cooldown: 0,
            min_factor: 0.0,
            eps: 1e-8,
        }
    }
}

impl ReduceLrOnPlateau {
    /// Creates it with a factor of 1 and no metric yet.
    #[track_caller]
    pub fn new(config: PlateauConfig) -> Result<Self> {
        if !(0.0..1.0).contains(&config.factor) {
            let m = format!("factor is {}; it is at least 0 and below 1", config.factor);
            return Err(Error::argument(OP, m));
        }
        let numbers = [("threshold", config.threshold), ("min_factor", config.min_factor), ("eps", config.eps)];
        if let Some((name, value)) = numbers.into_iter().find(|(_, v)| !v.is_finite() || *v < 0.0) {
            return Err(Error::argument(OP, format!("{name} is {value}; it is finite and at least 0")));
        }
        let best = if config.mode == PlateauMode::Min { f64::INFINITY } else { f64::NEG_INFINITY };
        Ok(ReduceLrOnPlateau { config, factor: 1.0, best, num_bad_epochs: 0, cooldown_counter: 0 })
    }

    /// The factor on the learning rates.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// The best metric so far: infinite before the first one.
    pub fn best(&self) -> f64 {
        self.best
    }

    /// Takes the metric of an epoch, and returns the factor from now on. NaN is no improvement.
    pub fn step(&mut self, metric: f64) -> f64 {
        let PlateauConfig { mode, factor, patience, threshold, threshold_mode, cooldown, min_factor, eps } =
            self.config;
        let better = match (mode, threshold_mode) {
            (PlateauMode::Min, ThresholdMode::Rel) => metric < self.best * (1.0 - threshold),
            (PlateauMode::Min, ThresholdMode::Abs) => metric < self.best - threshold,
            (PlateauMode::Max, ThresholdMode::Rel) => metric > self.best * (1.0 + threshold),
            (PlateauMode::Max, ThresholdMode::Abs) => metric > self.best + threshold,
        };
        if better {
            self.best = metric;
            self.num_bad_epochs = 0;
        } else {
            self.num_bad_epochs = self.num_bad_epochs.saturating_add(1);
        }
        if self.cooldown_counter > 0 {
            self.cooldown_counter -= 1;
            self.num_bad_epochs = 0;
        }
        if self.num_bad_epochs > patience {
            let lower = (self.factor * factor).max(min_factor);
            if self.factor - lower > eps {
                self.factor = lower;
            }
            self.cooldown_counter = cooldown;
            self.num_bad_epochs = 0;
        }
        self.factor
    }

    /// The state, as metadata. The options are not part of it.
    pub fn state_dict(&self) -> StateDict {
        let mut state = StateDict::new();
        state.set_metadata("factor", format!("{:?}", self.factor));
        state.set_metadata("best", format!("{:?}", self.best));
        state.set_metadata("num_bad_epochs", self.num_bad_epochs.to_string());
        state.set_metadata("cooldown_counter", self.cooldown_counter.to_string());
        state
    }

    /// Replaces the state by a saved one. Fails, and changes nothing, if a part is missing, no number, or a factor that
    /// is not finite or below 0.
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let factor: f64 = state.required_number("factor")?;
        if !(factor.is_finite() && factor >= 0.0) {
            return Err(Error::argument(OP, format!("the saved factor is {factor}; it is finite and at least 0")));
        }
        *self = ReduceLrOnPlateau {
            config: self.config,
            factor,
            best: state.required_number("best")?,
            num_bad_epochs: state.required_number("num_bad_epochs")?,
            cooldown_counter: state.required_number("cooldown_counter")?,
        };
        Ok(())
    }
}
