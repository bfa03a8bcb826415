//! `norm` and `logsumexp` over axes.

use gradus_backend::{Error, Expr, Result};

use super::autocast::computed;
use super::elementwise::{Class, Elementwise};
use super::operand::Operand;
use super::operand_rules::reduced_axes;
use crate::Tensor;

/// 1 where x is not 0, and 0 elsewhere. The slope is 0.
static NONZERO: Elementwise =
    Elementwise::new("nonzero", Class::Float, 1, |x| vec![x[0].ne(0.0).select(1.0, x[0].constant(0.0))]);

/// Operands: x, p (not 0). `|x|^p` with slope 0 at 0, to any order.
static POWER: Elementwise = Elementwise::new("abs_pow", Class::Float, 2, |x| {
    let zero = x[0].eq(0.0);
    let at_zero = x[1].lt(0.0).select(f64::INFINITY, x[1].constant(0.0));
    vec![zero.select(at_zero, zero.select(1.0, x[0].abs()).pow(x[1]))]
});

// Note [overflowed sums]
// If a sum of squares or other powers is infinite, the finite numbers whose powers overflowed cannot be recovered from
// it. Its root is therefore infinite too, with an infinite slope, and a quotient by that root is NaN. Neither may be 0,
// which would look like a valid number.

/// `sqrt(x)` with slope 0 at 0, to any order. See Note [overflowed sums].
static ROOT: Elementwise = Elementwise::new("root", Class::Float, 1, |x| {
    let zero = x[0].eq(0.0);
    vec![zero.select(0.0, endless(x[0], x[0].eq(f64::INFINITY), zero.select(1.0, x[0]).sqrt()))]
});

/// Operands: x, 1 / p. `x^(1 / p)` with slope 0 at 0, to any order. See Note [overflowed sums]. If p is below 0, the
/// powers of large finite numbers become 0 instead of infinite, and the sum 0 is treated in the same way.
static ROOT_OF_POWERS: Elementwise = Elementwise::new("root_of_powers", Class::Float, 2, |x| {
    let zero = x[0].eq(0.0);
    let (none, over) = (zero.and(x[1].lt(0.0)), x[0].eq(f64::INFINITY).and(x[1].gt(0.0)));
    let root = endless(x[0], over, zero.select(1.0, x[0]).pow(x[1]));
    vec![none.select(none.select(x[0], 1.0).recip(), zero.select(0.0, root))]
});

/// Operands: length, least. `max(length, least)`, but NaN for an infinite length. See Note [overflowed sums].
static AT_LEAST: Elementwise =
    Elementwise::new("at_least", Class::Float, 2, |x| vec![x[0].eq(f64::INFINITY).select(f64::NAN, x[0].max(x[1]))]);

/// Operands: x, eps. `1 / sqrt(x + eps)`, but NaN where x is infinite. See Note [overflowed sums].
static INVERSE_ROOT: Elementwise = Elementwise::new("inverse_root", Class::Float, 2, |x| {
    vec![x[0].eq(f64::INFINITY).select(f64::NAN, x[0] + x[1]).rsqrt()]
});

/// Returns `root`, but an infinity with an infinite slope where `over` says that x is infinite.
fn endless<'k>(x: Expr<'k>, over: Expr<'k>, root: Expr<'k>) -> Expr<'k> {
    let x = over.select(x, 1.0);
    over.select(x * x, root)
}

/// `sqrt(x)` with slope 0 at 0, for a sum of squares, whose own slopes are 0 there. If the squares have overflowed, the
/// result and its slope are infinite.
#[track_caller]
pub(super) fn root(x: &Tensor) -> Result<Tensor> {
    ROOT.apply(&[Operand::Tensor(x)])
}

/// `|x|^p` with slope 0 at 0, to any order.
#[track_caller]
pub(super) fn power(x: &Tensor, p: f64) -> Result<Tensor> {
    POWER.apply(&[Operand::Tensor(x), p.into()])
}

/// `x^(1 / p)` of a sum of [`power`]s, with the same special cases as [`root`].
#[track_caller]
pub(super) fn root_of_powers(x: &Tensor, p: f64) -> Result<Tensor> {
    ROOT_OF_POWERS.apply(&[Operand::Tensor(x), (1.0 / p).into()])
}

/// A length to divide by: at least `least`, but NaN if powers have overflowed, so that no quotient becomes 0.
#[track_caller]
pub(super) fn at_least(length: &Tensor, least: f64) -> Result<Tensor> {
    AT_LEAST.apply(&[Operand::Tensor(length), least.into()])
}

/// `1 / sqrt(x + eps)` of a sum or mean of squares, but NaN if these have overflowed.
#[track_caller]
pub(super) fn inverse_root(x: &Tensor, eps: f64) -> Result<Tensor> {
    INVERSE_ROOT.apply(&[Operand::Tensor(x), eps.into()])
}

/// Fails if `p` is NaN or below `least`.
#[track_caller]
pub(super) fn check_p(op: &str, p: f64, least: f64) -> Result<()> {
    if p.is_nan() || p < least {
        let wanted = if least == 0.0 { "at least 0" } else { "a number" };
        return Err(Error::argument(op, format!("p is {p}; it is {wanted}")).help("2 is the usual length"));
    }
    Ok(())
}

impl Tensor {
    /// The p-norm over the axes, in a float dtype: `(sum |x|^p)^(1/p)`. For `p = 0` it is the number of non-zero
    /// elements, for infinity the largest magnitude, and for minus infinity the smallest. If p is below 0, a single
    /// element of 0 makes the norm 0.
    ///
    /// Where the function has a kink at 0 its gradient is 0: for a norm of 0 and, if p is below 2, at elements that are
    /// 0. Equal extremes share the gradient. The norm of no elements is 0, but for infinite p and for p below 0 it is
    /// an error. If the powers of finite elements overflow (for p = 2 in f32, from 1.8e19 on), the norm is infinite,
    /// and its gradient is infinite or NaN.
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
        let dtype = computed("norm", self.dtype().to_float());
        let x = self.to_dtype(dtype.compute())?;
        let y = if p == 0.0 {
            NONZERO.apply(&[Operand::Tensor(&x)])?.sum(axes, keepdim)?
        } else if p == 1.0 {
            x.abs()?.sum(axes, keepdim)?
        } else if p == 2.0 {
            root(&x.square()?.sum(axes, keepdim)?)?
        } else if p == f64::INFINITY {
            x.abs()?.max(axes, keepdim)?
        } else if p == f64::NEG_INFINITY || (p < 0.0 && x.numel() == 0) {
            x.abs()?.min(axes, keepdim)?
        } else {
            root_of_powers(&power(&x, p)?.sum(axes, keepdim)?, p)?
        };
        y.to_dtype(dtype)
    }

    /// `ln(sum e^x)` over the axes, computed without overflow. Integers become f32. If all elements are -inf, or there
    /// are none, the result is -inf with gradient 0. If an element is +inf, so is the result, and the elements that are
    /// +inf share the gradient equally.
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
        // In a row with +inf, the differences are replaced by constants whose exponentials count the elements that are
        // +inf.
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
