//! The [`Adagrad`] optimiser.

use gradus_tensor::{Expr, Result, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, at_least_zero};

/// Adagrad (Duchi, Hazan and Singer, 2011), as in PyTorch. Step `t`, counted from 1, computes, with
/// `d = g + weight_decay * p`,
///
/// - `s += d^2`
/// - `p -= lr / (1 + (t - 1) * lr_decay) * d / (sqrt(s) + eps)`
pub struct Adagrad(Stepper<AdagradConfig>);

/// Hyper-parameters of [`Adagrad`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdagradConfig {
    /// Learning rate, default 0.01.
    pub lr: f64,
    /// Decay of the learning rate, default 0.
    pub lr_decay: f64,
    /// Weight decay as an L2 penalty, default 0.
    pub weight_decay: f64,
    /// The sum of squares before the first step, default 0.
    pub initial_accumulator_value: f64,
    /// Added to the square root of the sum. Default 1e-10.
    pub eps: f64,
}

impl Default for AdagradConfig {
    fn default() -> Self {
        AdagradConfig { lr: 0.01, lr_decay: 0.0, weight_decay: 0.0, initial_accumulator_value: 0.0, eps: 1e-10 }
    }
}

// The inputs of the formulas: p, g, s; lr, eps, weight_decay.

static ADAGRAD: UpdateFn = UpdateFn::new("adagrad", |x| formula(x, x[1]));
static ADAGRAD_DECAY: UpdateFn = UpdateFn::new("adagrad_decay", |x| formula(x, x[1] + x[5] * x[0]));

/// The new p and s from the gradient after weight decay.
fn formula<'k>(x: &[Expr<'k>], d: Expr<'k>) -> Vec<Expr<'k>> {
    let s = x[2] + d * d;
    vec![x[0] - x[3] * d / (s.sqrt() + x[4]), s]
}

super::constructors!(Adagrad, AdagradConfig);
super::optimizer!(Adagrad);

impl Rule for AdagradConfig {
    fn name(&self) -> &'static str {
        "adagrad"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, self.weight_decay)
    }

    fn check(&self) -> Result<()> {
        at_least_zero("adagrad", "lr_decay", self.lr_decay)?;
        at_least_zero("adagrad", "initial_accumulator_value", self.initial_accumulator_value)?;
        at_least_zero("adagrad", "eps", self.eps).map(|_| ())
    }

    fn slots(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn initial(&self, _slot: &str) -> f64 {
        self.initial_accumulator_value
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let Hyper { lr, weight_decay, step, .. } = hyper;
        let update = if weight_decay == 0.0 { &ADAGRAD } else { &ADAGRAD_DECAY };
        let lr = lr / (1.0 + (step as f64 - 1.0) * self.lr_decay);
        apply(update, target, gradient, slots, 1, &[lr, self.eps, weight_decay])
    }
}
