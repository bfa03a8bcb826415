//! The [`Adamax`] optimiser.

use gradus_tensor::{Expr, Result, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, at_least_zero, below_one};

/// Adamax, [`Adam`](crate::Adam) with the infinity norm (Kingma and Ba, 2015), as in PyTorch. Step `t`, counted from 1,
/// computes, with `d = g + weight_decay * p`,
///
/// - `m = beta1 * m + (1 - beta1) * d`
/// - `u = max(beta2 * u, |d| + eps)`
/// - `p -= lr / (1 - beta1^t) * m / u`
pub struct Adamax(Stepper<AdamaxConfig>);

/// Hyper-parameters of [`Adamax`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamaxConfig {
    /// Learning rate, default 0.002.
    pub lr: f64,
    /// Decay rate of the first moment, at least 0 and below 1. Default 0.9.
    pub beta1: f64,
    /// Decay rate of the infinity norm, at least 0 and below 1. Default 0.999.
    pub beta2: f64,
    /// Added to the absolute value of the gradient. Default 1e-8.
    pub eps: f64,
    /// Weight decay as an L2 penalty, default 0.
    pub weight_decay: f64,
}

impl Default for AdamaxConfig {
    fn default() -> Self {
        AdamaxConfig { lr: 2e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

// The inputs of the formulas: p, g, m, u; lr / (1 - beta1^t), beta1, 1 - beta1, beta2, eps, weight_decay.

static ADAMAX: UpdateFn = UpdateFn::new("adamax", |x| formula(x, x[1]));
static ADAMAX_DECAY: UpdateFn = UpdateFn::new("adamax_decay", |x| formula(x, x[1] + x[9] * x[0]));

/// The new p, m and u from the gradient after weight decay.
fn formula<'k>(x: &[Expr<'k>], d: Expr<'k>) -> Vec<Expr<'k>> {
    let m = x[5] * x[2] + x[6] * d;
    let u = (x[7] * x[3]).max(d.abs() + x[8]);
    vec![x[0] - x[4] * m / u, m, u]
}

super::constructors!(Adamax, AdamaxConfig);
super::optimizer!(Adamax);

impl Rule for AdamaxConfig {
    fn name(&self) -> &'static str {
        "adamax"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, self.weight_decay)
    }

    fn check(&self) -> Result<()> {
        below_one("adamax", "beta1", self.beta1)?;
        below_one("adamax", "beta2", self.beta2)?;
        at_least_zero("adamax", "eps", self.eps).map(|_| ())
    }

    fn slots(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_inf"]
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let Hyper { lr, weight_decay, step, .. } = hyper;
        let AdamaxConfig { beta1, beta2, eps, .. } = *self;
        let update = if weight_decay == 0.0 { &ADAMAX } else { &ADAMAX_DECAY };
        let lr = lr / (1.0 - libm::pow(beta1, step as f64));
        apply(update, target, gradient, slots, 2, &[lr, beta1, 1.0 - beta1, beta2, eps, weight_decay])
    }
}
