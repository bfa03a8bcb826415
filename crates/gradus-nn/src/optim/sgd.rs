//! The [`Sgd`] optimiser.

use gradus_tensor::{Error, Expr, Result, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, at_least_zero};

/// Stochastic gradient descent, as in PyTorch. With `d = g + weight_decay * p`, a step without momentum is
/// `p -= lr * d`. With momentum, `v = momentum * v + (1 - dampening) * d` (`v = d` in the first step), followed by
/// `p -= lr * v`, or by `p -= lr * (d + momentum * v)` for Nesterov momentum.
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

/// Hyper-parameters of [`Sgd`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// Learning rate, default 0.001.
    pub lr: f64,
    /// Momentum, default 0 (none).
    pub momentum: f64,
    /// Dampening of the gradient in the momentum, default 0.
    pub dampening: f64,
    /// Whether to use Nesterov momentum, which requires a momentum above 0 and no dampening. Default false.
    pub nesterov: bool,
    /// Weight decay as an L2 penalty, default 0.
    pub weight_decay: f64,
}

impl Default for SgdConfig {
    fn default() -> Self {
        SgdConfig { lr: 1e-3, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 }
    }
}

// The inputs of the formulas, in order: p, g, with momentum also v, then lr, weight_decay, momentum and 1 - dampening.

static SGD: UpdateFn = UpdateFn::new("sgd", |x| vec![x[0] - x[2] * x[1]]);
static SGD_DECAY: UpdateFn = UpdateFn::new("sgd_decay", |x| vec![x[0] - x[2] * (x[1] + x[3] * x[0])]);
static MOMENTUM: UpdateFn = UpdateFn::new("sgd_momentum", |x| momentum(x, x[1], x[1], false));
static MOMENTUM_DECAY: UpdateFn = UpdateFn::new("sgd_momentum_decay", |x| {
    let d = x[1] + x[4] * x[0];
    momentum(x, d, d, false)
});
static NESTEROV: UpdateFn = UpdateFn::new("sgd_nesterov", |x| momentum(x, x[1], x[1], true));
static NESTEROV_DECAY: UpdateFn = UpdateFn::new("sgd_nesterov_decay", |x| {
    let d = x[1] + x[4] * x[0];
    momentum(x, d, d, true)
});
static DAMPED: UpdateFn = UpdateFn::new("sgd_damped", |x| momentum(x, x[1], x[6] * x[1], false));
static DAMPED_DECAY: UpdateFn = UpdateFn::new("sgd_damped_decay", |x| {
    let d = x[1] + x[4] * x[0];
    momentum(x, d, x[6] * d, false)
});

/// The new p and v from the gradient after weight decay, and after dampening.
fn momentum<'k>(x: &[Expr<'k>], d: Expr<'k>, damped: Expr<'k>, nesterov: bool) -> Vec<Expr<'k>> {
    let v = x[5] * x[2] + damped;
    vec![x[0] - x[3] * if nesterov { d + x[5] * v } else { v }, v]
}

super::constructors!(Sgd, SgdConfig);
super::optimizer!(Sgd);

impl Rule for SgdConfig {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, self.weight_decay)
    }

    fn momentum(&self) -> Option<f64> {
        (self.momentum != 0.0).then_some(self.momentum)
    }

    fn check(&self) -> Result<()> {
        at_least_zero("sgd", "momentum", self.momentum)?;
        if !self.dampening.is_finite() {
            return Err(Error::argument("sgd", format!("dampening is {}; it is finite", self.dampening)));
        }
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err(Error::argument("sgd", "Nesterov's form needs a momentum above 0 and no dampening"));
        }
        Ok(())
    }

    fn slots(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let Hyper { lr, weight_decay, momentum, step } = hyper;
        let (damped, decays) = (self.dampening != 0.0, weight_decay != 0.0);
        let update = match (slots.is_empty(), self.nesterov, damped, decays) {
            (true, _, _, false) => &SGD,
            (true, _, _, true) => &SGD_DECAY,
            (false, false, false, false) => &MOMENTUM,
            (false, false, false, true) => &MOMENTUM_DECAY,
            (false, true, _, false) => &NESTEROV,
            (false, true, _, true) => &NESTEROV_DECAY,
            (false, false, true, false) => &DAMPED,
            (false, false, true, true) => &DAMPED_DECAY,
        };
        // The first gradient is not dampened.
        let share = if step == 1 { 1.0 } else { 1.0 - self.dampening };
        let numbers = [lr, weight_decay, momentum, share];
        apply(update, target, gradient, slots, slots.len(), &numbers[..if damped { 4 } else { 3 }])
    }
}
