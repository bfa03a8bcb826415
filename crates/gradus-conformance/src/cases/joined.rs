//! Kernels whose output another operation reads.

use gradus_backend::{Axes, Backend, DType, Kernel, MapArg, Reader, ReduceOp, View, ViewMut};

use super::{FLOATS, fresh, sizes};
use crate::suite::{Array, Bound, Case, Rng, Suite, shape};

/// Shapes, each with some of its axes.
const SHAPES: [(&[usize], &[usize]); 13] = [
    (&[], &[]),
    (&[5], &[0]),
    (&[3, 7], &[1]),
    (&[3, 7], &[0]),
    (&[2, 3, 4], &[1, 2]),
    (&[2, 3, 4], &[0, 2]),
    (&[4, 5, 1], &[1]),
    (&[33, 65], &[0]),
    (&[2, 130, 5, 13], &[1]),
    (&[2, 4099], &[1]),
    (&[4099], &[0]),
    (&[0, 4], &[1]),
    (&[3, 0], &[0]),
];

pub(super) fn run(s: &mut Suite<'_>) {
    for d in FLOATS {
        for (dims, axes) in SHAPES {
            joined(s, d, dims, axes);
        }
    }
    // Large enough to be split among threads.
    for (dims, axis) in [(&[300, 501][..], 0), (&[300, 501], 1), (&[140_000], 0)] {
        joined(s, DType::F32, dims, &[axis]);
    }
    joined(s, DType::BF16, &[300, 501], &[1]);
}

/// A product, as it is read by each kind of reader over these axes. The second factor has size 1 at the first axis, and is a
/// power of two, so that no product is rounded.
pub(super) fn joined(s: &mut Suite<'_>, d: DType, dims: &[usize], list: &[usize]) {
    let names = list.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let axes = list.iter().fold(Axes::NONE, |set, &a| set.with(a));
    let all = shape(dims);
    let reduced = all.reduced(axes, true);
    let factor: Vec<usize> =
        dims.iter().enumerate().map(|(a, &size)| if a == 0 { size.min(1) } else { size }).collect();
    let mut case = |out: &[usize], reader: Reader, bound: Bound| {
        let name = format!("map_into/{}/{d}/{}/{names}", reader.name(), sizes(dims));
        let mut rng = s.rng(&name);
        let inputs = vec![Array::random(d, dims, &mut rng), Array::floats(d, &factor, &[1.0, -2.0, 0.5, -1.0, 4.0])];
        let call = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            let kernel = Kernel::build("mul", &[ins[0].dtype, ins[1].dtype], |v| vec![v[0] * v[1]])?;
            let stretched = ins[1].layout.expand(all)?;
            let args = [MapArg::View(ins[0]), MapArg::View(ins[1].with(&stretched))];
            b.map_into(&kernel, &args, all, reader, &mut outs[0])
        };
        s.case(&Case::new(name, inputs, vec![fresh(d, out)], &call).bound(bound));
    };
    let terms = all.numel() / reduced.numel().max(1);
    case(&reduced, Reader::Reduce(ReduceOp::Sum, axes), Bound::Linear(terms));
    if all.numel() > 0 || reduced.numel() == 0 {
        case(&reduced, Reader::Reduce(ReduceOp::Max, axes), Bound::Exact);
    }
    if let &[axis] = list {
        for log in [false, true] {
            case(dims, Reader::Softmax { log, axis }, Bound::Naive);
        }
    }
}

/// Random sizes and axes.
pub(super) fn random(s: &mut Suite<'_>, rng: &mut Rng, d: DType, dims: &[usize]) {
    let axes: Vec<usize> = (0..dims.len()).filter(|_| rng.int(0, 1) == 1).collect();
    joined(s, d, dims, &axes);
}
