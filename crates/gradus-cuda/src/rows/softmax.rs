//! Softmax and its logarithm, and their gradients.

use gradus_backend::{Axes, Result, View, ViewMut, composite};

use super::{Rows, plain};
use crate::CudaBackend;

const FILE: &str = include_str!("softmax.cu");

/// See [`Backend::softmax`](gradus_backend::Backend::softmax).
pub(crate) fn softmax(b: &CudaBackend, log: bool, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
    if axis >= x.layout.rank() || !plain(Axes::one(axis), &[(x.dtype, x.layout), (out.dtype, out.layout)]) {
        return composite::softmax::forward(b, log, x, axis, out);
    }
    let op = if log { "log_softmax" } else { "softmax" };
    let operands = [(b.input(op, "x", x)?, *x.layout), (b.output(op, "out", out)?, *out.layout)];
    Rows {
        op,
        entry: "softmax",
        file: FILE,
        axes: Axes::one(axis),
        operands: &operands,
        packed: &[0, 1],
        constants: &[("LOG", usize::from(log)), ("FORWARD", 1)],
        ..Rows::default()
    }
    .run(b)
}

/// See [`Backend::softmax_backward`](gradus_backend::Backend::softmax_backward).
pub(crate) fn softmax_backward(
    b: &CudaBackend,
    log: bool,
    y: View<'_>,
    g: View<'_>,
    axis: usize,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    let tensors = [(y.dtype, y.layout), (g.dtype, g.layout), (dx.dtype, dx.layout)];
    if axis >= y.layout.rank() || !plain(Axes::one(axis), &tensors) {
        return composite::softmax::backward(b, log, y, g, axis, dx);
    }
    let op = if log { "log_softmax_backward" } else { "softmax_backward" };
    let operands =
        [(b.input(op, "y", y)?, *y.layout), (b.input(op, "g", g)?, *g.layout), (b.output(op, "dx", dx)?, *dx.layout)];
    Rows {
        op,
        entry: "softmax_backward",
        file: FILE,
        axes: Axes::one(axis),
        operands: &operands,
        packed: &[0, 1, 2],
        constants: &[("LOG", usize::from(log)), ("BACKWARD", 1)],
        ..Rows::default()
    }
    .run(b)
}
