//! Temporary tensors of an operation, allocated from the pool, and contiguous copies of operands.

use gradus_backend::{Buffer, DType, Layout, Result, Shape, View, ViewMut};

use crate::{CpuBackend, copy};

/// A contiguous tensor that lives as long as an operation.
#[derive(Debug)]
pub(crate) struct Temp {
    buffer: Buffer,
    dtype: DType,
    layout: Layout,
}

impl Temp {
    /// Allocates a tensor with unspecified contents.
    pub(crate) fn new(cpu: &CpuBackend, dtype: DType, dims: &[usize]) -> Result<Temp> {
        let layout = Layout::contiguous(Shape::new(dims)?);
        Ok(Temp { buffer: cpu.pool().alloc(layout.numel() * dtype.size())?, dtype, layout })
    }

    /// Copies the elements of a view, in order.
    pub(crate) fn copy(cpu: &CpuBackend, x: View<'_>) -> Result<Temp> {
        let mut t = Temp::new(cpu, x.dtype, x.layout.dims())?;
        copy::copy_strided(cpu, x, &mut t.view_mut())?;
        Ok(t)
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: self.dtype, layout: &self.layout }
    }
}

/// Copies a view unless it is contiguous. [`pick`] then chooses between the copy and the view.
pub(crate) fn copy_if_strided(cpu: &CpuBackend, op: &str, x: View<'_>) -> Result<Option<Temp>> {
    cpu.check_view(op, x.buffer, x.dtype, x.layout)?;
    if x.layout.is_contiguous() { Ok(None) } else { Temp::copy(cpu, x).map(Some) }
}

/// Returns the copy if one was made, and otherwise the view itself.
pub(crate) fn pick<'a>(copy: &'a Option<Temp>, x: View<'a>) -> View<'a> {
    copy.as_ref().map_or(x, Temp::view)
}

/// Runs `f` on a contiguous output: either `out` itself or a temporary tensor that is then copied to `out`.
pub(crate) fn contiguous_output<R>(
    cpu: &CpuBackend,
    op: &str,
    out: &mut ViewMut<'_>,
    f: impl FnOnce(&mut ViewMut<'_>) -> Result<R>,
) -> Result<R> {
    crate::check::check_output(op, "out", out.layout)?;
    cpu.check_view(op, out.buffer, out.dtype, out.layout)?;
    if out.layout.is_contiguous() {
        return f(out);
    }
    let mut t = Temp::new(cpu, out.dtype, out.layout.dims())?;
    let result = f(&mut t.view_mut())?;
    copy::copy_strided(cpu, t.view(), out)?;
    Ok(result)
}
