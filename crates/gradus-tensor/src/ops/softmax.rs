//! `softmax(x) = e^(x - max) / sum e^(x - max)` along an axis, its logarithm, and its masked form.
//!
//! Gradients: `y * (g - sum(g * y))` for the softmax, and `g - e^y * sum(g)` for its logarithm.

use gradus_backend::{Backend, DType, Error, ErrorKind, Here, Result, View, ViewMut};

use super::autocast::computed;
use super::operand_rules::{axis_of, cast};
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// Softmax or log-softmax along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Softmax {
    /// Whether to compute the logarithm.
    pub log: bool,
    /// The axis.
    pub axis: usize,
}

impl Operation for Softmax {
    fn name(&self) -> &str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(*inputs[0].shape, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.softmax(self.log, inputs[0], self.axis, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE.and_outputs([0])
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let y = ctx.output(0)?;
        let axis = [self.axis as isize];
        let dx = if !ctx.create_graph() {
            apply_one(SoftmaxBackward { log: self.log, axis: self.axis }, &[&y, g])?
        } else {
            // Half precision is rounded only once, as in the fused gradient.
            let dtype = y.dtype();
            let (y, g) = (y.to_dtype(dtype.compute())?, g.to_dtype(dtype.compute())?);
            let dx = if self.log {
                g.sub(&y.exp()?.mul(&g.sum(&axis, true)?)?)?
            } else {
                y.mul(&g.sub(&g.mul(&y)?.sum(&axis, true)?)?)?
            };
            dx.to_dtype(dtype)?
        };
        Ok(grads([Some(dx)]))
    }
}

/// The fused gradient of [`Softmax`]. Inputs: its output, and the gradient of that output.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SoftmaxBackward {
    /// Whether it is the gradient of the log-softmax.
    pub log: bool,
    /// The axis.
    pub axis: usize,
}

impl Operation for SoftmaxBackward {
    fn name(&self) -> &str {
        if self.log { "log_softmax_backward" } else { "softmax_backward" }
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(*inputs[0].shape, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.softmax_backward(self.log, inputs[0], inputs[1], self.axis, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

impl Tensor {
    /// `e^x / sum(e^x)` along an axis, with the largest element subtracted first to avoid overflow. Integers become
    /// f32. A row of -inf yields NaN.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Result<Tensor> {
        let (x, axis) = self.along("softmax", axis)?;
        apply_one(Softmax { log: false, axis }, &[&*cast(&x, computed("softmax", x.dtype().to_float()))?])?
            .back_to(self)
    }

    /// `x - ln(sum(e^x))` along an axis, computed without overflow. Integers become f32.
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Result<Tensor> {
        let (x, axis) = self.along("log_softmax", axis)?;
        apply_one(Softmax { log: true, axis }, &[&*cast(&x, computed("log_softmax", x.dtype().to_float()))?])?
            .back_to(self)
    }

    /// Softmax along an axis over the elements where `mask` (bool, broadcast) is true. All other elements become 0, as
    /// do elements of -inf. A row in which nothing else is left becomes 0 and has gradient 0. Integers become f32.
    #[track_caller]
    pub fn masked_softmax(&self, mask: &Tensor, axis: isize) -> Result<Tensor> {
        const OP: &str = "masked_softmax";
        let axis = axis_of(OP, axis, self.rank())? as isize;
        let fail = |e: Error| Err(mask.describe(self.describe(e, "self"), "mask"));
        if mask.dtype() != DType::Bool {
            return fail(Error::dtype(OP, mask.dtype(), "a bool mask")).here();
        }
        if mask.layout().expand(*self.layout().shape()).is_err() {
            return fail(Error::new(ErrorKind::Broadcast, OP, "the mask does not stretch to the shape of the input"))
                .here();
        }
        let x = self.to_dtype(self.dtype().to_float())?;
        let keep = x.ne(f64::NEG_INFINITY)?.logical_and(mask)?;
        let (safe, _) = without_empty_rows(&x, &keep, axis)?;
        keep.where_(&safe.softmax(axis)?, 0.0)
    }
}

/// `x` with -inf where `keep` is false, but with zeros in each row along `axis` that keeps no element. Also returns
/// whether each row keeps an element.
#[track_caller]
pub(super) fn without_empty_rows(x: &Tensor, keep: &Tensor, axis: isize) -> Result<(Tensor, Tensor)> {
    let any = keep.any(&[axis], true)?;
    let zeros = x.detach().zeros_like()?;
    let fill = any.where_(f64::NEG_INFINITY, &zeros)?;
    Ok((keep.where_(x, &fill)?, any))
}
