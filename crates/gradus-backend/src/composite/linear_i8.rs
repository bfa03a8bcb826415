//! Products of floats, rounded to 8 bits, with integers of 8 bits.

use super::{Temp, expect, expect_rank, reduced, run, stretched};
use crate::{Axes, Backend, DType, MapArg, ReduceOp, Result, Scalar, Shape, View, ViewMut};

const OP: &str = "linear_i8";

/// Checks the operands of [`Backend::linear_i8`]; returns the number of groups, and `m`, `k` and `n`.
pub fn check<B: Backend + ?Sized>(
    b: &B,
    x: View<'_>,
    w: View<'_>,
    sums: View<'_>,
    scale: View<'_>,
    bias: View<'_>,
    out: View<'_>,
) -> Result<[usize; 4]> {
    expect_rank(b, OP, "x", x, 3, "[groups, m, k]")?;
    expect_rank(b, OP, "w", w, 3, "[groups, k, n]")?;
    let (x_dims, n) = (x.layout.dims(), w.layout.dims()[2]);
    let [groups, m, k] = [x_dims[0], x_dims[1], x_dims[2]];
    expect(b, OP, "x", x, DType::F32, &[groups, m, k])?;
    expect(b, OP, "w", w, DType::I8, &[groups, k, n])?;
    expect(b, OP, "sums", sums, DType::I32, &[groups, n])?;
    expect(b, OP, "scale", scale, DType::F32, &[groups, n])?;
    expect(b, OP, "bias", bias, DType::F32, &[groups, n])?;
    expect(b, OP, "out", out, DType::F32, &[groups, m, n])?;
    Ok([groups, m, k, n])
}

/// See [`Backend::linear_i8`].
pub fn linear_i8<B: Backend + ?Sized>(
    b: &B,
    add: bool,
    x: View<'_>,
    w: View<'_>,
    sums: View<'_>,
    scale: View<'_>,
    bias: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let [groups, m, k, n] = check(b, x, w, sums, scale, bias, out.as_view())?;
    if groups * m * n == 0 {
        return Ok(());
    }
    let (wide, deep) = (*x.layout.shape(), *out.layout.shape());
    let each = Shape::new(&[groups, 1, 1])?;
    let axes = Axes::one(1).with(2);
    let end = |op: ReduceOp| {
        if k > 0 {
            return reduced(b, op, x, axes);
        }
        let mut none = Temp::new(b, DType::F32, each)?;
        b.fill(&mut none.view_mut(), Scalar::Int(0))?;
        Ok(none)
    };
    let (lo, hi) = (end(ReduceOp::Min)?, end(ReduceOp::Max)?);
    let (mut x_scale, mut zero) = (Temp::new(b, DType::F32, each)?, Temp::new(b, DType::F32, each)?);
    run(b, "scale", &[lo.view(), hi.view()].map(MapArg::View), &mut [x_scale.view_mut()], |v| {
        let range = (v[1].max(0.0) - v[0].min(0.0)) / 255.0;
        vec![range.eq(0.0).select(1.0, range)]
    })?;
    run(b, "zero", &[lo.view(), x_scale.view()].map(MapArg::View), &mut [zero.view_mut()], |v| {
        vec![(-v[0].min(0.0) / v[1]).round().max(0.0).min(255.0)]
    })?;

    let mut bytes = Temp::new(b, DType::U8, wide)?;
    let args = [stretched(x_scale.view(), &wide)?, stretched(zero.view(), &wide)?];
    let args = [x, args[0].view(), args[1].view()].map(MapArg::View);
    run(b, "bytes", &args, &mut [bytes.view_mut()], |v| vec![((v[0] / v[1]).round() + v[2]).max(0.0).min(255.0)])?;
    let mut products = Temp::new(b, DType::I32, deep)?;
    b.gemm_i32(bytes.view(), w, &mut products.view_mut())?;

    let row = |v: View<'_>| v.layout.unsqueeze(1)?.expand(deep);
    let (sums_l, scale_l, bias_l) = (row(sums)?, row(scale)?, row(bias)?);
    let (zero, x_scale) = (stretched(zero.view(), &deep)?, stretched(x_scale.view(), &deep)?);
    let (sums, scale, bias) = (sums.with(&sums_l), scale.with(&scale_l), bias.with(&bias_l));
    let args = [products.view(), zero.view(), sums, x_scale.view(), scale, bias].map(MapArg::View);
    let out = &mut [out.with(out.layout)];
    if !add {
        return run(b, "scaled", &args, out, |v| {
            let whole = v[0] - v[1].cast(DType::I32) * v[2];
            vec![whole.cast(DType::F32) * (v[3] * v[4]) + v[5]]
        });
    }
    let [a, z, s, x, y, c] = args;
    run(b, "add_scaled", &[a, z, s, x, y, c, MapArg::Output(0)], out, |v| {
        let whole = v[0] - v[1].cast(DType::I32) * v[2];
        vec![v[6] + (whole.cast(DType::F32) * (v[3] * v[4]) + v[5])]
    })
}
