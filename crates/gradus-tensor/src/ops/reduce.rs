//! `sum`, `mean`, `max`, `min`, `prod`, `any`, `all`, `var` and `std` over axes.
//!
//! Gradients: `sum` spreads g over the elements, and `mean` spreads g / n. `max` and `min` split g evenly among the
//! elements that attain the extreme (if the result is NaN, among the NaNs). For `prod`, the gradient of an element is g
//! times the product of the other elements, computed without division, so zeros are no special case. `any` and `all`
//! have no gradient.

use gradus_backend::{Axes, Backend, DType, Error, ErrorKind, ReduceOp, Result, View, ViewMut};

use super::autocast::computed;
use super::norm::root;
use super::operand_rules::{cast, reduced_axes};
use super::scan::interleave;
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// A reduction over axes, which are kept with size 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reduce {
    /// How elements are combined.
    pub op: ReduceOp,
    /// The axes.
    pub axes: Axes,
}

impl Operation for Reduce {
    fn name(&self) -> &str {
        self.op.name()
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["self"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let x = inputs[0];
        let shape = x.shape.reduced(self.axes, true);
        let extreme = matches!(self.op, ReduceOp::Max | ReduceOp::Min);
        if extreme && shape.numel() > 0 && x.shape.numel() == 0 {
            let e = Error::argument(
                self.name(),
                "there is no element along the axes, so there is no largest or smallest one",
            );
            return Err(e);
        }
        if extreme && x.dtype == DType::Bool {
            return Err(Error::dtype(self.name(), x.dtype, "numbers; use any or all"));
        }
        let dtype = match self.op {
            ReduceOp::Sum | ReduceOp::Prod => x.dtype.accumulate(),
            ReduceOp::Max | ReduceOp::Min => x.dtype,
            ReduceOp::Any | ReduceOp::All => DType::Bool,
        };
        Ok(one(shape, dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.reduce(self.op, inputs[0], self.axes, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        // The reduced axes are kept with size 1, so the result broadcasts with the input.
        Flow::InPlace
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        match self.op {
            ReduceOp::Max | ReduceOp::Min => Keep::inputs([0]).and_outputs([0]),
            ReduceOp::Prod => Keep::inputs([0]),
            _ => Keep::NONE,
        }
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let shape = ctx.input_spec(0)?.shape;
        match self.op {
            ReduceOp::Sum => Ok(grads([Some(g.expand(shape)?)])),
            ReduceOp::Max | ReduceOp::Min => {
                let (x, y) = (ctx.input(0)?.detach(), ctx.output(0)?.detach());
                let attains = x.eq(&y)?.logical_or(&x.isnan()?.logical_and(&y.isnan()?)?)?;
                // Half precision cannot represent large counts.
                let wide = g.dtype().compute();
                let count = attains.to_dtype(wide)?.sum(&axes_list(self.axes), true)?;
                let share = g.to_dtype(wide)?.div(&count)?.to_dtype(g.dtype())?;
                Ok(grads([Some(attains.where_(&share, 0.0)?)]))
            }
            ReduceOp::Prod => {
                // Half precision computes this gradient in f32.
                let (x, dtype) = (ctx.input(0)?, g.dtype());
                let others = products_of_others(&x.to_dtype(dtype.compute())?, self.axes)?;
                Ok(grads([Some(others.mul(&g.to_dtype(dtype.compute())?)?.to_dtype(dtype)?)]))
            }
            ReduceOp::Any | ReduceOp::All => {
                Err(Error::new(ErrorKind::Autograd, "backward", format!("{} has no gradient rule", self.name())))
            }
        }
    }
}

/// For each element, the product of all other elements over the axes, in the shape of `x`.
#[track_caller]
fn products_of_others(x: &Tensor, axes: Axes) -> Result<Tensor> {
    let (kept, mut order): (Vec<usize>, Vec<isize>) = ((0..x.rank()).filter(|&a| !axes.contains(a)).collect(), vec![]);
    order.extend(kept.iter().map(|&a| a as isize));
    order.extend(axes_list(axes));
    let mut back = vec![0isize; order.len()];
    for (to, &from) in order.iter().enumerate() {
        back[from as usize] = to as isize;
    }
    let moved = x.permute(&order)?;
    let count = |a: &mut dyn Iterator<Item = usize>| a.map(|a| x.shape()[a]).product::<usize>();
    let matrix = moved.reshape([count(&mut kept.iter().copied()), count(&mut axes.iter())])?;
    others_in_rows(&matrix)?.reshape(moved.shape())?.permute(&back)
}

/// For each element of `x [rows, n]`, the product of the other elements in its row. Multiplies neighbours in pairs,
/// solves the problem of half the size, and multiplies the solution for each pair by one of its elements to obtain the
/// result for the other. The work is linear, without any division.
#[track_caller]
fn others_in_rows(x: &Tensor) -> Result<Tensor> {
    let n = x.shape()[1];
    if n <= 1 {
        return x.ones_like();
    }
    let half = n / 2;
    let (a, b) = (x.slice(1, 0, 2 * half, 2)?, x.slice(1, 1, 2 * half, 2)?);
    let pairs = a.mul(&b)?;
    let pairs = if n % 2 == 1 { Tensor::cat(&[&pairs, &x.narrow(1, n - 1, 1)?], 1)? } else { pairs };
    let others = others_in_rows(&pairs)?;
    let of_pairs = others.narrow(1, 0, half)?;
    let both = interleave(&of_pairs.mul(&b)?, &of_pairs.mul(&a)?, 1)?;
    if n % 2 == 1 { Tensor::cat(&[&both, &others.narrow(1, half, 1)?], 1) } else { Ok(both) }
}

fn axes_list(axes: Axes) -> Vec<isize> {
    axes.iter().map(|a| a as isize).collect()
}

impl Tensor {
    #[track_caller]
    fn reduce(&self, op: ReduceOp, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        let axes = reduced_axes(op.name(), axes, self.rank())?;
        let x = cast(self, computed(op.name(), self.dtype()))?;
        let y = apply_one(Reduce { op, axes }, &[&*x])?;
        if keepdim || axes.is_empty() { Ok(y) } else { y.reshape(self.layout().shape().reduced(axes, false)) }
    }

    /// The dtype in which statistics of this tensor are computed.
    fn wide(&self) -> DType {
        match self.dtype() {
            d if d.is_float() => d.compute(),
            _ if self.device().backend().supports(DType::F64) => DType::F64,
            _ => DType::F32,
        }
    }

    fn every_axis(&self) -> Vec<isize> {
        (0..self.rank() as isize).collect()
    }

    /// Sum over the axes; with an empty list of axes nothing is summed. Integers and booleans are summed in i64 (u64 in
    /// u64) and wrap. The sum of no elements is 0.
    #[track_caller]
    pub fn sum(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.reduce(ReduceOp::Sum, axes, keepdim)
    }

    /// Sum of all elements, as a scalar.
    #[track_caller]
    pub fn sum_all(&self) -> Result<Tensor> {
        self.sum(&self.every_axis(), false)
    }

    /// Mean over the axes, in a float dtype. Integers are summed exactly. The mean of no elements is NaN.
    #[track_caller]
    pub fn mean(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        let set = reduced_axes("mean", axes, self.rank())?;
        let n: usize = set.iter().map(|a| self.shape()[a]).product();
        let dtype = self.dtype().to_float();
        let sum = match self.dtype() {
            d if !d.is_float() && self.wide() == DType::F32 => return self.mean_of_integers(axes, keepdim, n),
            // Summed in two halves of 32 bits each, whose sums cannot overflow.
            DType::I64 | DType::U64 => {
                let high = self.floor_div(1i64 << 32)?;
                let low = self.sub(&high.mul(1i64 << 32)?)?;
                let high = high.sum(axes, keepdim)?.to_dtype(DType::F64)?.mul(4_294_967_296.0)?;
                high.add(&low.sum(axes, keepdim)?.to_dtype(DType::F64)?)?
            }
            // Half precision is summed in f32, since the sum itself may not fit.
            d if d.is_float() => self.to_dtype(d.compute())?.sum(axes, keepdim)?,
            _ => self.sum(axes, keepdim)?.to_dtype(DType::F64)?,
        };
        sum.div(n as f64)?.to_dtype(dtype)
    }

    /// [`mean`](Tensor::mean) of integers or booleans without f64: a whole part and a remainder below 1 of the same
    /// sign. Both are computed exactly, and the equal signs avoid cancellation when they are added in f32.
    #[track_caller]
    fn mean_of_integers(&self, axes: &[isize], keepdim: bool, n: usize) -> Result<Tensor> {
        let n = n as i64;
        if n == 0 {
            return self.sum(axes, keepdim)?.to_dtype(DType::F32)?.div(0.0);
        }
        let x = self.to_dtype(if self.dtype() == DType::U64 { DType::U64 } else { DType::I64 })?;
        let (whole, rest) = (x.floor_div(n)?.sum(axes, keepdim)?, x.remainder(n)?.sum(axes, keepdim)?);
        let (whole, rest) = (whole.add(&rest.floor_div(n)?)?, rest.remainder(n)?);
        // The remainder is never negative. If the whole part is negative, 1 is moved to it from the remainder, so that
        // the signs agree.
        let below = whole.lt(0)?.logical_and(&rest.gt(0)?)?.to_dtype(whole.dtype())?;
        let (whole, rest) = (whole.add(&below)?, rest.sub(&below.mul(n)?)?);
        let rest = rest.to_dtype(DType::F32)?.div(n as f64)?;
        whole.to_dtype(DType::F32)?.add(&rest)
    }

    /// Mean of all elements, as a scalar.
    #[track_caller]
    pub fn mean_all(&self) -> Result<Tensor> {
        self.mean(&self.every_axis(), false)
    }

    /// Largest element over the axes; NaN wins. Fails if there are no elements. Equal ones share the gradient.
    #[track_caller]
    pub fn max(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.reduce(ReduceOp::Max, axes, keepdim)
    }

    /// Smallest element over the axes; NaN wins. Fails if there are no elements. Equal ones share the gradient.
    #[track_caller]
    pub fn min(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.reduce(ReduceOp::Min, axes, keepdim)
    }

    /// Largest of all elements, as a scalar.
    #[track_caller]
    pub fn max_all(&self) -> Result<Tensor> {
        self.max(&self.every_axis(), false)
    }

    /// Smallest of all elements, as a scalar.
    #[track_caller]
    pub fn min_all(&self) -> Result<Tensor> {
        self.min(&self.every_axis(), false)
    }

    /// Variance over the axes, in two passes: `sum((x - mean)^2) / (n - correction)`. Integers are computed in f64 if
    /// the device supports it. `correction` is 1 for the unbiased estimate. If `n <= correction`, the result is NaN.
    #[track_caller]
    pub fn var(&self, axes: &[isize], correction: usize, keepdim: bool) -> Result<Tensor> {
        let set = reduced_axes("var", axes, self.rank())?;
        let n: usize = set.iter().map(|a| self.shape()[a]).product();
        let dtype = self.dtype().to_float();
        let x = self.to_dtype(self.wide())?;
        let deviation = x.sub(&x.mean(axes, true)?)?;
        let sum = deviation.square()?.sum(axes, keepdim)?;
        let divisor = if n > correction { (n - correction) as f64 } else { f64::NAN };
        sum.div(divisor)?.to_dtype(dtype)
    }

    /// Standard deviation over the axes, the square root of [`var`](Tensor::var). Where it is 0 its gradient is 0.
    #[track_caller]
    pub fn std(&self, axes: &[isize], correction: usize, keepdim: bool) -> Result<Tensor> {
        let dtype = self.dtype().to_float();
        root(&self.to_dtype(self.wide())?.var(axes, correction, keepdim)?)?.to_dtype(dtype)
    }

    /// [`var`](Tensor::var) and [`mean`](Tensor::mean) over the axes.
    #[track_caller]
    pub fn var_mean(&self, axes: &[isize], correction: usize, keepdim: bool) -> Result<(Tensor, Tensor)> {
        Ok((self.var(axes, correction, keepdim)?, self.mean(axes, keepdim)?))
    }

    /// Product over the axes; with an empty list of axes nothing is multiplied. Integers and booleans are multiplied in
    /// i64 (u64 in u64) and wrap. The product of no elements is 1. The gradient is right at zeros, to any order.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![2.0f32, 0.0, 3.0], [3], &device)?.with_grad()?;
    /// let gradients = x.prod(&[0], false)?.backward()?;
    /// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [0.0, 6.0, 0.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn prod(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.reduce(ReduceOp::Prod, axes, keepdim)
    }

    /// Product of all elements, as a scalar.
    #[track_caller]
    pub fn prod_all(&self) -> Result<Tensor> {
        self.prod(&self.every_axis(), false)
    }

    /// The pair of [`min`](Tensor::min) and [`max`](Tensor::max) over the axes. Equal extremes share the gradient.
    #[track_caller]
    pub fn aminmax(&self, axes: &[isize], keepdim: bool) -> Result<(Tensor, Tensor)> {
        Ok((self.min(axes, keepdim)?, self.max(axes, keepdim)?))
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
