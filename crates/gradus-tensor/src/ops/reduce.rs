//! `sum`, `mean`, `max`, `min`, `prod`, `any`, `all` and `var` over axes.
//!
//! Gradients: `sum` spreads g; `mean` spreads g / n; `max` and `min` split g evenly among the elements that attain the
//! extreme (NaN attains it if the result is NaN); `prod` and the logical ones have none here.

use gradus_backend::{Axes, Backend, DType, Error, ErrorKind, ReduceOp, Result, View, ViewMut};

use super::{Context, Grads, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// A reduction over axes, which stay with size 1.
#[derive(Debug, Clone)]
pub struct Reduce {
    /// How elements combine.
    pub op: ReduceOp,
    /// Over which axes.
    pub axes: Axes,
}

impl Operation for Reduce {
    fn name(&self) -> &str {
        self.op.name()
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        let x = inputs[0];
        let shape = x.layout().shape().reduced(self.axes, true);
        let extreme = matches!(self.op, ReduceOp::Max | ReduceOp::Min);
        if extreme && shape.numel() > 0 && x.numel() == 0 {
            let e = Error::argument(self.name(), "the axes are empty: nothing has no extreme element");
            return Err(x.describe(e, "self"));
        }
        if extreme && x.dtype() == DType::Bool {
            return Err(x.describe(Error::dtype(self.name(), x.dtype(), "numbers; use any or all"), "self"));
        }
        let dtype = match self.op {
            ReduceOp::Sum | ReduceOp::Prod => x.dtype().accumulate(),
            ReduceOp::Max | ReduceOp::Min => x.dtype(),
            ReduceOp::Any | ReduceOp::All => DType::Bool,
        };
        Ok(one(shape, dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.reduce(self.op, inputs[0], self.axes, &mut outputs[0])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        match self.op {
            ReduceOp::Max | ReduceOp::Min => Keep::inputs([0]).and_outputs([0]),
            _ => Keep::NONE,
        }
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let shape = ctx.input_spec(0).shape;
        match self.op {
            ReduceOp::Sum => Ok(grads([Some(g.expand(shape)?)])),
            ReduceOp::Max | ReduceOp::Min => {
                let (x, y) = (ctx.input(0)?.detach(), ctx.output(0)?.detach());
                let attains = x.eq(&y)?.logical_or(&x.isnan()?.logical_and(&y.isnan()?)?)?;
                // Half precision cannot count that far.
                let wide = g.dtype().compute();
                let count = attains.to_dtype(wide)?.sum(&axes_list(self.axes), true)?;
                let share = g.to_dtype(wide)?.div(&count)?.to_dtype(g.dtype())?;
                Ok(grads([Some(attains.where_(&share, 0.0)?)]))
            }
            ReduceOp::Prod | ReduceOp::Any | ReduceOp::All => {
                Err(Error::new(ErrorKind::Autograd, "backward", format!("{} has no gradient rule", self.name())))
            }
        }
    }
}

fn axes_list(axes: Axes) -> Vec<isize> {
    axes.iter().map(|a| a as isize).collect()
}

impl Tensor {
    #[track_caller]
    fn reduce(&self, op: ReduceOp, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        let axes = Axes::resolve(op.name(), axes, self.rank())?;
        let y = apply_one(Reduce { op, axes }, &[self])?;
        if keepdim || axes.is_empty() { Ok(y) } else { y.reshape(self.layout().shape().reduced(axes, false)) }
    }

    fn every_axis(&self) -> Vec<isize> {
        (0..self.rank() as isize).collect()
    }

    /// Sum over the axes; an empty list sums over none. Integers and booleans sum in i64 (u64 in u64), wrapping.
    /// Nothing sums to 0.
    #[track_caller]
    pub fn sum(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.reduce(ReduceOp::Sum, axes, keepdim)
    }

    /// Sum of all elements, a scalar.
    #[track_caller]
    pub fn sum_all(&self) -> Result<Tensor> {
        self.sum(&self.every_axis(), false)
    }

    /// Mean over the axes, in a float dtype. The mean of nothing is NaN.
    #[track_caller]
    pub fn mean(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        let set = Axes::resolve("mean", axes, self.rank())?;
        let n: usize = set.iter().map(|a| self.shape()[a]).product();
        // Half precision sums in f32: the sum itself may not fit.
        let dtype = self.dtype().to_float();
        let x = self.to_dtype(dtype.compute())?;
        x.sum(axes, keepdim)?.div(n as f64)?.to_dtype(dtype)
    }

    /// Mean of all elements, a scalar.
    #[track_caller]
    pub fn mean_all(&self) -> Result<Tensor> {
        self.mean(&self.every_axis(), false)
    }

    /// Largest element over the axes; NaN wins. Nothing has none: an error.
    #[track_caller]
    pub fn max(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.reduce(ReduceOp::Max, axes, keepdim)
    }

    /// Smallest element over the axes; NaN wins. Nothing has none: an error.
    #[track_caller]
    pub fn min(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.reduce(ReduceOp::Min, axes, keepdim)
    }

    /// Largest of all elements, a scalar.
    #[track_caller]
    pub fn max_all(&self) -> Result<Tensor> {
        self.max(&self.every_axis(), false)
    }

    /// Smallest of all elements, a scalar.
    #[track_caller]
    pub fn min_all(&self) -> Result<Tensor> {
        self.min(&self.every_axis(), false)
    }

    /// Variance over the axes: `sum((x - mean)^2) / (n - correction)`, two-pass. `correction` is 1 for the unbiased
    /// estimate; with `n <= correction` the result is NaN.
    #[track_caller]
    pub fn var(&self, axes: &[isize], correction: usize, keepdim: bool) -> Result<Tensor> {
        let set = Axes::resolve("var", axes, self.rank())?;
        let n: usize = set.iter().map(|a| self.shape()[a]).product();
        let dtype = self.dtype().to_float();
        let x = self.to_dtype(dtype.compute())?;
        let deviation = x.sub(&x.mean(axes, true)?)?;
        let sum = deviation.square()?.sum(axes, keepdim)?;
        let divisor = if n > correction { (n - correction) as f64 } else { f64::NAN };
        sum.div(divisor)?.to_dtype(dtype)
    }

    /// Whether any element is non-zero over the axes.
    #[track_caller]
    pub fn any(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.detach().reduce(ReduceOp::Any, axes, keepdim)
    }

    /// Whether all elements are non-zero over the axes.
    #[track_caller]
    pub fn all(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.detach().reduce(ReduceOp::All, axes, keepdim)
    }
}
