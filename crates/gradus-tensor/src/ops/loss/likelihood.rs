//! Losses between distributions: `kl_div`, `poisson_nll_loss`, `gaussian_nll_loss`.

use std::borrow::Cow;

use gradus_backend::{Error, Expr, Result};

use super::{Reduction, parameter, pointwise, same_shape};
use crate::Tensor;
use crate::ops::operand_rules::common_dtype;
use crate::ops::{Class, Elementwise};

/// Operands: log-probability x, probability t. `t (ln t - x)`, but 0 where t is 0, even if x is infinite or NaN.
static KL_DIV: Elementwise = Elementwise::new("kl_div", Class::Float, 2, |v| {
    let (x, t) = (v[0], v[1]);
    let nothing = t.eq(0.0);
    let (x, t) = (nothing.select(0.0, x), nothing.select(1.0, t));
    vec![nothing.select(0.0, t * (t.log() - x))]
});

/// Operands: log-probabilities x and t. `e^t (t - x)`, but 0 where t is -inf.
static KL_DIV_LOG: Elementwise = Elementwise::new("kl_div", Class::Float, 2, |v| {
    let (x, t) = (v[0], v[1]);
    let nothing = t.eq(f64::NEG_INFINITY);
    let (x, t) = (nothing.select(0.0, x), nothing.select(0.0, t));
    vec![nothing.select(0.0, t.exp() * (t - x))]
});

/// Operands: logarithm of the rate, count.
static POISSON_LOG: Elementwise = Elementwise::new("poisson_nll_loss", Class::Float, 2, |v| vec![poisson_log(v)]);

static POISSON_LOG_FULL: Elementwise =
    Elementwise::new("poisson_nll_loss", Class::Float, 2, |v| vec![poisson_log(v) + stirling(v[1])]);

/// Operands: rate, count, eps.
static POISSON: Elementwise = Elementwise::new("poisson_nll_loss", Class::Float, 3, |v| vec![poisson(v)]);

static POISSON_FULL: Elementwise =
    Elementwise::new("poisson_nll_loss", Class::Float, 3, |v| vec![poisson(v) + stirling(v[1])]);

fn poisson_log<'k>(v: &[Expr<'k>]) -> Expr<'k> {
    v[0].exp() - v[1] * v[0]
}

fn poisson<'k>(v: &[Expr<'k>]) -> Expr<'k> {
    v[0] - v[1] * (v[0] + v[2]).log()
}

/// Stirling's approximation of `ln t!` where t is above 1, and 0 elsewhere.
fn stirling<'k>(t: Expr<'k>) -> Expr<'k> {
    let small = t.le(1.0);
    let t = small.select(1.0, t);
    small.select(0.0, t * t.log() - t + (t * std::f64::consts::TAU).log() * 0.5)
}

/// Operands: mean, target, variance, eps, a constant to add. NaN for a negative variance.
static GAUSSIAN: Elementwise = Elementwise::new("gaussian_nll_loss", Class::Float, 5, |v| {
    let var = v[2].max(v[3]);
    let nan = v[2].min(-1.0).log();
    let log = v[2].lt(0.0).select(nan, var.log());
    vec![(log + (v[0] - v[1]).square() / var) * 0.5 + v[4]]
});

impl Tensor {
    /// The pointwise terms of the Kullback-Leibler divergence `D(target || exp(self))`, combined as `reduction` says:
    /// `t (ln t - x)` for log-probabilities `self` and probabilities `target` of the same shape. With `log_target`, the
    /// target holds log-probabilities too. Where the target is 0, the term and its slope are 0.
    ///
    /// The mean is over all elements. For the divergence itself see [`kl_div_batch_mean`](Tensor::kl_div_batch_mean).
    #[track_caller]
    pub fn kl_div(&self, target: &Tensor, log_target: bool, reduction: Reduction) -> Result<Tensor> {
        pointwise(if log_target { &KL_DIV_LOG } else { &KL_DIV }, self, target, &[], reduction)
    }

    /// [`kl_div`](Tensor::kl_div) summed and divided by the size of the first axis: the mean divergence of a batch. The
    /// slope at a target of 0 is 0.
    #[track_caller]
    pub fn kl_div_batch_mean(&self, target: &Tensor, log_target: bool) -> Result<Tensor> {
        if self.rank() == 0 {
            return Err(self.describe(Error::shape("kl_div_batch_mean", "a scalar has no batch axis"), "self"));
        }
        // Half precision is summed in f32, as in a mean, since the sum itself may not fit.
        let dtype = common_dtype("kl_div_batch_mean", &[self, target], &["input", "target"])?.to_float();
        let terms = self.to_dtype(dtype.compute())?.kl_div(target, log_target, Reduction::Sum)?;
        let mean = terms.div(self.shape()[0] as f64)?;
        mean.to_dtype(dtype)
    }

    /// Negative log-likelihood of the counts `target` under Poisson rates of the same shape, combined as `reduction`
    /// says. It is `e^x - t x` with `log_input`, where `self` is the logarithm of the rate, and `x - t ln(x + eps)`
    /// otherwise. `full` adds Stirling's approximation of `ln t!` for counts above 1, which does not depend on `self`.
    /// With `eps` 0, the slope at a rate of 0 is infinite, or NaN if the count is 0 too.
    #[track_caller]
    pub fn poisson_nll_loss(
        &self,
        target: &Tensor,
        log_input: bool,
        full: bool,
        eps: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        parameter("poisson_nll_loss", "eps", eps, eps >= 0.0 && eps.is_finite(), "finite and at least 0")?;
        let (op, numbers): (&'static Elementwise, &[f64]) = match (log_input, full) {
            (true, false) => (&POISSON_LOG, &[]),
            (true, true) => (&POISSON_LOG_FULL, &[]),
            (false, false) => (&POISSON, &[eps]),
            (false, true) => (&POISSON_FULL, &[eps]),
        };
        pointwise(op, self, target, numbers, reduction)
    }

    /// Negative log-likelihood of `target` under normal distributions with means `self` and variances `var`, combined
    /// as `reduction` says: `(ln v + (x - t)^2 / v) / 2` with `v = max(var, eps)`. `full` adds `ln(2 pi) / 2`.
    ///
    /// `target` must have the shape of `self`. So must `var`, unless it has one value for each row: its last axis is
    /// then 1 or absent. Where the bound `eps` (above 0) holds, the variance has no slope; a negative variance yields
    /// NaN.
    #[track_caller]
    pub fn gaussian_nll_loss(
        &self,
        target: &Tensor,
        var: &Tensor,
        full: bool,
        eps: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        const OP: &str = "gaussian_nll_loss";
        parameter(OP, "eps", eps, eps > 0.0 && eps.is_finite(), "finite and above 0")?;
        same_shape(OP, ("input", self), ("target", target))?;
        // With one value per row, the last axis of `var` is 1 or absent.
        let rows = self.rank().checked_sub(1).map(|last| &self.shape()[..last]);
        let mut var = Cow::Borrowed(var);
        if var.shape() != self.shape() && rows == Some(var.shape()) {
            var = Cow::Owned(var.unsqueeze(-1)?);
        }
        if var.shape() != self.shape() && rows.is_none_or(|rows| *var.shape() != [rows, &[1]].concat()) {
            let e = Error::shape(OP, "var has the shape of the input, whose last axis may be 1 or absent");
            return Err(var.describe(self.describe(e, "input"), "var"));
        }
        let constant = if full { 0.5 * std::f64::consts::TAU.ln() } else { 0.0 };
        let operands = [self.into(), target.into(), (&*var).into(), eps.into(), constant.into()];
        reduction.apply(&GAUSSIAN.apply(&operands)?)
    }
}
