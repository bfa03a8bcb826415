//! The [`Lamb`] optimiser.

use gradus_tensor::{Error, Expr, Result, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, at_least_zero, below_one};

/// LAMB (You et al., 2020, "Large Batch Optimization for Deep Learning", algorithm 2), for large batches. Step `t`,
/// counted from 1, computes for each parameter
///
/// - `m = beta1 * m + (1 - beta1) * g`
/// - `v = beta2 * v + (1 - beta2) * g^2`
/// - `u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * p`
/// - `p -= lr * |p| / |u| * u`
///
/// where `|p|` and `|u|` are the norms of the whole tensors. If either is 0, their ratio counts as 1. A step needs
/// memory for an update of all parameters, beside the state.
pub struct Lamb(Stepper<LambConfig>);

/// Hyper-parameters of [`Lamb`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LambConfig {
    /// Learning rate, default 0.001.
    pub lr: f64,
    /// Decay rate of the first moment, at least 0 and below 1. Default 0.9.
    pub beta1: f64,
    /// Decay rate of the second moment, at least 0 and below 1. Default 0.999.
    pub beta2: f64,
    /// Added to the square root of the second moment. Default 1e-6.
    pub eps: f64,
    /// Weight decay, which is part of the update that is scaled. Default 0.
    pub weight_decay: f64,
}

impl Default for LambConfig {
    fn default() -> Self {
        LambConfig { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-6, weight_decay: 0.0 }
    }
}

/// The new m and v from g, m, v and the numbers beta1, 1 - beta1, beta2, 1 - beta2.
fn moments<'k>(g: Expr<'k>, m: Expr<'k>, v: Expr<'k>, n: &[Expr<'k>]) -> (Expr<'k>, Expr<'k>) {
    (n[0] * m + n[1] * g, n[2] * v + n[3] * (g * g))
}

/// The update u, over its first input. The inputs are an output, p, g, m, v; the numbers of `moments`, 1 / (1 -
/// beta1^t), 1 / sqrt(1 - beta2^t), eps and the weight decay.
fn direction<'k, const DECAY: bool>(x: &[Expr<'k>]) -> Vec<Expr<'k>> {
    let (m, v) = moments(x[1], x[2], x[3], &x[4..]);
    let u = x[8] * m / (v.sqrt() * x[9] + x[10]);
    vec![if DECAY { u + x[11] * x[0] } else { u }]
}

static DIRECTION: UpdateFn = UpdateFn::new("lamb_direction", direction::<false>);
static DIRECTION_DECAY: UpdateFn = UpdateFn::new("lamb_direction_decay", direction::<true>);

/// The new p, m and v. The inputs are p, g, m, v, u, the ratio of the norms; lr and the numbers of `moments`.
static LAMB: UpdateFn = UpdateFn::new("lamb", |x| {
    let (m, v) = moments(x[1], x[2], x[3], &x[7..]);
    vec![x[0] - x[6] * x[5] * x[4], m, v]
});

super::constructors!(Lamb, LambConfig);
super::optimizer!(Lamb);

impl LambConfig {
    fn decays(&self) -> [f64; 4] {
        [self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2]
    }
}

/// The norm over all elements, as a tensor of shape `[]`.
#[track_caller]
fn norm(t: &Tensor) -> Result<Tensor> {
    t.square()?.sum_all()?.sqrt()
}

impl Rule for LambConfig {
    fn name(&self) -> &'static str {
        "lamb"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, self.weight_decay)
    }

    fn check(&self) -> Result<()> {
        below_one("lamb", "beta1", self.beta1)?;
        below_one("lamb", "beta2", self.beta2)?;
        at_least_zero("lamb", "eps", self.eps).map(|_| ())
    }

    fn mixes(&self) -> bool {
        true
    }

    fn slots(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn scratch(&self) -> usize {
        1
    }

    #[track_caller]
    fn prepare(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let [state @ .., u] = slots else { return Err(Error::argument("lamb", "a scratch tensor is needed")) };
        let correction = |beta: f64| 1.0 - libm::pow(beta, hyper.step as f64);
        let mut numbers = self.decays().to_vec();
        numbers.extend([1.0 / correction(self.beta1), 1.0 / correction(self.beta2).sqrt()]);
        numbers.extend([self.eps, hyper.weight_decay]);
        let update = if hyper.weight_decay == 0.0 { &DIRECTION } else { &DIRECTION_DECAY };
        let mut inputs = vec![target, gradient];
        inputs.extend(state);
        update.apply(&[u], &inputs, &numbers)
    }

    #[track_caller]
    fn derive(&self, target: &Tensor, _: &Tensor, slots: &[Tensor]) -> Result<Vec<Tensor>> {
        let [.., u] = slots else { return Err(Error::argument("lamb", "a scratch tensor is needed")) };
        let (weights, step) = (norm(target)?, norm(u)?);
        let ratio = weights.div(&step)?;
        let both = weights.gt(0.0)?.logical_and(&step.gt(0.0)?)?;
        Ok(vec![both.where_(&ratio, 1.0)?])
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let mut numbers = vec![hyper.lr];
        numbers.extend(self.decays());
        apply(&LAMB, target, gradient, slots, 2, &numbers)
    }
}
