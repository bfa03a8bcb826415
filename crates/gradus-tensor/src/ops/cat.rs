//! `cat` and `stack`: tensors joined along an axis. Their gradients are the pieces of the result's gradient.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Backend, Error, ErrorKind, Here, Result, View, ViewMut};

use super::operand_rules::common_dtype;
use super::{Context, Flow, Grads, InputSpec, Operation, Outputs, apply_one, one};
use crate::Tensor;

/// Concatenation of tensors along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cat {
    /// The axis.
    pub axis: usize,
    /// Sizes of the inputs along the axis.
    pub sizes: Vec<usize>,
}

impl Operation for Cat {
    fn name(&self) -> &str {
        "cat"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let size = self.sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        let size = size.ok_or_else(|| Error::new(ErrorKind::Overflow, "cat", "the result is too large")).here()?;
        Ok(one(inputs[0].shape.with(self.axis, size)?, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let whole = outputs[0].layout;
        let mut start = 0;
        for x in inputs {
            let len = x.layout.dims()[self.axis];
            if x.layout.numel() > 0 {
                backend.copy_strided(*x, &mut outputs[0].with(&whole.narrow(self.axis, start, len)?))?;
            }
            start += len;
        }
        Ok(())
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn vjp(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &grads[0] else { return Ok(Grads::from_elem(None, self.sizes.len())) };
        let pieces = g.split_with_sizes(&self.sizes, self.axis as isize)?.into_iter().enumerate();
        Ok(pieces.map(|(i, piece)| ctx.needs(i).then_some(piece)).collect())
    }
}

impl Tensor {
    /// Concatenates tensors along an axis. Their shapes must be equal except along that axis; dtypes promote; tensors
    /// may be empty.
    #[track_caller]
    pub fn cat(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
        let Some(first) = tensors.first() else {
            return Err(Error::argument("cat", "no tensors to concatenate").help("pass at least one"));
        };
        let axis = resolve_axis("cat", axis, first.rank())?;
        for (i, t) in tensors.iter().enumerate() {
            if t.rank() != first.rank() || (0..t.rank()).any(|a| a != axis && t.shape()[a] != first.shape()[a]) {
                let what = if t.rank() == first.rank() {
                    format!("shapes differ outside axis {axis}")
                } else {
                    "ranks differ".into()
                };
                let e = t.describe(first.describe(Error::shape("cat", what), "tensor 0"), &format!("tensor {i}"));
                return Err(e.help("all have the same sizes but along that axis; use unsqueeze for one more axis"));
            }
        }
        let dtype = common_dtype("cat", tensors, &[])?;
        let mut cast = Vec::with_capacity(tensors.len());
        for t in tensors {
            cast.push(t.to_dtype(dtype)?);
        }
        let sizes = cast.iter().map(|t| t.shape()[axis]).collect();
        apply_one(Cat { axis, sizes }, &cast.iter().collect::<Vec<_>>())
    }

    /// Stacks tensors of the same shape along a new axis.
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
        let Some(first) = tensors.first() else {
            return Err(Error::argument("stack", "no tensors to stack").help("pass at least one"));
        };
        if let Some(t) = tensors.iter().find(|t| t.shape() != first.shape()) {
            let e = Error::shape("stack", "tensors have one shape");
            return Err(t.describe(first.describe(e, "first"), "other"));
        }
        let axis = resolve_axis("stack", axis, first.rank() + 1)? as isize;
        let mut expanded = Vec::with_capacity(tensors.len());
        for t in tensors {
            expanded.push(t.unsqueeze(axis)?);
        }
        Tensor::cat(&expanded.iter().collect::<Vec<_>>(), axis)
    }
}
