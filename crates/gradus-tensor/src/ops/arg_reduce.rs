//! `argmax` and `argmin`: the index of the first extreme element; NaN counts as extreme. No gradient.
//!
//! `max_with_indices` and `min_with_indices` give the element too, and the gradient goes to it alone.

use gradus_backend::{ArgReduceOp, Axes, DType, Error, Result};

use super::{Spec, run_one};
use crate::Tensor;
use crate::autograd::{is_observed, ran};

impl Tensor {
    /// Index (i64) of the first largest element along an axis. The axis stays with size 1 if `keepdim`.
    #[track_caller]
    pub fn argmax(&self, axis: isize, keepdim: bool) -> Result<Tensor> {
        arg_reduce("argmax", ArgReduceOp::Max, self, axis, keepdim)
    }

    /// Index (i64) of the first smallest element along an axis. The axis stays with size 1 if `keepdim`.
    #[track_caller]
    pub fn argmin(&self, axis: isize, keepdim: bool) -> Result<Tensor> {
        arg_reduce("argmin", ArgReduceOp::Min, self, axis, keepdim)
    }

    /// Largest element along an axis, and its index (i64): the first of equal ones; the first NaN wins. The gradient goes
    /// to the element at the index, where [`max`](Tensor::max) splits it among equal ones.
    #[track_caller]
    pub fn max_with_indices(&self, axis: isize, keepdim: bool) -> Result<(Tensor, Tensor)> {
        picked(self, axis, arg_reduce("max_with_indices", ArgReduceOp::Max, self, axis, true)?, keepdim)
    }

    /// Smallest element along an axis, and its index (i64): the first of equal ones; the first NaN wins. The gradient goes
    /// to the element at the index, where [`min`](Tensor::min) splits it among equal ones.
    #[track_caller]
    pub fn min_with_indices(&self, axis: isize, keepdim: bool) -> Result<(Tensor, Tensor)> {
        picked(self, axis, arg_reduce("min_with_indices", ArgReduceOp::Min, self, axis, true)?, keepdim)
    }
}

#[track_caller]
fn picked(x: &Tensor, axis: isize, indices: Tensor, keepdim: bool) -> Result<(Tensor, Tensor)> {
    let values = x.gather(axis, &indices)?;
    if keepdim { Ok((values, indices)) } else { Ok((values.squeeze(axis)?, indices.squeeze(axis)?)) }
}

#[track_caller]
fn arg_reduce(name: &str, op: ArgReduceOp, x: &Tensor, axis: isize, keepdim: bool) -> Result<Tensor> {
    let like = x;
    let (x, axis) = &x.along(name, axis)?;
    let axis = *axis;
    let kept = x.layout().shape().reduced(Axes::one(axis), true);
    if x.shape()[axis] == 0 && kept.numel() > 0 {
        return Err(
            x.describe(Error::argument(name, format!("axis {axis} is empty: it has no extreme element")), "self")
        );
    }
    let spec = Spec { shape: kept, dtype: DType::I64 };
    let y = run_one(x.device(), &spec, &[x], |b, inputs, outs| b.arg_reduce(op, inputs[0], axis, &mut outs[0]))?;
    if is_observed() {
        ran(&format_args!("{name}"), &[x], std::slice::from_ref(&y), &|_| false)?;
    }
    if keepdim { y.back_to(like) } else { y.squeeze(axis as isize) }
}
