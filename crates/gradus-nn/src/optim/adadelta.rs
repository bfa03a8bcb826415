//! The [`Adadelta`] optimiser.

use gradus_tensor::{Expr, Result, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, at_least_zero};

/// Adadelta (Zeiler, 2012), as in PyTorch. One step computes, with `d = g + weight_decay * p`,
///
/// - `s = rho * s + (1 - rho) * d^2`
/// - `u = sqrt(a + eps) / sqrt(s + eps) * d`
/// - `a = rho * a + (1 - rho) * u^2`
/// - `p -= lr * u`
pub struct Adadelta(Stepper<AdadeltaConfig>);

/// Hyper-parameters of [`Adadelta`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdadeltaConfig {
    /// Factor on the step, default 1.
    pub lr: f64,
    /// Decay rate of the averages, 0 to 1. Default 0.9.
    pub rho: f64,
    /// Added under the square roots. Default 1e-6.
    pub eps: f64,
    /// Weight decay as an L2 penalty, default 0.
    pub weight_decay: f64,
}

impl Default for AdadeltaConfig {
    fn default() -> Self {
        AdadeltaConfig { lr: 1.0, rho: 0.9, eps: 1e-6, weight_decay: 0.0 }
    }
}

// The inputs of the formulas: p, g, s, a; lr, rho, 1 - rho, eps, weight_decay.

static ADADELTA: UpdateFn = UpdateFn::new("adadelta", |x| formula(x, x[1]));
static ADADELTA_DECAY: UpdateFn = UpdateFn::new("adadelta_decay", |x| formula(x, x[1] + x[8] * x[0]));

/// The new p, s and a from the gradient after weight decay.
fn formula<'k>(x: &[Expr<'k>], d: Expr<'k>) -> Vec<Expr<'k>> {
    let s = x[5] * x[2] + x[6] * (d * d);
    let u = (x[3] + x[7]).sqrt() / (s + x[7]).sqrt() * d;
    vec![x[0] - x[4] * u, s, x[5] * x[3] + x[6] * (u * u)]
}

super::constructors!(Adadelta, AdadeltaConfig);
super::optimizer!(Adadelta);

impl Rule for AdadeltaConfig {
    fn name(&self) -> &'static str {
        "adadelta"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, self.weight_decay)
    }

    fn check(&self) -> Result<()> {
        at_least_zero("adadelta", "rho", self.rho)?;
        at_least_zero("adadelta", "1 - rho", 1.0 - self.rho)?;
        at_least_zero("adadelta", "eps", self.eps).map(|_| ())
    }

    fn slots(&self) -> &'static [&'static str] {
        &["square_avg", "acc_delta"]
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let Hyper { lr, weight_decay, .. } = hyper;
        let update = if weight_decay == 0.0 { &ADADELTA } else { &ADADELTA_DECAY };
        apply(update, target, gradient, slots, 2, &[lr, self.rho, 1.0 - self.rho, self.eps, weight_decay])
    }
}
