//! Reductions, scans and sorting.

use gradus_backend::{ArgReduceOp, Axes, Backend, DType, ReduceOp, ScanOp, View, ViewMut};

use super::{FLOATS, fresh, sizes};
use crate::suite::{Array, Bound, Case, Rng, Suite, shape};

pub(super) const REDUCTIONS: [ReduceOp; 6] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Any, ReduceOp::All];

/// Shapes, and the axes to reduce.
const SHAPES: [(&[usize], &[usize]); 20] = [
    (&[], &[]),
    (&[5], &[0]),
    (&[5], &[]),
    (&[1], &[0]),
    (&[3, 4], &[0]),
    (&[3, 4], &[1]),
    (&[3, 4], &[0, 1]),
    (&[2, 3, 4], &[0, 2]),
    (&[2, 3, 4], &[1]),
    (&[2, 3, 4], &[0, 1]),
    (&[0, 3], &[1]),
    (&[3, 1, 2], &[1]),
    (&[2, 1, 2, 1, 2, 1, 2, 3], &[1, 4, 7]),
    (&[33, 65], &[0]),
    (&[33, 65], &[1]),
    (&[4, 9, 17], &[1]),
    (&[3, 1031], &[1]),
    (&[1031, 3], &[0]),
    (&[4099], &[0]),
    (&[17, 19, 23], &[0, 2]),
];

pub(super) fn run(s: &mut Suite<'_>) {
    for op in REDUCTIONS {
        for d in DType::ALL {
            for (dims, axes) in SHAPES {
                reduction(s, op, d, dims, axes, false);
            }
        }
        for d in FLOATS {
            reduction(s, op, d, &[4, 9], &[1], true);
            reduction(s, op, d, &[9, 4], &[0], true);
        }
    }
    // Reductions of no elements: a sum is 0 and a product is 1.
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Any, ReduceOp::All] {
        for d in [DType::F32, DType::BF16, DType::I32, DType::Bool] {
            reduction(s, op, d, &[3, 0], &[1], false);
            reduction(s, op, d, &[0], &[0], false);
            reduction(s, op, d, &[0, 2], &[0, 1], false);
        }
    }
    for d in DType::ALL {
        LANES.into_iter().for_each(|(dims, axis)| arg_reductions(s, d, dims, axis));
        LANES.into_iter().for_each(|(dims, axis)| scans(s, d, dims, axis));
        LANES.into_iter().chain([(&[3, 0][..], 1), (&[1500], 0)]).for_each(|(dims, axis)| sorts(s, d, dims, axis));
    }
    // Large enough to be split among threads.
    for op in [ReduceOp::Sum, ReduceOp::Max] {
        for axes in [&[0][..], &[1], &[0, 1]] {
            reduction(s, op, DType::F32, &[200, 501], axes, false);
        }
    }
    reduction(s, ReduceOp::Sum, DType::BF16, &[200, 501], &[1], false);
    reduction(s, ReduceOp::Sum, DType::I32, &[200, 501], &[0], false);
    // Long sums of columns that can be read together.
    for (d, dims, axes) in [
        (DType::F32, &[300, 64][..], &[0][..]),
        (DType::BF16, &[700, 64], &[0]),
        (DType::F16, &[9, 20, 3, 48], &[0, 1]),
        (DType::I64, &[150, 34], &[0]),
        (DType::U8, &[200, 32], &[0]),
    ] {
        reduction(s, ReduceOp::Sum, d, dims, axes, false);
        reduction(s, ReduceOp::Min, d, dims, axes, false);
    }
    reduction(s, ReduceOp::Any, DType::Bool, &[200, 48], &[0], false);
    arg_reductions(s, DType::BF16, &[300, 64], 0);
    for axis in [0, 1] {
        arg_reductions(s, DType::F32, &[200, 301], axis);
        sorts(s, DType::F32, &[60, 301], axis);
    }
    scans(s, DType::F32, &[80, 90], 0);
    scans(s, DType::F32, &[80, 90], 1);
    sorts(s, DType::I64, &[20_000], 0);
}

/// Values with many ties. With `special`, floats include NaN, infinities and zeros of both signs.
fn values(d: DType, dims: &[usize], special: bool, rng: &mut Rng) -> Array {
    if special {
        let all =
            [1.0, -0.0, f64::INFINITY, 0.0, -1.0, f64::NEG_INFINITY, 2.0, 2.0, 0.5, f64::NAN, 3.0, -7.0, f64::NAN];
        return Array::floats(d, dims, &all);
    }
    Array::small(d, dims, rng)
}

pub(super) fn reduction(s: &mut Suite<'_>, op: ReduceOp, d: DType, dims: &[usize], axes: &[usize], special: bool) {
    let axis_names = axes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let kind = if special { "special/" } else { "" };
    let name = format!("{}/{d}/{kind}{}/{axis_names}", op.name(), sizes(dims));
    let mut rng = s.rng(&name);
    let axes = axes.iter().fold(Axes::NONE, |set, &a| set.with(a));
    let out = match op {
        ReduceOp::Sum | ReduceOp::Prod => d.accumulate(),
        ReduceOp::Max | ReduceOp::Min => d,
        ReduceOp::Any | ReduceOp::All => DType::Bool,
    };
    let reduced = shape(dims).reduced(axes, true);
    let terms = shape(dims).numel() / reduced.numel().max(1);
    let mut x = values(d, dims, special, &mut rng);
    let mut bound = Bound::Exact;
    if d.is_float() && !special {
        match op {
            // All factors are close to 1, so that products of many factors neither underflow nor overflow.
            ReduceOp::Prod => {
                bound = Bound::Linear(terms);
                let near = |rng: &mut Rng| (rng.unit() * 2.0 / (terms as f64 + 1.0)).exp();
                let all: Vec<f64> = (0..x.data.len()).map(|_| near(&mut rng)).collect();
                x = Array::floats(d, dims, &all);
            }
            ReduceOp::Sum => {
                bound = Bound::Linear(terms);
                x = Array::random(d, dims, &mut rng);
            }
            ReduceOp::Max | ReduceOp::Min => x = Array::random(d, dims, &mut rng),
            ReduceOp::Any | ReduceOp::All => {}
        }
    }
    let call =
        move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| b.reduce(op, ins[0], axes, &mut outs[0]);
    let optional = d == DType::Bool && matches!(op, ReduceOp::Max | ReduceOp::Min);
    let case = Case::new(name, vec![x], vec![fresh(out, &reduced)], &call).bound(bound).optional(optional);
    s.case(&case);
}

/// Shapes, each with an axis.
const LANES: [(&[usize], usize); 10] = [
    (&[1], 0),
    (&[7], 0),
    (&[3, 5], 0),
    (&[3, 5], 1),
    (&[2, 6, 3], 1),
    (&[0, 4], 1),
    (&[4, 1, 2], 1),
    (&[2, 257], 1),
    (&[130, 3], 0),
    (&[2, 1, 2, 1, 2, 1, 2, 3], 7),
];

pub(super) fn arg_reductions(s: &mut Suite<'_>, d: DType, dims: &[usize], axis: usize) {
    for (op, what) in [(ArgReduceOp::Max, "argmax"), (ArgReduceOp::Min, "argmin")] {
        for special in [false, true] {
            if special && !d.is_float() {
                continue;
            }
            let kind = if special { "special/" } else { "" };
            let name = format!("{what}/{d}/{kind}{}/{axis}", sizes(dims));
            let x = values(d, dims, special, &mut s.rng(&name));
            let mut out = dims.to_vec();
            out[axis] = 1;
            let call = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
                b.arg_reduce(op, ins[0], axis, &mut outs[0])
            };
            let case = Case::new(name, vec![x], vec![fresh(DType::I64, &out)], &call);
            s.case(&case.optional(d == DType::Bool));
        }
    }
}

pub(super) fn scans(s: &mut Suite<'_>, d: DType, dims: &[usize], axis: usize) {
    for op in [ScanOp::Sum, ScanOp::Prod, ScanOp::Max, ScanOp::Min, ScanOp::LogSumExp] {
        for special in [false, true] {
            let plain_only = !d.is_float() || matches!(op, ScanOp::Sum | ScanOp::Prod);
            if (op == ScanOp::LogSumExp && !d.is_float()) || (special && plain_only) {
                continue;
            }
            let kind = if special { "special/" } else { "" };
            let name = format!("scan/{op:?}/{d}/{kind}{}/{axis}", sizes(dims));
            let mut rng = s.rng(&name);
            let n = dims[axis];
            let mut x = values(d, dims, special, &mut rng);
            let mut bound = Bound::Exact;
            if d.is_float() {
                match op {
                    ScanOp::Sum => (x, bound) = (Array::random(d, dims, &mut rng), Bound::Linear(n)),
                    ScanOp::Prod => {
                        let all: Vec<f64> = (0..x.data.len()).map(|_| (rng.unit() / n as f64).exp()).collect();
                        (x, bound) = (Array::floats(d, dims, &all), Bound::Linear(n));
                    }
                    ScanOp::LogSumExp => bound = Bound::Naive,
                    ScanOp::Max | ScanOp::Min => {}
                }
            }
            let out = if matches!(op, ScanOp::Sum | ScanOp::Prod) { d.accumulate() } else { d };
            let call = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
                b.scan(op, ins[0], axis, &mut outs[0])
            };
            let case = Case::new(name, vec![x], vec![fresh(out, dims)], &call).bound(bound);
            s.case(&case.optional(d == DType::Bool && matches!(op, ScanOp::Max | ScanOp::Min)));
        }
    }
}

pub(super) fn sorts(s: &mut Suite<'_>, d: DType, dims: &[usize], axis: usize) {
    for (special, descending) in [(false, false), (false, true), (true, false), (true, true)] {
        if special && !d.is_float() {
            continue;
        }
        let kind = if special { "special/" } else { "" };
        let way = if descending { "down" } else { "up" };
        let name = format!("sort/{way}/{d}/{kind}{}/{axis}", sizes(dims));
        let x = values(d, dims, special, &mut s.rng(&name));
        let call = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            let [values, indices] = outs else { unreachable!("a sort has two outputs") };
            b.sort(ins[0], axis, descending, values, indices)
        };
        let outputs = vec![fresh(d, dims), fresh(DType::I64, dims)];
        s.case(&Case::new(name, vec![x], outputs, &call).optional(d == DType::Bool));
    }
}
