//! `scatter`, `scatter_add` and `index_add`, `index_copy`, `index_fill`: elements written or added at the places that
//! an index names, in row-major order of the index. The gradient is gathered from these places.
//!
//! If several elements are written to the same place, the last one wins. Only that one has a gradient, since the
//! others do not change the result. (PyTorch gives each of them the gradient of the place.)

use gradus_backend::{Backend, DType, Error, ErrorKind, Here, Layout, Result, Scalar, ScatterOp, View, ViewMut};

use super::gather::{at_position, checked_along, corner, fits, index_along};
use super::operand::{AsOperand, Operand};
use super::operand_rules::{as_index, as_index_list, cast, common_dtype};
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_one, grads, infer, one, same_device};
use crate::Tensor;

/// `y[.., index[.., i, ..], ..] += src[.., i, ..]` along an axis, starting from zeros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScatterAdd {
    /// The axis.
    pub axis: usize,
    /// The size of the axis in the result.
    pub size: usize,
}

/// `y = x`, then `y[.., index[.., i, ..], ..] = (or +=) src[.., i, ..]` along an axis. The index may be smaller than
/// `x` along the other axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scatter {
    /// The axis.
    pub axis: usize,
    /// Whether to write or to add.
    pub op: ScatterOp,
}

impl Operation for ScatterAdd {
    fn name(&self) -> &str {
        "scatter_add"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["source", "index"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (src, index) = (inputs[0], inputs[1]);
        if !fits(src.shape, index.shape, self.axis) || src.shape[self.axis] != index.shape[self.axis] {
            let e = Error::shape("scatter_add", "source and index have one shape");
            return Err(e);
        }
        Ok(one(src.shape.with(self.axis, self.size)?, src.dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.fill(&mut outputs[0], Scalar::Int(0))?;
        backend.scatter(ScatterOp::Add, self.axis, inputs[1], inputs[0], &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::inputs([1])
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None, None])) };
        Ok(grads([Some(g.gather(self.axis as isize, &ctx.input(1)?)?), None]))
    }
}

impl Operation for Scatter {
    fn name(&self) -> &str {
        match self.op {
            ScatterOp::Set => "scatter",
            ScatterOp::Add => "scatter_add",
        }
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["self", "index", "source"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (x, index, src) = (inputs[0], inputs[1], inputs[2]);
        let small = x.shape.rank() == index.shape.rank()
            && (0..x.shape.rank()).all(|i| i == self.axis || index.shape[i] <= x.shape[i]);
        if !small || index.shape != src.shape {
            let m =
                format!("the index is at most as large as self but at axis {}, and the source as the index", self.axis);
            return Err(Error::shape(self.name(), m));
        }
        if self.op == ScatterOp::Add && x.dtype == DType::Bool {
            return Err(Error::dtype(self.name(), x.dtype, "numbers"));
        }
        Ok(one(*x.shape, x.dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.copy_strided(inputs[0], &mut outputs[0])?;
        if inputs[1].layout.numel() == 0 {
            return Ok(());
        }
        let mut part: Layout = *outputs[0].layout;
        for axis in (0..part.rank()).filter(|&i| i != self.axis) {
            part = part.narrow(axis, 0, inputs[1].layout.dims()[axis])?;
        }
        backend.scatter(self.op, self.axis, inputs[1], inputs[2], &mut outputs[0].with(&part))
    }

    fn flow(&self) -> Flow {
        match self.op {
            ScatterOp::Set => Flow::Moves,
            // Elements with the same destination are added.
            ScatterOp::Add => Flow::Mixes,
        }
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::inputs([1])
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None, None, None])) };
        let (index, axis) = (ctx.input(1)?, self.axis as isize);
        let dx = match self.op {
            _ if !ctx.needs(0) => None,
            ScatterOp::Add => Some(g.clone()),
            ScatterOp::Set => Some(g.scatter(axis, &index, 0)?),
        };
        if !ctx.needs(2) {
            return Ok(grads([dx, None, None]));
        }
        let picked = g.gather(axis, &index)?;
        let dsrc = match self.op {
            ScatterOp::Add => picked,
            ScatterOp::Set => {
                // Each element writes its number to its destination. The element that reads its own number back was the
                // last one.
                let numbers = Tensor::arange(0, index.shape()[self.axis] as i64, 1, DType::I64, g.device())?;
                let numbers = index_along(&numbers, index.shape(), self.axis)?;
                let left = Tensor::zeros(g.shape(), DType::I64, g.device())?.scatter(axis, &index, &numbers)?;
                left.gather(axis, &index)?.eq(&numbers)?.where_(&picked, 0.0)?
            }
        };
        Ok(grads([dx, None, Some(dsrc)]))
    }
}

impl Scatter {
    /// Runs the operation on `x`, `index` and `src`.
    #[track_caller]
    pub(super) fn apply(self, x: &Tensor, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        if x.shape()[self.axis] == 0 {
            // Errors in the operands are reported first.
            same_device(self.name(), &[x, index, src])?;
            infer(&self, &[x, index, src])?;
            self.check(x, index).map_err(|e| src.describe(e, "source"))?;
        }
        apply_one(self, &[x, index, src])
    }

    /// Fails if elements are sent to an empty axis. A result without elements is never computed, so no backend would
    /// check the index.
    #[track_caller]
    pub(super) fn check(&self, x: &Tensor, index: &Tensor) -> Result<()> {
        if index.numel() == 0 || x.shape()[self.axis] > 0 {
            return Ok(());
        }
        let first = index.reshape([index.numel()])?.narrow(0, 0, 1)?.to_dtype(DType::I64)?.to_scalar::<i64>()?;
        let kind = ErrorKind::IndexOutOfBounds { pos: 0, index: first, size: 0 };
        let e = Error::new(kind, self.name(), format!("index {first} (number 0) is outside an empty axis"));
        Err(index.describe(x.describe(e, "self"), "index"))
    }
}

impl Tensor {
    /// Adds this tensor into zeros whose `axis` has the given size, at the places that `index` names.
    #[track_caller]
    pub(crate) fn scatter_add_into(&self, axis: usize, index: &Tensor, size: usize) -> Result<Tensor> {
        apply_one(ScatterAdd { axis, size }, &[self, index])
    }

    /// A copy of this tensor with `src` (a tensor, or one number for all places) at the places that `index` (integers)
    /// names along `axis`: `y[.., index[.., i, ..], ..] = src[.., i, ..]`. If several elements go to the same place,
    /// the last one in row-major order stays.
    ///
    /// `index` must not be larger than this tensor along the other axes, nor larger than `src` along any axis. A
    /// smaller index starts at position 0 of each axis. Fails if an index is outside `0..size`. A scalar counts as a
    /// vector of one element. Dtypes promote. This tensor has gradient 0 at the places that are overwritten. In `src`,
    /// an element that stays has the gradient of its place, and the others have gradient 0.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::zeros([4], DType::I64, &device)?;
    /// let (index, src) = ([3, 0, 3i64], [5, 6, 7i64]);
    /// let (index, src) = (Tensor::from_vec(index, [3], &device)?, Tensor::from_vec(src, [3], &device)?);
    /// assert_eq!(x.scatter(0, &index, &src)?.to_vec::<i64>()?, [6, 0, 0, 7]);
    /// assert_eq!(x.scatter_add(0, &index, &src)?.to_vec::<i64>()?, [6, 0, 0, 12]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn scatter(&self, axis: isize, index: &Tensor, src: impl AsOperand) -> Result<Tensor> {
        self.scattered("scatter", ScatterOp::Set, axis, index, src.as_operand()?)
    }

    /// A copy of this tensor with the elements of `src` added at the places that `index` names along `axis`. Elements
    /// for the same place add up, in row-major order. For shapes and errors see [`scatter`](Tensor::scatter).
    #[track_caller]
    pub fn scatter_add(&self, axis: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        self.scattered("scatter_add", ScatterOp::Add, axis, index, src.into())
    }

    #[track_caller]
    fn scattered(&self, name: &str, op: ScatterOp, axis: isize, index: &Tensor, src: Operand<'_>) -> Result<Tensor> {
        let (x, axis) = self.along(name, axis)?;
        let index = as_index(name, index)?;
        let index = index.as_vector()?;
        let (x, src) = x.with_source(name, &index, src)?;
        Scatter { axis, op }.apply(&x, &index, &src)?.back_to(self)
    }

    /// This tensor and the source in a common dtype. A source tensor is narrowed to the shape of `index`; a scalar is
    /// broadcast to it.
    #[track_caller]
    pub(super) fn with_source(&self, op: &str, index: &Tensor, src: Operand<'_>) -> Result<(Tensor, Tensor)> {
        match src {
            Operand::Tensor(src) => {
                let dtype = common_dtype(op, &[self, src], &["self", "source"])?;
                let src = cast(src, dtype)?;
                let src = src.as_vector()?;
                Ok((self.to_dtype(dtype)?, corner(&src, None, index.shape())?))
            }
            Operand::Scalar(value) => Ok((self.clone(), self.stretched_value(op, value, index.shape())?)),
        }
    }

    /// A copy of this tensor with the slices of `src` added to the slices of `axis` that `index [n]` (integers) names.
    /// Slices for the same place add up. `src` has the shape of this tensor, but size `n` at `axis`. A scalar counts as
    /// a vector of one element, whether it is this tensor, the index or the source. Dtypes promote.
    #[track_caller]
    pub fn index_add(&self, axis: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        self.slices("index_add", ScatterOp::Add, axis, index, src.into())
    }

    /// A copy of this tensor with the slices of `src` in place of the slices of `axis` that `index [n]` (integers)
    /// names. If several slices are written to the same place, the last one stays. The operands are as in
    /// [`index_add`](Tensor::index_add).
    #[track_caller]
    pub fn index_copy(&self, axis: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        self.slices("index_copy", ScatterOp::Set, axis, index, src.into())
    }

    /// A copy of this tensor with `value`, which the dtype must be able to represent, in the slices of `axis` that
    /// `index [n]` (integers) names.
    #[track_caller]
    pub fn index_fill(&self, axis: isize, index: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        self.slices("index_fill", ScatterOp::Set, axis, index, Operand::Scalar(value.into()))
    }

    #[track_caller]
    fn slices(&self, name: &str, op: ScatterOp, axis: isize, index: &Tensor, src: Operand<'_>) -> Result<Tensor> {
        let (x, axis) = self.along(name, axis)?;
        let index = as_index_list(name, index)?;
        let stretched = checked_along(name, &index, &x, axis)?;
        if let Operand::Tensor(src) = src
            && src.as_vector()?.shape() != stretched.shape()
        {
            let m = format!("the source has the shape of self, with {} at axis {axis}", index.numel());
            return Err(src.describe(self.describe(Error::shape(name, m), "self"), "source"));
        }
        let (x, src) = x.with_source(name, &stretched, src)?;
        let result = Scatter { axis, op }.apply(&x, &stretched, &src);
        result.map_err(|e| at_position(e, name, &x, axis, &index)).here()?.back_to(self)
    }

    /// One value in the dtype and on the device of this tensor, broadcast to a shape.
    #[track_caller]
    pub(super) fn stretched_value(&self, op: &str, value: Scalar, shape: &[usize]) -> Result<Tensor> {
        value.check(self.dtype()).map_err(|e| self.describe(Error::argument(op, e.message()), "self")).here()?;
        Tensor::full([], value, self.dtype(), self.device())?.expand(shape)
    }
}
