//! `argmax` and `argmin`: the index of the first largest or smallest element. NaN counts as the largest and as the
//! smallest. They have no gradient.
//!
//! `max_with_indices` and `min_with_indices` also return the element, and the gradient goes to that element alone.

use gradus_backend::{ArgReduceOp, Axes, Backend, DType, Error, Result, View, ViewMut};

use super::{Flow, InputSpec, Operation, Outputs, apply_one, one};
use crate::Tensor;

impl Tensor {
    /// Index (i64) of the first largest element along an axis. With `keepdim` the axis is kept with size 1.
    #[track_caller]
    pub fn argmax(&self, axis: isize, keepdim: bool) -> Result<Tensor> {
        arg_reduce("argmax", ArgReduceOp::Max, self, axis, keepdim)
    }

    /// Index (i64) of the first smallest element along an axis. With `keepdim` the axis is kept with size 1.
    #[track_caller]
    pub fn argmin(&self, axis: isize, keepdim: bool) -> Result<Tensor> {
        arg_reduce("argmin", ArgReduceOp::Min, self, axis, keepdim)
    }

    /// The largest element along an axis and its index (i64). The first of several equal elements is chosen; if there
    /// is a NaN, the first NaN. The gradient goes to the element at the index, whereas [`max`](Tensor::max) splits it
    /// among equal elements.
    #[track_caller]
    pub fn max_with_indices(&self, axis: isize, keepdim: bool) -> Result<(Tensor, Tensor)> {
        picked(self, axis, arg_reduce("max_with_indices", ArgReduceOp::Max, self, axis, true)?, keepdim)
    }

    /// The smallest element along an axis and its index (i64). The first of several equal elements is chosen; if there
    /// is a NaN, the first NaN. The gradient goes to the element at the index, whereas [`min`](Tensor::min) splits it
    /// among equal elements.
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

/// The index (i64) of the largest or smallest element along an axis, which is kept with size 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArgReduce {
    /// Whether to find the largest or the smallest element.
    pub op: ArgReduceOp,
    /// The axis.
    pub axis: usize,
}

impl Operation for ArgReduce {
    fn name(&self) -> &str {
        match self.op {
            ArgReduceOp::Max => "argmax",
            ArgReduceOp::Min => "argmin",
        }
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(inputs[0].shape.reduced(Axes::one(self.axis), true), DType::I64))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.arg_reduce(self.op, inputs[0], self.axis, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

#[track_caller]
fn arg_reduce(name: &str, op: ArgReduceOp, x: &Tensor, axis: isize, keepdim: bool) -> Result<Tensor> {
    let like = x;
    let (x, axis) = &x.along(name, axis)?;
    let axis = *axis;
    if x.shape()[axis] == 0 && x.layout().shape().reduced(Axes::one(axis), true).numel() > 0 {
        let m = format!("axis {axis} is empty: it has no largest or smallest element");
        return Err(x.describe(Error::argument(name, m), "self"));
    }
    let y = apply_one(ArgReduce { op, axis }, &[x])?;
    if keepdim { y.back_to(like) } else { y.squeeze(axis as isize) }
}
