//! `linear(x, w, b) = x w^T + b` in one product, with the weight stored as `[out, in]`.
//!
//! Gradients: `dx = g w`, `dw = g^T x`, `db = sum of g over rows`.

use gradus_backend::{Backend, Error, Here, Result, Scalar, Shape, View, ViewMut};

use super::operand_rules::{affine_dtype, cast, cast_some};
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// The operation on `x [rows, in]`, `w [out, in]` and an optional `b [out]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Linear;

/// Writes a bias `[n]` to each row of `out [m, n]`, and returns the factor of `out` for the product that is added.
pub(super) fn begin(backend: &dyn Backend, bias: Option<&View<'_>>, out: &mut ViewMut<'_>) -> Result<Scalar> {
    let Some(bias) = bias else { return Ok(Scalar::Int(0)) };
    let rows = bias.layout.expand(*out.layout.shape())?;
    backend.copy_strided(bias.with(&rows), out)?;
    Ok(Scalar::Int(1))
}

impl Operation for Linear {
    fn name(&self) -> &str {
        "linear"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["input", "weight", "bias"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(Shape::new(&[inputs[0].shape[0], inputs[1].shape[0]])?, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let w = inputs[1].layout.transpose(0, 1)?;
        let beta = begin(backend, inputs.get(2), &mut outputs[0])?;
        backend.gemm(Scalar::Int(1), inputs[0], inputs[1].with(&w), beta, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        Keep::inputs(needs[1].then_some(0).into_iter().chain(needs[0].then_some(1)))
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::from_elem(None, ctx.input_count())) };
        let mut out = [None, None, None];
        if ctx.needs(0) {
            out[0] = Some(g.matmul(&ctx.input(1)?)?);
        }
        if ctx.needs(1) {
            out[1] = Some(g.t()?.matmul(&ctx.input(0)?)?);
        }
        if ctx.needs(2) {
            out[2] = Some(g.sum(&[0], false)?);
        }
        Ok(grads(out).into_iter().take(ctx.input_count()).collect())
    }
}

impl Tensor {
    /// `self @ weight^T + bias`. For `self [.., in]`, `weight [out, in]` and `bias [out]` the result is `[.., out]`;
    /// for `weight [in]` and a scalar bias it is `[..]`. The operands are numbers, and their dtypes promote.
    #[track_caller]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let refuse = |m: String| {
            let e = weight.describe(self.describe(Error::shape("linear", m), "input"), "weight");
            let e = if let Some(b) = bias { b.describe(e, "bias") } else { e };
            Err(e.help("input is [.., in], weight [out, in] and bias [out]; or weight [in] and bias []"))
        };
        if self.rank() == 0 || !matches!(weight.rank(), 1 | 2) {
            return refuse("input or weight has the wrong rank".into()).here();
        }
        if weight.rank() == 1 {
            if bias.is_some_and(|b| b.rank() > 0) {
                return refuse("the bias of one output is no scalar".into()).here();
            }
            let bias = if let Some(b) = bias { Some(b.reshape([1])?) } else { None };
            return self.linear(&weight.unsqueeze(0)?, bias.as_ref())?.squeeze(-1);
        }
        let (features, outputs) = (weight.shape()[1], weight.shape()[0]);
        let last = self.shape()[self.rank() - 1];
        if last != features {
            return refuse(format!("the input has {last} features, the weight takes {features}")).here();
        }
        if bias.is_some_and(|b| b.shape() != [outputs]) {
            return refuse(format!("the bias is not [{outputs}]")).here();
        }
        let dtype = affine_dtype("linear", self, weight, bias)?;
        let weight = cast(weight, dtype)?;
        let rows: usize = self.shape()[..self.rank() - 1].iter().product();
        let x = cast(self, dtype)?.reshape([rows, features])?;
        let y = match cast_some(bias, dtype)? {
            Some(b) => apply_one(Linear, &[&x, &weight, &b])?,
            None => apply_one(Linear, &[&x, &weight])?,
        };
        if self.rank() == 2 {
            return Ok(y);
        }
        y.reshape(self.layout().shape().with(self.rank() - 1, outputs)?)
    }
}
