//! `narrow`, `select` and `slice`: part of an axis, as a view. The gradient is 0 outside that part.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Backend, Error, ErrorKind, Here, Layout, Result, Scalar, Shape, View, ViewMut};

use super::{Context, Flow, Grads, InputSpec, Operation, Outputs, apply_one, apply_view, grads, one};
use crate::Tensor;

/// Every `step`-th element of an axis from `start` up to `end`, exclusive, as a view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Slice {
    /// The axis.
    pub axis: usize,
    /// The first element.
    pub start: usize,
    /// One past the last element.
    pub end: usize,
    /// The step from one element to the next; at least 1.
    pub step: usize,
}

/// The adjoint of [`Slice`]: zeros with the input in the slice.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SliceBackward {
    /// The slice.
    pub slice: Slice,
    /// The shape of the tensor that was sliced.
    pub input: Shape,
}

impl Slice {
    #[track_caller]
    fn layout(&self, whole: &Layout) -> Result<Layout> {
        whole.slice(self.axis, self.start, self.end, self.step)
    }
}

impl Operation for Slice {
    fn name(&self) -> &str {
        "slice"
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
        let backward = SliceBackward { slice: self.clone(), input: ctx.input_spec(0)?.shape };
        Ok(grads([Some(apply_one(backward, &[g])?)]))
    }
}

impl Operation for SliceBackward {
    fn name(&self) -> &str {
        "slice_backward"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(self.input, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let part = self.slice.layout(outputs[0].layout)?;
        backend.fill(&mut outputs[0], Scalar::Int(0))?;
        if part.numel() == 0 {
            return Ok(());
        }
        backend.copy_strided(inputs[0], &mut outputs[0].with(&part))
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn vjp(&self, _: &Context<'_>, h: &[Option<Tensor>]) -> Result<Grads> {
        let Some(h) = &h[0] else { return Ok(grads([None])) };
        Ok(grads([Some(h.slice(self.slice.axis as isize, self.slice.start, self.slice.end, self.slice.step)?)]))
    }
}

impl Tensor {
    /// Every `step`-th element of an axis from `start` up to, but not including, `end`. The result is a view.
    #[track_caller]
    pub fn slice(&self, axis: isize, start: usize, end: usize, step: usize) -> Result<Tensor> {
        let axis = resolve_axis("slice", axis, self.rank())?;
        let op = Slice { axis, start, end, step };
        let layout = op.layout(self.layout()).map_err(|e| self.describe(e, "self"))?;
        apply_view(op, self, layout)
    }

    /// `len` elements of an axis, beginning at `start`. The result is a view.
    #[track_caller]
    pub fn narrow(&self, axis: isize, start: usize, len: usize) -> Result<Tensor> {
        let end = start.checked_add(len).ok_or_else(|| Error::argument("narrow", "start + len overflows")).here()?;
        self.slice(axis, start, end, 1)
    }

    /// Selects one element of an axis and removes the axis. A negative index counts from the end. The result is a view.
    #[track_caller]
    pub fn select(&self, axis: isize, index: isize) -> Result<Tensor> {
        let axis = resolve_axis("select", axis, self.rank())?;
        let size = self.shape()[axis];
        let at = if index < 0 { index + size as isize } else { index };
        if at < 0 || at as usize >= size {
            let kind = ErrorKind::IndexOutOfBounds { pos: 0, index: index as i64, size };
            let e = Error::new(kind, "select", format!("index {index} is outside axis {axis} of size {size}"));
            return Err(self.describe(e, "self"));
        }
        self.narrow(axis as isize, at as usize, 1)?.squeeze(axis as isize)
    }
}
