//! Temporary tensors.

use gradus_backend::{Buffer, DType, Layout, Result, Shape, View, ViewMut};

use crate::CudaBackend;

/// A contiguous tensor that lives only during an operation.
#[derive(Debug)]
pub(crate) struct Temp {
    pub(crate) buffer: Buffer,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
}

impl Temp {
    pub(crate) fn new(b: &CudaBackend, dtype: DType, shape: Shape) -> Result<Self> {
        let buffer = b.memory().alloc(shape.numel() * dtype.size())?;
        Ok(Temp { buffer, dtype, layout: Layout::contiguous(shape) })
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: self.dtype, layout: &self.layout }
    }
}
