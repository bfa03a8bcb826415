//! An elementwise kernel that is joined into the loads of the operation that reads its output.

use gradus_backend::{DType, Kernel, MapArg, Reader, Result, Shape, ViewMut, composite};

use crate::CpuBackend;
use crate::map::{PIECE, mapped};
use crate::reduce::reduce_of;
use crate::softmax::softmax_of;

/// If fewer bytes are read, they stay in a cache between two calls.
const SMALLEST: usize = 8 << 20;

/// See [`Backend::joins_load`](gradus_backend::Backend::joins_load).
pub(crate) fn joins_load(reader: Reader, shape: &Shape, dtype: DType) -> bool {
    // A row of a softmax is one task, which has the whole row in memory.
    let is_long = matches!(reader, Reader::Softmax { axis, .. } if shape[axis] > PIECE);
    is_consecutive(reader, shape) && !is_long && shape.numel() * dtype.size() >= SMALLEST
}

/// Whether the elements that are read together are consecutive in the row-major order.
fn is_consecutive(reader: Reader, shape: &Shape) -> bool {
    let together = |a: usize| match reader {
        Reader::Reduce(_, axes) => axes.contains(a),
        Reader::Softmax { axis, .. } => a == axis,
    };
    let mut before = (0..shape.rank()).rev().filter(|&a| shape[a] != 1).skip_while(|&a| together(a));
    !before.any(together)
}

/// See [`Backend::map_into`](gradus_backend::Backend::map_into). If the elements that are read together are not consecutive,
/// the output of the kernel is stored.
pub(crate) fn map_into(
    cpu: &CpuBackend,
    kernel: &Kernel,
    args: &[MapArg<'_>],
    shape: Shape,
    reader: Reader,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let done = if is_consecutive(reader, &shape) && shape.numel() > 0 {
        mapped(cpu, kernel, args, shape, |x| match reader {
            Reader::Reduce(op, axes) => reduce_of(cpu, op, x, axes, out),
            Reader::Softmax { log, axis } => softmax_of(cpu, log, x, axis, out),
        })
    } else {
        composite::mapped::map_into(cpu, kernel, args, shape, reader, out)
    };
    cpu.finished(reader.name(), done)
}

#[cfg(test)]
#[path = "joined_tests.rs"]
mod tests;
