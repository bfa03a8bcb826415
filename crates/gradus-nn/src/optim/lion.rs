//! The [`Lion`] optimiser.

use gradus_tensor::{Expr, Result, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, below_one};

/// Lion (Chen et al., 2023, "Symbolic Discovery of Optimization Algorithms"), with decoupled weight decay. One step
/// computes
///
/// - `p = p * (1 - lr * weight_decay) - lr * sign(beta1 * m + (1 - beta1) * g)`
/// - `m = beta2 * m + (1 - beta2) * g`
///
/// Every element moves by `lr`, so the learning rate is 3 to 10 times smaller than that of [`AdamW`](crate::AdamW), and
/// the weight decay larger by as much.
pub struct Lion(Stepper<LionConfig>);

/// Hyper-parameters of [`Lion`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LionConfig {
    /// Learning rate, default 0.0001.
    pub lr: f64,
    /// Weight of the momentum in the step, at least 0 and below 1. Default 0.9.
    pub beta1: f64,
    /// Decay rate of the momentum, at least 0 and below 1. Default 0.99.
    pub beta2: f64,
    /// Weight decay, default 0.
    pub weight_decay: f64,
}

impl Default for LionConfig {
    fn default() -> Self {
        LionConfig { lr: 1e-4, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }
}

// The inputs of the formulas: p, g, m; lr, beta1, 1 - beta1, beta2, 1 - beta2, 1 - lr * weight_decay.

static LION: UpdateFn = UpdateFn::new("lion", |x| formula(x, x[0]));
static LION_DECAY: UpdateFn = UpdateFn::new("lion_decay", |x| formula(x, x[0] * x[8]));

/// The new p and m. `p` is the parameter after weight decay.
fn formula<'k>(x: &[Expr<'k>], p: Expr<'k>) -> Vec<Expr<'k>> {
    vec![p - x[3] * (x[4] * x[2] + x[5] * x[1]).sign(), x[6] * x[2] + x[7] * x[1]]
}

super::constructors!(Lion, LionConfig);
super::optimizer!(Lion);

impl Rule for LionConfig {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, self.weight_decay)
    }

    fn check(&self) -> Result<()> {
        below_one("lion", "beta1", self.beta1)?;
        below_one("lion", "beta2", self.beta2)
    }

    fn slots(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let Hyper { lr, weight_decay, .. } = hyper;
        let LionConfig { beta1, beta2, .. } = *self;
        let update = if weight_decay == 0.0 { &LION } else { &LION_DECAY };
        let numbers = [lr, beta1, 1.0 - beta1, beta2, 1.0 - beta2, 1.0 - lr * weight_decay];
        apply(update, target, gradient, slots, 1, &numbers)
    }
}
