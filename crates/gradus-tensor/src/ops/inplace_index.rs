//! Writes in place to elements selected by an index or a mask: `index_assign_`, `index_put_`, `scatter_` and related
//! methods, `masked_fill_`.
//!
//! Each method computes its counterpart that returns a new tensor and then writes the result. The two methods therefore
//! have the same meaning, and a method that fails writes nothing. Which elements are written and logged depends on the
//! index: a view is written alone; for an index tensor, the slices from the first to the last that it names are
//! written; for a mask, the whole tensor.

use std::panic::Location;
use std::sync::Arc;

use gradus_backend::{Error, ErrorKind, Here, Result, Scalar};
use smallvec::SmallVec;

use super::index::IntoIndex;
use super::operand::{AsOperand, Operand};
use super::{Contiguous, InPlace};
use crate::autograd::PartsOf;
use crate::{DType, Tensor, no_grad_guard};

impl Tensor {
    /// Computes the new values with `f` and writes them. If an axis and an index tensor are given in `within`, only the
    /// range of slices that the index spans is written.
    #[track_caller]
    fn replace_(
        &self,
        op: &'static str,
        sources: &[&Tensor],
        within: Option<(isize, &Tensor)>,
        f: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        let how = InPlace::Method(op);
        self.check_writable(how, sources)?;
        let (_guard, _parts) = (no_grad_guard(), PartsOf::new(op, Location::caller()));
        // This is done before `f`, because `f` may report an index out of range only after it has returned. An invalid
        // axis is left for `f` to report.
        let mut named = None;
        if let Some((axis, index)) = within
            && self.rank() > 0
            && index.dtype() != DType::Bool
            && let Ok(size) = self.size(axis)
        {
            named = Some((axis, span(op, index, size)?));
        }
        let new = f(&self.detach()).here()?;
        if new.dtype() != self.dtype() {
            return Err(new.describe(self.another_dtype(op), "result"));
        }
        if new.shape() != self.shape() {
            let e = Error::new(ErrorKind::Broadcast, op, "the result does not fit the tensor, which is not stretched");
            return Err(new.describe(self.describe(e, "self"), "result"));
        }
        let (mut target, mut new) = (self.detach(), new);
        if let Some((axis, (first, len))) = named {
            (target, new) = (target.narrow(axis, first, len)?, new.narrow(axis, first, len)?);
        }
        target.write(how, Contiguous, &[&new])
    }

    /// `self[index] = values`: writes `values` (a tensor that broadcasts, or a number) to the elements that
    /// [`index`](Tensor::index) selects. If several values go to the same place, the last one in row-major order is
    /// stored. Fails where [`index_assign`](Tensor::index_assign) or [`copy_`](Tensor::copy_) does.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::zeros([2, 3], DType::I64, &device)?;
    /// x.index_assign_((1, 1..), 5)?;
    /// assert_eq!(x.to_vec::<i64>()?, [0, 0, 0, 0, 5, 5]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn index_assign_<'a>(&self, index: impl IntoIndex<'a>, values: impl AsOperand) -> Result<()> {
        const OP: &str = "index_assign_";
        let (index, values) = (index.into_index(), values.as_operand()?);
        let sources: SmallVec<[&Tensor; 1]> =
            if let Operand::Tensor(t) = values { [t].into() } else { SmallVec::new() };
        let how = InPlace::Method(OP);
        self.check_writable(how, &sources)?;
        let (_guard, _parts) = (no_grad_guard(), PartsOf::new(OP, Location::caller()));
        let view = self.detach().index(index.clone())?;
        if !Arc::ptr_eq(view.storage(), self.storage()) {
            return self.replace_(OP, &sources, None, |x| x.index_assign(index, values));
        }
        match values {
            Operand::Tensor(t) => view.assign_(how, t),
            Operand::Scalar(value) => view.set_(how, value),
        }
    }

    /// Writes `values` to the places that `indices` name on the first axes, or adds them there if `accumulate`. The
    /// result and the errors are those of [`index_put`](Tensor::index_put).
    #[track_caller]
    pub fn index_put_(&self, indices: &[&Tensor], values: &Tensor, accumulate: bool) -> Result<()> {
        self.replace_("index_put_", &[values], indices.first().map(|&i| (0, i)), |x| {
            x.index_put(indices, values, accumulate)
        })
    }

    /// Writes `src` (a tensor or a number) to the places that `index` names along `axis`. The result and the errors are
    /// those of [`scatter`](Tensor::scatter).
    #[track_caller]
    pub fn scatter_(&self, axis: isize, index: &Tensor, src: impl AsOperand) -> Result<()> {
        let src = src.as_operand()?;
        let sources: SmallVec<[&Tensor; 1]> = if let Operand::Tensor(t) = src { [t].into() } else { SmallVec::new() };
        self.replace_("scatter_", &sources, Some((axis, index)), |x| x.scatter(axis, index, src))
    }

    /// Adds `src` at the places that `index` names along `axis`. The result and the errors are those of
    /// [`scatter_add`](Tensor::scatter_add).
    #[track_caller]
    pub fn scatter_add_(&self, axis: isize, index: &Tensor, src: &Tensor) -> Result<()> {
        self.replace_("scatter_add_", &[src], Some((axis, index)), |x| x.scatter_add(axis, index, src))
    }

    /// Adds the slices of `src` to the slices of `axis` that `index` names. The result and the errors are those of
    /// [`index_add`](Tensor::index_add).
    #[track_caller]
    pub fn index_add_(&self, axis: isize, index: &Tensor, src: &Tensor) -> Result<()> {
        self.replace_("index_add_", &[src], Some((axis, index)), |x| x.index_add(axis, index, src))
    }

    /// Writes the slices of `src` to the slices of `axis` that `index` names. The result and the errors are those of
    /// [`index_copy`](Tensor::index_copy).
    #[track_caller]
    pub fn index_copy_(&self, axis: isize, index: &Tensor, src: &Tensor) -> Result<()> {
        self.replace_("index_copy_", &[src], Some((axis, index)), |x| x.index_copy(axis, index, src))
    }

    /// Writes `value` to the slices of `axis` that `index` names. The result and the errors are those of
    /// [`index_fill`](Tensor::index_fill).
    #[track_caller]
    pub fn index_fill_(&self, axis: isize, index: &Tensor, value: impl Into<Scalar>) -> Result<()> {
        let value = value.into();
        self.replace_("index_fill_", &[], Some((axis, index)), |x| x.index_fill(axis, index, value))
    }

    /// Writes `value`, which the dtype must be able to represent, where `mask` (bool, broadcast to this shape) is true.
    /// Fails where [`masked_fill`](Tensor::masked_fill) does, and if the mask would enlarge the shape.
    #[track_caller]
    pub fn masked_fill_(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<()> {
        let value = value.into();
        self.replace_("masked_fill_", &[], None, |x| x.masked_fill(mask, value))
    }
}

/// The first slice that an index names on an axis of this size, and the number of slices from it to the last one named.
#[track_caller]
fn span(op: &str, index: &Tensor, size: usize) -> Result<(usize, usize)> {
    let (mut first, mut end) = (size, 0);
    for (pos, &index) in index.to_dtype(DType::I64)?.host::<i64>("index")?.iter().enumerate() {
        let from_end = if index < 0 { index.saturating_add_unsigned(size as u64) } else { index };
        let Some(at) = usize::try_from(from_end).ok().filter(|&at| at < size) else {
            let m = format!("index {index} at position {pos} is outside an axis of size {size}");
            return Err(Error::new(ErrorKind::IndexOutOfBounds { pos, index, size }, op, m));
        };
        (first, end) = (first.min(at), end.max(at + 1));
    }
    Ok(if first < end { (first, end - first) } else { (0, 0) })
}
