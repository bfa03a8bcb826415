//! `matmul(a, b)`: matrix product with batch axes that broadcast.
//!
//! Gradients: `da = g @ b^T`, `db = a^T @ g`, summed over batch axes that were broadcast. Transposing is a view, so
//! nothing is copied.

use gradus_backend::{Backend, DType, Error, ErrorKind, Here, Result, Scalar, Shape, View, ViewMut};

use super::operand_rules::common_dtype;
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// Matrix product of operands that have rank 2 or more and the same dtype.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Matmul;

impl Matmul {
    #[track_caller]
    fn shape(a: &[usize], b: &[usize]) -> Result<Shape> {
        let (ra, rb) = (a.len(), b.len());
        let batch = Shape::broadcast("matmul", &a[..ra - 2], &b[..rb - 2])?;
        let mut dims = batch.to_vec();
        dims.extend([a[ra - 2], b[rb - 1]]);
        Shape::new(&dims)
    }

    #[track_caller]
    fn batched(shape: &Shape, rows: usize, columns: usize) -> Result<Shape> {
        let r = shape.rank();
        shape.with(r - 2, rows)?.with(r - 1, columns)
    }
}

impl Operation for Matmul {
    fn name(&self) -> &str {
        "matmul"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["lhs", "rhs"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (a, b) = (inputs[0], inputs[1]);
        let (k, kb) = (a.shape[a.shape.rank() - 1], b.shape[b.shape.rank() - 2]);
        if k != kb {
            let e = Error::shape("matmul", format!("inner dimensions differ: {k} != {kb}"));
            return Err(if b.shape.rank() == 2 && b.shape[1] == k {
                e.help("rhs looks like a weight stored [out, in]; use rhs.t()? or x.linear(&weight, bias)")
            } else {
                e.help("the last axis of lhs and the last but one of rhs are multiplied; transpose one of them")
            });
        }
        if a.dtype == DType::Bool {
            return Err(Error::dtype("matmul", DType::Bool, "numbers; cast first"));
        }
        let shape = Matmul::shape(a.shape, b.shape)
            .map_err(|e| {
                let m = format!("batch axes do not broadcast ({})", e.message());
                Error::new(ErrorKind::Broadcast, "matmul", m)
            })
            .here()?;
        Ok(one(shape, a.dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let shape = *outputs[0].layout.shape();
        let (m, n) = (shape[shape.rank() - 2], shape[shape.rank() - 1]);
        let k = inputs[0].layout.dims()[inputs[0].layout.rank() - 1];
        let a = inputs[0].layout.expand(Matmul::batched(&shape, m, k)?)?;
        let b = inputs[1].layout.expand(Matmul::batched(&shape, k, n)?)?;
        backend.gemm(Scalar::Int(1), inputs[0].with(&a), inputs[1].with(&b), Scalar::Int(0), &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        Keep::inputs(needs[1].then_some(0).into_iter().chain(needs[0].then_some(1)))
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None, None])) };
        let mut out = [None, None];
        if ctx.needs(0) {
            let b = ctx.input(1)?.transpose(-2, -1)?;
            out[0] = Some(apply_one(Matmul, &[g, &b])?.sum_to(&ctx.input_spec(0)?.shape)?);
        }
        if ctx.needs(1) {
            let a = ctx.input(0)?.transpose(-2, -1)?;
            out[1] = Some(apply_one(Matmul, &[&a, g])?.sum_to(&ctx.input_spec(1)?.shape)?);
        }
        Ok(grads(out))
    }
}

impl Tensor {
    /// Matrix product by NumPy's rules: `[.., m, k] @ [.., k, n]` is `[.., m, n]`, and the leading axes broadcast. A
    /// vector is a row on the left and a column on the right, and the result lacks that axis. Dtypes promote. Half
    /// precision accumulates in f32, and integers wrap.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        if self.rank() == 0 || other.rank() == 0 {
            let e = Error::shape("matmul", "a scalar has no axis to multiply along");
            return Err(other.describe(self.describe(e, "lhs"), "rhs").help("use mul for products with scalars"));
        }
        let dtype = common_dtype("matmul", &[self, other], &["lhs", "rhs"])?;
        self.to_dtype(dtype)?.product(&other.to_dtype(dtype)?)
    }

    /// [`matmul`](Tensor::matmul) of tensors of one dtype, none of them a scalar, that computes in this dtype.
    #[track_caller]
    pub(super) fn product(&self, other: &Tensor) -> Result<Tensor> {
        let (a, b) = (self.clone(), other.clone());
        let (row, column) = (a.rank() == 1, b.rank() == 1);
        let a = if row { a.unsqueeze(0)? } else { a };
        let b = if column { b.unsqueeze(1)? } else { b };
        // Many matrices times a single one: the leading axes are merged into the rows of one product.
        let fold = b.rank() == 2 && a.rank() > 2 && a.is_contiguous() && a.numel() > 0;
        let y = if fold {
            let k = a.shape()[a.rank() - 1];
            let mut dims = a.shape().to_vec();
            let rows = a.numel() / k;
            let y = apply_one(Matmul, &[&a.reshape([rows, k])?, &b])?;
            dims[a.rank() - 1] = b.shape()[1];
            y.reshape(&dims)?
        } else {
            apply_one(Matmul, &[&a, &b])?
        };
        let y = if column { y.squeeze(-1)? } else { y };
        if row { y.squeeze(if column { -1 } else { -2 }) } else { Ok(y) }
    }
}
