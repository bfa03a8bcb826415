//! Temporary tensors.

use gradus_backend::{Buffer, DType, Layout, Result, Shape, View, ViewMut};

use crate::WgpuBackend;

/// A contiguous tensor that lives only during an operation.
#[derive(Debug)]
pub(crate) struct Temp {
    pub(crate) buffer: Buffer,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
}

impl Temp {
    pub(crate) fn new(b: &WgpuBackend, dtype: DType, shape: Shape) -> Result<Self> {
        let buffer = b.allocate(shape.numel() * dtype.size())?;
        Ok(Temp { buffer, dtype, layout: Layout::contiguous(shape) })
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    /// The layout of `out` as a column, if it can be viewed as one.
    pub(crate) fn contiguous_like(out: &ViewMut<'_>) -> Result<Option<Layout>> {
        Ok(out.layout.reshape(Shape::new(&[out.layout.numel(), 1])?))
    }
}
