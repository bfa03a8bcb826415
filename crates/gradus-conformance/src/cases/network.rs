//! Softmax and normalisation.

use gradus_backend::{Axes, Backend, DType, Kernel, Layout, MapArg, Result, View, ViewMut};

use super::{FLOATS, fresh, sizes};
use crate::suite::{Array, Bound, Case, Suite, shape};

pub(super) fn run(s: &mut Suite<'_>) {
    // Large enough to be split among threads.
    softmax(s, DType::F32, &[70, 300], 1, false);
    softmax(s, DType::F32, &[70, 300], 0, true);
    normalize(s, DType::F32, &[70, 300], &[1], false);
    normalize(s, DType::F32, &[40, 7, 70], &[0, 2], false);
    // More rows, then more columns, than a single task sums.
    normalize(s, DType::F32, &[600, 9], &[1], false);
    normalize(s, DType::F32, &[9, 1100], &[1], false);
    // Long rows that are not aligned, rows that are, and the sums over many rows that a layer norm needs.
    for (d, dims) in [
        (DType::BF16, [3, 2055]),
        (DType::F32, [2, 1027]),
        (DType::F16, [2, 2048]),
        (DType::F32, [65, 1020]),
        (DType::BF16, [2, 4200]),
        (DType::BF16, [520, 64]),
        (DType::F32, [5, 28]),
    ] {
        for other in [false, true] {
            softmax(s, d, &dims, 1, other);
            normalize(s, d, &dims, &[1], other);
        }
    }
    for d in FLOATS {
        let shapes: [(&[usize], usize); 9] = [
            (&[5], 0),
            (&[1], 0),
            (&[3, 7], 1),
            (&[3, 7], 0),
            (&[2, 3, 4], 1),
            (&[4, 0], 1),
            (&[0, 4], 1),
            (&[2, 517], 1),
            (&[37, 5, 3], 0),
        ];
        for (dims, axis) in shapes {
            softmax(s, d, dims, axis, false);
            softmax(s, d, dims, axis, true);
        }
        special(s, d);
        let shapes: [(&[usize], &[usize]); 9] = [
            (&[3, 8], &[1]),
            (&[3, 8], &[0]),
            (&[2, 3, 4], &[1, 2]),
            (&[2, 3, 2, 5], &[0, 2, 3]),
            (&[2, 2, 3, 4], &[2, 3]),
            (&[4, 1], &[1]),
            (&[0, 5], &[1]),
            (&[2, 261], &[1]),
            (&[65, 4], &[0]),
        ];
        for (dims, axes) in shapes {
            for rms in [false, true] {
                normalize(s, d, dims, axes, rms);
            }
        }
    }
    // Finite elements whose squares and sums overflow.
    for (d, exponent) in
        [(DType::F32, 70), (DType::F32, 127), (DType::BF16, 120), (DType::F64, 600), (DType::F64, 1023)]
    {
        let shapes: [(&[usize], &[usize]); 5] =
            [(&[3, 8], &[1]), (&[3, 8], &[0]), (&[2, 3, 4], &[1, 2]), (&[2, 261], &[1]), (&[2, 1300], &[1])];
        for (dims, axes) in shapes {
            for rms in [false, true] {
                large(s, d, dims, axes, rms, exponent);
            }
        }
    }
}

/// Rows with elements of magnitude up to `2^exponent`.
fn large(s: &mut Suite<'_>, d: DType, dims: &[usize], axes: &[usize], rms: bool, exponent: i32) {
    let axis_names = axes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let kind = if rms { "rms" } else { "mean" };
    let name = format!("normalize/{d}/{kind}/{}/{axis_names}/2^{exponent}", sizes(dims));
    let mut rng = s.rng(&name);
    let axes = axes.iter().fold(Axes::NONE, |set, &a| set.with(a));
    let reduced = shape(dims).reduced(axes, true);
    let x: Vec<f64> = (0..shape(dims).numel()).map(|_| rng.unit() * 2f64.powi(exponent)).collect();
    let inputs = vec![Array::floats(d, dims, &x), Array::random(d, dims, &mut rng)];
    let forward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let [out, mean, rstd] = outs else { unreachable!("normalize has three outputs") };
        b.normalize(rms, axes, 1e-3, ins[0], Some(ins[1]), None, out, mean, rstd)
    };
    let outputs = vec![fresh(d, dims), fresh(d.compute(), &reduced), fresh(d.compute(), &reduced)];
    s.case(&Case::new(name, inputs, outputs, &forward).bound(Bound::Naive));
}

pub(super) fn softmax(s: &mut Suite<'_>, d: DType, dims: &[usize], axis: usize, log: bool) {
    let op = if log { "log_softmax" } else { "softmax" };
    let name = format!("{d}/{}/{axis}", sizes(dims));
    let mut rng = s.rng(&format!("{op}/{name}"));
    let forward =
        move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| b.softmax(log, ins[0], axis, &mut outs[0]);
    for (kind, factor) in [("unit", 1.0), ("wide", 60.0)] {
        let values: Vec<f64> = (0..shape(dims).numel()).map(|_| rng.unit() * factor).collect();
        let x = Array::floats(d, dims, &values);
        let case = Case::new(format!("{op}/{name}/{kind}"), vec![x], vec![fresh(d, dims)], &forward);
        s.case(&case.bound(Bound::Naive));
    }
    let backward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        b.softmax_backward(log, ins[0], ins[1], axis, &mut outs[0])
    };
    // Any `y` will do, because the gradient depends only on `y` and `g`.
    let share: Vec<f64> = (0..shape(dims).numel())
        .map(|_| {
            let p = (rng.unit() + 1.1) / 2.1 / dims[axis].max(1) as f64;
            if log { p.ln() } else { p }
        })
        .collect();
    // The terms of `y * (g - sum(g * y))`, or with a logarithm those of `g - exp(y) * sum(g)`, may cancel wholly. The sum of
    // their magnitudes is twice the first one less the gradient. A logarithm of a share is negative.
    let magnitude = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        if log {
            negated(b, ins[0], |y| backward(b, &[y, ins[1]], outs))?;
        } else {
            backward(b, ins, outs)?;
        }
        let kernel = Kernel::build("magnitude", &[ins[0].dtype; 3], |v| {
            vec![if log { v[2] * 2.0 } else { v[1] * v[2] * 2.0 } - v[0]]
        })?;
        b.map(&kernel, &[MapArg::Output(0), MapArg::View(ins[0]), MapArg::View(ins[1])], outs)
    };
    let inputs = vec![Array::floats(d, dims, &share), Array::random(d, dims, &mut rng)];
    let case = Case::new(format!("{op}_backward/{name}"), inputs, vec![fresh(d, dims)], &backward);
    s.case(&case.bound(Bound::Naive).magnitude(&magnitude));
}

/// Rows with infinities and NaN, and large numbers that must not overflow.
fn special(s: &mut Suite<'_>, d: DType) {
    let (inf, nan, big) = (f64::INFINITY, f64::NAN, 30000.0);
    let rows = [
        [0.0, -inf, 1.0, -inf],
        [-inf, -inf, -inf, -inf],
        [1.0, nan, 0.0, 2.0],
        [big, -big, big, 0.0],
        [-inf, -inf, -inf, 5.0],
    ];
    for log in [false, true] {
        let call =
            move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| b.softmax(log, ins[0], 1, &mut outs[0]);
        for (i, row) in rows.iter().enumerate() {
            let op = if log { "log_softmax" } else { "softmax" };
            let x = Array::floats(d, &[2, 4], row);
            let case = Case::new(format!("{op}/{d}/special{i}"), vec![x], vec![fresh(d, &[2, 4])], &call);
            s.case(&case.bound(Bound::Naive));
        }
    }
}

pub(super) fn normalize(s: &mut Suite<'_>, d: DType, dims: &[usize], axes: &[usize], rms: bool) {
    let kind = if rms { "rms" } else { "mean" };
    let axis_names = axes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let name = format!("{d}/{kind}/{}/{axis_names}", sizes(dims));
    let mut rng = s.rng(&format!("normalize/{name}"));
    let axes = axes.iter().fold(Axes::NONE, |set, &a| set.with(a));
    let reduced = shape(dims).reduced(axes, true);
    let compute = d.compute();
    let eps = 1e-3;
    let statistics = || vec![fresh(d, dims), fresh(compute, &reduced), fresh(compute, &reduced)];
    let x = Array::random(d, dims, &mut rng);
    let affine = [Array::random(d, dims, &mut rng), Array::random(d, dims, &mut rng)];
    let spread = inverse_deviation(&x, axes, eps, rms);
    for (scaled, shifted) in [(false, false), (true, false), (false, true), (true, true)] {
        let forward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            let [out, mean, rstd] = outs else { unreachable!("normalize has three outputs") };
            let scale = scaled.then(|| ins[2]);
            let shift = shifted.then(|| ins[ins.len() - 1]);
            b.normalize(rms, axes, eps, ins[0], scale, shift, out, mean, rstd)
        };
        // `rstd * (x - mean) * scale + shift` may cancel wholly. Of magnitudes, the call gives the mean and the shift; their
        // deviation is another, so that of `x` is an operand.
        let magnitude = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            forward(b, ins, outs)?;
            let (whole, mean) = (*outs[0].layout.shape(), *outs[1].layout);
            let [mean, rstd] = [mean.expand(whole)?, ins[1].layout.expand(whole)?];
            let (dtype, [out, means, deviations]) = (ins[0].dtype, outs) else { unreachable!("three outputs") };
            let means = View { buffer: &*means.buffer, dtype, layout: &mean };
            let mut args = vec![MapArg::View(ins[0]), MapArg::View(ins[1].with(&rstd)), MapArg::View(means)];
            args.extend(ins[2..].iter().map(|x| MapArg::View(*x)));
            let kernel = Kernel::build("magnitude", &vec![dtype; args.len()], |v| {
                let y = (v[0] + v[2]) * v[1];
                let y = if scaled { y * v[3] } else { y };
                vec![if shifted { y + v[v.len() - 1] } else { y }]
            })?;
            b.map(&kernel, &args, std::slice::from_mut(out))?;
            let same = Kernel::build("same", &[dtype], |v| vec![v[0]])?;
            b.map(&same, &[MapArg::View(ins[1])], std::slice::from_mut(deviations))
        };
        let mut inputs = vec![x.clone(), spread.clone()];
        inputs.extend(scaled.then(|| affine[0].clone()));
        inputs.extend(shifted.then(|| affine[1].clone()));
        let name = format!("normalize/{name}/{scaled}/{shifted}");
        s.case(&Case::new(name, inputs, statistics(), &forward).bound(Bound::Naive).magnitude(&magnitude));
    }

    // The statistics need only be close to those of `x`, because the gradient takes them as operands.
    let n = reduced.numel();
    let mean: Vec<f64> = (0..n).map(|_| if rms { 0.0 } else { rng.unit() * 0.1 }).collect();
    let rstd: Vec<f64> = (0..n).map(|_| 1.5 + rng.unit() * 0.3).collect();
    let g = Array::random(d, dims, &mut rng);
    let stats = [Array::floats(compute, &reduced, &mean), Array::floats(compute, &reduced, &rstd)];
    for scaled in [false, true] {
        let backward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            let scale = scaled.then(|| ins[4]);
            b.normalize_backward(rms, axes, ins[0], ins[1], scale, ins[2], ins[3], &mut outs[0])
        };
        // The terms `rstd * (h - mean(h) - n * mean(h * n))` may cancel wholly. With a negated mean, `n` is a magnitude too,
        // and the sum of the terms' magnitudes is `2 * rstd * h` less the gradient.
        let magnitude = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            negated(b, ins[2], |mean| backward(b, &[&[ins[0], ins[1], mean, ins[3]], &ins[4..]].concat(), outs))?;
            let rstd = ins[3].layout.expand(*ins[0].layout.shape())?;
            let mut args = vec![MapArg::Output(0), MapArg::View(ins[0]), MapArg::View(ins[3].with(&rstd))];
            args.extend(ins.get(4).map(|scale| MapArg::View(*scale)));
            let kernel = Kernel::build("magnitude", &vec![ins[0].dtype; args.len()], |v| {
                vec![v[2..].iter().fold(v[1] * 2.0, |h, by| h * *by) - v[0]]
            })?;
            b.map(&kernel, &args, outs)
        };
        let mut inputs = vec![g.clone(), x.clone(), stats[0].clone(), stats[1].clone()];
        inputs.extend(scaled.then(|| affine[0].clone()));
        let name = format!("normalize_backward/{name}/{scaled}");
        let case = Case::new(name, inputs, vec![fresh(d, dims)], &backward);
        s.case(&case.bound(Bound::Naive).magnitude(&magnitude));
    }

    // A scale along the normalised axes (as in layer norm), along the other axes (as in batch norm), and along all
    // axes.
    let beside = shape(dims).reduced((0..dims.len()).filter(|&a| !axes.contains(a)).fold(Axes::NONE, Axes::with), true);
    for small in [beside.dims(), reduced.dims(), dims] {
        for shifted in [false, true] {
            let backward = |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
                let [dscale, rest @ ..] = outs else { unreachable!("a gradient for the scale") };
                b.normalize_affine_backward(ins[0], ins[1], ins[2], ins[3], dscale, rest.first_mut())
            };
            // With a negated mean, subtracting it adds to the magnitude of `x`.
            let magnitude = |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
                negated(b, ins[2], |mean| backward(b, &[ins[0], ins[1], mean, ins[3]], outs))
            };
            let inputs = vec![g.clone(), x.clone(), stats[0].clone(), stats[1].clone()];
            let outputs = vec![fresh(compute, small); 1 + usize::from(shifted)];
            let name = format!("normalize_affine_backward/{name}/{}/{shifted}", sizes(small));
            // Three roundings per term, and one per addition.
            let terms = 3 + shape(dims).numel() / shape(small).numel().max(1);
            s.case(&Case::new(name, inputs, outputs, &backward).bound(Bound::Linear(terms)).magnitude(&magnitude));
        }
    }
}

/// `1 / sqrt(variance + eps)` over the axes, or with the mean of the squares in place of the variance.
fn inverse_deviation(x: &Array, axes: Axes, eps: f64, rms: bool) -> Array {
    let (dims, reduced) = (x.shape.dims(), x.shape.reduced(axes, true));
    let row = |mut i: usize| {
        let (mut row, mut step) = (0, 1);
        for (axis, size) in dims.iter().enumerate().rev() {
            if !axes.contains(axis) {
                row += i % size * step;
                step *= size;
            }
            i /= size;
        }
        row
    };
    let count = (x.data.len() / reduced.numel().max(1)) as f64;
    let mean_of = |f: &dyn Fn(usize, f64) -> f64| {
        let mut sums = vec![0.0; reduced.numel()];
        x.data.iter().enumerate().for_each(|(i, v)| sums[row(i)] += f(row(i), v.to_f64()) / count);
        sums
    };
    let mean = if rms { vec![0.0; reduced.numel()] } else { mean_of(&|_, v| v) };
    let variance = mean_of(&|row, v| (v - mean[row]).powi(2));
    let rstd: Vec<f64> = variance.iter().map(|v| 1.0 / (v + eps).sqrt()).collect();
    Array::floats(x.dtype.compute(), reduced.dims(), &rstd)
}

/// Calls `call` with the negative of `x`.
fn negated(b: &dyn Backend, x: View<'_>, call: impl FnOnce(View<'_>) -> Result<()>) -> Result<()> {
    let layout = Layout::contiguous(*x.layout.shape());
    let mut buffer = b.alloc(layout.numel() * x.dtype.size())?;
    let below = ViewMut { buffer: &mut buffer, dtype: x.dtype, layout: &layout };
    let negate = Kernel::build("neg", &[x.dtype], |v| vec![-v[0]])?;
    b.map(&negate, &[MapArg::View(x)], &mut [below])?;
    call(View { buffer: &buffer, layout: &layout, ..x })
}
