//! Copies, fill, arange, gather, scatter, embedding and random numbers.

use gradus_backend::{Backend, DType, Distribution, Scalar, ScatterOp, View, ViewMut};

use super::{fresh, sizes};
use crate::suite::{Array, Bound, Case, Output, Suite};

const INDEX: [DType; 3] = [DType::I64, DType::I32, DType::U32];

pub(super) fn run(s: &mut Suite<'_>) {
    for d in DType::ALL {
        copies(s, d);
        for (i, index) in INDEX.into_iter().enumerate() {
            if i == 0 || d == DType::F32 {
                gathers(s, d, index);
                embedding(s, d, index);
            }
        }
    }
    aranges(s);
    randoms(s);
}

fn copies(s: &mut Suite<'_>, d: DType) {
    for dims in
        [&[][..], &[0], &[9], &[3, 5], &[2, 3, 4], &[70, 67], &[300, 201], &[2, 1, 2, 1, 2, 1, 2, 3], &[2, 0, 3]]
    {
        copy(s, d, dims);
    }
    for (dims, axes) in [
        (&[52, 36][..], &[1, 0][..]),
        (&[2, 20, 36], &[0, 2, 1]),
        (&[3, 2, 24, 40], &[1, 3, 0, 2]),
        (&[16, 16], &[1, 0]),
        (&[12, 16], &[1, 0]),
        (&[16, 18], &[1, 0]),
    ] {
        transposed(s, d, dims, axes);
    }
    for &value in fillings(d) {
        for dims in [&[][..], &[3, 5], &[2, 3, 33], &[0]] {
            filled(s, d, value, dims);
        }
    }
}

pub(super) fn copy(s: &mut Suite<'_>, d: DType, dims: &[usize]) {
    let call = |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| b.copy_strided(ins[0], &mut outs[0]);
    let name = format!("copy_strided/{d}/{}", sizes(dims));
    let mut rng = s.rng(&name);
    let mut x = Array::random(d, dims, &mut rng);
    if d.is_float() && !x.data.is_empty() {
        x.data[0] = Scalar::Float(-0.0);
    }
    s.case(&Case::new(name, vec![x], vec![fresh(d, dims)], &call).bound(Bound::Bits));
}

/// A copy with its axes in another order.
fn transposed(s: &mut Suite<'_>, d: DType, dims: &[usize], axes: &[isize]) {
    let call = |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        b.copy_strided(ins[0].with(&ins[0].layout.permute(axes)?), &mut outs[0])
    };
    let name = format!("copy_strided/{d}/{}/axes {axes:?}", sizes(dims));
    let x = Array::random(d, dims, &mut s.rng(&name));
    let out: Vec<usize> = axes.iter().map(|&axis| dims[axis as usize]).collect();
    s.case(&Case::new(name, vec![x], vec![fresh(d, &out)], &call).bound(Bound::Bits));
}

/// Values to fill tensors of a dtype with.
pub(super) fn fillings(d: DType) -> &'static [Scalar] {
    match d {
        DType::Bool => &[Scalar::Bool(true), Scalar::Int(0)],
        d if d.is_float() => {
            &[Scalar::Float(f64::NEG_INFINITY), Scalar::Float(f64::NAN), Scalar::Float(-0.0), Scalar::Int(3)]
        }
        d if d.is_signed() => &[Scalar::Int(-128), Scalar::Float(127.0), Scalar::Bool(true)],
        _ => &[Scalar::Int(255), Scalar::Float(128.0), Scalar::Bool(true)],
    }
}

pub(super) fn filled(s: &mut Suite<'_>, d: DType, value: Scalar, dims: &[usize]) {
    let name = format!("fill/{d}/{value}/{}", sizes(dims));
    let call = move |b: &dyn Backend, _: &[View<'_>], outs: &mut [ViewMut<'_>]| b.fill(&mut outs[0], value);
    s.case(&Case::new(name, vec![], vec![fresh(d, dims)], &call).bound(Bound::Bits));
}

/// The shape of the indexed tensor, the axis, and the number of indices along it.
const GATHERS: [(&[usize], usize, usize); 11] = [
    (&[5], 0, 7),
    (&[4, 3], 0, 6),
    (&[4, 3], 1, 2),
    (&[2, 5, 3], 1, 9),
    (&[2, 1, 3], 1, 4),
    (&[3, 0], 0, 2),
    (&[0, 4], 0, 0),
    (&[40, 37], 0, 90),
    (&[30, 130], 0, 200),
    (&[90, 3], 0, 60),
    (&[2, 70], 1, 50),
];

fn gathers(s: &mut Suite<'_>, d: DType, index: DType) {
    for (dims, axis, count) in GATHERS {
        gather(s, d, index, dims, axis, count);
    }
}

pub(super) fn gather(s: &mut Suite<'_>, d: DType, index: DType, dims: &[usize], axis: usize, count: usize) {
    let name = format!("{d}/{index}/{}/{axis}/{count}", sizes(dims));
    let mut rng = s.rng(&name);
    let mut small = dims.to_vec();
    small[axis] = count;
    let at = Array::indices(index, &small, dims[axis], &mut rng);
    let x = Array::random(d, dims, &mut rng);
    let gather =
        move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| b.gather(ins[0], axis, ins[1], &mut outs[0]);
    let case = Case::new(format!("gather/{name}"), vec![x.clone(), at.clone()], vec![fresh(d, &small)], &gather);
    s.case(&case.bound(Bound::Bits));

    let src = Array::random(d, &small, &mut rng);
    for op in [ScatterOp::Set, ScatterOp::Add] {
        if op == ScatterOp::Add && d == DType::Bool {
            continue;
        }
        let scatter = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            b.scatter(op, axis, ins[0], ins[1], &mut outs[0])
        };
        let inputs = vec![at.clone(), src.clone()];
        let case = Case::new(format!("scatter/{op:?}/{name}"), inputs, vec![Output::Updated(x.clone())], &scatter);
        s.case(&case.bound(if op == ScatterOp::Add { Bound::Linear(count + 1) } else { Bound::Exact }));
    }
}

fn embedding(s: &mut Suite<'_>, d: DType, index: DType) {
    for (rows, width, dims) in [
        (5, 4, &[7][..]),
        (3, 1, &[2, 3]),
        (6, 33, &[2, 2, 5]),
        (4, 3, &[0]),
        (4, 0, &[3]),
        (7, 2, &[]),
        (90, 5, &[60]),
    ] {
        lookup(s, d, index, rows, width, dims);
    }
}

pub(super) fn lookup(s: &mut Suite<'_>, d: DType, index: DType, rows: usize, width: usize, dims: &[usize]) {
    let name = format!("{d}/{index}/{rows}x{width}/{}", sizes(dims));
    let mut rng = s.rng(&name);
    let at = Array::indices(index, dims, rows, &mut rng);
    let weight = Array::random(d, &[rows, width], &mut rng);
    let out = [dims, &[width]].concat();
    let lookup =
        |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| b.embedding(ins[0], ins[1], &mut outs[0]);
    s.case(&Case::new(format!("embedding/{name}"), vec![weight, at.clone()], vec![fresh(d, &out)], &lookup));
    if d == DType::Bool {
        return;
    }
    for padding in [None, Some(1)] {
        let backward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            b.embedding_backward(ins[0], ins[1], padding, &mut outs[0])
        };
        let inputs = vec![at.clone(), Array::random(d, &out, &mut rng)];
        let name = format!("embedding_backward/{name}/{padding:?}");
        let case = Case::new(name, inputs, vec![fresh(d, &[rows, width])], &backward);
        s.case(&case.bound(Bound::Linear(at.data.len())));
    }
}

fn aranges(s: &mut Suite<'_>) {
    for d in DType::ALL {
        for (dims, start, step) in [
            (&[][..], 1, 7),
            (&[1], 0, i64::MIN),
            (&[2], 0, 1),
            (&[0], 5, 0),
            (&[3, 37], 3, 1),
            (&[3, 37], 100, -2),
            (&[300], i64::MAX - 5 * 299, 5),
            (&[300], i64::MIN, (1 << 50) + 3),
            (&[5], 0, 1 << 62),
            (&[70_001], (1 << 24) - 35_000, 1),
        ] {
            arange(s, d, dims, start, step);
        }
    }
}

/// Nothing if the dtype has not all of the numbers.
pub(super) fn arange(s: &mut Suite<'_>, d: DType, dims: &[usize], start: i64, step: i64) {
    let count = dims.iter().product::<usize>() as i64;
    let values = (0..count).map(|i| Scalar::Int(start.wrapping_add(step.wrapping_mul(i))));
    if values.into_iter().any(|v| v.check(d).is_err()) {
        return;
    }
    let name = format!("arange/{d}/{}/{start}/{step}", sizes(dims));
    let call = move |b: &dyn Backend, _: &[View<'_>], outs: &mut [ViewMut<'_>]| b.arange(start, step, &mut outs[0]);
    s.case(&Case::new(name, vec![], vec![fresh(d, dims)], &call));
}

pub(super) const DRAWS: [Distribution; 9] = [
    Distribution::Uniform { lo: 0.0, hi: 1.0 },
    Distribution::Uniform { lo: -3.0, hi: 5.0 },
    Distribution::Normal { mean: 0.0, std: 1.0 },
    Distribution::Normal { mean: 2.0, std: 0.5 },
    Distribution::Bernoulli { p: 0.3 },
    Distribution::Bernoulli { p: 0.0 },
    Distribution::Bernoulli { p: 1.0 },
    Distribution::Int { lo: 0, hi: 100 },
    Distribution::Int { lo: 2, hi: 3 },
];

fn randoms(s: &mut Suite<'_>) {
    for dist in DRAWS {
        for d in DType::ALL {
            for (dims, seed, offset) in [(&[][..], 1, 0), (&[3, 7], 42, 5), (&[2, 131], 7, 1 << 40), (&[0], 0, 0)] {
                random(s, d, dist, dims, seed, offset);
            }
        }
    }
}

/// Nothing if the dtype has not the numbers of the distribution.
pub(super) fn random(s: &mut Suite<'_>, d: DType, dist: Distribution, dims: &[usize], seed: u64, offset: u64) {
    let (fits, bound) = match dist {
        Distribution::Int { .. } => (d != DType::Bool, Bound::Exact),
        Distribution::Bernoulli { .. } => (true, Bound::Exact),
        Distribution::Uniform { .. } => (d.is_float(), Bound::Ulps(1)),
        Distribution::Normal { .. } => (d.is_float(), Bound::Ulps(4)),
    };
    if !fits {
        return;
    }
    let kind = format!("{dist:?}").replace([' ', '{', '}'], "").replace(':', "=");
    let name = format!("random/{kind}/{d}/{}", sizes(dims));
    let call =
        move |b: &dyn Backend, _: &[View<'_>], outs: &mut [ViewMut<'_>]| b.random(dist, seed, offset, &mut outs[0]);
    let case = Case::new(name, vec![], vec![fresh(d, dims)], &call).bound(bound);
    s.case(&case.optional(d.is_float() && matches!(dist, Distribution::Int { .. })));
}
