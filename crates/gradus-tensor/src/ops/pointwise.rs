//! Elementwise operations with more than a formula: defaults that depend on the dtype, a weight with an axis of its own,
//! halves of an axis.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{DType, Error, Result};

use super::elementwise::{Class, Elementwise};
use super::operand::{AsOperand, Operand};
use crate::Tensor;

/// Of (start, end, weight), from the nearer end, so that weights 0 and 1 give the ends exactly.
static LERP: Elementwise = Elementwise::new("lerp", Class::Float, 3, |x| {
    let way = x[1] - x[0];
    vec![x[2].abs().lt(0.5).select(x[0] + x[2] * way, x[1] - way * (1.0 - x[2]))]
});

/// Of (x, scale, x without its gradient): rounded to multiples of `1 / scale`. What is too large for a fraction stays.
static ROUND_FINE: Elementwise = Elementwise::new("round_decimals", Class::Float, 3, |x| {
    let scaled = x[0] * x[1];
    vec![scaled.isfinite().select(scaled.round() / x[1], x[2])]
});

/// Of (x, scale, x without its gradient): rounded to multiples of `scale`.
static ROUND_COARSE: Elementwise = Elementwise::new("round_decimals", Class::Float, 3, |x| {
    // With a scale beyond the dtype's range every number rounds to 0.
    let nothing = x[2].isfinite().select(x[2] * 0.0, x[2]);
    vec![x[1].isfinite().select((x[0] / x[1]).round() * x[1], nothing)]
});

/// Of (x, for NaN, for inf, for -inf).
static NAN_TO_NUM: Elementwise = Elementwise::new("nan_to_num", Class::Float, 4, |x| {
    let ends = x[0].eq(f64::INFINITY).select(x[2], x[0].eq(f64::NEG_INFINITY).select(x[3], x[0]));
    vec![x[0].isnan().select(x[1], ends)]
});

/// Of (x, weight). The branch of the weight reads 0 above 0, so that an infinite x leaves no NaN in its gradient.
static PRELU: Elementwise = Elementwise::new("prelu", Class::Float, 2, |x| {
    let above = x[0].gt(0.0);
    vec![above.select(x[0], above.select(0.0, x[0]) * x[1])]
});

impl Tensor {
    /// `self + weight (end - self)`: from this tensor, at weight 0, to `end`, at weight 1. All three broadcast.
    #[track_caller]
    pub fn lerp(&self, end: impl AsOperand, weight: impl AsOperand) -> Result<Tensor> {
        LERP.apply(&[Operand::Tensor(self), end.as_operand()?, weight.as_operand()?])
    }

    /// Rounded to `decimals` places after the point, ties to even; negative ones round to tens, hundreds and so on. Float
    /// dtypes; integers become f32. The gradient is 0.
    #[track_caller]
    pub fn round_decimals(&self, decimals: i32) -> Result<Tensor> {
        if decimals.unsigned_abs() > 300 {
            let e = Error::argument("round_decimals", format!("{decimals} decimals; f64 has at most 300 either way"));
            return Err(self.describe(e, "self"));
        }
        let scale = 10f64.powi(decimals.abs());
        let op = if decimals >= 0 { &ROUND_FINE } else { &ROUND_COARSE };
        op.apply(&[Operand::Tensor(self), scale.into(), Operand::Tensor(&self.detach())])
    }

    /// NaN replaced by `nan`, +inf by `posinf` and -inf by `neginf`, which default to the largest and lowest finite numbers
    /// of the dtype. Integers stay as they are. Replaced elements have gradient 0.
    #[track_caller]
    pub fn nan_to_num(&self, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> Result<Tensor> {
        let largest = match self.dtype() {
            DType::F64 => f64::MAX,
            DType::F32 => f64::from(f32::MAX),
            DType::F16 => gradus_backend::f16::MAX.to_f64(),
            DType::BF16 => gradus_backend::bf16::MAX.to_f64(),
            _ => return self.copy(),
        };
        let (hi, lo) = (posinf.unwrap_or(largest), neginf.unwrap_or(-largest));
        NAN_TO_NUM.apply(&[Operand::Tensor(self), nan.into(), hi.into(), lo.into()])
    }

    /// `x` above 0, else `weight * x`, with one weight for all, or one for each index of axis 1 (axis 0 of a vector). The
    /// slope at 0 is the weight.
    #[track_caller]
    pub fn prelu(&self, weight: &Tensor) -> Result<Tensor> {
        let axis = usize::from(self.rank() > 1);
        let channels = self.shape().get(axis).copied().unwrap_or(1);
        if weight.rank() > 1 || (weight.numel() != 1 && weight.numel() != channels) {
            let e =
                Error::shape("prelu", format!("the weight has one element, or {channels}: the size of axis {axis}"));
            return Err(weight.describe(self.describe(e, "self"), "weight"));
        }
        let mut dims = vec![1; self.rank()];
        if let Some(d) = dims.get_mut(axis) {
            *d = weight.numel();
        }
        PRELU.apply(&[Operand::Tensor(self), Operand::Tensor(&weight.reshape(dims)?)])
    }

    /// The first half of an axis times the sigmoid of the second half. Errors if the size is odd.
    #[track_caller]
    pub fn glu(&self, axis: isize) -> Result<Tensor> {
        let at = resolve_axis("glu", axis, self.rank())?;
        let size = self.shape()[at];
        if size % 2 == 1 {
            let e = Error::shape("glu", format!("axis {at} of size {size} has no two equal halves"));
            return Err(self.describe(e, "self"));
        }
        self.narrow(axis, size / 2, size / 2)?.sigmoid_mul(&self.narrow(axis, 0, size / 2)?)
    }

    /// `softmax(-x)` along an axis: the smallest element weighs most. Integers become f32.
    #[track_caller]
    pub fn softmin(&self, axis: isize) -> Result<Tensor> {
        self.to_dtype(self.dtype().to_float())?.neg()?.softmax(axis)
    }
}
