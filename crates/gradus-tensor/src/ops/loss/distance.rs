//! Regression losses: `mse_loss`, `l1_loss`, `smooth_l1_loss`, `huber_loss`.

use gradus_backend::{DType, Expr, Result};

use super::{Reduction, parameter, pointwise};
use crate::Tensor;
use crate::ops::operand_rules::common_dtype;
use crate::ops::{Class, Elementwise};

static MSE: Elementwise = Elementwise::new("mse_loss", Class::Number, 2, |v| vec![(v[0] - v[1]).square()]);

static L1: Elementwise = Elementwise::new("l1_loss", Class::Number, 2, |v| vec![(v[0] - v[1]).abs()]);

/// Operands: input, target, delta. `d^2 / 2` within `delta`, and `delta (|d| - delta / 2)` outside.
static HUBER: Elementwise = Elementwise::new("huber_loss", Class::Float, 3, |v| {
    let Parts { inner, outer, bound, outside } = parts(v[0] - v[1], v[2]);
    vec![outside.select(bound * (outer - bound * 0.5), inner.square() * 0.5)]
});

/// Operands: input, target, beta. `d^2 / (2 beta)` within `beta`, and `|d| - beta / 2` outside.
static SMOOTH_L1: Elementwise = Elementwise::new("smooth_l1_loss", Class::Float, 3, |v| {
    let Parts { inner, outer, bound, outside } = parts(v[0] - v[1], v[2]);
    // The division comes first, since the square may overflow or underflow where the quotient does not.
    vec![outside.select(outer - bound * 0.5, inner / v[2] * inner * 0.5)]
});

/// A difference split into the part within a bound and the part outside it. Each part is 0 where the other applies, so
/// that an infinite difference or bound spoils neither the value nor the slope. The inner part does not use `|d|`, so
/// that the second derivative exists at 0.
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
    /// `(self - target)^2`, combined as `reduction` says. The shapes must be equal: nothing is broadcast.
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        pointwise(&MSE, self, target, &[], reduction)
    }

    /// `|self - target|`, combined as `reduction` says; the slope at 0 is 0. The shapes must be equal.
    #[track_caller]
    pub fn l1_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        pointwise(&L1, self, target, &[], reduction)
    }

    /// With `d = self - target`: `d^2 / (2 beta)` for `|d| <= beta` and `|d| - beta / 2` otherwise, combined as
    /// `reduction` says. With `beta` 0 this is [`l1_loss`](Tensor::l1_loss) in floats. The shapes must be equal; `beta`
    /// must be finite and not negative. Both pieces have the same slope where they meet; the second derivative there is
    /// that of the inner piece.
    #[track_caller]
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f64, reduction: Reduction) -> Result<Tensor> {
        parameter("smooth_l1_loss", "beta", beta, beta >= 0.0 && beta.is_finite(), "finite and at least 0")?;
        let dtype = common_dtype("smooth_l1_loss", &[self, target], &["input", "target"])?.to_float().compute();
        // Avoids a division by a number that is 0 in the compute dtype.
        if beta == 0.0 || (dtype == DType::F32 && beta as f32 == 0.0) {
            return self.to_dtype(self.dtype().to_float())?.l1_loss(target, reduction);
        }
        pointwise(&SMOOTH_L1, self, target, &[beta], reduction)
    }

    /// With `d = self - target`: `d^2 / 2` for `|d| <= delta` and `delta (|d| - delta / 2)` otherwise (Huber, 1964),
    /// combined as `reduction` says. The shapes must be equal; `delta` must be finite and above 0. Both pieces have the
    /// same slope where they meet; the second derivative there is that of the inner piece.
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
        parameter("huber_loss", "delta", delta, delta > 0.0 && delta.is_finite(), "finite and above 0")?;
        pointwise(&HUBER, self, target, &[delta], reduction)
    }
}
