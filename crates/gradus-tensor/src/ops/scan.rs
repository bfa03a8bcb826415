//! Running sums, products, log-sum-exp and extremes along an axis.
//!
//! Gradients: for the sum, the running sum of g from the end. For the product and the log-sum-exp, a linear recurrence
//! `r[i] = g[i] + a[i] r[i+1]` from the end. The recurrence needs no division, so zeros are no special case, to any
//! order.

use gradus_backend::{Backend, DType, Error, Result, ScanOp, View, ViewMut};

use super::autocast::computed;
use super::elementwise::{Class, Elementwise};
use super::gather::index_along;
use super::operand::Operand;
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// A running sum, product or log-sum-exp along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scan {
    /// The running operation. Extremes are not recorded as a scan but as a gather, which defines their gradient.
    pub op: ScanOp,
    /// The axis.
    pub axis: usize,
}

/// `e^(a - b)` for `a <= b`, and 0 where a is -inf, even if b is -inf as well.
static WEIGHT: Elementwise = Elementwise::new("lse_weight", Class::Float, 2, |x| {
    let none = x[0].eq(f64::NEG_INFINITY);
    vec![none.select(0.0, none.select(0.0, x[0] - x[1]).exp())]
});

impl Operation for Scan {
    fn name(&self) -> &str {
        match self.op {
            ScanOp::Sum => "cumsum",
            ScanOp::Prod => "cumprod",
            ScanOp::Max => "cummax",
            ScanOp::Min => "cummin",
            ScanOp::LogSumExp => "logcumsumexp",
        }
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let dtype = inputs[0].dtype;
        let sums = matches!(self.op, ScanOp::Sum | ScanOp::Prod);
        Ok(one(*inputs[0].shape, if sums { dtype.accumulate() } else { dtype }))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.scan(self.op, inputs[0], self.axis, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        match self.op {
            ScanOp::Prod => Keep::inputs([0]),
            ScanOp::LogSumExp => Keep::inputs([0]).and_outputs([0]),
            _ => Keep::NONE,
        }
    }

    fn differentiable(&self, _: usize) -> bool {
        !matches!(self.op, ScanOp::Max | ScanOp::Min)
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let axis = self.axis as isize;
        let n = g.shape()[self.axis];
        if n == 0 {
            return Ok(grads([Some(g.clone())]));
        }
        let dx = match self.op {
            ScanOp::Sum => g.flip(axis)?.cumsum(axis)?.flip(axis)?,
            ScanOp::Prod => {
                let x = ctx.input(0)?;
                let first = x.narrow(axis, 0, 1)?.detach().ones_like()?;
                let before = Tensor::cat(&[&first, &x.narrow(axis, 0, n - 1)?.cumprod(axis)?], axis)?;
                before.mul(&recurrence(g, &x.narrow(axis, 1, n - 1)?, self.axis)?)?
            }
            ScanOp::LogSumExp => {
                let (x, y) = (ctx.input(0)?, ctx.output(0)?);
                let decay = weight(&y.narrow(axis, 0, n - 1)?, &y.narrow(axis, 1, n - 1)?)?;
                weight(&x, &y)?.mul(&recurrence(g, &decay, self.axis)?)?
            }
            ScanOp::Max | ScanOp::Min => {
                let m = format!("{} has no gradient rule", self.name());
                return Err(Error::new(gradus_backend::ErrorKind::Autograd, "backward", m));
            }
        };
        Ok(grads([Some(dx)]))
    }
}

#[track_caller]
fn weight(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    WEIGHT.apply(&[Operand::Tensor(a), Operand::Tensor(b)])
}

/// Solves `r[i] = b[i] + a[i] r[i + 1]` along an axis, from the end. `a` is one element shorter than `b`. Joins pairs
/// of steps, solves the problem of half the size, and computes the odd positions from its solution. The work is linear,
/// in a logarithmic number of steps.
#[track_caller]
fn recurrence(b: &Tensor, a: &Tensor, at: usize) -> Result<Tensor> {
    let (axis, n) = (at as isize, b.shape()[at]);
    if n <= 1 {
        return Ok(b.clone());
    }
    let half = n / 2;
    let odd_size = n % 2 == 1;
    let even = |t: &Tensor| t.slice(axis, 0, t.shape()[at], 2);
    let odd = |t: &Tensor| t.slice(axis, 1, t.shape()[at], 2);
    let (b_even, b_odd, a_even, a_odd) = (even(b)?, odd(b)?, even(a)?, odd(a)?);
    let mut joined = b_even.narrow(axis, 0, half)?.add(&a_even.mul(&b_odd)?)?;
    if odd_size {
        joined = Tensor::cat(&[&joined, &b_even.narrow(axis, half, 1)?], axis)?;
    }
    let steps = joined.shape()[at] - 1;
    let r_even = recurrence(&joined, &a_even.narrow(axis, 0, steps)?.mul(&a_odd)?, at)?;
    let mut r_odd = b_odd.narrow(axis, 0, steps)?.add(&a_odd.mul(&r_even.narrow(axis, 1, steps)?)?)?;
    if !odd_size {
        r_odd = Tensor::cat(&[&r_odd, &b_odd.narrow(axis, steps, 1)?], axis)?;
    }
    let pairs = interleave(&r_even.narrow(axis, 0, half)?, &r_odd, at)?;
    if odd_size { Tensor::cat(&[&pairs, &r_even.narrow(axis, half, 1)?], axis) } else { Ok(pairs) }
}

/// `a[0], b[0], a[1], b[1], ..` along an axis.
#[track_caller]
pub(super) fn interleave(a: &Tensor, b: &Tensor, axis: usize) -> Result<Tensor> {
    // The axes before and after are merged, so that the added axis does not exceed the highest rank, 8.
    let shape = a.shape();
    let (lead, tail) = (shape[..axis].iter().product::<usize>(), shape[axis + 1..].iter().product::<usize>());
    let flat = [lead, shape[axis], tail];
    let mut doubled = shape.to_vec();
    doubled[axis] *= 2;
    Tensor::stack(&[&a.reshape(flat)?, &b.reshape(flat)?], 2)?.reshape(doubled)
}

#[track_caller]
fn running_extreme(x: &Tensor, op: ScanOp, name: &str, axis: isize) -> Result<(Tensor, Tensor)> {
    let like = x;
    let (x, at) = &x.along(name, axis)?;
    let at = *at;
    if x.dtype() == DType::Bool {
        return Err(x.describe(Error::dtype(name, DType::Bool, "numbers; cast first"), "self"));
    }
    let values = x.detach();
    let best = apply_one(Scan { op, axis: at }, &[&values])?;
    let attains = values.eq(&best)?.logical_or(&values.isnan()?.logical_and(&best.isnan()?)?)?;
    let last = i64::try_from(x.shape()[at]).unwrap_or(i64::MAX);
    let places = index_along(&Tensor::arange(0, last, 1, DType::I64, x.device())?, x.shape(), at)?;
    // The latest position that has attained the extreme so far.
    let indices = apply_one(Scan { op: ScanOp::Max, axis: at }, &[&attains.where_(&places, 0)?])?;
    Ok((x.gather(axis, &indices)?.back_to(like)?, indices.back_to(like)?))
}

impl Tensor {
    #[track_caller]
    fn summable(&self) -> Result<Tensor> {
        if self.dtype() == DType::Bool { self.to_dtype(DType::I64) } else { Ok(self.clone()) }
    }

    /// Running sum along an axis: `y[i] = x[0] + .. + x[i]`. Integers and booleans are summed in i64 (u64 in u64) and
    /// wrap.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 0.0, 4.0], [4], &device)?;
    /// assert_eq!(x.cumsum(0)?.to_vec::<f32>()?, [1.0, 3.0, 3.0, 7.0]);
    /// assert_eq!(x.cumprod(0)?.to_vec::<f32>()?, [1.0, 2.0, 0.0, 0.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn cumsum(&self, axis: isize) -> Result<Tensor> {
        let (x, axis) = self.along("cumsum", axis)?;
        let x = x.to_dtype(computed("cumsum", x.dtype()))?;
        apply_one(Scan { op: ScanOp::Sum, axis }, &[&x.summable()?])?.back_to(self)
    }

    /// Running product along an axis: `y[i] = x[0] * .. * x[i]`. The dtypes are as in [`cumsum`](Tensor::cumsum). The
    /// gradient is right at zeros, to any order.
    #[track_caller]
    pub fn cumprod(&self, axis: isize) -> Result<Tensor> {
        let (x, axis) = self.along("cumprod", axis)?;
        let x = x.to_dtype(computed("cumprod", x.dtype()))?.summable()?;
        // Half precision computes the gradient in f32.
        let wide = x.to_dtype(x.dtype().compute())?;
        let y = apply_one(Scan { op: ScanOp::Prod, axis }, &[&wide])?;
        let y = if x.dtype().is_float() { y.to_dtype(x.dtype())? } else { y };
        y.back_to(self)
    }

    /// Running `ln(e^x[0] + .. + e^x[i])` along an axis, computed without overflow. Integers become f32. While all are
    /// -inf the result is -inf with gradient 0; from the first +inf on it is +inf, and the gradient of the elements up
    /// to there is NaN.
    #[track_caller]
    pub fn logcumsumexp(&self, axis: isize) -> Result<Tensor> {
        let (x, axis) = self.along("logcumsumexp", axis)?;
        let dtype = self.dtype().to_float();
        let wide = x.to_dtype(dtype.compute())?;
        apply_one(Scan { op: ScanOp::LogSumExp, axis }, &[&wide])?.to_dtype(dtype)?.back_to(self)
    }

    /// Running maximum along an axis, and the index (i64) of the element that attains it. NaN wins; of equal elements,
    /// the latest does. The gradient goes to the elements at these indices.
    #[track_caller]
    pub fn cummax(&self, axis: isize) -> Result<(Tensor, Tensor)> {
        running_extreme(self, ScanOp::Max, "cummax", axis)
    }

    /// Running minimum along an axis, and the index (i64) of the element that attains it. NaN wins; of equal elements,
    /// the latest does. The gradient goes to the elements at these indices.
    #[track_caller]
    pub fn cummin(&self, axis: isize) -> Result<(Tensor, Tensor)> {
        running_extreme(self, ScanOp::Min, "cummin", axis)
    }
}
