//! [`Adam`] and [`AdamW`].

use gradus_tensor::backend::params::AdamParams;
use gradus_tensor::{Error, Result, Tensor};

use super::Group;
use super::stepper::{Hyper, Rule, Stepper, at_least_zero};
use crate::Parameter;

/// Adam (Kingma and Ba, 2015) with weight decay as an L2 penalty, added to the gradient: `g += weight_decay * p`;
/// `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + (1 - beta2) * g^2`;
/// `p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)`.
pub struct Adam(Stepper<AdamRule>);

/// AdamW (Loshchilov and Hutter, 2019): [`Adam`] with decoupled weight decay, `p *= 1 - lr * weight_decay` in place of the
/// penalty.
pub struct AdamW(Stepper<AdamRule>);

/// Hyper-parameters of [`Adam`] and [`AdamW`]; learning rate and weight decay may differ by [`Group`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamConfig {
    /// Learning rate, default 0.001.
    pub lr: f64,
    /// Decay of the first moment, at least 0 and below 1. Default 0.9.
    pub beta1: f64,
    /// Decay of the second moment, at least 0 and below 1. Default 0.999.
    pub beta2: f64,
    /// Added to the root of the second moment. Default 1e-8.
    pub eps: f64,
    /// Weight decay, default 0 (PyTorch's AdamW has 0.01).
    pub weight_decay: f64,
}

impl Default for AdamConfig {
    fn default() -> Self {
        AdamConfig { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

struct AdamRule {
    config: AdamConfig,
    decoupled: bool,
}

macro_rules! constructors {
    ($name:ident, $decoupled:literal) => {
        impl $name {
            /// For these parameters, in one group.
            #[track_caller]
            pub fn new(parameters: impl IntoIterator<Item = (String, Parameter)>, config: AdamConfig) -> Result<Self> {
                Self::with_groups([Group::new(parameters)], config)
            }

            /// For several groups.
            #[track_caller]
            pub fn with_groups(groups: impl IntoIterator<Item = Group>, config: AdamConfig) -> Result<Self> {
                Stepper::new(AdamRule { config, decoupled: $decoupled }, groups).map($name)
            }
        }
        super::optimizer!($name);
    };
}
constructors!(Adam, false);
constructors!(AdamW, true);

impl Rule for AdamRule {
    fn name(&self) -> &'static str {
        if self.decoupled { "adamw" } else { "adam" }
    }

    fn defaults(&self) -> (f64, f64) {
        (self.config.lr, self.config.weight_decay)
    }

    fn check(&self) -> Result<()> {
        for (name, beta) in [("beta1", self.config.beta1), ("beta2", self.config.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(Error::argument(self.name(), format!("{name} is {beta}; it is at least 0 and below 1")));
            }
        }
        at_least_zero(self.name(), "eps", self.config.eps).map(|_| ())
    }

    fn slots(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let [m, v] = slots else { return Err(Error::argument(self.name(), "two moments are needed")) };
        let AdamConfig { beta1, beta2, eps, .. } = self.config;
        let Hyper { lr, weight_decay, step } = hyper;
        let params = AdamParams { lr, beta1, beta2, eps, weight_decay, decoupled: self.decoupled, step };
        target.adam_step_(&params, gradient, m, v)
    }
}
