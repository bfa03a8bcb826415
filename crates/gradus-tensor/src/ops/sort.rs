//! `sort`, `argsort`, `topk` and `kthvalue` along an axis. Gradients go to the elements that were picked.
//!
//! NaN counts as the largest number: last in ascending order, first in descending order. Equal elements keep their order.

use gradus_backend::{Backend, DType, Error, Result, View, ViewMut};
use smallvec::smallvec;

use super::{Flow, InputSpec, Operation, Outputs, Spec, apply};
use crate::{Tensor, is_grad_enabled};

impl Tensor {
    /// Sorts the elements along an axis, stably. Also returns the index (i64) that each element had. NaN comes last in
    /// ascending order and first in descending order. The gradient goes to the element of the index, also among equal
    /// ones.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![3.0f32, 1.0, 2.0], [3], &device)?;
    /// let (values, indices) = x.sort(0, false)?;
    /// assert_eq!(values.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
    /// assert_eq!(indices.to_vec::<i64>()?, [1, 2, 0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn sort(&self, axis: isize, descending: bool) -> Result<(Tensor, Tensor)> {
        let (values, indices) = sorted("sort", self, axis, descending)?;
        if is_grad_enabled() && self.requires_grad() {
            Ok((self.gather(axis, &indices)?, indices))
        } else {
            Ok((values, indices))
        }
    }

    /// The indices (i64) that sort an axis, stably: the second result of [`sort`](Tensor::sort).
    #[track_caller]
    pub fn argsort(&self, axis: isize, descending: bool) -> Result<Tensor> {
        Ok(sorted("argsort", self, axis, descending)?.1)
    }

    /// The `k` largest (or smallest) elements along an axis, and their indices (i64). NaN counts as the largest number.
    /// The elements are in order if `sorted`; otherwise they keep the order that they have in the tensor. Of equal
    /// elements the first are taken, and get the gradient. Fails if the axis has fewer than `k` elements.
    #[track_caller]
    pub fn topk(&self, k: usize, axis: isize, largest: bool, sorted: bool) -> Result<(Tensor, Tensor)> {
        let (x, at) = self.along("topk", axis)?;
        let (axis, size) = (at as isize, x.shape()[at]);
        if k > size {
            let e = Error::argument("topk", format!("{k} elements of axis {at}, which has {size}"));
            return Err(self.describe(e, "self"));
        }
        let mut indices = x.argsort(axis, largest)?.narrow(axis, 0, k)?.contiguous()?;
        if !sorted {
            indices = indices.sort(axis, false)?.0;
        }
        Ok((x.gather(axis, &indices)?.back_to(self)?, indices.back_to(self)?))
    }

    /// The `k`-th smallest element along an axis, with `k` counting from 1, and its index (i64). NaN counts as the
    /// largest number. The gradient goes to the element of the index. With `keepdim` the axis is kept with size 1.
    /// Fails if `k` is 0 or above the size of the axis.
    #[track_caller]
    pub fn kthvalue(&self, k: usize, axis: isize, keepdim: bool) -> Result<(Tensor, Tensor)> {
        let (x, at) = self.along("kthvalue", axis)?;
        let (axis, size) = (at as isize, x.shape()[at]);
        if k == 0 || k > size {
            let e = Error::argument("kthvalue", format!("k is {k}; it counts from 1 to {size}, the size of axis {at}"));
            return Err(self.describe(e, "self"));
        }
        let indices = x.argsort(axis, false)?.narrow(axis, k - 1, 1)?.contiguous()?;
        let values = x.gather(axis, &indices)?;
        if keepdim {
            Ok((values.back_to(self)?, indices.back_to(self)?))
        } else {
            Ok((values.squeeze(axis)?, indices.squeeze(axis)?))
        }
    }
}

/// Sorts an axis. Outputs: the elements in order, and the index (i64) that each had. Neither is recorded: the gradient
/// of a sort is that of a gather.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sort {
    /// The axis.
    pub axis: usize,
    /// Whether the largest element comes first.
    pub descending: bool,
}

impl Operation for Sort {
    fn name(&self) -> &str {
        "sort"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (shape, dtype) = (*inputs[0].shape, inputs[0].dtype);
        Ok(smallvec![Spec { shape, dtype }, Spec { shape, dtype: DType::I64 }])
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (values, indices) = outputs.split_at_mut(1);
        backend.sort(inputs[0], self.axis, self.descending, &mut values[0], &mut indices[0])
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

/// The sorted values and their indices, neither of them recorded.
#[track_caller]
fn sorted(name: &str, x: &Tensor, axis: isize, descending: bool) -> Result<(Tensor, Tensor)> {
    let like = x;
    let (x, axis) = &x.along(name, axis)?;
    if x.dtype() == DType::Bool {
        let (values, indices) = sorted(name, &like.to_dtype(DType::U8)?, *axis as isize, descending)?;
        return Ok((values.to_dtype(DType::Bool)?, indices));
    }
    let mut results = apply(Sort { axis: *axis, descending }, &[x])?.into_iter();
    match (results.next(), results.next()) {
        (Some(values), Some(indices)) => Ok((values.back_to(like)?, indices.back_to(like)?)),
        _ => Err(Error::argument(name, "two results are given")),
    }
}
