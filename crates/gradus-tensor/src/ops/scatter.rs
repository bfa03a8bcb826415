//! `scatter_add`: elements added where an index says, in row-major order. The gradient picks them again.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Backend, Error, Result, Scalar, ScatterOp, View, ViewMut};

use super::gather::{check_index, fits};
use super::{Context, Grads, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// `y[.., index[.., i, ..], ..] += src[.., i, ..]` at an axis, into zeros.
#[derive(Debug, Clone)]
pub struct ScatterAdd {
    /// The axis.
    pub axis: usize,
    /// Its size in the result.
    pub size: usize,
}

impl Operation for ScatterAdd {
    fn name(&self) -> &str {
        "scatter_add"
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        let (src, index) = (inputs[0], inputs[1]);
        check_index("scatter_add", index)?;
        if !fits(src.shape(), index.shape(), self.axis) || src.shape()[self.axis] != index.shape()[self.axis] {
            let e = Error::shape("scatter_add", "source and index have one shape");
            return Err(index.describe(src.describe(e, "source"), "index"));
        }
        Ok(one(src.layout().shape().with(self.axis, self.size)?, src.dtype()))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.fill(&mut outputs[0], Scalar::Int(0))?;
        backend.scatter(ScatterOp::Add, self.axis, inputs[1], inputs[0], &mut outputs[0])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::inputs([1])
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None, None])) };
        Ok(grads([Some(g.gather(self.axis as isize, &ctx.input(1)?)?), None]))
    }
}

impl Tensor {
    /// This tensor added into zeros whose `axis` has the given size, at the places that `index` names.
    #[track_caller]
    pub(crate) fn scatter_add_into(&self, axis: usize, index: &Tensor, size: usize) -> Result<Tensor> {
        apply_one(ScatterAdd { axis, size }, &[self, index])
    }

    /// This tensor plus the elements of `src` at the places that `index` names along `axis`; repeated places add up.
    #[track_caller]
    pub fn scatter_add(&self, axis: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        let axis = resolve_axis("scatter_add", axis, self.rank())?;
        if !fits(self.shape(), index.shape(), axis) {
            let e = Error::shape("scatter_add", format!("index has the shape of the input but at axis {axis}"));
            return Err(index.describe(self.describe(e, "input"), "index"));
        }
        self.add(&src.scatter_add_into(axis, index, self.shape()[axis])?)
    }
}
