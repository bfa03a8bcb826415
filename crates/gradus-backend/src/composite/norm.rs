//! `(x - mean) / sqrt(var + eps) * scale + shift` over any axes, and its gradient.
//!
//! Two passes: the mean first, then the mean square of what is left. Over no elements both are NaN.

use super::{Body, Relaid, Source, Temp, expect, expect_float, expect_parameter, reduced, run, stretched, widened};
use crate::{Axes, Backend, Error, ErrorKind, MapArg, ReduceOp, Result, Scalar, Shape, View, ViewMut};

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

    let n = Scalar::Float(axes.iter().map(|a| shape[a]).product::<usize>() as f64);
    let wide = widened(b, x)?;
    if rms {
        b.fill(mean, Scalar::Float(0.0))?;
    } else {
        let sum = reduced(b, ReduceOp::Sum, wide.view(), axes)?;
        let args = [MapArg::View(sum.view()), MapArg::Scalar(n)];
        run(b, "mean", &args, &mut [mean.with(mean.layout)], |v| vec![v[0] / v[1]])?;
    }
    let centre = stretched(mean.as_view(), &shape)?;
    let mut squares = Temp::new(b, wide.view().dtype, shape)?;
    let args = [MapArg::View(wide.view()), MapArg::View(centre.view())];
    run(b, "square_difference", &args, &mut [squares.view_mut()], |v| {
        let d = v[0] - v[1];
        vec![d * d]
    })?;
    let sum = reduced(b, ReduceOp::Sum, squares.view(), axes)?;
    let args = [MapArg::View(sum.view()), MapArg::Scalar(n), MapArg::Scalar(Scalar::Float(eps))];
    run(b, "rstd", &args, &mut [rstd.with(rstd.layout)], |v| vec![(v[0] / v[1] + v[2]).rsqrt()])?;

    let spread = stretched(rstd.as_view(), &shape)?;
    let mut args = Vec::from([x, centre.view(), spread.view()].map(MapArg::View));
    args.extend(scale.iter().chain(&shift).map(|v| MapArg::View(v.view())));
    let (name, body): (_, Body) = match (&scale, &shift) {
        (None, None) => ("normalize", |v| vec![(v[0] - v[1]) * v[2]]),
        (Some(_), None) => ("normalize_scale", |v| vec![(v[0] - v[1]) * v[2] * v[3]]),
        (None, Some(_)) => ("normalize_shift", |v| vec![(v[0] - v[1]) * v[2] + v[3]]),
        (Some(_), Some(_)) => ("normalize_affine", |v| vec![(v[0] - v[1]) * v[2] * v[3] + v[4]]),
    };
    run(b, name, &args, &mut [out.with(out.layout)], body)
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

/// A scale or shift, checked and stretched to the shape of `x`.
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

/// Checks axes, dtype of `x`, and the two statistics.
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
