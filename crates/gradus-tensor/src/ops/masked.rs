//! `masked_fill` and `masked_select`: elements selected by a mask. `nonzero` and `count_nonzero`: the places and the
//! number of non-zero elements.

use gradus_backend::{DType, Error, Here, HostVec, Result, Scalar, Shape};

use super::elementwise::{Class, Elementwise};
use super::operand::Operand;
use super::operand_rules::reduced_axes;
use crate::Tensor;

/// Operands: mask, value, x. Like `where_`, but under the name of the method that the user called.
static MASKED_FILL: Elementwise =
    Elementwise::new("masked_fill", Class::Any, 3, |x| vec![x[0].select(x[1], x[2])]).conditions(1);

/// Fails if a mask is not bool.
#[track_caller]
fn check_mask(op: &str, mask: &Tensor) -> Result<()> {
    if mask.dtype() == DType::Bool {
        return Ok(());
    }
    let e = Error::dtype(op, mask.dtype(), "a mask of booleans");
    Err(mask.describe(e, "mask").help("compare first, for example x.ne(0)?"))
}

impl Tensor {
    /// `value` where `mask` (bool) is true, and this tensor elsewhere; the two broadcast. The dtype stays the same.
    /// Fails if it cannot represent `value`. The gradient is exactly 0 where the mask is true.
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        check_mask("masked_fill", mask)?;
        let value = value.into();
        value
            .check(self.dtype())
            .map_err(|e| self.describe(Error::argument("masked_fill", e.message()), "self"))
            .here()?;
        // A scalar could promote the result, so it is converted to this dtype first.
        let fill;
        let value = if self.dtype().is_float() {
            Operand::Scalar(value)
        } else {
            fill = Tensor::full([], value, self.dtype(), self.device())?;
            Operand::Tensor(&fill)
        };
        MASKED_FILL.apply(&[Operand::Tensor(mask), value, Operand::Tensor(self)])
    }

    /// The elements where `mask` (bool) is true, in row-major order, as a vector; the two broadcast. The gradient of
    /// each goes back to its place. This call waits for the mask, since the size of the result depends on it.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![3.0f32, -1.0, 2.0], [3], &device)?;
    /// assert_eq!(x.masked_select(&x.gt(0.0)?)?.to_vec::<f32>()?, [3.0, 2.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        check_mask("masked_select", mask)?;
        let shape = Shape::broadcast("masked_select", self.shape(), mask.shape())
            .map_err(|e| mask.describe(self.describe(e, "self"), "mask"))?;
        let index = mask.expand(shape)?.reshape([shape.numel()])?.nonzero()?.squeeze(1)?;
        self.expand(shape)?.reshape([shape.numel()])?.index_select(0, &index)
    }

    /// The places of the non-zero elements (NaN counts as non-zero), in row-major order, as `[n, rank]` of i64. This
    /// call waits for the values, since the size of the result depends on them. No gradient.
    #[track_caller]
    pub fn nonzero(&self) -> Result<Tensor> {
        let (dims, rank) = (self.shape(), self.rank());
        let mask = self.detach().to_dtype(DType::Bool)?.host::<bool>("nonzero")?;
        let found = mask.iter().filter(|&&b| b).count();
        let mut places = HostVec::filled(self.device().backend(), "nonzero", 0i64, found * rank)?;
        // A scalar has no axes, so there are no positions to fill in.
        let elements = mask.iter().enumerate().filter(|(_, b)| **b).map(|(at, _)| at);
        for (place, mut rest) in places.chunks_exact_mut(rank.max(1)).zip(elements) {
            for axis in (0..rank).rev() {
                place[axis] = (rest % dims[axis]) as i64;
                rest /= dims[axis];
            }
        }
        Tensor::from_vec(places, [found, rank], self.device())
    }

    /// The number of non-zero elements over the axes (NaN counts as non-zero), as i64. An empty list of axes counts
    /// over no axis. No gradient.
    #[track_caller]
    pub fn count_nonzero(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        reduced_axes("count_nonzero", axes, self.rank()).map_err(|e| self.describe(e, "self"))?;
        self.detach().to_dtype(DType::Bool)?.to_dtype(DType::I64)?.sum(axes, keepdim)
    }
}
