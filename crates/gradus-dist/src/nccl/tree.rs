//! Reductions on the device, of what NCCL has moved there.

use gradus_tensor::backend::{Backend, Buffer, Kernel, KernelBuilder, Layout, MapArg, ScalarOp, View, ViewMut};
use gradus_tensor::{DType, Result, Shape};

use crate::reduce::Reduce;

/// Memory of the device: rows of elements.
#[derive(Debug)]
pub(super) struct Room {
    buffer: Buffer,
    dtype: DType,
    layout: Layout,
}

impl Room {
    pub(super) fn new(backend: &dyn Backend, dtype: DType, rows: usize, columns: usize) -> Result<Room> {
        let layout = Layout::contiguous(Shape::new(&[rows, columns])?);
        Ok(Room { buffer: backend.alloc(rows * columns * dtype.size())?, dtype, layout })
    }

    pub(super) fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    pub(super) fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    /// This memory after a transfer. If that has failed, NCCL may still be at work on it, so it is never freed.
    pub(super) fn after(self, transfer: Result<()>) -> Result<Room> {
        match transfer {
            Ok(()) => Ok(self),
            Err(e) => {
                std::mem::forget(self);
                Err(e)
            }
        }
    }

    /// Copies the elements to as many of a contiguous view.
    pub(super) fn copy_to(&self, backend: &dyn Backend, to: &mut ViewMut<'_>) -> Result<()> {
        let (size, at) = (self.dtype.size(), to.layout.offset() * to.dtype.size());
        backend.copy_buffer(&self.buffer, 0, to.buffer, at, self.layout.numel() * size)
    }
}

fn kernel(reduce: Reduce, dtype: DType) -> Result<Kernel> {
    let op = match reduce {
        Reduce::Sum => ScalarOp::Add,
        Reduce::Prod => ScalarOp::Mul,
        Reduce::Max => ScalarOp::Max,
        Reduce::Min => ScalarOp::Min,
    };
    let builder = KernelBuilder::new(&[dtype, dtype]);
    let args = builder.args();
    builder.finish(reduce.name(), &[(args[0].binary(op, args[1]), dtype)])
}

/// Reduces the rows to one, in the tree of [`reduce::tree`](crate::reduce::tree).
pub(super) fn tree(backend: &dyn Backend, reduce: Reduce, rows: Room) -> Result<Room> {
    let (n, columns) = (rows.layout.dims()[0], rows.layout.dims()[1]);
    let kernel = kernel(reduce, rows.dtype)?;
    let layouts = (0..n).map(|row| rows.layout.narrow(0, row, 1)).collect::<Result<Vec<_>>>()?;
    // The results so far, each in the place of its first row; `None` where the row itself still stands.
    let mut sums: Vec<Option<Room>> = (0..n).map(|_| None).collect();
    let mut step = 1;
    while step < n {
        for left in (0..n - step).step_by(2 * step) {
            let right = sums[left + step].take();
            let other = match &right {
                Some(sum) => sum.view(),
                None => View { layout: &layouts[left + step], ..rows.view() },
            };
            match &mut sums[left] {
                Some(sum) => {
                    backend.map(&kernel, &[MapArg::Output(0), MapArg::View(other)], &mut [sum.view_mut()])?;
                }
                none => {
                    let mut sum = Room::new(backend, rows.dtype, 1, columns)?;
                    let own = View { layout: &layouts[left], ..rows.view() };
                    backend.map(&kernel, &[MapArg::View(own), MapArg::View(other)], &mut [sum.view_mut()])?;
                    *none = Some(sum);
                }
            }
        }
        step *= 2;
    }
    // One row is its own sum.
    Ok(sums.swap_remove(0).unwrap_or(rows))
}
