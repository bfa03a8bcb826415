//! `argmax` and `argmin`: the index of the first extreme element; NaN counts as extreme. No gradient.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{ArgReduceOp, Axes, DType, Error, Result};

use super::{Spec, run_one};
use crate::Tensor;

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
}

fn arg_reduce(name: &str, op: ArgReduceOp, x: &Tensor, axis: isize, keepdim: bool) -> Result<Tensor> {
    let axis = resolve_axis(name, axis, x.rank())?;
    let kept = x.layout().shape().reduced(Axes::one(axis), true);
    if x.shape()[axis] == 0 && kept.numel() > 0 {
        return Err(
            x.describe(Error::argument(name, format!("axis {axis} is empty: it has no extreme element")), "self")
        );
    }
    let spec = Spec { shape: kept, dtype: DType::I64 };
    let y = run_one(x.device(), &spec, &[x], |b, inputs, outs| b.arg_reduce(op, inputs[0], axis, &mut outs[0]))?;
    if keepdim { Ok(y) } else { y.squeeze(axis as isize) }
}
