//! Pooling: the largest element, or the mean, under each position of a window.
//!
//! Maximum: a table built on the host lists which element lies in each slot of each window. A slot in the padding
//! repeats the first real element of its window, so that padding can never win, regardless of the values and the dtype.
//!
//! Mean: the sum over the unfolded windows, divided by the number of elements that count.

use super::{Temp, expect, expect_float, expect_rank, read_as, reduced, run, stretched, widened, write_as};
use crate::{
    ArgReduceOp, Axes, Backend, DType, Error, HostVec, MapArg, ReduceOp, Result, Scalar, Shape, View, ViewMut, Window,
};

/// Checks `x [n, c, spatial..]` and `y [n, c, positions..]`; returns the number of positions along each axis.
fn positions<B: Backend + ?Sized>(
    b: &B,
    op: &'static str,
    window: &Window,
    x: View<'_>,
    (name, y): (&str, View<'_>),
) -> Result<[usize; 3]> {
    if !(1..=3).contains(&window.rank) {
        return Err(Error::argument(op, format!("a window over {} axes; 1 to 3 are possible", window.rank)));
    }
    expect_rank(b, op, "x", x, window.rank + 2, "[n, c, spatial..]")?;
    let dims = x.layout.dims();
    let positions = window.output(op, &dims[2..])?;
    expect(b, op, name, y, x.dtype, &[&dims[..2], &positions[..window.rank]].concat())?;
    Ok(positions)
}

/// For every slot of every window, in the order `[kernel.., positions..]`, the index of its element in the flattened
/// spatial axes, or -1 for padding.
fn slots<B: Backend + ?Sized>(
    b: &B,
    op: &str,
    window: &Window,
    spatial: &[usize],
    positions: &[usize; 3],
) -> Result<HostVec<i64>> {
    // Adds one axis at a time, from the outermost inwards; `table[k][p]` is the index over the axes so far.
    let (mut table, mut kernels, mut places) = (HostVec::filled(b, op, 0i64, 1)?, 1, 1);
    for i in 0..window.rank {
        let (kernel, count) = (window.kernel[i], positions[i]);
        let mut next = HostVec::with_capacity(b, op, table.len().saturating_mul(kernel).saturating_mul(count))?;
        for k in 0..kernels {
            for tap in 0..kernel {
                for p in 0..places {
                    let before = table[k * places + p];
                    let slot = |at| match window.element(i, at, tap, spatial[i]) {
                        Some(index) if before >= 0 => before * spatial[i] as i64 + index as i64,
                        _ => -1,
                    };
                    next.extend(op, (0..count).map(slot))?;
                }
            }
        }
        (table, kernels, places) = (next, kernels * kernel, places * count);
    }
    Ok(table)
}

/// See [`Backend::max_pool`].
pub fn max_forward<B: Backend + ?Sized>(
    b: &B,
    window: &Window,
    x: View<'_>,
    out: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "max_pool";
    let p = positions(b, OP, window, x, ("out", out.as_view()))?;
    expect(b, OP, "indices", indices.as_view(), DType::I64, out.layout.dims())?;
    if x.dtype == DType::Bool {
        return Err(Error::dtype(OP, x.dtype, "numbers"));
    }
    let spatial = &x.layout.dims()[2..];
    window.check_pool(OP, spatial)?;
    if out.layout.numel() == 0 {
        return Ok(());
    }
    let mut table = slots(b, OP, window, spatial, &p)?;
    let (taps, places) = (window.numel(), p.iter().product::<usize>());
    for place in 0..places {
        let window_slots = (0..taps).map(|t| t * places + place);
        // `check_pool` has ensured that every window covers an element.
        let first = window_slots.clone().map(|s| table[s]).find(|&e| e >= 0).unwrap_or(0);
        for s in window_slots {
            table[s] = if table[s] < 0 { first } else { table[s] };
        }
    }
    let (n, c) = (x.layout.dims()[0], x.layout.dims()[1]);
    let windows = Shape::new(&[n, c, taps, places])?;
    let table = Temp::table(b, Shape::new(&[taps, places])?, &table)?;
    let table = stretched(table.view(), &windows)?;
    let table = table.view();
    let best = Shape::new(&[n, c, 1, places])?;

    let mut slot = Temp::new(b, DType::I64, best)?;
    let mut elements = Temp::new(b, x.dtype, windows)?;
    let flat = read_as(b, x, x.dtype, Shape::new(&[n, c, spatial.iter().product()])?)?;
    {
        let merged = Shape::new(&[n, c, taps * places])?;
        let index = read_as(b, table, DType::I64, merged)?;
        write_as(b, &mut elements.view_mut(), x.dtype, merged, |e| b.gather(flat.view(), 2, index.view(), e))?;
    }
    b.arg_reduce(ArgReduceOp::Max, elements.view(), 2, &mut slot.view_mut())?;
    write_as(b, out, x.dtype, best, |out| b.gather(elements.view(), 2, slot.view(), out))?;
    write_as(b, indices, DType::I64, best, |indices| b.gather(table, 2, slot.view(), indices))
}

/// The number of elements that the mean counts at each position, in the compute dtype and the shape `[positions..]`.
fn counts<B: Backend + ?Sized>(
    b: &B,
    window: &Window,
    count_include_pad: bool,
    dtype: DType,
    spatial: &[usize],
    positions: &[usize; 3],
) -> Result<Temp> {
    let places = positions.iter().product::<usize>();
    const OP: &str = "avg_pool";
    let count = if count_include_pad {
        HostVec::filled(b, OP, window.numel() as i64, places)?
    } else {
        let slots = slots(b, OP, window, spatial, positions)?;
        let inside = |p: usize| slots.iter().skip(p).step_by(places).filter(|&&s| s >= 0).count() as i64;
        HostVec::collect(b, OP, (0..places).map(inside))?
    };
    let shape = Shape::new(&positions[..window.rank])?;
    let exact = Temp::table(b, shape, &count)?;
    let mut out = Temp::new(b, dtype, shape)?;
    super::convert(b, exact.view(), &mut out.view_mut())?;
    Ok(out)
}

/// See [`Backend::avg_pool`].
pub fn avg_forward<B: Backend + ?Sized>(
    b: &B,
    window: &Window,
    count_include_pad: bool,
    x: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool";
    expect_float(OP, x)?;
    let p = positions(b, OP, window, x, ("out", out.as_view()))?;
    if out.layout.numel() == 0 {
        return Ok(());
    }
    let (shape, rank, compute) = (*out.layout.shape(), window.rank, x.dtype.compute());
    let count = counts(b, window, count_include_pad, compute, &x.layout.dims()[2..], &p)?;
    let unfolded = [&x.layout.dims()[..2], &window.kernel[..rank], &p[..rank]].concat();
    let mut columns = Temp::new(b, compute, Shape::new(&unfolded)?)?;
    let wide = widened(b, x)?;
    b.unfold(window, wide.view(), Scalar::Int(0), &mut columns.view_mut())?;
    let kernel_axes = (2..2 + rank).fold(Axes::NONE, Axes::with);
    let sum = reduced(b, ReduceOp::Sum, columns.view(), kernel_axes)?;
    let (sum, count) = (sum.shaped(shape), stretched(count.view(), &shape)?);
    let args = [MapArg::View(sum.view()), MapArg::View(count.view())];
    run(b, OP, &args, &mut [out.with(out.layout)], |v| vec![v[0] / v[1]])
}

/// See [`Backend::avg_pool_backward`].
pub fn avg_backward<B: Backend + ?Sized>(
    b: &B,
    window: &Window,
    count_include_pad: bool,
    g: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool_backward";
    expect_float(OP, g)?;
    let p = positions(b, OP, window, dx.as_view(), ("g", g))?;
    if dx.layout.numel() == 0 {
        return Ok(());
    }
    let (shape, rank, compute) = (*g.layout.shape(), window.rank, g.dtype.compute());
    let spatial = dx.layout.dims()[2..].to_vec();
    let count = counts(b, window, count_include_pad, compute, &spatial, &p)?;
    let mut share = Temp::new(b, compute, shape)?;
    let count = stretched(count.view(), &shape)?;
    let args = [MapArg::View(g), MapArg::View(count.view())];
    run(b, OP, &args, &mut [share.view_mut()], |v| vec![v[0] / v[1]])?;
    // Broadcast from [n, c, positions..] to [n, c, kernel.., positions..].
    let mut layout = share.layout;
    for i in 0..rank {
        layout = layout.unsqueeze(2 + i)?;
    }
    let unfolded = Shape::new(&[&shape[..2], &window.kernel[..rank], &p[..rank]].concat())?;
    let layout = layout.expand(unfolded)?;
    let columns = share.view().with(&layout);
    let dims = *dx.layout.shape();
    write_as(b, dx, compute, dims, |dx| b.fold(window, columns, dx))
}
