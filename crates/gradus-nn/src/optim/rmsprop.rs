//! The [`RmsProp`] optimiser.

use gradus_tensor::{Expr, Result, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, at_least_zero};

/// RMSprop (Hinton's lecture 6e, 2012), as PyTorch's `RMSprop`. One step computes, with `d = g + weight_decay * p`,
///
/// - `s = alpha * s + (1 - alpha) * d^2`
/// - if centered, `a = alpha * a + (1 - alpha) * d`, and `s - a^2` takes the place of `s` below
/// - `u = d / (sqrt(s) + eps)`
/// - with momentum, `b = momentum * b + u`, and `b` takes the place of `u` below
/// - `p -= lr * u`
///
/// A centered variance that rounding makes negative counts as 0 (PyTorch's is NaN).
pub struct RmsProp(Stepper<RmsPropConfig>);

/// Hyper-parameters of [`RmsProp`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsPropConfig {
    /// Learning rate, default 0.01.
    pub lr: f64,
    /// Decay rate of the averages, 0 to 1. Default 0.99.
    pub alpha: f64,
    /// Added to the square root. Default 1e-8.
    pub eps: f64,
    /// Weight decay as an L2 penalty, default 0.
    pub weight_decay: f64,
    /// Momentum, default 0 (none).
    pub momentum: f64,
    /// Whether to divide by an estimate of the standard deviation rather than of the root mean square. Default false.
    pub centered: bool,
}

impl Default for RmsPropConfig {
    fn default() -> Self {
        RmsPropConfig { lr: 0.01, alpha: 0.99, eps: 1e-8, weight_decay: 0.0, momentum: 0.0, centered: false }
    }
}

/// The formula. The inputs are p, g, s, if centered a, with momentum b; then the numbers in the order of `update`.
fn formula<'k, const CENTERED: bool, const MOMENTUM: bool, const DECAY: bool>(x: &[Expr<'k>]) -> Vec<Expr<'k>> {
    let (t, n) = x.split_at(3 + usize::from(CENTERED) + usize::from(MOMENTUM));
    let g = if DECAY { t[1] + n[5] * t[0] } else { t[1] };
    let mut variance = n[1] * t[2] + n[2] * (g * g);
    let mut slots = vec![variance];
    if CENTERED {
        let mean = n[1] * t[3] + n[2] * g;
        slots.push(mean);
        variance = (variance - mean * mean).max(0.0);
    }
    let mut u = g / (variance.sqrt() + n[3]);
    if MOMENTUM {
        u = n[4] * t[t.len() - 1] + u;
        slots.push(u);
    }
    slots.insert(0, t[0] - n[0] * u);
    slots
}

/// The formulas: bit 2 of the index says whether it is centered, bit 1 whether there is momentum, bit 0 whether weights
/// decay.
static RMSPROP: [UpdateFn; 8] = [
    UpdateFn::new("rmsprop", formula::<false, false, false>),
    UpdateFn::new("rmsprop", formula::<false, false, true>),
    UpdateFn::new("rmsprop", formula::<false, true, false>),
    UpdateFn::new("rmsprop", formula::<false, true, true>),
    UpdateFn::new("rmsprop", formula::<true, false, false>),
    UpdateFn::new("rmsprop", formula::<true, false, true>),
    UpdateFn::new("rmsprop", formula::<true, true, false>),
    UpdateFn::new("rmsprop", formula::<true, true, true>),
];

super::constructors!(RmsProp, RmsPropConfig);
super::optimizer!(RmsProp);

impl Rule for RmsPropConfig {
    fn name(&self) -> &'static str {
        "rmsprop"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, self.weight_decay)
    }

    fn momentum(&self) -> Option<f64> {
        (self.momentum != 0.0).then_some(self.momentum)
    }

    fn check(&self) -> Result<()> {
        for (name, value) in [("eps", self.eps), ("momentum", self.momentum), ("alpha", self.alpha)] {
            at_least_zero("rmsprop", name, value)?;
        }
        at_least_zero("rmsprop", "1 - alpha", 1.0 - self.alpha).map(|_| ())
    }

    fn slots(&self) -> &'static [&'static str] {
        match (self.centered, self.momentum != 0.0) {
            (false, false) => &["square_avg"],
            (false, true) => &["square_avg", "momentum_buffer"],
            (true, false) => &["square_avg", "grad_avg"],
            (true, true) => &["square_avg", "grad_avg", "momentum_buffer"],
        }
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let Hyper { lr, weight_decay, momentum, .. } = hyper;
        let bits = [self.centered, self.momentum != 0.0, weight_decay != 0.0];
        let update = &RMSPROP[bits.into_iter().fold(0, |index, bit| index << 1 | usize::from(bit))];
        let numbers = [lr, self.alpha, 1.0 - self.alpha, self.eps, momentum, weight_decay];
        apply(update, target, gradient, slots, slots.len(), &numbers)
    }
}
