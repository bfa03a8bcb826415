//! `matmul(a, b)`: matrix product with batch axes that broadcast.
//!
//! Gradients: `da = g @ b^T`, `db = a^T @ g`, summed over batch axes that were broadcast. Transposing is a view, so
//! nothing is copied.

use gradus_backend::{Backend, DType, Error, ErrorKind, Here, Layout, Result, Scalar, Shape, View, ViewMut};

use super::operand_rules::common_dtype;
use super::{Context, Flow, Grads, InputSpec, Keep, Op, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// Matrix product of operands that have rank 2 or more and the same dtype.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Matmul;

/// The shape of a product of operands that have rank 2 or more.
#[track_caller]
fn product_shape(op: &str, inputs: &[InputSpec<'_>]) -> Result<Shape> {
    let (a, b) = (inputs[0].shape, inputs[1].shape);
    let (ra, rb) = (a.rank(), b.rank());
    let (k, kb) = (a[ra - 1], b[rb - 2]);
    if k != kb {
        let e = Error::shape(op, format!("inner dimensions differ: {k} != {kb}"));
        return Err(if rb == 2 && b[1] == k {
            e.help(match op {
                "matmul" => "rhs looks like a weight stored [out, in]; use rhs.t()? or x.linear(&weight, bias)",
                _ => "rhs looks like a weight stored [out, in]; use rhs.t()?",
            })
        } else {
            e.help("the last axis of lhs and the last but one of rhs are multiplied; transpose one of them")
        });
    }
    let batch = Shape::broadcast(op, &a[..ra - 2], &b[..rb - 2])
        .map_err(|e| Error::new(ErrorKind::Broadcast, op, format!("batch axes do not broadcast ({})", e.message())))
        .here()?;
    Shape::new(&[&batch[..], &[a[ra - 2], b[rb - 1]]].concat()).here()
}

/// The layouts of the operands with the batch axes of the result.
fn stretched(inputs: &[View<'_>], outputs: &[ViewMut<'_>]) -> Result<[Layout; 2]> {
    let batched = |x: View<'_>| {
        let shape = outputs[0].layout.shape();
        let (r, from) = (shape.rank(), x.layout.rank() - 2);
        x.layout.expand(shape.with(r - 2, x.layout.dims()[from])?.with(r - 1, x.layout.dims()[from + 1])?)
    };
    Ok([batched(inputs[0])?, batched(inputs[1])?])
}

impl Operation for Matmul {
    fn name(&self) -> &str {
        "matmul"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["lhs", "rhs"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let shape = product_shape("matmul", inputs)?;
        if inputs[0].dtype == DType::Bool {
            return Err(Error::dtype("matmul", DType::Bool, "numbers; cast first"));
        }
        Ok(one(shape, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let [a, b] = stretched(inputs, outputs)?;
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

/// Matrix product of integers of 8 and 16 bits that have rank 2 or more, summed in i32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MatmulI32;

impl Operation for MatmulI32 {
    fn name(&self) -> &str {
        "matmul_i32"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["lhs", "rhs"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let shape = product_shape("matmul_i32", inputs)?;
        match inputs.iter().find(|x| !matches!(x.dtype, DType::I8 | DType::U8 | DType::I16)) {
            None => Ok(one(shape, DType::I32)),
            Some(x) => Err(Error::dtype("matmul_i32", x.dtype, "i8, u8 and i16; use matmul for other numbers")),
        }
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let [a, b] = stretched(inputs, outputs)?;
        backend.gemm_i32(inputs[0].with(&a), inputs[1].with(&b), &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

impl Tensor {
    /// Matrix product by NumPy's rules: `[.., m, k] @ [.., k, n]` is `[.., m, n]`, and the leading axes broadcast. A
    /// vector is a row on the left and a column on the right, and the result lacks that axis. Dtypes promote. Half
    /// precision accumulates in f32, and integers wrap.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        self.check_factors("matmul", other)?;
        let dtype = common_dtype("matmul", &[self, other], &["lhs", "rhs"])?;
        self.to_dtype(dtype)?.product(&other.to_dtype(dtype)?)
    }

    /// Matrix product of integers of 8 and 16 bits, as [`matmul`](Tensor::matmul), but summed in i32, which wraps. Each
    /// operand is i8, u8 or i16, and the result is i32. Sums of up to 33,025 products of 8 bits cannot leave i32.
    ///
    /// The second operand is read fastest if its columns are contiguous, as those of `weight.t()?` are for a contiguous
    /// `weight [n, k]`. The formula is that of ONNX's `MatMulInteger` without zero points.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![200u8, 100], [1, 2], &device)?;
    /// let w = Tensor::from_vec(vec![100i8, -50], [2, 1], &device)?;
    /// assert_eq!(x.matmul_i32(&w)?.to_vec::<i32>()?, [15_000]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn matmul_i32(&self, other: &Tensor) -> Result<Tensor> {
        self.check_factors("matmul_i32", other)?;
        self.product_by(MatmulI32, other)
    }

    #[track_caller]
    fn check_factors(&self, op: &str, other: &Tensor) -> Result<()> {
        if self.rank() > 0 && other.rank() > 0 {
            return Ok(());
        }
        let e = Error::shape(op, "a scalar has no axis to multiply along");
        Err(other.describe(self.describe(e, "lhs"), "rhs").help("use mul for products with scalars"))
    }

    /// [`matmul`](Tensor::matmul) of tensors of one dtype, none of them a scalar, that computes in this dtype.
    #[track_caller]
    pub(super) fn product(&self, other: &Tensor) -> Result<Tensor> {
        self.product_by(Matmul, other)
    }

    /// The product that `op` computes of matrices, by the rules of `matmul` for vectors and leading axes.
    #[track_caller]
    fn product_by(&self, op: impl Operation + Into<Op>, other: &Tensor) -> Result<Tensor> {
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
            let y = apply_one(op, &[&a.reshape([rows, k])?, &b])?;
            dims[a.rank() - 1] = b.shape()[1];
            y.reshape(&dims)?
        } else {
            apply_one(op, &[&a, &b])?
        };
        let y = if column { y.squeeze(-1)? } else { y };
        if row { y.squeeze(if column { -1 } else { -2 }) } else { Ok(y) }
    }
}
