//! Unfold, fold, convolution and pooling.

use gradus_backend::{Backend, DType, Scalar, View, ViewMut, Window};

use super::{FLOATS, fresh, sizes};
use crate::suite::{Array, Bound, Case, Rng, Suite};

/// The spatial sizes of an input, and a window over them.
struct Setting {
    spatial: &'static [usize],
    window: Window,
}

/// `spatial`, then per axis: kernel, stride, dilation, padding before and after.
fn setting(spatial: &'static [usize], axes: &[[usize; 5]]) -> Setting {
    let mut w = Window {
        rank: axes.len(),
        kernel: [1; 3],
        stride: [1; 3],
        dilation: [1; 3],
        pad_before: [0; 3],
        pad_after: [0; 3],
    };
    for (i, &[kernel, stride, dilation, before, after]) in axes.iter().enumerate() {
        (w.kernel[i], w.stride[i], w.dilation[i], w.pad_before[i], w.pad_after[i]) =
            (kernel, stride, dilation, before, after);
    }
    Setting { spatial, window: w }
}

fn settings() -> Vec<Setting> {
    vec![
        setting(&[7], &[[3, 1, 1, 1, 1]]),
        setting(&[9], &[[3, 2, 2, 0, 3]]),
        setting(&[1], &[[1, 1, 1, 0, 0]]),
        setting(&[5], &[[2, 3, 1, 0, 0]]),
        setting(&[4, 5], &[[1, 1, 1, 0, 0], [1, 1, 1, 0, 0]]),
        setting(&[5, 6], &[[3, 1, 1, 1, 1], [3, 1, 1, 1, 1]]),
        setting(&[6, 5], &[[2, 2, 1, 0, 0], [3, 1, 1, 2, 0]]),
        setting(&[7, 8], &[[3, 2, 2, 1, 2], [2, 3, 1, 0, 1]]),
        setting(&[4, 4], &[[4, 4, 1, 0, 0], [4, 4, 1, 0, 0]]),
        setting(&[3, 4, 3], &[[2, 1, 1, 1, 0], [3, 2, 1, 1, 1], [2, 1, 2, 0, 0]]),
    ]
}

/// A window as part of a case's name.
fn named(w: &Window) -> String {
    let part = |v: &[usize; 3]| sizes(&v[..w.rank]);
    let (k, s, d) = (part(&w.kernel), part(&w.stride), part(&w.dilation));
    format!("k{k}/s{s}/d{d}/p{}+{}", part(&w.pad_before), part(&w.pad_after))
}

pub(super) fn run(s: &mut Suite<'_>) {
    for Setting { spatial, window } in settings() {
        for d in DType::ALL {
            columns(s, d, spatial, &window);
        }
        for d in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8] {
            convolutions(s, d, [2, 3, 4], 1, spatial, &window, false);
            max_pool(s, d, spatial, &window);
        }
        for d in FLOATS {
            convolutions(s, d, [2, 4, 6], 2, spatial, &window, true);
            avg_pool(s, d, spatial, &window, true);
        }
        convolutions(s, DType::F32, [1, 3, 3], 3, spatial, &window, false);
        convolutions(s, DType::F32, [0, 2, 2], 1, spatial, &window, false);
        convolutions(s, DType::F32, [2, 0, 3], 1, spatial, &window, false);
    }
    // Larger than the blocks of tiled algorithms.
    let large = setting(&[17, 19], &[[3, 1, 1, 1, 1], [3, 1, 1, 1, 1]]);
    convolutions(s, DType::F32, [2, 9, 18], 1, large.spatial, &large.window, true);
    convolutions(s, DType::F32, [2, 8, 8], 8, large.spatial, &large.window, true);
    let strided = setting(&[21, 22], &[[5, 2, 1, 2, 2], [5, 2, 1, 2, 2]]);
    convolutions(s, DType::F32, [1, 3, 17], 1, strided.spatial, &strided.window, true);
    let many = setting(&[28, 30], &[[3, 1, 1, 1, 1], [3, 1, 1, 1, 1]]);
    convolutions(s, DType::F32, [4, 8, 12], 1, many.spatial, &many.window, true);
    max_pool(s, DType::F32, many.spatial, &many.window);
    // The number of results in a row is a multiple of four, and there is no padding.
    for Setting { spatial, window } in [
        setting(&[8], &[[5, 1, 1, 0, 0]]),
        setting(&[6, 8], &[[2, 2, 1, 0, 0], [2, 2, 1, 0, 0]]),
        setting(&[3, 5, 16], &[[2, 1, 1, 0, 0], [2, 1, 2, 0, 0], [4, 4, 1, 0, 0]]),
    ] {
        for d in [DType::F64, DType::F32, DType::BF16, DType::I64, DType::I32, DType::U8] {
            max_pool(s, d, spatial, &window);
        }
    }
    infinite_weights(s);
}

/// Input gradients for a weight that holds an infinity or NaN: elements that do not use it stay finite.
fn infinite_weights(s: &mut Suite<'_>) {
    let settings = [
        (setting(&[7, 6], &[[3, 1, 1, 1, 1]; 2]), [2, 3]),
        (setting(&[9, 9], &[[3, 1, 2, 1, 2]; 2]), [16, 24]),
        (setting(&[8, 9], &[[3, 2, 1, 1, 1]; 2]), [2, 3]),
    ];
    for (Setting { spatial, window: w }, [c, k]) in settings {
        let Ok(positions) = w.output("suite", spatial) else { continue };
        let dims = [vec![2, c, spatial[0], spatial[1]], vec![k, c, 3, 3], [&[2, k], &positions[..w.rank]].concat()];
        for (turn, d) in FLOATS.into_iter().enumerate() {
            for tap in 0..9 {
                // Over all dtypes, each tap is tested with each of these values.
                let value = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN][(tap + turn) % 3];
                let name = format!("conv_backward_input/{d}/{value}/tap{tap}/{}/{}", sizes(&dims[0]), named(&w));
                let mut rng = s.rng(&name);
                // The value belongs to the first filter and the first input channel.
                let mut filters = Array::small(d, &dims[1], &mut rng);
                filters.data[tap] = Scalar::Float(value);
                let call = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
                    b.conv_backward_input(&w, 1, ins[0], ins[1], &mut outs[0])
                };
                let inputs = vec![Array::small(d, &dims[2], &mut rng), filters];
                s.case(&Case::new(name, inputs, vec![fresh(d, &dims[0])], &call));
            }
        }
    }
}

pub(super) fn columns(s: &mut Suite<'_>, d: DType, spatial: &[usize], w: &Window) {
    let Ok(positions) = w.output("suite", spatial) else { return };
    let image = [&[2, 3], spatial].concat();
    let columns = [&[2, 3], &w.kernel[..w.rank], &positions[..w.rank]].concat();
    let w = *w;
    let name = format!("{d}/{}/{}", sizes(&image), named(&w));
    let mut rng = s.rng(&name);
    for pad in [0, 1] {
        let unfold = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            b.unfold(&w, ins[0], Scalar::Int(pad), &mut outs[0])
        };
        let x = Array::random(d, &image, &mut rng);
        s.case(&Case::new(format!("unfold/{name}/pad{pad}"), vec![x], vec![fresh(d, &columns)], &unfold));
    }
    if d == DType::Bool {
        return;
    }
    let fold = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| b.fold(&w, ins[0], &mut outs[0]);
    let x = Array::small(d, &columns, &mut rng);
    s.case(&Case::new(format!("fold/{name}/integers"), vec![x], vec![fresh(d, &image)], &fold));
    if d.is_float() {
        let x = Array::random(d, &columns, &mut rng);
        let case = Case::new(format!("fold/{name}/random"), vec![x], vec![fresh(d, &image)], &fold);
        s.case(&case.bound(Bound::Linear(w.numel())));
    }
}

pub(super) fn convolutions(
    s: &mut Suite<'_>,
    d: DType,
    [n, c, k]: [usize; 3],
    groups: usize,
    spatial: &[usize],
    w: &Window,
    random: bool,
) {
    let Ok(positions) = w.output("suite", spatial) else { return };
    let w = *w;
    let positions = &positions[..w.rank];
    let image = [&[n, c], spatial].concat();
    let filters = [&[k, c / groups], &w.kernel[..w.rank]].concat();
    let output = [&[n, k], positions].concat();
    let kind = if random { "random" } else { "integers" };
    let name = format!("{d}/{kind}/{}*{}/g{groups}/{}", sizes(&image), sizes(&filters), named(&w));
    let mut rng = s.rng(&name);
    let make = |dims: &[usize], rng: &mut Rng| {
        if random { Array::random(d, dims, rng) } else { Array::small(d, dims, rng) }
    };
    let [x, f, bias, g] = [&image[..], &filters, &[k], &output].map(|dims| make(dims, &mut rng));
    let bound = |terms: usize| if random { Bound::Linear(terms) } else { Bound::Exact };
    let taps = filters[1..].iter().product::<usize>();

    let with_bias = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        b.conv(&w, groups, ins[0], ins[1], Some(ins[2]), &mut outs[0])
    };
    let inputs = vec![x.clone(), f.clone(), bias];
    s.case(&Case::new(format!("conv/{name}/bias"), inputs, vec![fresh(d, &output)], &with_bias).bound(bound(taps + 1)));
    let plain = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        b.conv(&w, groups, ins[0], ins[1], None, &mut outs[0])
    };
    let inputs = vec![x.clone(), f.clone()];
    s.case(&Case::new(format!("conv/{name}"), inputs, vec![fresh(d, &output)], &plain).bound(bound(taps)));

    let dx = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        b.conv_backward_input(&w, groups, ins[0], ins[1], &mut outs[0])
    };
    let case = Case::new(format!("conv_backward_input/{name}"), vec![g.clone(), f], vec![fresh(d, &image)], &dx);
    s.case(&case.bound(bound(k / groups * w.numel())));
    let dw = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        b.conv_backward_weight(&w, groups, ins[0], ins[1], &mut outs[0])
    };
    let case = Case::new(format!("conv_backward_weight/{name}"), vec![x, g], vec![fresh(d, &filters)], &dw);
    s.case(&case.bound(bound(n * positions.iter().product::<usize>())));
}

pub(super) fn max_pool(s: &mut Suite<'_>, d: DType, spatial: &[usize], w: &Window) {
    let Ok(positions) = w.output("suite", spatial) else { return };
    if w.check_pool("suite", spatial).is_err() {
        return;
    }
    let image = [&[2, 3], spatial].concat();
    let out = [&[2, 3], &positions[..w.rank]].concat();
    let w = *w;
    let call = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let [values, indices] = outs else { unreachable!("a maximum has two outputs") };
        b.max_pool(&w, ins[0], values, indices)
    };
    let name = format!("max_pool/{d}/{}/{}", sizes(&image), named(&w));
    let mut rng = s.rng(&name);
    let mut inputs = vec![("ties", Array::small(d, &image, &mut rng))];
    if d.is_float() {
        inputs.push(("random", Array::random(d, &image, &mut rng)));
        let special = [1.0, f64::NEG_INFINITY, -0.0, 0.0, 2.0, f64::NAN, 2.0, -1.0, f64::INFINITY, f64::INFINITY, -3.0];
        inputs.push(("special", Array::floats(d, &image, &special)));
        inputs.push(("all_-inf", Array::floats(d, &image, &[f64::NEG_INFINITY])));
    } else {
        // The value that an incorrect implementation would pad with.
        let lowest = if d.is_signed() { i64::MIN >> (64 - d.size() * 8) } else { 0 };
        inputs.push(("all_lowest", Array::ints(d, &image, &[lowest])));
    }
    for (kind, x) in inputs {
        let outputs = vec![fresh(d, &out), fresh(DType::I64, &out)];
        s.case(&Case::new(format!("{name}/{kind}"), vec![x], outputs, &call));
    }
}

pub(super) fn avg_pool(s: &mut Suite<'_>, d: DType, spatial: &[usize], w: &Window, gradient: bool) {
    let Ok(positions) = w.output("suite", spatial) else { return };
    let image = [&[2, 3], spatial].concat();
    let out = [&[2, 3], &positions[..w.rank]].concat();
    let w = *w;
    for padded in [false, true] {
        let name = format!("{d}/{}/{}/padded={padded}", sizes(&image), named(&w));
        let mut rng = s.rng(&name);
        let forward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            b.avg_pool(&w, padded, ins[0], &mut outs[0])
        };
        let x = Array::random(d, &image, &mut rng);
        let case = Case::new(format!("avg_pool/{name}"), vec![x], vec![fresh(d, &out)], &forward);
        s.case(&case.bound(Bound::Linear(w.numel() + 1)));
        if !gradient {
            continue;
        }
        let backward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            b.avg_pool_backward(&w, padded, ins[0], &mut outs[0])
        };
        let g = Array::random(d, &out, &mut rng);
        let case = Case::new(format!("avg_pool_backward/{name}"), vec![g], vec![fresh(d, &image)], &backward);
        s.case(&case.bound(Bound::Linear(w.numel() + 1)));
    }
}
