//! [`Sgd`].

use gradus_tensor::backend::params::SgdParams;
use gradus_tensor::{Error, Result, Tensor};

use super::Group;
use super::stepper::{Hyper, Rule, Stepper, at_least_zero};
use crate::Parameter;

/// Stochastic gradient descent, by PyTorch's formula: `d = g + weight_decay * p`; with momentum
/// `v = momentum * v + d` (v starts at 0), then `p -= lr * v`, or `p -= lr * (d + momentum * v)` in Nesterov's form;
/// without momentum `p -= lr * d`.
///
/// ```
/// # use gradus_nn::{Optimizer, Parameter, Sgd, SgdConfig}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let p = Parameter::new(Tensor::from_vec([1.0f64, 2.0], [2], &device)?)?;
/// let mut sgd = Sgd::new([("p".to_owned(), p.clone())], SgdConfig { lr: 0.25, ..Default::default() })?;
/// sgd.step(&p.square()?.sum_all()?.backward()?)?;
/// assert_eq!(p.to_vec::<f64>()?, [0.5, 1.0]);
/// # Ok::<(), Error>(())
/// ```
pub struct Sgd(pub(super) Stepper<SgdConfig>);

/// Hyper-parameters of [`Sgd`]; learning rate and weight decay may differ by [`Group`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// Learning rate, default 0.001.
    pub lr: f64,
    /// Momentum, default 0: none.
    pub momentum: f64,
    /// Nesterov's form; needs a momentum. Default false.
    pub nesterov: bool,
    /// L2 penalty, default 0.
    pub weight_decay: f64,
}

impl Default for SgdConfig {
    fn default() -> Self {
        SgdConfig { lr: 1e-3, momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }
}

impl Sgd {
    /// For these parameters, in one group.
    #[track_caller]
    pub fn new(parameters: impl IntoIterator<Item = (String, Parameter)>, config: SgdConfig) -> Result<Self> {
        Self::with_groups([Group::new(parameters)], config)
    }

    /// For several groups.
    #[track_caller]
    pub fn with_groups(groups: impl IntoIterator<Item = Group>, config: SgdConfig) -> Result<Self> {
        Stepper::new(config, groups).map(Sgd)
    }
}

impl Rule for SgdConfig {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, self.weight_decay)
    }

    fn check(&self) -> Result<()> {
        at_least_zero("sgd", "momentum", self.momentum)?;
        if self.nesterov && self.momentum == 0.0 {
            return Err(Error::argument("sgd", "Nesterov's form needs a momentum above 0"));
        }
        Ok(())
    }

    fn slots(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let Hyper { lr, weight_decay, .. } = hyper;
        let params = SgdParams { lr, momentum: self.momentum, nesterov: self.nesterov, weight_decay };
        target.sgd_step_(&params, gradient, slots.first())
    }
}

super::optimizer!(Sgd);
