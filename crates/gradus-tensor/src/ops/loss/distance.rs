//! Losses of regression: `mse_loss`, `l1_loss`, `smooth_l1_loss`, `huber_loss`.

use gradus_backend::{Expr, Result};

use super::{Reduction, parameter, pointwise};
use crate::Tensor;
use crate::ops::{Class, Elementwise};

static MSE: Elementwise = Elementwise::new("mse_loss", Class::Number, 2, |v| vec![(v[0] - v[1]).square()]);

static L1: Elementwise = Elementwise::new("l1_loss", Class::Number, 2, |v| vec![(v[0] - v[1]).abs()]);

/// Of (input, target, delta).
static HUBER: Elementwise = Elementwise::new("huber_loss", Class::Float, 3, |v| vec![huber(v[0] - v[1], v[2])]);

/// Of (input, target, beta).
static SMOOTH_L1: Elementwise =
    Elementwise::new("smooth_l1_loss", Class::Float, 3, |v| vec![huber(v[0] - v[1], v[2]) / v[2]]);

/// `d^2 / 2` within `delta`, `delta (|d| - delta / 2)` outside.
///
/// Nothing grows as d^2 outside, so that an infinite d has a finite slope; and the inside has no `|d|`, so that the second
/// derivative at 0 is 1.
fn huber<'k>(d: Expr<'k>, delta: Expr<'k>) -> Expr<'k> {
    let inner = d.max(-delta).min(delta);
    inner.square() * 0.5 + delta * (d.abs() - inner.abs())
}

impl Tensor {
    /// `(self - target)^2`, combined. Shapes are equal: nothing is broadcast.
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        pointwise(&MSE, self, target, &[], reduction)
    }

    /// `|self - target|`, combined; the slope at 0 is 0. Shapes are equal.
    #[track_caller]
    pub fn l1_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        pointwise(&L1, self, target, &[], reduction)
    }

    /// With `d = self - target`: `d^2 / (2 beta)` for `|d| < beta`, else `|d| - beta / 2`, combined; `beta` 0 is
    /// [`l1_loss`](Tensor::l1_loss) in floats. Shapes are equal, `beta` is finite and not negative.
    #[track_caller]
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f64, reduction: Reduction) -> Result<Tensor> {
        parameter("smooth_l1_loss", "beta", beta, beta >= 0.0 && beta.is_finite(), "finite and at least 0")?;
        if beta == 0.0 {
            return self.to_dtype(self.dtype().to_float())?.l1_loss(target, reduction);
        }
        pointwise(&SMOOTH_L1, self, target, &[beta], reduction)
    }

    /// With `d = self - target`: `d^2 / 2` for `|d| <= delta`, else `delta (|d| - delta / 2)` (Huber, 1964), combined.
    /// Shapes are equal, `delta` is finite and above 0.
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
        parameter("huber_loss", "delta", delta, delta > 0.0 && delta.is_finite(), "finite and above 0")?;
        pointwise(&HUBER, self, target, &[delta], reduction)
    }
}
