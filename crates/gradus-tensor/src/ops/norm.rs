//! `norm` and `logsumexp` over axes.

use gradus_backend::{Error, Result};

use super::elementwise::{Class, Elementwise};
use super::operand::Operand;
use super::operands::reduced_axes;
use crate::Tensor;

/// `sqrt(x)` with slope 0 at 0, to any order.
static ROOT: Elementwise = Elementwise::new("root", Class::Float, 1, |x| {
    let zero = x[0].eq(0.0);
    vec![zero.select(0.0, zero.select(1.0, x[0]).sqrt())]
});

/// `|x|^p` with slope 0 at 0, to any order; of (x, p), p not 0.
static POWER: Elementwise = Elementwise::new("abs_pow", Class::Float, 2, |x| {
    let zero = x[0].eq(0.0);
    let at_zero = x[1].lt(0.0).select(f64::INFINITY, x[1].constant(0.0));
    vec![zero.select(at_zero, zero.select(1.0, x[0].abs()).pow(x[1]))]
});

/// `sqrt(x)` with slope 0 at 0: the root of a sum of squares, whose own slopes are 0 there.
#[track_caller]
pub(super) fn root(x: &Tensor) -> Result<Tensor> {
    ROOT.apply(&[Operand::Tensor(x)])
}

/// `|x|^p` with slope 0 at 0, to any order.
#[track_caller]
pub(super) fn power(x: &Tensor, p: f64) -> Result<Tensor> {
    POWER.apply(&[Operand::Tensor(x), p.into()])
}

/// Errors if `p` is NaN, or below the least that is possible.
pub(super) fn check_p(op: &str, p: f64, least: f64) -> Result<()> {
    if p.is_nan() || p < least {
        let wanted = if least == 0.0 { "at least 0" } else { "a number" };
        return Err(Error::argument(op, format!("p is {p}; it is {wanted}")).help("2 is the usual length"));
    }
    Ok(())
}

impl Tensor {
    /// The p-norm over the axes, in a float dtype: `(sum |x|^p)^(1/p)`; the number of non-zero elements for `p = 0`; the
    /// largest magnitude for infinity and the smallest for minus infinity. With p below 0 one element of 0 makes it 0.
    ///
    /// Where the function has a kink at 0 its gradient is 0: for a norm of 0, and, with p below 2, at elements that are 0.
    /// Equal extremes share the gradient. The norm of nothing is 0, but an error for infinite p and for p below 0.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![3.0f32, -4.0], [2], &device)?;
    /// assert_eq!(x.norm(2.0, &[0], false)?.item()?, 5.0);
    /// assert_eq!(x.norm(f64::INFINITY, &[0], false)?.item()?, 4.0);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn norm(&self, p: f64, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        check_p("norm", p, f64::NEG_INFINITY).map_err(|e| self.describe(e, "self"))?;
        let dtype = self.dtype().to_float();
        let x = self.to_dtype(dtype.compute())?;
        let y = if p == 0.0 {
            x.ne(0.0)?.to_dtype(x.dtype())?.sum(axes, keepdim)?
        } else if p == 1.0 {
            x.abs()?.sum(axes, keepdim)?
        } else if p == 2.0 {
            root(&x.square()?.sum(axes, keepdim)?)?
        } else if p == f64::INFINITY {
            x.abs()?.max(axes, keepdim)?
        } else if p == f64::NEG_INFINITY || (p < 0.0 && x.numel() == 0) {
            x.abs()?.min(axes, keepdim)?
        } else {
            power(&power(&x, p)?.sum(axes, keepdim)?, 1.0 / p)?
        };
        y.to_dtype(dtype)
    }

    /// `ln(sum e^x)` over the axes, without overflow; integers become f32. All -inf, and nothing at all, give -inf with
    /// gradient 0. A +inf gives +inf, and equal shares of the gradient to the elements that are.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1000.0f64, 1000.0], [2], &device)?;
    /// assert_eq!(x.logsumexp(&[0], false)?.item()?, 1000.0 + 2f64.ln());
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn logsumexp(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        let set = reduced_axes("logsumexp", axes, self.rank())?;
        let dtype = self.dtype().to_float();
        let x = self.to_dtype(dtype.compute())?;
        if x.numel() == 0 {
            return x.sum(axes, keepdim)?.add(f64::NEG_INFINITY)?.to_dtype(dtype);
        }
        let max = x.detach().max(axes, true)?;
        let shift = max.isfinite()?.where_(&max, 0.0)?;
        // In a row with +inf the differences are replaced by constants, which count those elements.
        let infinite = max.eq(f64::INFINITY)?;
        let huge = x.eq(f64::INFINITY)?;
        let counted = huge.where_(&x.detach().zeros_like()?, f64::NEG_INFINITY)?;
        let sum = infinite.where_(&counted, &x.sub(&shift)?)?.exp()?.sum(axes, true)?;
        let none = sum.eq(0.0)?;
        let finite = none.where_(1.0, &sum)?.log()?.add(&shift)?;
        let huge_mean = huge.where_(&x, 0.0)?.sum(axes, true)?.div(&none.where_(1.0, sum.detach())?)?;
        let y = infinite.where_(&huge_mean, &none.where_(f64::NEG_INFINITY, &finite)?)?;
        let y = if keepdim || set.is_empty() { y } else { y.reshape(self.layout().shape().reduced(set, false))? };
        y.to_dtype(dtype)
    }
}
