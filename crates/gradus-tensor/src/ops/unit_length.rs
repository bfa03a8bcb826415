//! `normalize` and `local_response_norm`: division by the magnitude of the surrounding elements.

use gradus_backend::{Error, Expr, Here, Result, Window};

use super::autocast::computed;
use super::elementwise::{Class, Elementwise};
use super::norm::{at_least, check_p, power};
use super::operand::Operand;
use super::operand_rules::axis_of;
use super::pool::MAX_WINDOW;
use super::{AvgPool, apply_one};
use crate::Tensor;

/// Operands: sum of powers, `eps^p`, eps, 1 / p. The length for p = 1, for p = 2, and for other p.
static LENGTH_ONE: Elementwise = Elementwise::new("length", Class::Float, 4, |x| vec![length(x, |sum, _| sum)]);
static LENGTH_TWO: Elementwise = Elementwise::new("length", Class::Float, 4, |x| vec![length(x, |sum, _| sum.sqrt())]);
static LENGTH: Elementwise = Elementwise::new("length", Class::Float, 4, |x| vec![length(x, Expr::pow)]);

/// The root of a sum of powers, or eps if the sum is not above `eps^p`. Such a sum is replaced before the root is
/// taken, since the root has an infinite slope at 0. NaN stays NaN, and powers that have overflowed yield NaN, so that
/// no quotient becomes 0.
fn length<'k>(x: &[Expr<'k>], root: impl Fn(Expr<'k>, Expr<'k>) -> Expr<'k>) -> Expr<'k> {
    let (short, over) = (x[0].le(x[1]), x[0].eq(f64::INFINITY));
    short.select(x[2], over.select(f64::NAN, root(short.or(over).select(1.0, x[0]), x[3])))
}

/// Operands: mean of squares, alpha, k. `mean * alpha + k`, but NaN where the squares have overflowed.
static RESPONSE: Elementwise = Elementwise::new("local_response_norm", Class::Float, 3, |x| {
    vec![x[0].eq(f64::INFINITY).select(f64::NAN, x[0]) * x[1] + x[2]]
});

impl Tensor {
    /// Scales the vectors along an axis to length 1: `x / max(norm(x), eps)`, with a [`norm`](Tensor::norm) of order
    /// `p`. Those shorter than `eps` are divided by `eps`, with the gradient of a constant length. If p is below 2, the
    /// slope of the length jumps at elements that are 0, and counts as 0 there. Where the powers of finite elements
    /// overflow, the result is NaN. The dtype must be a float; half precision is computed in f32.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![3.0f64, 4.0, 0.0, 0.0], [2, 2], &device)?;
    /// assert_eq!(x.normalize(2.0, 1, 1e-12)?.to_vec::<f64>()?, [0.6, 0.8, 0.0, 0.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn normalize(&self, p: f64, axis: isize, eps: f64) -> Result<Tensor> {
        const OP: &str = "normalize";
        let fail = |e: Error| Err(self.describe(e, "self"));
        if !self.dtype().is_float() {
            return fail(Error::dtype(OP, self.dtype(), "floats")).here();
        }
        check_p(OP, p, f64::NEG_INFINITY).map_err(|e| self.describe(e, "self"))?;
        if !(eps >= 0.0 && eps.is_finite()) {
            return fail(Error::argument(OP, format!("eps is {eps}; it is at least 0 and finite"))).here();
        }
        let dtype = computed(OP, self.dtype());
        let axis = [axis_of(OP, axis, self.rank())? as isize];
        if self.numel() == 0 {
            return self.to_dtype(dtype);
        }
        let x = self.to_dtype(self.dtype().compute())?;
        if p == 0.0 || p.is_infinite() {
            return x.div(&x.norm(p, &axis, true)?.maximum(eps)?)?.to_dtype(dtype);
        }
        if p < 0.0 {
            return x.div(&at_least(&x.norm(p, &axis, true)?, eps)?)?.to_dtype(dtype);
        }
        let (powers, length) = match p {
            1.0 => (x.abs()?, &LENGTH_ONE),
            2.0 => (x.square()?, &LENGTH_TWO),
            _ => (power(&x, p)?, &LENGTH),
        };
        let sum = powers.sum(&axis, true)?;
        let operands = [Operand::Tensor(&sum), eps.powf(p).into(), eps.into(), (1.0 / p).into()];
        x.div(&length.apply(&operands)?)?.to_dtype(dtype)
    }

    /// `x / (k + alpha * mean(x^2))^beta` for `[n, c, spatial..]`. The mean runs over `size` neighbouring channels,
    /// beginning `size / 2` channels before each channel. Channels outside the tensor count as 0 (Krizhevsky et al.,
    /// 2012, but with a mean instead of a sum). The result is NaN where squares of finite elements overflow. The dtype
    /// must be a float; half precision is computed in f32.
    #[track_caller]
    pub fn local_response_norm(&self, size: usize, alpha: f64, beta: f64, k: f64) -> Result<Tensor> {
        const OP: &str = "local_response_norm";
        let fail = |e: Error| Err(self.describe(e, "self"));
        if self.rank() < 3 {
            return fail(Error::shape(OP, "the input is [n, c, spatial..]")).here();
        }
        if !self.dtype().is_float() {
            return fail(Error::dtype(OP, self.dtype(), "floats")).here();
        }
        if size == 0 {
            return fail(Error::argument(OP, "size is 0; it is at least 1")).here();
        }
        if size > MAX_WINDOW {
            return fail(Error::argument(OP, format!("size is {size}; it is at most {MAX_WINDOW}"))).here();
        }
        if self.numel() == 0 {
            return Ok(self.clone());
        }
        let x = self.to_dtype(self.dtype().compute())?;
        let (n, c) = (x.shape()[0], x.shape()[1]);
        let plane = x.numel() / (n * c);
        let (mut kernel, mut pad_before, mut pad_after) = ([1; 3], [0; 3], [0; 3]);
        (kernel[0], pad_before[0], pad_after[0]) = (size, size / 2, (size - 1) / 2);
        let window = Window { rank: 2, kernel, stride: [1; 3], dilation: [1; 3], pad_before, pad_after };
        let squares = x.square()?.reshape([n, 1, c, plane])?;
        let mean = apply_one(AvgPool { window, count_include_pad: true }, &[&squares])?.reshape(x.shape())?;
        let size = RESPONSE.apply(&[Operand::Tensor(&mean), alpha.into(), k.into()])?;
        x.div(&size.pow(beta)?)?.to_dtype(self.dtype())
    }
}
