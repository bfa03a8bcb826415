//! Distances and similarities of vectors: `cdist`, `pairwise_distance`, `cosine_similarity`.
//!
//! The distances are p-norms of differences, so there is no cancellation: points that coincide have distance 0 and
//! gradient 0.

use gradus_backend::{DType, Error, Result, Shape};

use super::norm::{at_least, check_p};
use super::operand_rules::{axis_of, common_dtype};
use crate::Tensor;

impl Tensor {
    /// The distance in the p-norm from every row of `self [.., m, d]` to every row of `other [.., n, d]`, as
    /// `[.., m, n]`. Leading axes broadcast. `p` is as in [`norm`](Tensor::norm), but at least 0. Points that coincide
    /// have gradient 0. Needs memory for all `m n d` differences.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let a = Tensor::from_vec(vec![0.0f32, 0.0, 3.0, 4.0], [2, 2], &device)?;
    /// assert_eq!(a.cdist(&a, 2.0)?.to_vec::<f32>()?, [0.0, 5.0, 5.0, 0.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn cdist(&self, other: &Tensor, p: f64) -> Result<Tensor> {
        let (ra, rb) = (self.rank(), other.rank());
        if ra < 2 || rb < 2 || self.shape()[ra - 1] != other.shape()[rb - 1] {
            let e = Error::shape("cdist", "both are lists of vectors [.., m, d] and [.., n, d] of one length d");
            return Err(other.describe(self.describe(e, "self"), "other"));
        }
        check_p("cdist", p, 0.0).map_err(|e| other.describe(self.describe(e, "self"), "other"))?;
        let (dtype, a, b) = self.wide_pair("cdist", other)?;
        let (m, n, d) = (self.shape()[ra - 2], other.shape()[rb - 2], self.shape()[ra - 1]);
        // The leading axes are merged into one, so that the differences, which have one more axis, stay within the
        // highest rank.
        let lead = Shape::broadcast("cdist", &self.shape()[..ra - 2], &other.shape()[..rb - 2])
            .map_err(|e| other.describe(self.describe(e, "self"), "other"))?;
        let a = a.expand([&lead[..], &[m, d]].concat())?.reshape([lead.numel(), m, d])?;
        let b = b.expand([&lead[..], &[n, d]].concat())?.reshape([lead.numel(), n, d])?;
        let difference = a.unsqueeze(2)?.sub(&b.unsqueeze(1)?)?;
        // Empty vectors coincide, even in norms for which the maximum of no elements would be an error.
        let y = if d == 0 { difference.sum(&[-1], false)? } else { difference.norm(p, &[-1], false)? };
        y.reshape([&lead[..], &[m, n]].concat())?.to_dtype(dtype)
    }

    /// The float dtype that two operands share, and both operands converted to its compute dtype.
    #[track_caller]
    fn wide_pair(&self, op: &str, other: &Tensor) -> Result<(DType, Tensor, Tensor)> {
        let dtype = common_dtype(op, &[self, other], &["self", "other"])?.to_float();
        let wide = dtype.compute();
        Ok((dtype, self.to_dtype(wide)?, other.to_dtype(wide)?))
    }

    /// The p-norm of `self - other + eps` over the last axis. The operands broadcast. `eps` (1e-6 is usual) keeps the
    /// gradient away from the kink at 0, and may be 0. If `eps` is 0, points that coincide have gradient 0. With
    /// `keepdim` the axis is kept with size 1.
    #[track_caller]
    pub fn pairwise_distance(&self, other: &Tensor, p: f64, eps: f64, keepdim: bool) -> Result<Tensor> {
        check_p("pairwise_distance", p, f64::NEG_INFINITY)
            .map_err(|e| other.describe(self.describe(e, "self"), "other"))?;
        let (dtype, a, b) = self.wide_pair("pairwise_distance", other)?;
        let difference = a.sub(&b)?;
        if difference.rank() == 0 {
            let e = Error::shape("pairwise_distance", "a scalar has no axis to measure along");
            return Err(other.describe(self.describe(e, "self"), "other"));
        }
        difference.add(eps)?.norm(p, &[-1], keepdim)?.to_dtype(dtype)
    }

    /// `a . b / (max(|a|, eps) max(|b|, eps))` along an axis of the broadcast operands: the cosine of the angle.
    ///
    /// `eps` (1e-8 is usual) decides the result for a vector of zeros: 0, with the gradient of a constant length `eps`.
    /// If a length overflows, as a [`norm`](Tensor::norm) can, the result is NaN.
    #[track_caller]
    pub fn cosine_similarity(&self, other: &Tensor, axis: isize, eps: f64) -> Result<Tensor> {
        if !(eps > 0.0 && eps.is_finite()) {
            let e = Error::argument("cosine_similarity", format!("eps is {eps}; it is positive and finite"));
            return Err(self.describe(e, "self"));
        }
        let (dtype, a, b) = self.wide_pair("cosine_similarity", other)?;
        let shape = Shape::broadcast("cosine_similarity", a.shape(), b.shape())
            .map_err(|e| other.describe(self.describe(e, "self"), "other"))?;
        let at = axis_of("cosine_similarity", axis, shape.rank())? as isize;
        let (a, b) = (a.expand(shape)?, b.expand(shape)?);
        unit(&a, at, eps)?.mul(&unit(&b, at, eps)?)?.sum(&[at], false)?.to_dtype(dtype)
    }
}

/// `x / max(|x|, eps)` along an axis.
#[track_caller]
fn unit(x: &Tensor, axis: isize, eps: f64) -> Result<Tensor> {
    x.div(&at_least(&x.norm(2.0, &[axis], true)?, eps)?)
}
