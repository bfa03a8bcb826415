//! The [`Adam`] and [`AdamW`] optimisers.

use gradus_tensor::{Expr, Result, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, at_least_zero, below_one};

/// Adam (Kingma and Ba, 2015), with weight decay as an L2 penalty added to the gradient. One step computes
///
/// - `g += weight_decay * p`
/// - `m = beta1 * m + (1 - beta1) * g`
/// - `v = beta2 * v + (1 - beta2) * g^2`
/// - `p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)`
///
/// With `amsgrad` (Reddi, Kale and Kumar, 2018), the largest `v` so far takes the place of `v` in the last line.
pub struct Adam(Stepper<AdamRule>);

/// AdamW (Loshchilov and Hutter, 2019): [`Adam`] with decoupled weight decay, `p *= 1 - lr * weight_decay`, instead of
/// the L2 penalty.
pub struct AdamW(Stepper<AdamRule>);

/// Hyper-parameters of [`Adam`] and [`AdamW`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamConfig {
    /// Learning rate, default 0.001.
    pub lr: f64,
    /// Decay rate of the first moment, at least 0 and below 1. Default 0.9.
    pub beta1: f64,
    /// Decay rate of the second moment, at least 0 and below 1. Default 0.999.
    pub beta2: f64,
    /// Added to the square root of the second moment. Default 1e-8.
    pub eps: f64,
    /// Weight decay, default 0 (PyTorch's AdamW defaults to 0.01).
    pub weight_decay: f64,
    /// Whether to divide by the largest second moment so far. Default false.
    pub amsgrad: bool,
}

impl Default for AdamConfig {
    fn default() -> Self {
        AdamConfig { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, amsgrad: false }
    }
}

struct AdamRule {
    config: AdamConfig,
    decoupled: bool,
}

// The inputs of the formulas, in order: p, g, m, v; beta1, 1 - beta1, beta2, 1 - beta2; lr / (1 - beta1^t), 1 / sqrt(1
// - beta2^t), eps; and finally 1 - lr * weight_decay for AdamW, or weight_decay for Adam. Without weight decay the last
// one is not read at all, so that an infinite p cannot produce NaN by being multiplied with 0.

static ADAM: UpdateFn = UpdateFn::new("adam", |x| moments(x, x[0], x[1]));
static ADAM_L2: UpdateFn = UpdateFn::new("adam_l2", |x| moments(x, x[0], x[1] + x[11] * x[0]));
static ADAMW: UpdateFn = UpdateFn::new("adamw", |x| moments(x, x[0] * x[11], x[1]));

// With amsgrad the largest v is another input behind v, so all numbers move by one.

static AMSGRAD: UpdateFn = UpdateFn::new("amsgrad", |x| largest_moments(x, x[0], x[1]));
static AMSGRAD_L2: UpdateFn = UpdateFn::new("amsgrad_l2", |x| largest_moments(x, x[0], x[1] + x[12] * x[0]));
static AMSGRADW: UpdateFn = UpdateFn::new("amsgradw", |x| largest_moments(x, x[0] * x[12], x[1]));

/// The new p, m and v. `p` and `g` are the parameter and gradient after weight decay.
fn moments<'k>(x: &[Expr<'k>], p: Expr<'k>, g: Expr<'k>) -> Vec<Expr<'k>> {
    let m = x[4] * x[2] + x[5] * g;
    let v = x[6] * x[3] + x[7] * (g * g);
    vec![p - x[8] * m / (v.sqrt() * x[9] + x[10]), m, v]
}

/// The new p, m, v and largest v.
fn largest_moments<'k>(x: &[Expr<'k>], p: Expr<'k>, g: Expr<'k>) -> Vec<Expr<'k>> {
    let m = x[5] * x[2] + x[6] * g;
    let v = x[7] * x[3] + x[8] * (g * g);
    let largest = x[4].max(v);
    vec![p - x[9] * m / (largest.sqrt() * x[10] + x[11]), m, v, largest]
}

super::constructors!(Adam, AdamConfig, |config| AdamRule { config, decoupled: false });
super::constructors!(AdamW, AdamConfig, |config| AdamRule { config, decoupled: true });
super::optimizer!(Adam);
super::optimizer!(AdamW);

impl Rule for AdamRule {
    fn name(&self) -> &'static str {
        if self.decoupled { "adamw" } else { "adam" }
    }

    fn defaults(&self) -> (f64, f64) {
        (self.config.lr, self.config.weight_decay)
    }

    fn momentum(&self) -> Option<f64> {
        Some(self.config.beta1)
    }

    fn check(&self) -> Result<()> {
        below_one(self.name(), "beta1", self.config.beta1)?;
        below_one(self.name(), "beta2", self.config.beta2)?;
        at_least_zero(self.name(), "eps", self.config.eps).map(|_| ())
    }

    fn slots(&self) -> &'static [&'static str] {
        if self.config.amsgrad { &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"] } else { &["exp_avg", "exp_avg_sq"] }
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let AdamConfig { beta2, eps, amsgrad, .. } = self.config;
        let Hyper { lr, weight_decay, momentum: beta1, step } = hyper;
        // The factors that depend on the step are computed here in f64, so that a single kernel serves every step.
        let correction = |beta: f64| 1.0 - libm::pow(beta, step as f64);
        let numbers = [
            beta1,
            1.0 - beta1,
            beta2,
            1.0 - beta2,
            lr / correction(beta1),
            1.0 / correction(beta2).sqrt(),
            eps,
            if self.decoupled { 1.0 - lr * weight_decay } else { weight_decay },
        ];
        let update = match (amsgrad, weight_decay != 0.0, self.decoupled) {
            (false, false, _) => &ADAM,
            (false, true, false) => &ADAM_L2,
            (false, true, true) => &ADAMW,
            (true, false, _) => &AMSGRAD,
            (true, true, false) => &AMSGRAD_L2,
            (true, true, true) => &AMSGRADW,
        };
        apply(update, target, gradient, slots, slots.len(), &numbers)
    }
}

#[cfg(test)]
mod tests {
    use gradus_tensor::DType::F32;

    use super::*;

    /// These kernels must be among those listed in `map/compiled.rs` of `gradus-cpu`, because optimiser steps take a
    /// third of the time of training a small model.
    #[test]
    fn steps_are_compiled_with_the_cpu_backend() -> Result<()> {
        for update in [&ADAM, &ADAMW] {
            let kernel = update.kernel(&[F32; 12], &[F32; 3])?;
            assert!(gradus_cpu::is_compiled(&kernel, 4), "{kernel}");
        }
        assert!(!gradus_cpu::is_compiled(&*ADAM_L2.kernel(&[F32; 12], &[F32; 3])?, 4));
        Ok(())
    }
}
