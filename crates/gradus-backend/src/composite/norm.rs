//! `(x - mean) / sqrt(var + eps) * scale + shift` over any axes, and its gradient.
//!
//! There are two passes: the first computes the mean, the second the mean square of the deviations. If there are no
//! elements, both are NaN. Rows with large elements are multiplied by a power of two first, so that their squares do
//! not overflow.

use super::{Body, Relaid, Source, Temp, expect, expect_float, expect_parameter, reduced, run, stretched, widened};
use crate::{Axes, Backend, DType, Error, ErrorKind, MapArg, ReduceOp, Result, Scalar, Shape, View, ViewMut};

/// See [`Backend::normalize`].
pub fn forward<B: Backend + ?Sized>(
    b: &B,
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
    expect_parameter(OP, "eps", eps, eps.is_finite() && eps >= 0.0, "finite and at least 0")?;
    expect(b, OP, "out", out.as_view(), x.dtype, &shape)?;
    let [scale, shift] = [affine(b, OP, "scale", x, scale)?, affine(b, OP, "shift", x, shift)?];
    statistics_fit(b, OP, axes, x, mean.as_view(), rstd.as_view())?;

    let n = axes.iter().map(|a| shape[a]).product::<usize>() as f64;
    let [down, first] = scale_of_rows(b, rms, x, axes)?;
    let each = [stretched(down.view(), &shape)?, stretched(first.view(), &shape)?];
    let mut scaled = Temp::new(b, x.dtype.compute(), shape)?;
    let args = [x, each[0].view(), each[1].view()].map(MapArg::View);
    run(b, "scaled", &args, &mut [scaled.view_mut()], |v| vec![v[0] * v[1] - v[2]])?;
    let n = MapArg::Scalar(Scalar::Float(n));
    let mut centre = Temp::new(b, mean.dtype, *mean.layout.shape())?;
    if rms {
        b.fill(&mut centre.view_mut(), Scalar::Float(0.0))?;
        b.fill(mean, Scalar::Float(0.0))?;
    } else {
        let sum = reduced(b, ReduceOp::Sum, scaled.view(), axes)?;
        let args = [MapArg::View(sum.view()), n, MapArg::View(down.view()), MapArg::View(first.view())];
        run(b, "mean", &args, &mut [centre.view_mut(), mean.with(mean.layout)], |v| {
            let centre = v[0] / v[1];
            vec![centre, (centre + v[3]) / v[2]]
        })?;
    }
    let centre = stretched(centre.view(), &shape)?;
    let mut squares = Temp::new(b, scaled.view().dtype, shape)?;
    let args = [MapArg::View(scaled.view()), MapArg::View(centre.view())];
    run(b, "square_difference", &args, &mut [squares.view_mut()], |v| {
        let d = v[0] - v[1];
        vec![d * d]
    })?;
    let sum = reduced(b, ReduceOp::Sum, squares.view(), axes)?;
    let mut spread = Temp::new(b, rstd.dtype, *rstd.layout.shape())?;
    let args = [MapArg::View(sum.view()), n, MapArg::Scalar(Scalar::Float(eps)), MapArg::View(down.view())];
    run(b, "rstd", &args, &mut [spread.view_mut(), rstd.with(rstd.layout)], |v| {
        let variance = v[0] / v[1];
        // With a variance of 0, the scaled eps could underflow to 0 as well, so eps is used unscaled.
        let none = variance.eq(0.0);
        let spread = none.select(v[2].rsqrt() / v[3], (none.select(1.0, variance) + v[2] * v[3] * v[3]).rsqrt());
        vec![spread, spread * v[3]]
    })?;

    let spread = stretched(spread.view(), &shape)?;
    let mut args = Vec::from([scaled.view(), centre.view(), spread.view()].map(MapArg::View));
    args.extend(scale.iter().chain(&shift).map(|v| MapArg::View(v.view())));
    let (name, body): (_, Body) = match (&scale, &shift) {
        (None, None) => ("normalize", |v| vec![(v[0] - v[1]) * v[2]]),
        (Some(_), None) => ("normalize_scale", |v| vec![(v[0] - v[1]) * v[2] * v[3]]),
        (None, Some(_)) => ("normalize_shift", |v| vec![(v[0] - v[1]) * v[2] + v[3]]),
        (Some(_), Some(_)) => ("normalize_affine", |v| vec![(v[0] - v[1]) * v[2] * v[3] + v[4]]),
    };
    run(b, name, &args, &mut [out.with(out.layout)], body)
}

/// The threshold above which a row counts as large in a compute dtype, and the factor by which it is scaled; both are
/// powers of two.
#[derive(Clone, Copy, Debug)]
pub struct Large {
    /// A row is large if one of its elements exceeds this in magnitude; the mean of an ordinary row is therefore below
    /// it. Above it, the rounding error of the mean of equal elements could be mistaken for a variance far above any
    /// eps.
    pub limit: f64,
    /// The factor by which the elements of large rows are multiplied. The square of the largest float times this factor
    /// is finite, and the square of the smallest deviation in a large row is not 0.
    pub factor: f64,
}

impl Large {
    /// The values for a compute dtype, f32 or f64.
    #[inline]
    pub fn of(compute: DType) -> Self {
        let (limit, factor) = if compute == DType::F64 { (500, -800) } else { (50, -80) };
        Large { limit: 2f64.powi(limit), factor: 2f64.powi(factor) }
    }
}

/// The factor and the shift of each row. The factor is a power of two for large rows and 1 for all others. It keeps the
/// sums of the elements and of their squares finite if the elements are finite. The shift is subtracted after scaling.
/// It is the first (scaled) element of a large row, so that equal elements have deviations of exactly 0; it is 0 for
/// all other rows, and always with `rms`.
fn scale_of_rows<B: Backend + ?Sized>(b: &B, rms: bool, x: View<'_>, axes: Axes) -> Result<[Temp; 2]> {
    let (dtype, rows) = (x.dtype.compute(), x.layout.shape().reduced(axes, true));
    let mut found = [Temp::new(b, dtype, rows)?, Temp::new(b, dtype, rows)?];
    if x.layout.numel() == 0 {
        b.fill(&mut found[0].view_mut(), Scalar::Float(1.0))?;
        b.fill(&mut found[1].view_mut(), Scalar::Float(0.0))?;
        return Ok(found);
    }
    let (high, low) = (reduced(b, ReduceOp::Max, x, axes)?, reduced(b, ReduceOp::Min, x, axes)?);
    let first = axes.iter().try_fold(*x.layout, |l, a| l.narrow(a, 0, 1))?;
    let Large { limit, factor } = Large::of(dtype);
    let [limit, factor, shifted] = [limit, factor, f64::from(u8::from(!rms))].map(|v| MapArg::Scalar(Scalar::Float(v)));
    let args =
        [MapArg::View(high.view()), MapArg::View(low.view()), MapArg::View(x.with(&first)), limit, factor, shifted];
    let [down, shift] = &mut found;
    run(b, "scale_of_rows", &args, &mut [down.view_mut(), shift.view_mut()], |v| {
        let large = v[0].max(-v[1]).gt(v[3]);
        let shift = large.and(v[5].ne(0.0)).select(v[2] * v[4], v[4].constant(0.0));
        vec![large.select(v[4], v[4].constant(1.0)), shift]
    })?;
    Ok(found)
}

/// See [`Backend::normalize_backward`].
pub fn backward<B: Backend + ?Sized>(
    b: &B,
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
    expect(b, OP, "g", g, x.dtype, &shape)?;
    expect(b, OP, "dx", dx.as_view(), x.dtype, &shape)?;
    let scale = affine(b, OP, "scale", x, scale)?;
    statistics_fit(b, OP, axes, x, mean, rstd)?;
    if shape.numel() == 0 {
        return Ok(());
    }
    let count = MapArg::Scalar(Scalar::Float(axes.iter().map(|a| shape[a]).product::<usize>() as f64));
    let compute = x.dtype.compute();
    let each = [stretched(mean, &shape)?, stretched(rstd, &shape)?];
    let [mean, rstd] = [each[0].view(), each[1].view()];

    let h = match &scale {
        None => widened(b, g)?,
        Some(s) => {
            let mut h = Temp::new(b, compute, shape)?;
            run(b, "product", &[MapArg::View(g), MapArg::View(s.view())], &mut [h.view_mut()], |v| vec![v[0] * v[1]])?;
            Source::Temp(h)
        }
    };
    let mut hn = Temp::new(b, compute, shape)?;
    let args = [h.view(), x, mean, rstd].map(MapArg::View);
    run(b, "gradient_times_normalized", &args, &mut [hn.view_mut()], |v| vec![v[0] * ((v[1] - v[2]) * v[3])])?;
    let sum_hn = reduced(b, ReduceOp::Sum, hn.view(), axes)?;
    let sum_hn = stretched(sum_hn.view(), &shape)?;
    let sum_hn = sum_hn.view();
    let outs = &mut [dx.with(dx.layout)];
    if rms {
        let [h, x, mean, rstd, sum_hn] = [h.view(), x, mean, rstd, sum_hn].map(MapArg::View);
        return run(b, "rms_norm_backward", &[h, x, mean, rstd, sum_hn, count], outs, |v| {
            let n = (v[1] - v[2]) * v[3];
            vec![v[3] * (v[0] - n * (v[4] / v[5]))]
        });
    }
    let sum_h = reduced(b, ReduceOp::Sum, h.view(), axes)?;
    let sum_h = stretched(sum_h.view(), &shape)?;
    let [h, x, mean, rstd, sum_hn, sum_h] = [h.view(), x, mean, rstd, sum_hn, sum_h.view()].map(MapArg::View);
    run(b, "normalize_backward", &[h, x, mean, rstd, sum_hn, sum_h, count], outs, |v| {
        let n = (v[1] - v[2]) * v[3];
        vec![v[3] * (v[0] - v[5] / v[6] - n * (v[4] / v[6]))]
    })
}

/// See [`Backend::normalize_affine_backward`].
pub fn affine_backward<B: Backend + ?Sized>(
    b: &B,
    g: View<'_>,
    x: View<'_>,
    mean: View<'_>,
    rstd: View<'_>,
    dscale: &mut ViewMut<'_>,
    dshift: Option<&mut ViewMut<'_>>,
) -> Result<()> {
    const OP: &str = "normalize_affine_backward";
    let (shape, compute) = (*x.layout.shape(), x.dtype.compute());
    expect_float(OP, x)?;
    expect(b, OP, "g", g, x.dtype, &shape)?;
    let axes = stretched_axes(OP, dscale.layout.shape(), &shape)?;
    expect(b, OP, "dscale", dscale.as_view(), compute, &shape.reduced(axes, true))?;
    if let Some(dshift) = &dshift {
        expect(b, OP, "dshift", dshift.as_view(), compute, dscale.layout.dims())?;
    }
    let each = [stretched(mean, &shape)?, stretched(rstd, &shape)?];
    expect(b, OP, "mean", each[0].view(), compute, &shape)?;
    expect(b, OP, "rstd", each[1].view(), compute, &shape)?;
    let mut of_gn = Temp::new(b, compute, shape)?;
    let args = [g, x, each[0].view(), each[1].view()].map(MapArg::View);
    run(b, "gradient_times_normalized", &args, &mut [of_gn.view_mut()], |v| vec![v[0] * ((v[1] - v[2]) * v[3])])?;
    b.reduce(ReduceOp::Sum, of_gn.view(), axes, dscale)?;
    let Some(dshift) = dshift else { return Ok(()) };
    b.reduce(ReduceOp::Sum, widened(b, g)?.view(), axes, dshift)
}

/// The axes along which `small`, which must have the rank of `shape`, is broadcast to `shape`.
pub fn stretched_axes(op: &str, small: &Shape, shape: &Shape) -> Result<Axes> {
    let fits = small.rank() == shape.rank() && small.iter().zip(shape.iter()).all(|(&s, &n)| s == n || s == 1);
    if !fits {
        let m = format!("a scale of shape {small} does not stretch to {shape} axis by axis");
        return Err(Error::new(ErrorKind::ShapeMismatch, op, m));
    }
    Ok((0..shape.rank()).filter(|&a| small[a] == 1).fold(Axes::NONE, Axes::with))
}

/// A scale or shift, checked and broadcast to the shape of `x`.
fn affine<'a, B: Backend + ?Sized>(
    b: &B,
    op: &'static str,
    name: &str,
    x: View<'_>,
    v: Option<View<'a>>,
) -> Result<Option<Relaid<'a>>> {
    let Some(v) = v else { return Ok(None) };
    let v = stretched(v, x.layout.shape())?;
    expect(b, op, name, v.view(), x.dtype, x.layout.dims())?;
    Ok(Some(v))
}

/// Checks the axes, the dtype of `x` and the two statistics.
fn statistics_fit<B: Backend + ?Sized>(
    b: &B,
    op: &'static str,
    axes: Axes,
    x: View<'_>,
    mean: View<'_>,
    rstd: View<'_>,
) -> Result<()> {
    expect_float(op, x)?;
    let shape: &Shape = x.layout.shape();
    if let Some(a) = axes.iter().find(|&a| a >= shape.rank()) {
        let m = format!("axis {a} is outside rank {}", shape.rank());
        return Err(Error::new(ErrorKind::InvalidAxis, op, m));
    }
    let want = shape.reduced(axes, true);
    expect(b, op, "mean", mean, x.dtype.compute(), &want)?;
    expect(b, op, "rstd", rstd, x.dtype.compute(), &want)
}
