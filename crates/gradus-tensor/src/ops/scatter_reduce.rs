//! `scatter_reduce`: combines the elements that an index sends to the same place.
//!
//! Sums and means are computed by a scatter. For products, the elements are ordered so that those for the same place
//! are adjacent, and neighbours are multiplied in log2(n) rounds; zeros then need no special case in the gradient. For
//! extremes, the elements are sorted so that the extreme of each place is written last and stays. The gradient of an
//! extreme is split evenly among the elements that attain it.

use gradus_backend::{Backend, DType, Error, Result, ScatterOp, View, ViewMut};

use super::operand_rules::as_index;
use super::scatter::Scatter;
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_one, grads, infer, one};
use crate::Tensor;

/// How [`Tensor::scatter_reduce`] combines elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScatterReduction {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// Their mean. Integers round down.
    Mean,
    /// The largest. NaN wins.
    Amax,
    /// The smallest. NaN wins.
    Amin,
}

/// Returns extremes that have already been found, and defines their gradient. Inputs: `x`, `index`, `src`, and the
/// extremes `y` of the elements that `index` sends from `src` to each place of `x`. The gradient of `y` goes to `x` and
/// `src`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScatterExtreme {
    /// The axis.
    pub axis: usize,
    /// Whether the element of `x` is combined with the elements that are sent to its place.
    pub include_self: bool,
}

impl Operation for ScatterExtreme {
    fn name(&self) -> &str {
        "scatter_reduce"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(*inputs[3].shape, inputs[3].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.copy_strided(inputs[3], &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::inputs([0, 1, 2, 3])
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None, None, None, None])) };
        let (x, index, src) = (ctx.input(0)?.detach(), ctx.input(1)?, ctx.input(2)?.detach());
        let (y, axis) = (ctx.input(3)?, self.axis as isize);
        let attains = |a: &Tensor, b: &Tensor| a.eq(b)?.logical_or(&a.isnan()?.logical_and(&b.isnan()?)?);
        let from_src = attains(&src, &y.gather(axis, &index)?)?;
        let mut from_x = attains(&x, &y)?;
        if !self.include_self {
            from_x = from_x.scatter(axis, &index, false)?;
        }
        // Half precision cannot represent large counts.
        let wide = g.dtype().compute();
        let count = from_x.to_dtype(wide)?.scatter_add(axis, &index, &from_src.to_dtype(wide)?)?;
        let share = g.to_dtype(wide)?.div(&count)?.to_dtype(g.dtype())?;
        let dx = if ctx.needs(0) { Some(from_x.where_(&share, 0.0)?) } else { None };
        let dsrc = if ctx.needs(2) { Some(from_src.where_(&share.gather(axis, &index)?, 0.0)?) } else { None };
        Ok(grads([dx, None, dsrc, None]))
    }
}

impl Tensor {
    /// Combines the elements of `src` that `index` (integers) sends to the same place along `axis`, with each other
    /// and, if `include_self`, with this tensor's element at that place. Places to which nothing is sent keep their
    /// elements. For shapes and errors see [`scatter`](Tensor::scatter).
    ///
    /// The gradient of an extreme is split evenly among the elements that attain it. Half precision is computed in f32.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0], [3], &device)?;
    /// let index = Tensor::from_vec(vec![0, 0, 2i64], [3], &device)?;
    /// let src = Tensor::from_vec(vec![5.0f32, 6.0, -1.0], [3], &device)?;
    /// let largest = x.scatter_reduce(0, &index, &src, ScatterReduction::Amax, true)?;
    /// assert_eq!(largest.to_vec::<f32>()?, [6.0, 2.0, 3.0]);
    /// let means = x.scatter_reduce(0, &index, &src, ScatterReduction::Mean, false)?;
    /// assert_eq!(means.to_vec::<f32>()?, [5.5, 2.0, -1.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        axis: isize,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduction,
        include_self: bool,
    ) -> Result<Tensor> {
        const OP: &str = "scatter_reduce";
        let (x, at) = self.along(OP, axis)?;
        let index = as_index(OP, index)?;
        let index = &index.as_vector()?;
        let (x, src) = &x.with_source(OP, index, src.into())?;
        // Performs the checks of a scatter before anything is computed.
        let scatter = Scatter { axis: at, op: ScatterOp::Set };
        infer(&scatter, &[x, index, src])?;
        scatter.check(x, index)?;
        if x.dtype() == DType::Bool {
            let e = Error::dtype(OP, x.dtype(), "numbers; cast the booleans");
            return Err(self.describe(e, "self"));
        }
        let y = match reduce {
            ScatterReduction::Sum if include_self => x.scatter_add(at as isize, index, src),
            ScatterReduction::Sum => x.scatter(at as isize, index, 0)?.scatter_add(at as isize, index, src),
            ScatterReduction::Mean => x.scatter_mean(at as isize, index, src, include_self),
            ScatterReduction::Prod => x.scatter_product(at, index, src, include_self),
            ScatterReduction::Amax => x.scatter_extreme(at, index, src, false, include_self),
            ScatterReduction::Amin => x.scatter_extreme(at, index, src, true, include_self),
        };
        y?.back_to(self)
    }

    #[track_caller]
    fn scatter_mean(&self, axis: isize, index: &Tensor, src: &Tensor, include_self: bool) -> Result<Tensor> {
        let dtype = self.dtype();
        let wide = if dtype.is_float() { dtype.compute() } else { dtype.accumulate() };
        let (x, src) = (self.to_dtype(wide)?, src.to_dtype(wide)?);
        let base = if include_self { x } else { x.scatter(axis, index, 0)? };
        let one = Tensor::ones([], DType::I64, self.device())?;
        let start = Tensor::full([], i64::from(include_self), DType::I64, self.device())?.expand(self.shape())?;
        let count = start.scatter_add(axis, index, &one.expand(index.shape())?)?.maximum(1)?.to_dtype(wide)?;
        let sum = base.scatter_add(axis, index, &src)?;
        let mean = if dtype.is_float() { sum.div(&count)? } else { sum.floor_div(&count)? };
        mean.to_dtype(dtype)
    }

    #[track_caller]
    fn scatter_product(&self, at: usize, index: &Tensor, src: &Tensor, include_self: bool) -> Result<Tensor> {
        let (axis, n, wide) = (at as isize, index.shape()[at], self.dtype().compute());
        let (places, order) = index.detach().sort(axis, false)?;
        let mut product = src.to_dtype(wide)?.gather(axis, &order)?;
        let mut step = 1;
        // After each round, an element holds the product of the next `2 * step` elements, including itself, that have
        // the same destination.
        while step < n {
            let (head, tail) = (product.narrow(axis, 0, n - step)?, product.narrow(axis, step, n - step)?);
            let together = places.narrow(axis, 0, n - step)?.eq(&places.narrow(axis, step, n - step)?)?;
            // Selecting the factor, rather than the product, keeps elements that are not used out of the gradient.
            let longer = head.mul(&together.where_(&tail, 1)?)?;
            product = Tensor::cat(&[&longer, &product.narrow(axis, n - step, step)?], axis)?;
            step = step.saturating_mul(2);
        }
        // The first element of each destination holds the whole product. In reverse order it is written last, and
        // stays.
        let (places, product) = (places.flip(axis)?, product.flip(axis)?);
        let x = self.to_dtype(wide)?;
        let y = if include_self {
            let ones = Tensor::ones([], wide, self.device())?.expand(self.shape())?;
            x.mul(&ones.scatter(axis, &places, &product)?)?
        } else {
            x.scatter(axis, &places, &product)?
        };
        y.to_dtype(self.dtype())
    }

    #[track_caller]
    fn scatter_extreme(
        &self,
        at: usize,
        index: &Tensor,
        src: &Tensor,
        smallest: bool,
        include_self: bool,
    ) -> Result<Tensor> {
        let axis = at as isize;
        // NaN is last only in ascending order, so minima of floats are computed as maxima of their negatives.
        let negate = smallest && self.dtype().is_float();
        let (mut x, mut values) = (self.detach(), src.detach());
        if negate {
            (x, values) = (x.neg()?, values.neg()?);
        }
        let (values, order) = values.sort(axis, smallest && !negate)?;
        let mut y = x.scatter(axis, &index.gather(axis, &order)?, &values)?;
        if include_self {
            y = if smallest && !negate { y.minimum(&x)? } else { y.maximum(&x)? };
        }
        if negate {
            y = y.neg()?;
        }
        apply_one(ScatterExtreme { axis: at, include_self }, &[self, index, src, &y])
    }
}
