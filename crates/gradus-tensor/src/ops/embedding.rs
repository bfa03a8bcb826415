//! `embedding(weight, index)`: rows of a table. If a row was used several times, its gradients are added in a fixed
//! order.

use gradus_backend::{Backend, Error, Result, Shape, View, ViewMut};

use super::gather::index_along;
use super::operand_rules::as_index;
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// Picks rows of `weight [v, d]` by `index [..]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Embedding {
    /// The row that gets no gradient.
    pub padding_index: Option<usize>,
}

impl Operation for Embedding {
    fn name(&self) -> &str {
        "embedding"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (weight, index) = (inputs[0], inputs[1]);
        Ok(one(Shape::new(&[index.shape, &weight.shape[1..]].concat())?, weight.dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.embedding(inputs[0], inputs[1], &mut outputs[0])
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
        let (spec, index) = (ctx.input_spec(0)?, ctx.input(1)?);
        let (v, d) = (spec.shape[0], spec.shape[1]);
        let dw = if !ctx.create_graph() {
            apply_one(EmbeddingBackward { padding_index: self.padding_index, rows: v }, &[&index, g])?
        } else {
            let n = index.numel();
            let flat = index.reshape([n])?;
            let mut rows = g.reshape([n, d])?;
            if let Some(p) = self.padding_index {
                rows = flat.unsqueeze(1)?.ne(p as i64)?.where_(&rows, 0.0)?;
            }
            rows.scatter_add_into(0, &index_along(&flat, rows.shape(), 0)?, v)?
        };
        Ok(grads([Some(dw), None]))
    }
}

/// The fused gradient of [`Embedding`] with respect to the table. Inputs: the index, and the gradient of the picked
/// rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EmbeddingBackward {
    /// The row that gets no gradient.
    pub padding_index: Option<usize>,
    /// The number of rows of the table.
    pub rows: usize,
}

impl Operation for EmbeddingBackward {
    fn name(&self) -> &str {
        "embedding_backward"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (index, g) = (inputs[0].shape, inputs[1]);
        Ok(one(Shape::new(&[&[self.rows], &g.shape[index.rank()..]].concat())?, g.dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.embedding_backward(inputs[0], inputs[1], self.padding_index, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

impl Tensor {
    /// Picks rows of this table `[v, d]` by `index [..]` (integers). Returns `[.., d]`. Fails if an index is outside
    /// `0..v`. The row `padding_index` gets no gradient.
    #[track_caller]
    pub fn embedding(&self, index: &Tensor, padding_index: Option<usize>) -> Result<Tensor> {
        let index = as_index("embedding", index)?;
        if self.rank() != 2 {
            return Err(self.describe(Error::shape("embedding", "the table is [rows, features]"), "weight"));
        }
        if let Some(p) = padding_index.filter(|&p| p >= self.shape()[0]) {
            let m = format!("padding index {p} is outside the table of {} rows", self.shape()[0]);
            return Err(self.describe(Error::argument("embedding", m), "weight"));
        }
        apply_one(Embedding { padding_index }, &[self, &index])
    }
}
