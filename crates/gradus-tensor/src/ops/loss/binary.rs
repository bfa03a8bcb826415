//! Losses for binary labels: `bce_with_logits`, `binary_cross_entropy`, `soft_margin_loss`.

use gradus_backend::{Expr, Result};

use super::{Reduction, fits, pointwise, same_shape};
use crate::Tensor;
use crate::ops::{Class, Elementwise, Operand};

/// Operands: logit, target, weight, weight of the positive class. This form never subtracts one large number from
/// another.
static WITH_LOGITS: Elementwise = Elementwise::new("bce_with_logits", Class::Float, 4, |v| {
    let (x, t) = (v[0], v[1]);
    vec![v[2] * (v[3] * t * (-x).softplus() + (1.0 - t) * x.softplus())]
});

/// Operands: probability, target, weight.
static OF_PROBABILITIES: Elementwise = Elementwise::new("binary_cross_entropy", Class::Float, 3, |v| {
    let (p, t) = (v[0], v[1]);
    vec![-(v[2] * (t * bounded_log(p) + (1.0 - t) * bounded_log_of_rest(p)))]
});

static SOFT_MARGIN: Elementwise =
    Elementwise::new("soft_margin_loss", Class::Float, 2, |v| vec![(-(v[0] * v[1])).softplus()]);

/// `max(ln p, -100)`. Where the bound applies, the slope is exactly 0 rather than 0 / 0.
fn bounded_log<'k>(p: Expr<'k>) -> Expr<'k> {
    let below = p.log().lt(-100.0);
    below.select(-100.0, below.select(1.0, p).log())
}

/// `max(ln(1 - p), -100)`, accurate for small p. The bound applies only at 1, since no other float is close enough to
/// 1.
fn bounded_log_of_rest<'k>(p: Expr<'k>) -> Expr<'k> {
    let one = p.eq(1.0);
    one.select(-100.0, one.select(0.0, -p).log1p())
}

impl Tensor {
    /// Binary cross-entropy of the logits `self` and the probabilities `target`, which have the same shape:
    /// `weight * (pos_weight * t * ln(1 + e^-x) + (1 - t) * ln(1 + e^x))`, computed without overflow and combined as
    /// `reduction` says.
    ///
    /// `weight` and `pos_weight` broadcast to the shape of the logits and are 1 if absent. The mean divides by the
    /// number of elements.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let logits = Tensor::from_vec([0.0f32, 100.0], [2], &device)?;
    /// let target = Tensor::from_vec([1.0f32, 1.0], [2], &device)?;
    /// let losses = logits.bce_with_logits(&target, None, None, Reduction::None)?.to_vec::<f32>()?;
    /// assert!((losses[0] - 2f32.ln()).abs() < 1e-6 && losses[1] < 1e-40);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn bce_with_logits(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        pos_weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        same_shape("bce_with_logits", ("logits", self), ("target", target))?;
        let operands = [self.into(), target.into(), self.weight_or_one(&WITH_LOGITS, "weight", weight)?];
        let positive = self.weight_or_one(&WITH_LOGITS, "pos_weight", pos_weight)?;
        reduction.apply(&WITH_LOGITS.apply(&[operands[0], operands[1], operands[2], positive])?)
    }

    /// Binary cross-entropy of the probabilities `self` and `target`, which have the same shape:
    /// `-weight * (t ln p + (1 - t) ln(1 - p))`, combined as `reduction` says. Each logarithm is at least -100, and has
    /// slope 0 where that bound holds; a probability outside 0 to 1 yields NaN. `weight` broadcasts to the shape of
    /// `self`.
    ///
    /// For logits use [`bce_with_logits`](Tensor::bce_with_logits), which is accurate where a sigmoid saturates.
    #[track_caller]
    pub fn binary_cross_entropy(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        same_shape("binary_cross_entropy", ("input", self), ("target", target))?;
        let weight = self.weight_or_one(&OF_PROBABILITIES, "weight", weight)?;
        reduction.apply(&OF_PROBABILITIES.apply(&[self.into(), target.into(), weight])?)
    }

    /// `ln(1 + e^(-target * self))` for targets 1 and -1, combined as `reduction` says. The shapes must be equal.
    #[track_caller]
    pub fn soft_margin_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        pointwise(&SOFT_MARGIN, self, target, &[], reduction)
    }

    /// The weight, checked to broadcast to this shape, or 1 if there is none.
    #[track_caller]
    fn weight_or_one<'a>(&self, op: &Elementwise, name: &str, weight: Option<&'a Tensor>) -> Result<Operand<'a>> {
        match weight {
            None => Ok(1.0.into()),
            Some(w) => fits(op.name(), (name, w), self).map(|()| w.into()),
        }
    }
}
