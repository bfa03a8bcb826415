//! Softmax, normalisation and cross-entropy, each as one kernel. Operands that are invalid, empty or too large to bind
//! are passed to the default implementations, which also report the errors.

use gradus_backend::{Axes, CrossEntropyParams, DType, Layout, Result, ScalarOp, Shape, View, ViewMut, composite};

use crate::WgpuBackend;
use crate::index::check_index;
use crate::lines::{Line, run};
use crate::map::{scalar_param, scalar_words};
use crate::operand::LOOP;
use crate::wgsl::{GROUP, binary, cast, ty};

/// The largest number of elements in a line. The invocations of a work-group share them, and each loops over its own up
/// to eight times.
const LONGEST: usize = LOOP / 8 * GROUP as usize;

/// Whether a kernel can handle the views. They must have the same shape, which is not empty, and the same float dtype,
/// which the device supports. Each must be small enough to bind, and the lines along `axes` must not be too long for a
/// loop.
fn plain(b: &WgpuBackend, axes: Axes, views: &[(DType, &Layout)]) -> bool {
    let shape = views[0].1.shape();
    shape.numel() > 0
        && axes.iter().map(|a| shape[a]).product::<usize>() <= LONGEST
        && views.iter().all(|(d, l)| l.shape() == shape && b.fits(l, *d) && b.missing(*d).is_none())
        && views[0].0.is_float()
        && views.iter().all(|(d, _)| *d == views[0].0)
}

/// A scalar as words of a kernel's parameters, in the compute type of `dtype`.
fn words(v: f64, dtype: DType) -> Vec<u32> {
    scalar_words(gradus_backend::Scalar::Float(v), dtype.compute())
}

/// See [`Backend::softmax`](gradus_backend::Backend::softmax).
pub(crate) fn softmax(b: &WgpuBackend, log: bool, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
    if axis >= x.layout.rank() || !plain(b, Axes::one(axis), &[(x.dtype, x.layout), (out.dtype, out.layout)]) {
        return composite::softmax::forward(b, log, x, axis, out);
    }
    let d = x.dtype.compute();
    let t = ty(d);
    let op = if log { "log_softmax" } else { "softmax" };
    run(b, op.into(), u32::from(log), Axes::one(axis), &[Line::Again("x", x), Line::Write("y", out)], &[], |lines| {
        let mut text = lines.open(0, d);
        text.line(format_args!("var largest = {};", crate::reduce::identity(gradus_backend::ReduceOp::Max, d)));
        lines.each(&mut text, &["x"], None, &[&format!("largest = larger_{t}(largest, x);")]);
        text.line("let top = largest_of(largest, local);");
        text.line(format_args!("var total = {t}(0);"));
        lines.each(&mut text, &["x"], None, &[&format!("total = total + exp_{t}(x - top);")]);
        text.line("let sum = sum_of(total, local);");
        if log {
            text.line(format_args!("let shift = log_{t}(sum);"));
            lines.each(&mut text, &["x"], Some("y"), &["let y = x - top - shift;"]);
        } else {
            lines.each(&mut text, &["x"], Some("y"), &[&format!("let y = exp_{t}(x - top) / sum;")]);
        }
        lines.close(text)
    })
}

/// See [`Backend::softmax_backward`](gradus_backend::Backend::softmax_backward).
pub(crate) fn softmax_backward(
    b: &WgpuBackend,
    log: bool,
    y: View<'_>,
    g: View<'_>,
    axis: usize,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    let all = [(y.dtype, y.layout), (g.dtype, g.layout), (dx.dtype, dx.layout)];
    if axis >= y.layout.rank() || !plain(b, Axes::one(axis), &all) {
        return composite::softmax::backward(b, log, y, g, axis, dx);
    }
    let d = y.dtype.compute();
    let t = ty(d);
    let op = if log { "log_softmax_backward" } else { "softmax_backward" };
    let y = if log { Line::Read("y", y) } else { Line::Again("y", y) };
    let operands = [y, Line::Again("g", g), Line::Write("dx", dx)];
    run(b, op.into(), u32::from(log), Axes::one(axis), &operands, &[], |lines| {
        let of_sum = if log { &["g"][..] } else { &["y", "g"] };
        let mut text = lines.open(0, d);
        text.line(format_args!("var total = {t}(0);"));
        let term = if log { "g" } else { "g * y" };
        lines.each(&mut text, of_sum, None, &[&format!("total = total + {term};")]);
        text.line("let sum = sum_of(total, local);");
        let value = if log { format!("g - exp_{t}(y) * sum") } else { "y * (g - sum)".to_owned() };
        lines.each(&mut text, &["y", "g"], Some("dx"), &[&format!("let dx = {value};")]);
        lines.close(text)
    })
}

/// The layout of a scale or shift, broadcast to `shape`. `None` if there is none or it cannot be broadcast.
fn stretched(v: Option<View<'_>>, shape: &Shape) -> Option<Layout> {
    v.and_then(|v| v.layout.expand(*shape).ok())
}

/// Whether `x` has the axes, and the statistics have the shape and dtype that `x` requires.
fn statistics_fit(x: View<'_>, axes: Axes, statistics: &[(DType, &Layout)]) -> bool {
    axes.iter().all(|a| a < x.layout.rank())
        && statistics.iter().all(|(d, l)| *d == x.dtype.compute() && l.shape() == &x.layout.shape().reduced(axes, true))
}

/// See [`Backend::normalize`](gradus_backend::Backend::normalize).
pub(crate) fn normalize(
    b: &WgpuBackend,
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
    let shape = *x.layout.shape();
    let (by, plus) = (stretched(scale, &shape), stretched(shift, &shape));
    let mut all = vec![(x.dtype, x.layout), (out.dtype, out.layout)];
    all.extend(scale.zip(by.as_ref()).map(|(v, l)| (v.dtype, l)));
    all.extend(shift.zip(plus.as_ref()).map(|(v, l)| (v.dtype, l)));
    let statistics = [(mean.dtype, mean.layout), (rstd.dtype, rstd.layout)];
    let stretch = scale.is_some() == by.is_some() && shift.is_some() == plus.is_some();
    let fine = eps.is_finite() && eps >= 0.0 && stretch && statistics_fit(x, axes, &statistics);
    if !fine || !plain(b, axes, &all) {
        return composite::norm::forward(b, rms, axes, eps, x, scale, shift, out, mean, rstd);
    }
    let d = x.dtype.compute();
    let t = ty(d);
    let mut operands =
        vec![Line::Again("x", x), Line::Write("y", out), Line::Write("mean", mean), Line::Write("rstd", rstd)];
    operands.extend(scale.zip(by.as_ref()).map(|(v, l)| Line::Read("scale", v.with(l))));
    operands.extend(shift.zip(plus.as_ref()).map(|(v, l)| Line::Read("plus", v.with(l))));
    let mut numbers = words(eps, d);
    let down = numbers.len();
    let large = composite::norm::Large::of(d);
    numbers.extend(words(large.factor, d));
    numbers.extend(words(large.limit, d));
    let variant = u32::from(rms);
    run(b, "normalize".into(), variant, axes, &operands, &numbers, |lines| {
        let mut text = lines.open(numbers.len(), d);
        text.line(format_args!("var total = {t}(0);"));
        if rms {
            text.line(format_args!("let centre = {t}(0);"));
        } else {
            lines.each(&mut text, &["x"], None, &["total = total + x;"]);
            text.line(format_args!("let centre = sum_of(total, local) / {t}(n); total = {t}(0);"));
        }
        lines.each(&mut text, &["x"], None, &["let d = x - centre; total = total + d * d;"]);
        text.line(format_args!("let variance = sum_of(total, local) / {t}(n);"));
        let [eps, down, limit] = [0, down, 2 * down].map(|at| scalar_param(lines.numbers() + at, d));
        text.line(format_args!("var mean = centre; var rstd = rsqrt_{t}(variance + {eps});"));
        text.line(format_args!("var factor = {t}(1); var first = {t}(0); var middle = mean; var spread = rstd;"));
        // If squares or sums of finite elements overflow, or the mean is large, the statistics are computed from scaled
        // elements. Each element is multiplied by a power of two, and the first scaled element is subtracted, so that
        // equal elements have deviations of exactly 0.
        text.line(format_args!("if (!(is_finite_{t}(variance) && abs(centre) < {limit})) {{ var part = {t}(0); var start = {t}(0); var shift = {t}(0);"));
        if !rms {
            text.line(format_args!("start = {} * {down};", lines.first("x")));
            lines.each(&mut text, &["x"], None, &[&format!("part = part + (x * {down} - start);")]);
            text.line(format_args!("shift = sum_of(part, local) / {t}(n); part = {t}(0);"));
        }
        let deviation = format!("let d = x * {down} - start - shift; part = part + d * d;");
        lines.each(&mut text, &["x"], None, &[&deviation]);
        text.line(format_args!("let scaled = sum_of(part, local) / {t}(n);"));
        text.line(format_args!("if (is_finite_{t}(scaled)) {{ factor = {down}; first = start; middle = shift;"));
        text.line("mean = (start + shift) / factor;");
        text.line(format_args!("if (scaled == {t}(0)) {{ spread = {t}(1); rstd = rsqrt_{t}({eps}); }}"));
        text.line(format_args!(
            "else {{ spread = rsqrt_{t}(scaled + {eps} * factor * factor); rstd = spread * factor; }} }} }}"
        ));
        lines.once(&mut text, "store_mean(mean_line, mean); store_rstd(rstd_line, rstd);");
        let mut value = "(x * factor - first - middle) * spread".to_owned();
        let mut reads = vec!["x"];
        if scale.is_some() {
            value += " * scale";
            reads.push("scale");
        }
        if shift.is_some() {
            value += " + plus";
            reads.push("plus");
        }
        lines.each(&mut text, &reads, Some("y"), &[&format!("let y = {value};")]);
        lines.close(text)
    })
}

/// See [`Backend::normalize_backward`](gradus_backend::Backend::normalize_backward).
pub(crate) fn normalize_backward(
    b: &WgpuBackend,
    rms: bool,
    axes: Axes,
    g: View<'_>,
    x: View<'_>,
    scale: Option<View<'_>>,
    mean: View<'_>,
    rstd: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    let shape = *x.layout.shape();
    let by = stretched(scale, &shape);
    let mut all = vec![(x.dtype, x.layout), (g.dtype, g.layout), (dx.dtype, dx.layout)];
    all.extend(scale.zip(by.as_ref()).map(|(v, l)| (v.dtype, l)));
    let fits = statistics_fit(x, axes, &[(mean.dtype, mean.layout), (rstd.dtype, rstd.layout)]);
    if scale.is_some() != by.is_some() || !fits || !plain(b, axes, &all) {
        return composite::norm::backward(b, rms, axes, g, x, scale, mean, rstd, dx);
    }
    let d = x.dtype.compute();
    let t = ty(d);
    let (centre, spread) = (mean.layout.expand(shape)?, rstd.layout.expand(shape)?);
    let mut operands = vec![Line::Again("x", x), Line::Again("g", g), Line::Write("dx", dx)];
    operands.extend([Line::Read("mean", mean.with(&centre)), Line::Read("rstd", rstd.with(&spread))]);
    operands.extend(scale.zip(by.as_ref()).map(|(v, l)| Line::Again("scale", v.with(l))));
    run(b, "normalize_backward".into(), u32::from(rms), axes, &operands, &[], |lines| {
        let reads = if scale.is_some() { &["x", "g", "scale"][..] } else { &["x", "g"] };
        let mut text = lines.open(0, d);
        let h = if scale.is_some() { "let h = g * scale;" } else { "let h = g;" };
        let n = "let u = (x - centre) * spread;";
        text.line("let centre = load_mean(mean_line); let spread = load_rstd(rstd_line);");
        text.line(format_args!("var hs = {t}(0); var hns = {t}(0);"));
        lines.each(&mut text, reads, None, &[h, n, "hs = hs + h; hns = hns + h * u;"]);
        text.line(format_args!("let mean_hn = sum_of(hns, local) / {t}(n);"));
        if rms {
            lines.each(&mut text, reads, Some("dx"), &[h, n, "let dx = spread * (h - u * mean_hn);"]);
        } else {
            text.line(format_args!("let mean_h = sum_of(hs, local) / {t}(n);"));
            lines.each(&mut text, reads, Some("dx"), &[h, n, "let dx = spread * (h - mean_h - u * mean_hn);"]);
        }
        lines.close(text)
    })
}

/// The layouts `[n]` of `columns` reshaped to `[n, 1]`. `None` if a kernel cannot handle the operands of cross-entropy.
fn columns(
    b: &WgpuBackend,
    params: &CrossEntropyParams,
    logits: View<'_>,
    columns: &[(DType, &Layout)],
) -> Option<Vec<Layout>> {
    let shape = logits.layout.shape();
    let fine = shape.rank() == 2
        && plain(b, Axes::one(1), &[(logits.dtype, logits.layout)])
        && (0.0..=1.0).contains(&params.label_smoothing)
        && columns.iter().all(|(d, l)| l.dims() == [shape[0]] && b.missing(*d).is_none());
    if !fine {
        return None;
    }
    columns.iter().map(|(_, l)| l.unsqueeze(1).ok()).collect()
}

/// The lines of WGSL that define `ignored`, and `class_`, the class of a row.
fn class_of(target: DType, ignore: Option<i64>, number: usize) -> [String; 2] {
    let ignored = match ignore {
        Some(_) => binary(ScalarOp::Eq, target, "load_t(t_line)", &scalar_param(number, target)),
        None => "false".to_owned(),
    };
    let class = cast("load_t(t_line)", target, DType::U32);
    [format!("let ignored = {ignored};"), format!("let class_ = min({class}, n - 1u);")]
}

/// The parameters of the cross-entropy kernels as words: `1 - e` and `e / classes`, where `e` is the label smoothing,
/// and the target to ignore. Also returns that target; `None` if there is none or the dtype of the targets cannot hold
/// it.
fn numbers_of(params: &CrossEntropyParams, d: DType, classes: usize, target: DType) -> (Vec<u32>, Option<i64>) {
    let e = params.label_smoothing;
    let mut numbers = words(1.0 - e, d);
    numbers.extend(words(e / classes as f64, d));
    let fits = |v: &i64| gradus_backend::Scalar::Int(*v).check(target).is_ok();
    let ignore = params.ignore_index.filter(fits);
    numbers.extend(ignore.iter().flat_map(|v| [*v as u32, (*v >> 32) as u32]));
    (numbers, ignore)
}

fn is_index(d: DType) -> bool {
    matches!(d, DType::I64 | DType::I32 | DType::U32)
}

/// See [`Backend::cross_entropy`](gradus_backend::Backend::cross_entropy).
pub(crate) fn cross_entropy(
    b: &WgpuBackend,
    params: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
    loss: &mut ViewMut<'_>,
    lse: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy";
    let d = logits.dtype.compute();
    let vectors = [(target.dtype, target.layout), (loss.dtype, loss.layout), (lse.dtype, lse.layout)];
    let fine = is_index(target.dtype) && loss.dtype == d && lse.dtype == d;
    let Some(layouts) = columns(b, params, logits, &vectors).filter(|_| fine) else {
        return composite::cross_entropy::forward(b, params, logits, target, loss, lse);
    };
    let [_, classes] = logits.layout.dims() else { return Ok(()) };
    let held = check_index(b, OP, target, *classes, params.ignore_index)?;
    let t = ty(d);
    let (numbers, ignore) = numbers_of(params, d, *classes, target.dtype);
    let column = layouts[0].expand(*logits.layout.shape())?;
    let (loss, lse) = (loss.with(&layouts[1]), lse.with(&layouts[2]));
    let operands = [
        Line::Again("x", logits),
        Line::Read("t", target.with(&column)),
        Line::Write("loss", &loss),
        Line::Write("lse", &lse),
    ];
    let smooth = params.label_smoothing != 0.0;
    let variant = u32::from(ignore.is_some()) | u32::from(smooth) << 1;
    run(b, held.awaited_by(OP), variant, Axes::one(1), &operands, &numbers, |lines| {
        let mut text = lines.open(numbers.len(), d);
        let at = lines.numbers();
        let width = d.size() / 4;
        text.line(format_args!("var largest = {};", crate::reduce::identity(gradus_backend::ReduceOp::Max, d)));
        lines.each(&mut text, &["x"], None, &[&format!("largest = larger_{t}(largest, x);")]);
        // `shift` is the largest element if that is finite, and 0 otherwise, so that infinite elements keep their
        // effect.
        text.line(format_args!(
            "let top = largest_of(largest, local); let shift = select({t}(0), top, is_finite_{t}(top));"
        ));
        class_of(target.dtype, ignore, at + 2 * width).iter().for_each(|l| text.line(l));
        text.line(format_args!("var total = {t}(0); var picked = {t}(0); var all = {t}(0);"));
        lines.each(
            &mut text,
            &["x"],
            None,
            &[
                "let d = x - shift;",
                &format!("total = total + exp_{t}(d); all = all + d;"),
                "if (j == class_) { picked = d; }",
            ],
        );
        text.line(format_args!("let log_sum = log_{t}(sum_of(total, local)); let chosen = sum_of(picked, local);"));
        let value = if smooth {
            text.line("let every = sum_of(all, local);");
            let (own, rest) = (scalar_param(at, d), scalar_param(at + width, d));
            format!("log_sum - {own} * chosen - {rest} * every")
        } else {
            "log_sum - chosen".to_owned()
        };
        lines.once(
            &mut text,
            &format!("store_lse(lse_line, shift + log_sum); store_loss(loss_line, select({value}, {t}(0), ignored));"),
        );
        lines.close(text)
    })
}

/// See [`Backend::cross_entropy_backward`](gradus_backend::Backend::cross_entropy_backward).
pub(crate) fn cross_entropy_backward(
    b: &WgpuBackend,
    params: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
    lse: View<'_>,
    g: View<'_>,
    dlogits: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy_backward";
    let d = logits.dtype.compute();
    let vectors = [(target.dtype, target.layout), (lse.dtype, lse.layout), (g.dtype, g.layout)];
    let fine = is_index(target.dtype)
        && lse.dtype == d
        && g.dtype == d
        && plain(b, Axes::one(1), &[(logits.dtype, logits.layout), (dlogits.dtype, dlogits.layout)]);
    let Some(layouts) = columns(b, params, logits, &vectors).filter(|_| fine) else {
        return composite::cross_entropy::backward(b, params, logits, target, lse, g, dlogits);
    };
    let [_, classes] = logits.layout.dims() else { return Ok(()) };
    let held = check_index(b, OP, target, *classes, params.ignore_index)?;
    let t = ty(d);
    let (numbers, ignore) = numbers_of(params, d, *classes, target.dtype);
    let layouts = layouts.iter().map(|l| l.expand(*logits.layout.shape())).collect::<Result<Vec<_>>>()?;
    let operands = [
        Line::Read("x", logits),
        Line::Read("t", target.with(&layouts[0])),
        Line::Read("lse", lse.with(&layouts[1])),
        Line::Read("g", g.with(&layouts[2])),
        Line::Write("dx", dlogits),
    ];
    run(b, held.awaited_by(OP), u32::from(ignore.is_some()), Axes::one(1), &operands, &numbers, |lines| {
        let mut text = lines.open(numbers.len(), d);
        let at = lines.numbers();
        let width = d.size() / 4;
        let (own, rest) = (scalar_param(at, d), scalar_param(at + width, d));
        class_of(target.dtype, ignore, at + 2 * width).iter().for_each(|l| text.line(l));
        text.line("let shift = load_lse(lse_line); let slope = load_g(g_line);");
        lines.each(
            &mut text,
            &["x"],
            Some("dx"),
            &[
                &format!("let p = exp_{t}(x - shift);"),
                &format!("let wanted = select({t}(0), {own}, j == class_) + {rest};"),
                &format!("let dx = select(slope * (p - wanted), {t}(0), ignored);"),
            ],
        );
        lines.close(text)
    })
}
