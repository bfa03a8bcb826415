//! `gather` and `index_select`: elements picked by index along an axis. The backward pass adds each gradient to the
//! element that was picked.

use gradus_backend::{Backend, DType, Error, ErrorKind, Here, Result, View, ViewMut};

use super::operand_rules::{as_index, as_index_list};
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// `y[.., i, ..] = x[.., index[.., i, ..], ..]` along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gather {
    /// The axis.
    pub axis: usize,
}

/// Whether `index` has the shape of `x` except at `axis`.
pub(crate) fn fits(x: &[usize], index: &[usize], axis: usize) -> bool {
    x.len() == index.len() && (0..x.len()).all(|i| i == axis || x[i] == index[i])
}

impl Operation for Gather {
    fn name(&self) -> &str {
        "gather"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["input", "index"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (x, index) = (inputs[0], inputs[1]);
        if !fits(x.shape, index.shape, self.axis) {
            let e = Error::shape("gather", format!("index has the shape of the input but at axis {}", self.axis));
            return Err(e);
        }
        Ok(one(*index.shape, x.dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.gather(inputs[0], self.axis, inputs[1], &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::inputs([1])
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None, None])) };
        let size = ctx.input_spec(0)?.shape[self.axis];
        Ok(grads([Some(g.scatter_add_into(self.axis, &ctx.input(1)?, size)?), None]))
    }
}

impl Tensor {
    /// `y[.., i, ..] = self[.., index[.., i, ..], ..]` at `axis`. `index` (integers) may be smaller than this tensor
    /// along the other axes, but not larger. The result has the shape of `index`. Fails if an index is outside
    /// `0..size`. A scalar counts as a vector of one element, both as this tensor and as the index.
    #[track_caller]
    pub fn gather(&self, axis: isize, index: &Tensor) -> Result<Tensor> {
        let (x, axis) = self.along("gather", axis)?;
        let places = as_index("gather", index)?;
        let places = places.as_vector()?;
        apply_one(Gather { axis }, &[&corner(&x, Some(axis), places.shape())?, &places])?.back_to(index)
    }

    /// The slices of an axis that `index [n]` (integers) names, in the order of `index`. A scalar index counts as a
    /// list of one. If this tensor is a scalar, it has one slice, and the result is a scalar.
    #[track_caller]
    pub fn index_select(&self, axis: isize, index: &Tensor) -> Result<Tensor> {
        const OP: &str = "index_select";
        let (x, axis) = self.along(OP, axis)?;
        let index = as_index_list(OP, index)?;
        if self.rank() == 0 && index.numel() != 1 {
            let m = format!("{} slices of a scalar, which has one", index.numel());
            return Err(index.describe(self.describe(Error::shape(OP, m), "self"), "index"));
        }
        let stretched = checked_along(OP, &index, &x, axis)?;
        let picked = apply_one(Gather { axis }, &[&x, &stretched]);
        picked.map_err(|e| at_position(e, OP, &x, axis, &index)).here()?.back_to(self)
    }
}

/// `x` cut to the sizes `dims` where these are smaller, except at `axis`. The result is a view. It is `x` itself if
/// nothing is cut off, or if the ranks differ, in which case the operation itself reports the error.
#[track_caller]
pub(super) fn corner(x: &Tensor, axis: Option<usize>, dims: &[usize]) -> Result<Tensor> {
    let mut part = x.clone();
    if x.rank() == dims.len() {
        for i in (0..dims.len()).filter(|&i| Some(i) != axis && dims[i] < x.shape()[i]) {
            part = part.narrow(i as isize, 0, dims[i])?;
        }
    }
    Ok(part)
}

/// Restates an error about a broadcast index with the position in `index [n]`, which the user passed.
#[track_caller]
pub(super) fn at_position(e: Error, op: &str, x: &Tensor, axis: usize, index: &Tensor) -> Error {
    match *e.kind() {
        ErrorKind::IndexOutOfBounds { pos, index: value, size } => {
            let inner: usize = x.shape()[axis + 1..].iter().product();
            let pos = pos / inner.max(1) % index.numel().max(1);
            let m = format!("index {value} at position {pos} is outside axis {axis} of size {size}");
            let e = Error::new(ErrorKind::IndexOutOfBounds { pos, index: value, size }, op, m);
            index.describe(x.describe(e, "input"), "index")
        }
        _ => e,
    }
}

/// [`index_along`] the axis of `x`, with the index checked. Normally the kernel checks each element of the index. If
/// another axis is empty, the kernel sees no elements, so the check is made here.
#[track_caller]
pub(super) fn checked_along(op: &str, index: &Tensor, x: &Tensor, axis: usize) -> Result<Tensor> {
    let stretched = index_along(index, x.shape(), axis)?;
    if stretched.numel() == 0 && index.numel() > 0 {
        let size = x.shape()[axis];
        let all = index.detach().to_dtype(DType::I64)?.to_vec::<i64>()?;
        if let Some((pos, &v)) = all.iter().enumerate().find(|&(_, &v)| !usize::try_from(v).is_ok_and(|v| v < size)) {
            let inner: usize = x.shape()[axis + 1..].iter().product();
            let kind = ErrorKind::IndexOutOfBounds { pos: pos * inner.max(1), index: v, size };
            let e = Error::new(kind, op, "an index is out of bounds");
            return Err(at_position(e, op, x, axis, index));
        }
    }
    Ok(stretched)
}

/// `index [n]` expanded to the shape `like`, but with size `n` at `axis`. The strides along all other axes are 0, so
/// nothing is copied.
#[track_caller]
pub(crate) fn index_along(index: &Tensor, like: &[usize], axis: usize) -> Result<Tensor> {
    let mut dims = vec![1; like.len()];
    dims[axis] = index.shape()[0];
    let column = index.reshape(&dims)?;
    dims.copy_from_slice(like);
    dims[axis] = index.shape()[0];
    column.expand(&dims)
}
