//! Losses of regression: `mse_loss`, `l1_loss`, `smooth_l1_loss`, `huber_loss`.

use gradus_backend::{DType, Expr, Result};

use super::{Reduction, parameter, pointwise};
use crate::Tensor;
use crate::ops::operand_rules::common_dtype;
use crate::ops::{Class, Elementwise};

static MSE: Elementwise = Elementwise::new("mse_loss", Class::Number, 2, |v| vec![(v[0] - v[1]).square()]);

static L1: Elementwise = Elementwise::new("l1_loss", Class::Number, 2, |v| vec![(v[0] - v[1]).abs()]);

/// Of (input, target, delta): `d^2 / 2` within `delta`, `delta (|d| - delta / 2)` outside.
static HUBER: Elementwise = Elementwise::new("huber_loss", Class::Float, 3, |v| {
    let Parts { inner, outer, bound, outside } = parts(v[0] - v[1], v[2]);
    vec![outside.select(bound * (outer - bound * 0.5), inner.square() * 0.5)]
});

/// Of (input, target, beta): `d^2 / (2 beta)` within `beta`, `|d| - beta / 2` outside.
static SMOOTH_L1: Elementwise = Elementwise::new("smooth_l1_loss", Class::Float, 3, |v| {
    let Parts { inner, outer, bound, outside } = parts(v[0] - v[1], v[2]);
    // Divided first: the square may be too small or too large where the quotient is neither.
    vec![outside.select(outer - bound * 0.5, inner / v[2] * inner * 0.5)]
});

/// A difference split into the part within a bound and the part outside, each 0 where the other applies, so that an
/// infinite difference or bound spoils neither value nor slope. The inner part has no `|d|`, so that the second
/// derivative at 0 exists.
struct Parts<'k> {
    inner: Expr<'k>,
    outer: Expr<'k>,
    bound: Expr<'k>,
    outside: Expr<'k>,
}

fn parts<'k>(d: Expr<'k>, bound: Expr<'k>) -> Parts<'k> {
    let outside = d.abs().gt(bound);
    Parts {
        inner: outside.select(0.0, d),
        outer: outside.select(d.abs(), 0.0),
        bound: outside.select(bound, 0.0),
        outside,
    }
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
    /// [`l1_loss`](Tensor::l1_loss) in floats. Shapes are equal, `beta` is finite and not negative. Both sides have one
    /// slope where they meet; the second derivative there is that of the inside.
    #[track_caller]
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f64, reduction: Reduction) -> Result<Tensor> {
        parameter("smooth_l1_loss", "beta", beta, beta >= 0.0 && beta.is_finite(), "finite and at least 0")?;
        let dtype = common_dtype("smooth_l1_loss", &[self, target], &["input", "target"])?.to_float().compute();
        // Not divided by a number that is 0 in the compute dtype.
        if beta == 0.0 || (dtype == DType::F32 && beta as f32 == 0.0) {
            return self.to_dtype(self.dtype().to_float())?.l1_loss(target, reduction);
        }
        pointwise(&SMOOTH_L1, self, target, &[beta], reduction)
    }

    /// With `d = self - target`: `d^2 / 2` for `|d| <= delta`, else `delta (|d| - delta / 2)` (Huber, 1964), combined.
    /// Shapes are equal, `delta` is finite and above 0. Both sides have one slope where they meet; the second derivative
    /// there is that of the inside.
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
        parameter("huber_loss", "delta", delta, delta > 0.0 && delta.is_finite(), "finite and above 0")?;
        pointwise(&HUBER, self, target, &[delta], reduction)
    }
}
