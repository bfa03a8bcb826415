//! The [`NAdam`] optimiser.

use std::sync::Mutex;

use gradus_tensor::{Expr, Result, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, at_least_zero, below_one};

/// NAdam, [`Adam`](crate::Adam) with Nesterov momentum (Dozat, 2016), as in PyTorch. Step `t`, counted from 1, computes
///
/// - `d = g + weight_decay * p`; or, with decoupled weight decay, `d = g` and `p *= 1 - lr * weight_decay`
/// - `mu_t = beta1 * (1 - 0.96^(t * momentum_decay) / 2)`, and `c_t`, the product of `mu_1` to `mu_t`
/// - `m = beta1 * m + (1 - beta1) * d`
/// - `v = beta2 * v + (1 - beta2) * d^2`
/// - `p -= lr * ((1 - mu_t) / (1 - c_t) * d + mu_{t+1} / (1 - c_{t+1}) * m) / (sqrt(v / (1 - beta2^t)) + eps)`
pub struct NAdam(Stepper<NAdamRule>);

/// Hyper-parameters of [`NAdam`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NAdamConfig {
    /// Learning rate, default 0.002.
    pub lr: f64,
    /// Decay rate of the first moment, at least 0 and below 1. Default 0.9.
    pub beta1: f64,
    /// Decay rate of the second moment, at least 0 and below 1. Default 0.999.
    pub beta2: f64,
    /// Added to the square root of the second moment. Default 1e-8.
    pub eps: f64,
    /// Weight decay, default 0.
    pub weight_decay: f64,
    /// How fast the momentum rises to `beta1`. Default 0.004.
    pub momentum_decay: f64,
    /// Whether weights decay as in [`AdamW`](crate::AdamW), not by an L2 penalty. Default false.
    pub decoupled_weight_decay: bool,
}

impl Default for NAdamConfig {
    fn default() -> Self {
        NAdamConfig {
            lr: 2e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum_decay: 4e-3,
            decoupled_weight_decay: false,
        }
    }
}

struct NAdamRule {
    config: NAdamConfig,
    /// A step, and the product of the momenta up to it, so that the next step costs one factor. It depends on the step
    /// alone, so it is no state.
    product: Mutex<(u64, f64)>,
}

impl NAdamRule {
    /// The momentum of a step.
    fn momentum(&self, step: u64) -> f64 {
        let NAdamConfig { beta1, momentum_decay, .. } = self.config;
        beta1 * (1.0 - 0.5 * libm::pow(0.96, step as f64 * momentum_decay))
    }

    /// The product of the momenta of steps 1 to `step`.
    fn product(&self, step: u64) -> f64 {
        let mut known = self.product.lock().unwrap_or_else(|e| e.into_inner());
        let (mut at, mut product) = *known;
        if at > step {
            (at, product) = (0, 1.0);
        }
        while at < step && product != 0.0 {
            at += 1;
            let momentum = self.momentum(at);
            product *= momentum;
            if momentum == self.config.beta1 {
                // So are those of all later steps.
                product *= libm::pow(momentum, (step - at) as f64);
                at = step;
            }
        }
        *known = (step, product);
        product
    }
}

// The inputs of the formulas: p, g, m, v; beta1, 1 - beta1, beta2, 1 - beta2, the factors of d and of m, 1 / sqrt(1 -
// beta2^t), eps; and finally the factor of p for decoupled weight decay, or the weight decay.

static NADAM: UpdateFn = UpdateFn::new("nadam", |x| formula(x, x[0], x[1]));
static NADAM_L2: UpdateFn = UpdateFn::new("nadam_l2", |x| formula(x, x[0], x[1] + x[12] * x[0]));
static NADAMW: UpdateFn = UpdateFn::new("nadamw", |x| formula(x, x[0] * x[12], x[1]));

/// The new p, m and v. `p` and `d` are the parameter and gradient after weight decay.
fn formula<'k>(x: &[Expr<'k>], p: Expr<'k>, d: Expr<'k>) -> Vec<Expr<'k>> {
    let m = x[4] * x[2] + x[5] * d;
    let v = x[6] * x[3] + x[7] * (d * d);
    vec![p - (x[8] * d + x[9] * m) / (v.sqrt() * x[10] + x[11]), m, v]
}

super::constructors!(NAdam, NAdamConfig, |config| NAdamRule { config, product: Mutex::new((0, 1.0)) });
super::optimizer!(NAdam);

impl Rule for NAdamRule {
    fn name(&self) -> &'static str {
        "nadam"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.config.lr, self.config.weight_decay)
    }

    fn check(&self) -> Result<()> {
        below_one("nadam", "beta1", self.config.beta1)?;
        below_one("nadam", "beta2", self.config.beta2)?;
        at_least_zero("nadam", "eps", self.config.eps)?;
        at_least_zero("nadam", "momentum_decay", self.config.momentum_decay).map(|_| ())
    }

    fn slots(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let NAdamConfig { beta1, beta2, eps, decoupled_weight_decay: decoupled, .. } = self.config;
        let Hyper { lr, weight_decay, step, .. } = hyper;
        let (now, next) = (self.momentum(step), self.momentum(step.saturating_add(1)));
        let product = self.product(step);
        let numbers = [
            beta1,
            1.0 - beta1,
            beta2,
            1.0 - beta2,
            lr * (1.0 - now) / (1.0 - product),
            lr * next / (1.0 - product * next),
            1.0 / (1.0 - libm::pow(beta2, step as f64)).sqrt(),
            eps,
            if decoupled { 1.0 - lr * weight_decay } else { weight_decay },
        ];
        let update = match (weight_decay != 0.0, decoupled) {
            (false, _) => &NADAM,
            (true, false) => &NADAM_L2,
            (true, true) => &NADAMW,
        };
        apply(update, target, gradient, slots, 2, &numbers)
    }
}
