//! `unfold_axis`: all windows of an axis, as a view. The gradient is summed where windows overlap.

use gradus_backend::{Backend, DType, Error, Layout, Result, Shape, View, ViewMut};
use smallvec::SmallVec;

use super::gather::index_along;
use super::{Context, Flow, Grads, InputSpec, Operation, Outputs, apply_view, grads, one};
use crate::Tensor;

/// Windows of an axis. The elements of each window become a new last axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UnfoldAxis {
    /// The axis.
    pub axis: usize,
    /// The number of elements in a window.
    pub size: usize,
    /// The step between neighbouring windows; at least 1.
    pub step: usize,
}

impl UnfoldAxis {
    #[track_caller]
    fn layout(&self, x: &Layout) -> Result<Layout> {
        let len = x.dims()[self.axis];
        if self.size > len || self.step == 0 {
            let m = format!("windows of {} in steps of {} on axis {} of size {len}", self.size, self.step, self.axis);
            let e = Error::argument("unfold_axis", m);
            return Err(e.help("a window is at most as long as its axis, and a step is at least 1"));
        }
        let windows = (len - self.size) / self.step + 1;
        let mut dims: SmallVec<[usize; 9]> = x.dims().into();
        let mut strides: SmallVec<[isize; 9]> = x.strides().into();
        dims[self.axis] = windows;
        dims.push(self.size);
        strides.push(strides[self.axis]);
        // If there is a single window, its stride is never used and stays small, so that no product can overflow.
        if windows > 1 {
            strides[self.axis] *= self.step as isize;
        }
        Layout::from_parts(Shape::new(&dims)?, &strides, x.offset(), x.span().end)
    }
}

impl Operation for UnfoldAxis {
    fn name(&self) -> &str {
        "unfold_axis"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(*self.layout(&Layout::contiguous(*inputs[0].shape))?.shape(), inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.copy_strided(inputs[0].with(&self.layout(inputs[0].layout)?), &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let len = ctx.input_spec(0)?.shape[self.axis];
        let from = Tensor::arange(0, len as i64, 1, DType::I64, g.device())?;
        let from = from.unfold_axis(0, self.size, self.step)?.flatten(0, 1)?;
        let axis = self.axis as isize;
        let side_by_side = g.movedim(&[-1], &[axis + 1])?.flatten(axis, axis + 1)?;
        let index = index_along(&from, side_by_side.shape(), self.axis)?;
        Ok(grads([Some(side_by_side.scatter_add_into(self.axis, &index, len)?)]))
    }
}

impl Tensor {
    /// The windows of `size` elements at every `step`-th position of an axis, as long as they fit. The axis then counts
    /// the windows, and a new last axis holds the elements of each. The result is a view. Equivalent to PyTorch's
    /// `Tensor.unfold`.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1, 2, 3, 4, 5i64], [5], &device)?;
    /// let y = x.unfold_axis(0, 3, 2)?;
    /// assert_eq!((y.shape(), y.to_vec::<i64>()?), (&[2, 3][..], vec![1, 2, 3, 3, 4, 5]));
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn unfold_axis(&self, axis: isize, size: usize, step: usize) -> Result<Tensor> {
        let (x, axis) = self.along("unfold_axis", axis)?;
        let op = UnfoldAxis { axis, size, step };
        let layout = op.layout(x.layout()).map_err(|e| self.describe(e, "self"))?;
        // A scalar has one window, which is returned without the axis that counts windows.
        let y = apply_view(op, &x, layout)?;
        if self.rank() == 0 { y.select(0, 0) } else { Ok(y) }
    }
}
