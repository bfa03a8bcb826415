//! Normalisation over any axes, and its gradients.

use gradus_backend::{Axes, DType, Layout, MAX_RANK, ReduceOp, Result, Shape, View, ViewMut, composite};

use super::{Rows, beside, plain};
use crate::CudaBackend;
use crate::temp::Temp;

const FILE: &str = include_str!("norm.cu");
/// Sums for scale and shift are cut into parts of about this many elements.
const PART: usize = 512;
/// The largest number of parts.
const PARTS: usize = 256;
/// The fewest elements of a part, and the number of blocks that keep a device busy, where threads have neighbouring lines.
const PART_BESIDE: usize = 64;
const BUSY: usize = 512;

/// Whether the statistics have the shape and dtype that `x` requires.
fn statistics_fit(x: View<'_>, axes: Axes, statistics: [(DType, &Layout); 2]) -> bool {
    axes.iter().all(|a| a < x.layout.rank())
        && statistics.iter().all(|(d, l)| *d == x.dtype.compute() && l.shape() == &x.layout.shape().reduced(axes, true))
}

/// A scale or shift broadcast to `shape`. The inner option is `None` if there is none, the outer one if it does not fit.
fn stretched<'a>(v: Option<View<'a>>, dtype: DType, shape: Shape) -> Option<Option<(View<'a>, Layout)>> {
    let Some(v) = v else { return Some(None) };
    let layout = v.layout.expand(shape).ok()?;
    (v.dtype == dtype).then_some(Some((v, layout)))
}

/// See [`Backend::normalize`](gradus_backend::Backend::normalize).
pub(crate) fn normalize(
    b: &CudaBackend,
    rms: bool,
    axes: Axes,
    eps: f64,
    x: View<'_>,
    scale: Option<View<'_>>,
    shift: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    mean: &mut ViewMut<'_>,
    rstd: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "normalize";
    let shape = *x.layout.shape();
    let affine = (stretched(scale, x.dtype, shape), stretched(shift, x.dtype, shape));
    let fits = eps.is_finite()
        && eps >= 0.0
        && statistics_fit(x, axes, [(mean.dtype, mean.layout), (rstd.dtype, rstd.layout)])
        && plain(axes, &[(x.dtype, x.layout), (out.dtype, out.layout)]);
    let (Some(by), Some(plus), true) = (affine.0, affine.1, fits) else {
        return composite::norm::forward(b, rms, axes, eps, x, scale, shift, out, mean, rstd);
    };
    let mut operands = vec![
        (b.input(OP, "x", x)?, *x.layout),
        (b.output(OP, "out", out)?, *out.layout),
        (b.output(OP, "mean", mean)?, mean.layout.expand(shape)?),
        (b.output(OP, "rstd", rstd)?, rstd.layout.expand(shape)?),
    ];
    for (name, v) in [("scale", by), ("shift", plus)] {
        if let Some((v, layout)) = v {
            operands.push((b.input(OP, name, v)?, layout));
        }
    }
    let large = composite::norm::Large::of(x.dtype.compute());
    let has = |v: Option<View<'_>>| usize::from(v.is_some());
    Rows {
        op: OP,
        entry: "normalize",
        file: FILE,
        axes,
        operands: &operands,
        // Not the statistics.
        packed: &[0, 1, 4, 5][..operands.len() - 2],
        constants: &[("FORWARD", 1), ("RMS", usize::from(rms)), ("SCALE", has(scale)), ("SHIFT", has(shift))],
        numbers: [eps, large.factor, large.limit],
        ..Rows::default()
    }
    .run(b)
}

/// See [`Backend::normalize_backward`](gradus_backend::Backend::normalize_backward).
pub(crate) fn normalize_backward(
    b: &CudaBackend,
    rms: bool,
    axes: Axes,
    g: View<'_>,
    x: View<'_>,
    scale: Option<View<'_>>,
    mean: View<'_>,
    rstd: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "normalize_backward";
    let shape = *x.layout.shape();
    let fits = statistics_fit(x, axes, [(mean.dtype, mean.layout), (rstd.dtype, rstd.layout)])
        && plain(axes, &[(x.dtype, x.layout), (g.dtype, g.layout), (dx.dtype, dx.layout)]);
    let (Some(by), true) = (stretched(scale, x.dtype, shape), fits) else {
        return composite::norm::backward(b, rms, axes, g, x, scale, mean, rstd, dx);
    };
    let mut operands = vec![
        (b.input(OP, "x", x)?, *x.layout),
        (b.input(OP, "g", g)?, *g.layout),
        (b.output(OP, "dx", dx)?, *dx.layout),
        (b.input(OP, "mean", mean)?, mean.layout.expand(shape)?),
        (b.input(OP, "rstd", rstd)?, rstd.layout.expand(shape)?),
    ];
    if let Some((v, layout)) = by {
        operands.push((b.input(OP, "scale", v)?, layout));
    }
    Rows {
        op: OP,
        entry: "normalize_backward",
        file: FILE,
        axes,
        operands: &operands,
        packed: &[0, 1, 2, 5][..operands.len() - 2],
        constants: &[("BACKWARD", 1), ("RMS", usize::from(rms)), ("SCALE", usize::from(scale.is_some())), ("SHIFT", 0)],
        ..Rows::default()
    }
    .run(b)
}

/// See [`Backend::normalize_affine_backward`](gradus_backend::Backend::normalize_affine_backward).
pub(crate) fn normalize_affine_backward(
    b: &CudaBackend,
    g: View<'_>,
    x: View<'_>,
    mean: View<'_>,
    rstd: View<'_>,
    dscale: &mut ViewMut<'_>,
    mut dshift: Option<&mut ViewMut<'_>>,
) -> Result<()> {
    const OP: &str = "normalize_affine_backward";
    let (shape, compute) = (*x.layout.shape(), x.dtype.compute());
    let axes = composite::norm::stretched_axes(OP, dscale.layout.shape(), &shape);
    let each = [mean, rstd].map(|v| v.layout.expand(shape).ok().filter(|_| v.dtype == compute));
    let like = |v: &ViewMut<'_>| v.dtype == compute && v.layout.shape() == dscale.layout.shape();
    let (Ok(axes), [Some(centre), Some(spread)], true, true) =
        (axes, each, like(dscale), dshift.as_deref().is_none_or(like))
    else {
        return composite::norm::affine_backward(b, g, x, mean, rstd, dscale, dshift);
    };
    if !plain(axes, &[(x.dtype, x.layout), (g.dtype, g.layout)]) {
        return composite::norm::affine_backward(b, g, x, mean, rstd, dscale, dshift);
    }
    let n: usize = axes.iter().map(|a| shape[a]).product();
    let of = |v: View<'_>| Ok::<_, gradus_backend::Error>(b.input(OP, "an operand", v)?.ptr);
    let tensors = [(of(g)?, g.dtype, g.layout), (of(x)?, x.dtype, x.layout)];
    let wide = beside(axes, &tensors, &[&centre, &spread]);
    let columns = (dscale.layout.numel() / wide).div_ceil(32).max(1);
    // The sums of parts have one more axis.
    let most = if shape.rank() < MAX_RANK { PARTS } else { 1 };
    let (wide, parts) = match (BUSY / columns).min(n / PART_BESIDE).min(most) {
        parts if wide > 1 && parts > 1 => (wide, parts),
        _ => (1, n.div_ceil(PART).min(most)),
    };
    // No part is empty.
    let parts = n.div_ceil(n.div_ceil(parts));
    let run = |dscale: &ViewMut<'_>, dshift: Option<&ViewMut<'_>>| -> Result<()> {
        // The sums of parts lie side by side, so the layouts of their results are not used.
        let of = |v: &ViewMut<'_>| {
            if parts > 1 {
                Layout::contiguous(shape.reduced(Axes::all(shape.rank()), true)).expand(shape)
            } else {
                v.layout.expand(shape)
            }
        };
        let mut operands = vec![
            (b.input(OP, "g", g)?, *g.layout),
            (b.input(OP, "x", x)?, *x.layout),
            (b.input(OP, "mean", mean)?, centre),
            (b.input(OP, "rstd", rstd)?, spread),
            (b.output(OP, "dscale", dscale)?, of(dscale)?),
        ];
        // Without a shift, the kernel takes a second pointer all the same.
        let second = dshift.unwrap_or(dscale);
        operands.push((b.output(OP, "dshift", second)?, of(second)?));
        Rows {
            op: OP,
            entry: "normalize_affine_backward",
            file: FILE,
            axes,
            operands: &operands,
            constants: &[("AFFINE", 1), ("SCALE", 1), ("SHIFT", usize::from(dshift.is_some()))],
            parts,
            beside: wide,
            ..Rows::default()
        }
        .run(b)
    };
    if parts == 1 {
        return run(dscale, dshift.as_deref());
    }
    let kept = dscale.layout.numel();
    let parted = Shape::new(&[kept, parts])?;
    let mut sums = [Temp::new(b, compute, parted)?, Temp::new(b, compute, parted)?];
    let [of_scale, of_shift] = &mut sums;
    run(&of_scale.view_mut(), dshift.as_ref().map(|_| of_shift.view_mut()).as_ref())?;
    add(b, of_scale, dscale)?;
    match &mut dshift {
        Some(dshift) => add(b, of_shift, dshift),
        None => Ok(()),
    }
}

/// Adds the parts of sums `[n, parts]` in a fixed tree.
fn add(b: &CudaBackend, sums: &Temp, out: &mut ViewMut<'_>) -> Result<()> {
    let rank = out.layout.rank();
    let layout = Layout::contiguous(Shape::new(&[out.layout.dims(), &sums.layout.dims()[1..]].concat())?);
    let to = out.layout.unsqueeze(rank)?;
    gradus_backend::Backend::reduce(b, ReduceOp::Sum, sums.view().with(&layout), Axes::one(rank), &mut out.with(&to))
}
