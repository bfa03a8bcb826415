//! Elementwise operations that need more than a formula: defaults that depend on the dtype, a weight with its own axis,
//! or the two halves of an axis.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{DType, Error, Result};

use super::elementwise::{Class, Elementwise};
use super::operand::{AsOperand, Operand};
use crate::Tensor;

/// Operands: start, end, weight. Computed from the nearer end, so that weights 0 and 1 return the ends exactly.
static LERP: Elementwise = Elementwise::new("lerp", Class::Float, 3, |x| {
    let way = x[1] - x[0];
    vec![x[2].abs().lt(0.5).select(x[0] + x[2] * way, x[1] - way * (1.0 - x[2]))]
});

/// Operands: x, scale, x without its gradient. Rounds x to multiples of `1 / scale`. Numbers whose scaled value
/// overflows are too large to have a fraction and stay as they are.
static ROUND_FINE: Elementwise = Elementwise::new("round_decimals", Class::Float, 3, |x| {
    let scaled = x[0] * x[1];
    vec![scaled.isfinite().select(scaled.round() / x[1], x[2])]
});

/// Operands: x, scale, x without its gradient. Rounds x to multiples of `scale`.
static ROUND_COARSE: Elementwise = Elementwise::new("round_decimals", Class::Float, 3, |x| {
    // If the scale is beyond the dtype's range, every finite number rounds to 0.
    let nothing = x[2].isfinite().select(x[2] * 0.0, x[2]);
    vec![x[1].isfinite().select((x[0] / x[1]).round() * x[1], nothing)]
});

/// Operands: x, and the replacements of NaN, inf and -inf.
static NAN_TO_NUM: Elementwise = Elementwise::new("nan_to_num", Class::Float, 4, |x| {
    let ends = x[0].eq(f64::INFINITY).select(x[2], x[0].eq(f64::NEG_INFINITY).select(x[3], x[0]));
    vec![x[0].isnan().select(x[1], ends)]
});

/// Operands: x, weight. Above 0, the branch with the weight reads 0 instead of x, so that an infinite x leaves no NaN
/// in the gradient.
static PRELU: Elementwise = Elementwise::new("prelu", Class::Float, 2, |x| {
    let above = x[0].gt(0.0);
    vec![above.select(x[0], above.select(0.0, x[0]) * x[1])]
});

impl Tensor {
    /// `self + weight (end - self)`: this tensor at weight 0, and `end` at weight 1. All three broadcast.
    #[track_caller]
    pub fn lerp(&self, end: impl AsOperand, weight: impl AsOperand) -> Result<Tensor> {
        LERP.apply(&[Operand::Tensor(self), end.as_operand()?, weight.as_operand()?])
    }

    /// Rounds to `decimals` places after the decimal point, ties to even. Negative numbers round to tens, hundreds and
    /// so on. Integers become f32. The gradient is 0.
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

    /// Replaces NaN with `nan`, +inf with `posinf` and -inf with `neginf`. The latter two default to the largest and
    /// lowest finite numbers of the dtype. Integers stay as they are. Replaced elements have gradient 0.
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

    /// `x` above 0, and `weight * x` elsewhere. There is one weight for all elements, or one for each index of axis 1
    /// (axis 0 of a vector). The slope at 0 is the weight.
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

    /// The first half of an axis times the sigmoid of the second half. Fails if the size is odd.
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

    /// `softmax(-x)` along an axis, which gives the smallest element the largest weight. Integers become f32.
    #[track_caller]
    pub fn softmin(&self, axis: isize) -> Result<Tensor> {
        self.to_dtype(self.dtype().to_float())?.neg()?.softmax(axis)
    }
}
