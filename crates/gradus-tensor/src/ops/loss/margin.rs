//! Losses with a margin: ranking, hinge, cosine and triplet losses of embeddings.

use gradus_backend::{Error, Expr, Result};

use super::{Reduction, parameter, pointwise, same_shape};
use crate::Tensor;
use crate::ops::norm::{inverse_root, root, root_of_powers};
use crate::ops::operand_rules::common_dtype;
use crate::ops::{Class, Elementwise};

/// Operands: first, second, target (1 if the first is to be larger, -1 if the second is), margin.
static RANKING: Elementwise =
    Elementwise::new("margin_ranking_loss", Class::Float, 4, |v| vec![hinge(v[3] - v[2] * (v[0] - v[1]))]);

/// Operands: distance, target (1 for similar, -1 for dissimilar), margin.
static HINGE_EMBEDDING: Elementwise = Elementwise::new("hinge_embedding_loss", Class::Float, 3, |v| {
    let (x, y) = (v[0], v[1]);
    vec![y.eq(-1.0).select(0.0, x) + y.eq(1.0).select(0.0, hinge(v[2] - x))]
});

/// Operands: cosine, target (1 for similar, -1 for dissimilar), margin.
static COSINE: Elementwise = Elementwise::new("cosine_embedding_loss", Class::Float, 3, |v| {
    let (cos, y) = (v[0], v[1]);
    vec![y.eq(1.0).select(1.0 - cos, y.eq(-1.0).select(hinge(cos - v[2]), 0.0))]
});

/// Operands: distance to the positive, distance to the negative, margin.
static TRIPLET: Elementwise =
    Elementwise::new("triplet_margin_loss", Class::Float, 3, |v| vec![hinge(v[0] - v[1] + v[2])]);

/// `max(x, 0)` with slope 1 at 0. NaN stays NaN.
fn hinge<'k>(x: Expr<'k>) -> Expr<'k> {
    x.lt(0.0).select(0.0, x)
}

impl Tensor {
    /// `max(0, margin - target * (self - other))`, combined as `reduction` says. The target is 1 if `self` is to rank
    /// higher, and -1 otherwise. The three shapes must be equal. Exactly at the margin, the slope is the same as for a
    /// violated margin.
    #[track_caller]
    pub fn margin_ranking_loss(
        &self,
        other: &Tensor,
        target: &Tensor,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        parameter(RANKING.name(), "margin", margin, margin.is_finite(), "finite")?;
        same_shape(RANKING.name(), ("input", self), ("other", other))?;
        same_shape(RANKING.name(), ("input", self), ("target", target))?;
        reduction.apply(&RANKING.apply(&[self.into(), other.into(), target.into(), margin.into()])?)
    }

    /// The distance `self` where the target is 1, and `max(0, margin - self)` where it is -1, combined as `reduction`
    /// says. The shapes must be equal. Exactly at the margin, the slope is -1.
    #[track_caller]
    pub fn hinge_embedding_loss(&self, target: &Tensor, margin: f64, reduction: Reduction) -> Result<Tensor> {
        parameter(HINGE_EMBEDDING.name(), "margin", margin, margin.is_finite(), "finite")?;
        pointwise(&HINGE_EMBEDDING, self, target, &[margin], reduction)
    }

    /// `1 - cos` where the target is 1, `max(0, cos - margin)` where it is -1, and 0 for other targets, combined as
    /// `reduction` says. `cos` is the cosine of the angle between the rows of `self` and `other`. These are `[n, d]`
    /// with `target [n]`, or `[d]` with a scalar target. Exactly at the margin, the slope is the same as for a violated
    /// margin.
    #[track_caller]
    pub fn cosine_embedding_loss(
        &self,
        other: &Tensor,
        target: &Tensor,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let op = COSINE.name();
        parameter(op, "margin", margin, margin.is_finite(), "finite")?;
        same_shape(op, ("input", self), ("other", other))?;
        if !(1..=2).contains(&self.rank()) || target.shape() != &self.shape()[..self.rank() - 1] {
            let e = Error::shape(op, "rows are [n, d] and targets [n], or [d] and []");
            return Err(target.describe(self.describe(e, "input"), "target"));
        }
        let dtype = common_dtype(op, &[self, other, target], &["input", "other", "target"])?.to_float();
        let (x, y) = (self.to_dtype(dtype.compute())?, other.to_dtype(dtype.compute())?);
        // Multiplies by one inverse length after the other, because the product of the lengths may overflow even if the
        // cosine is small.
        let cos = x.mul(&y)?.sum(&[-1], false)?.mul(&inverse_length(&x)?)?.mul(&inverse_length(&y)?)?;
        reduction.apply(&COSINE.apply(&[(&cos).into(), target.into(), margin.into()])?.to_dtype(dtype)?)
    }

    /// `max(0, d(a, positive) - d(a, negative) + margin)` for anchors `a`, combined as `reduction` says. Here
    /// `d(x, y) = |x - y + 1e-6|_p` along the last axis. The three shapes `[.., d]` must be equal.
    ///
    /// With `swap`, `d(positive, negative)` replaces `d(a, negative)` wherever it is smaller (Balntas et al., 2016).
    /// `p` must be above 0 and may be infinite; `margin` must be above 0. Exactly at the margin, the slope is the same
    /// as for a violated margin.
    #[track_caller]
    pub fn triplet_margin_loss(
        &self,
        positive: &Tensor,
        negative: &Tensor,
        margin: f64,
        p: f64,
        swap: bool,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let op = TRIPLET.name();
        parameter(op, "margin", margin, margin > 0.0 && margin.is_finite(), "finite and above 0")?;
        parameter(op, "p", p, p > 0.0, "above 0")?;
        same_shape(op, ("anchor", self), ("positive", positive))?;
        same_shape(op, ("anchor", self), ("negative", negative))?;
        if self.rank() == 0 {
            return Err(self.describe(Error::shape(op, "the operands are [.., d]"), "anchor"));
        }
        let names = ["anchor", "positive", "negative"];
        let dtype = common_dtype(op, &[self, positive, negative], &names)?.to_float();
        let wide = dtype.compute();
        let (anchor, positive, negative) = (self.to_dtype(wide)?, positive.to_dtype(wide)?, negative.to_dtype(wide)?);
        let near = distance(&anchor, &positive, p)?;
        let mut far = distance(&anchor, &negative, p)?;
        if swap {
            far = far.minimum(&distance(&positive, &negative, p)?)?;
        }
        let losses = TRIPLET.apply(&[(&near).into(), (&far).into(), margin.into()])?;
        reduction.apply(&losses.to_dtype(dtype)?)
    }
}

/// The reciprocal of the length of each row.
#[track_caller]
fn inverse_length(x: &Tensor) -> Result<Tensor> {
    inverse_root(&x.square()?.sum(&[-1], false)?, 1e-12)
}

/// The p-norm of `x - y + 1e-6` along the last axis.
#[track_caller]
fn distance(x: &Tensor, y: &Tensor, p: f64) -> Result<Tensor> {
    let d = x.sub(y)?.add(1e-6)?;
    // An empty row has length 0 in every norm, but no largest element.
    if p == 1.0 || d.shape().last() == Some(&0) {
        d.abs()?.sum(&[-1], false)
    } else if p == 2.0 {
        root(&d.square()?.sum(&[-1], false)?)
    } else if p == f64::INFINITY {
        d.abs()?.max(&[-1], false)
    } else {
        root_of_powers(&d.abs()?.pow(p)?.sum(&[-1], false)?, p)
    }
}
