//! Cross-entropy with class indices as targets, and its gradient.
//!
//! With `lse = ln sum_j e^(x_j)`, target `t`, label smoothing `e` and `c` classes:
//! * `loss = lse - (1 - e) * x_t - e/c * sum_j x_j`, computed with the row's largest element subtracted throughout;
//! * `dx_j = g * (e^(x_j - lse) - (1 - e) * [j = t] - e/c)`.

use super::{
    Temp, expect, expect_float, expect_index, expect_parameter, expect_rank, read_as, reduced, run, stretched, write_as,
};
use crate::host_vec::download;
use crate::{
    Axes, Backend, CrossEntropyParams, DType, Error, ErrorKind, HostVec, MapArg, ReduceOp, Result, Scalar, Shape, View,
    ViewMut,
};

/// The axis of the classes.
const CLASS: usize = 1;

/// Checks the logits, the target and two vectors of the compute dtype; returns the number of rows and of classes.
fn check<B: Backend + ?Sized>(
    b: &B,
    op: &'static str,
    params: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
    vectors: [(&str, View<'_>); 2],
) -> Result<(usize, usize)> {
    let e = params.label_smoothing;
    expect_parameter(op, "label smoothing", e, (0.0..=1.0).contains(&e), "between 0 and 1")?;
    expect_float(op, logits)?;
    expect_rank(b, op, "logits", logits, 2, "[n, c]")?;
    expect_index(op, target)?;
    let (n, c) = (logits.layout.dims()[0], logits.layout.dims()[1]);
    expect(b, op, "target", target, target.dtype, &[n])?;
    for (name, v) in vectors {
        expect(b, op, name, v, logits.dtype.compute(), &[n])?;
    }
    Ok((n, c))
}

/// The class of each row as i64 (0 in ignored rows), and which rows are ignored, both as `[n, 1]`. Every class is in
/// `0..c`.
fn classes<B: Backend + ?Sized>(
    b: &B,
    op: &'static str,
    params: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
) -> Result<(Temp, Temp)> {
    let column = Shape::new(&[target.layout.numel(), 1])?;
    let target = read_as(b, target, target.dtype, column)?;
    let mut class = Temp::new(b, DType::I64, column)?;
    let mut ignored = Temp::new(b, DType::Bool, column)?;
    {
        let outs = &mut [class.view_mut(), ignored.view_mut()];
        let t = MapArg::View(target.view());
        match params.ignore_index {
            None => run(b, "target_class", &[t], outs, |v| {
                let t = v[0].cast(DType::I64);
                vec![t, t.ne(t)]
            }),
            Some(i) => run(b, "target_class_ignoring", &[t, MapArg::Scalar(Scalar::Int(i))], outs, |v| {
                let t = v[0].cast(DType::I64);
                let ignored = t.eq(v[1]);
                vec![ignored.select(0i64, t), ignored]
            }),
        }?;
    }
    let size = logits.layout.dims()[1];
    let out_of_range = |pos: usize, index: i64| {
        let m = format!("target {index} of row {pos} is outside {size} classes");
        let e = Error::new(ErrorKind::IndexOutOfBounds { pos, index, size }, op, m);
        e.help("classes count from 0; pass ignore_index to leave rows out")
    };
    if size == 0 {
        // No class is in range, not even the 0 that stands for an ignored row.
        let rows = class.layout.numel();
        let classes = download::<i64, _>(b, op, &class.buffer, 0, rows)?;
        let skipped = download::<bool, _>(b, op, &ignored.buffer, 0, rows)?;
        return match skipped.iter().position(|skip| !skip) {
            Some(pos) => Err(out_of_range(pos, classes[pos])),
            None => Ok((class, ignored)),
        };
    }
    let mut chosen = Temp::new(b, logits.dtype, column)?;
    b.gather(logits, CLASS, class.view(), &mut chosen.view_mut()).map_err(|e| match *e.kind() {
        ErrorKind::IndexOutOfBounds { pos, index, .. } => out_of_range(pos, index),
        _ => e,
    })?;
    Ok((class, ignored))
}

/// See [`Backend::cross_entropy`].
pub fn forward<B: Backend + ?Sized>(
    b: &B,
    params: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
    loss: &mut ViewMut<'_>,
    lse: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy";
    let (n, c) = check(b, OP, params, logits, target, [("loss", loss.as_view()), ("lse", lse.as_view())])?;
    if n == 0 {
        return Ok(());
    }
    let (class, ignored) = classes(b, OP, params, logits, target)?;
    if c == 0 {
        b.fill(loss, Scalar::Float(0.0))?;
        return b.fill(lse, Scalar::Float(f64::NEG_INFINITY));
    }
    let (shape, column, compute) = (*logits.layout.shape(), Shape::new(&[n, 1])?, logits.dtype.compute());

    // Each row is shifted by its largest element, or by 0 if that is not finite, so that -inf and +inf propagate.
    let largest = reduced(b, ReduceOp::Max, logits, Axes::one(CLASS))?;
    let mut shift = Temp::new(b, compute, column)?;
    run(b, "finite_or_zero", &[MapArg::View(largest.view())], &mut [shift.view_mut()], |v| {
        vec![v[0].isfinite().select(v[0], 0.0)]
    })?;
    let mut shifted = Temp::new(b, compute, shape)?;
    let mut exps = Temp::new(b, compute, shape)?;
    let each = stretched(shift.view(), &shape)?;
    let args = [MapArg::View(logits), MapArg::View(each.view())];
    run(b, "shifted_and_exp", &args, &mut [shifted.view_mut(), exps.view_mut()], |v| {
        let x = v[0] - v[1];
        vec![x, x.exp()]
    })?;
    let exps = reduced(b, ReduceOp::Sum, exps.view(), Axes::one(CLASS))?;
    let [exp_sum, shift] = [exps.view(), shift.view()].map(MapArg::View);
    write_as(b, lse, compute, column, |lse| {
        run(b, "log_sum_exp", &[shift, exp_sum], &mut [lse.with(lse.layout)], |v| vec![v[0] + v[1].log()])
    })?;

    let mut chosen = Temp::new(b, compute, column)?;
    b.gather(shifted.view(), CLASS, class.view(), &mut chosen.view_mut())?;
    let e = params.label_smoothing;
    let [chosen, ignored] = [chosen.view(), ignored.view()].map(MapArg::View);
    write_as(b, loss, compute, column, |loss| {
        let outs = &mut [loss.with(loss.layout)];
        if e == 0.0 {
            let args = [ignored, exp_sum, chosen];
            return run(b, OP, &args, outs, |v| vec![v[0].select(0.0, v[1].log() - v[2])]);
        }
        let sum = reduced(b, ReduceOp::Sum, shifted.view(), Axes::one(CLASS))?;
        let weights = [1.0 - e, e / c as f64].map(|w| MapArg::Scalar(Scalar::Float(w)));
        let args = [ignored, exp_sum, chosen, MapArg::View(sum.view()), weights[0], weights[1]];
        run(b, "cross_entropy_smooth", &args, outs, |v| vec![v[0].select(0.0, v[1].log() - v[4] * v[2] - v[5] * v[3])])
    })
}

/// See [`Backend::cross_entropy_backward`].
pub fn backward<B: Backend + ?Sized>(
    b: &B,
    params: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
    lse: View<'_>,
    g: View<'_>,
    dlogits: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy_backward";
    let (n, c) = check(b, OP, params, logits, target, [("lse", lse), ("g", g)])?;
    let shape = *logits.layout.shape();
    expect(b, OP, "dlogits", dlogits.as_view(), logits.dtype, &shape)?;
    if n == 0 {
        return Ok(());
    }
    let (class, ignored) = classes(b, OP, params, logits, target)?;
    if c == 0 {
        return Ok(());
    }
    let column = Shape::new(&[n, 1])?;
    let numbers = HostVec::collect(b, OP, 0..c as i64)?;
    let numbers = Temp::table(b, Shape::new(&[1, c])?, &numbers)?;
    let [lse, g] = [read_as(b, lse, lse.dtype, column)?, read_as(b, g, g.dtype, column)?];
    let each = [lse.view(), g.view(), class.view(), ignored.view(), numbers.view()];
    let each = each.iter().map(|&v| stretched(v, &shape)).collect::<Result<Vec<_>>>()?;
    let mut args = vec![MapArg::View(logits)];
    args.extend(each.iter().map(|v| MapArg::View(v.view())));
    let e = params.label_smoothing;
    args.extend([1.0 - e, e / c as f64].map(|w| MapArg::Scalar(Scalar::Float(w))));
    run(b, OP, &args, &mut [dlogits.with(dlogits.layout)], |v| {
        let p = (v[0] - v[1]).exp();
        let target = v[5].eq(v[3]).select(v[6], 0.0) + v[7];
        vec![v[4].select(0.0, v[2] * (p - target))]
    })
}
