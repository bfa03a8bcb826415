//! The [`RAdam`] optimiser.

use gradus_tensor::{Expr, Result, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, at_least_zero, below_one};

/// RAdam, [`Adam`](crate::Adam) with a rectified learning rate (Liu et al., 2020), as in PyTorch. Step `t`, counted
/// from 1, computes
///
/// - `d = g + weight_decay * p`; or, with decoupled weight decay, `d = g` and `p *= 1 - lr * weight_decay`
/// - `m = beta1 * m + (1 - beta1) * d`
/// - `v = beta2 * v + (1 - beta2) * d^2`
/// - `p -= lr * m / (1 - beta1^t) * r * sqrt(1 - beta2^t) / (sqrt(v) + eps)`, or, as long as `rho_t` is at most 5,
///   `p -= lr * m / (1 - beta1^t)`
///
/// where `rho = 2 / (1 - beta2) - 1`, `rho_t = rho - 2 t beta2^t / (1 - beta2^t)` and
/// `r = sqrt((rho_t - 4) (rho_t - 2) rho / ((rho - 4) (rho - 2) rho_t))`.
pub struct RAdam(Stepper<RAdamConfig>);

/// Hyper-parameters of [`RAdam`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RAdamConfig {
    /// Learning rate, default 0.001.
    pub lr: f64,
    /// Decay rate of the first moment, at least 0 and below 1. Default 0.9.
    pub beta1: f64,
    /// Decay rate of the second moment, at least 0 and below 1. Default 0.999.
    pub beta2: f64,
    /// Added to the square root of the second moment. Default 1e-8.
    pub eps: f64,
    /// Weight decay, default 0.
    pub weight_decay: f64,
    /// Whether weights decay as in [`AdamW`](crate::AdamW), not by an L2 penalty. Default false.
    pub decoupled_weight_decay: bool,
}

impl Default for RAdamConfig {
    fn default() -> Self {
        RAdamConfig { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled_weight_decay: false }
    }
}

/// The formula. The inputs are p, g, m, v; beta1, 1 - beta1, beta2, 1 - beta2, the factor of the step, eps, the factor
/// of p, and the weight decay of the L2 penalty. An unrectified step does not divide by the second moment.
fn formula<'k, const RECTIFIED: bool, const DECAY: bool>(x: &[Expr<'k>]) -> Vec<Expr<'k>> {
    let (p, d) = if DECAY { (x[0] * x[10], x[1] + x[11] * x[0]) } else { (x[0], x[1]) };
    let m = x[4] * x[2] + x[5] * d;
    let v = x[6] * x[3] + x[7] * (d * d);
    let step = x[8] * m;
    vec![p - if RECTIFIED { step / (v.sqrt() + x[9]) } else { step }, m, v]
}

static RADAM: UpdateFn = UpdateFn::new("radam", formula::<true, false>);
static RADAM_DECAY: UpdateFn = UpdateFn::new("radam_decay", formula::<true, true>);
static UNRECTIFIED: UpdateFn = UpdateFn::new("radam_unrectified", formula::<false, false>);
static UNRECTIFIED_DECAY: UpdateFn = UpdateFn::new("radam_unrectified_decay", formula::<false, true>);

super::constructors!(RAdam, RAdamConfig);
super::optimizer!(RAdam);

impl Rule for RAdamConfig {
    fn name(&self) -> &'static str {
        "radam"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, self.weight_decay)
    }

    fn check(&self) -> Result<()> {
        below_one("radam", "beta1", self.beta1)?;
        below_one("radam", "beta2", self.beta2)?;
        at_least_zero("radam", "eps", self.eps).map(|_| ())
    }

    fn slots(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let RAdamConfig { beta1, beta2, eps, decoupled_weight_decay: decoupled, .. } = *self;
        let Hyper { lr, weight_decay, step, .. } = hyper;
        let t = step as f64;
        let power = libm::pow(beta2, t);
        let (corrected, correction2) = (lr / (1.0 - libm::pow(beta1, t)), 1.0 - power);
        let rho = 2.0 / (1.0 - beta2) - 1.0;
        let rho_t = rho - 2.0 * t * power / correction2;
        let rectified = rho_t > 5.0;
        let r = ((rho_t - 4.0) * (rho_t - 2.0) * rho / ((rho - 4.0) * (rho - 2.0) * rho_t)).sqrt();
        let factor = if rectified { corrected * correction2.sqrt() * r } else { corrected };
        let (scale, penalty) = if decoupled { (1.0 - lr * weight_decay, 0.0) } else { (1.0, weight_decay) };
        let update = match (rectified, weight_decay != 0.0) {
            (true, false) => &RADAM,
            (true, true) => &RADAM_DECAY,
            (false, false) => &UNRECTIFIED,
            (false, true) => &UNRECTIFIED_DECAY,
        };
        let numbers = [beta1, 1.0 - beta1, beta2, 1.0 - beta2, factor, eps, scale, penalty];
        apply(update, target, gradient, slots, 2, &numbers)
    }
}
