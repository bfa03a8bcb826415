//! `softmax(x) = e^(x - max x) / sum(e^(x - max x))` along an axis, its logarithm, and their gradients.

use super::{Temp, expect, expect_float, reduced, run, stretched, widened};
use crate::shape::resolve_axis;
use crate::{Axes, Backend, MapArg, ReduceOp, Result, View, ViewMut};

/// See [`Backend::softmax`].
pub fn forward<B: Backend + ?Sized>(b: &B, log: bool, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
    let op = if log { "log_softmax" } else { "softmax" };
    let shape = *x.layout.shape();
    expect_float(op, x)?;
    resolve_axis(op, axis as isize, shape.rank())?;
    expect(b, op, "out", out.as_view(), x.dtype, &shape)?;
    if shape.numel() == 0 {
        return Ok(());
    }
    let largest = reduced(b, ReduceOp::Max, x, Axes::one(axis))?;
    let largest = stretched(largest.view(), &shape)?;
    let mut e = Temp::new(b, x.dtype.compute(), shape)?;
    let args = [MapArg::View(x), MapArg::View(largest.view())];
    run(b, "exp_shifted", &args, &mut [e.view_mut()], |v| vec![(v[0] - v[1]).exp()])?;
    let sum = reduced(b, ReduceOp::Sum, e.view(), Axes::one(axis))?;
    let sum = stretched(sum.view(), &shape)?;
    let mut outs = [out.with(out.layout)];
    if log {
        let args = [MapArg::View(x), MapArg::View(largest.view()), MapArg::View(sum.view())];
        run(b, "log_softmax", &args, &mut outs, |v| vec![v[0] - v[1] - v[2].log()])
    } else {
        run(b, "softmax", &[MapArg::View(e.view()), MapArg::View(sum.view())], &mut outs, |v| vec![v[0] / v[1]])
    }
}

/// See [`Backend::softmax_backward`].
pub fn backward<B: Backend + ?Sized>(
    b: &B,
    log: bool,
    y: View<'_>,
    g: View<'_>,
    axis: usize,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    let op = if log { "log_softmax_backward" } else { "softmax_backward" };
    let shape = *y.layout.shape();
    expect_float(op, y)?;
    resolve_axis(op, axis as isize, shape.rank())?;
    expect(b, op, "g", g, y.dtype, &shape)?;
    expect(b, op, "dx", dx.as_view(), y.dtype, &shape)?;
    if shape.numel() == 0 {
        return Ok(());
    }
    let mut outs = [dx.with(dx.layout)];
    if log {
        let wide = widened(b, g)?;
        let sum = reduced(b, ReduceOp::Sum, wide.view(), Axes::one(axis))?;
        let sum = stretched(sum.view(), &shape)?;
        let args = [MapArg::View(y), MapArg::View(g), MapArg::View(sum.view())];
        run(b, op, &args, &mut outs, |v| vec![v[1] - v[0].exp() * v[2]])
    } else {
        let mut gy = Temp::new(b, y.dtype.compute(), shape)?;
        run(b, "product", &[MapArg::View(g), MapArg::View(y)], &mut [gy.view_mut()], |v| vec![v[0] * v[1]])?;
        let sum = reduced(b, ReduceOp::Sum, gy.view(), Axes::one(axis))?;
        let sum = stretched(sum.view(), &shape)?;
        let args = [MapArg::View(y), MapArg::View(g), MapArg::View(sum.view())];
        run(b, op, &args, &mut outs, |v| vec![v[0] * (v[1] - v[2])])
    }
}
