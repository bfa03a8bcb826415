//! Cases with random shapes and parameters, for runs that go beyond the suite.

use gradus_backend::{DType, ReduceOp, Window};

use super::{FLOATS, attention, cross_entropy, indexing, matrix, network, reduction, window};
use crate::suite::{Rng, Suite};

/// Runs one round of the deep run with this seed: one operation on one shape, determined by the seed and the round.
pub(crate) fn round(s: &mut Suite<'_>, seed: u64, round: u64) {
    s.set_prefix(format!("deep/{seed}/{round}/"));
    let rng = &mut Rng::new(&format!("deep/{seed}/{round}"));
    let (any, float) = (pick(rng, &DType::ALL), pick(rng, &FLOATS));
    let number = if any == DType::Bool { DType::I16 } else { any };
    let index = pick(rng, &[DType::I64, DType::I32, DType::U32]);
    match rng.int(0, 12) {
        0 | 1 => {
            let batch = sizes(rng, 0, 2, 4);
            let mkn = [size(rng, 40), size(rng, 70), size(rng, 40)];
            let lowest = if number.is_signed() { -2 } else { 0 };
            let factors = (rng.int(lowest, 2), rng.int(lowest, 2));
            matrix::product(s, number, &batch, mkn, factors, number.is_float() && rng.int(0, 2) > 0);
        }
        2 => {
            let dims = sizes(rng, 0, 5, 12);
            let axes: Vec<usize> = (0..dims.len()).filter(|_| rng.int(0, 1) == 1).collect();
            let op = pick(rng, &reduction::REDUCTIONS);
            let sums_nothing = !matches!(op, ReduceOp::Max | ReduceOp::Min);
            if sums_nothing || axes.iter().all(|&a| dims[a] > 0) {
                reduction::reduction(s, op, any, &dims, &axes, any.is_float() && rng.int(0, 3) == 0);
            }
        }
        3 => {
            let (dims, axis) = lane(rng);
            match rng.int(0, 2) {
                0 if dims[axis] > 0 => reduction::arg_reductions(s, any, &dims, axis),
                1 if dims[axis] > 0 => reduction::scans(s, any, &dims, axis),
                _ => reduction::sorts(s, any, &dims, axis),
            }
        }
        4 => {
            let (dims, axis) = lane(rng);
            network::softmax(s, float, &dims, axis, rng.int(0, 1) == 1);
        }
        5 => {
            let dims = sizes(rng, 1, 4, 20);
            let axes: Vec<usize> = (0..dims.len()).filter(|_| rng.int(0, 1) == 1).collect();
            // Statistics over no elements are undefined.
            if axes.iter().all(|&a| dims[a] > 0) {
                network::normalize(s, float, &dims, &axes, rng.int(0, 1) == 1);
            }
        }
        6 => {
            let (mut dims, axis) = lane(rng);
            dims[axis] = dims[axis].max(1);
            indexing::gather(s, any, index, &dims, axis, rng.int(0, 30) as usize);
        }
        7 => {
            let dims = sizes(rng, 0, 3, 9);
            indexing::lookup(s, any, index, 2 + size(rng, 20), size(rng, 40), &dims);
        }
        8 | 9 => {
            let (spatial, w) = window(rng);
            match rng.int(0, 5) {
                0 => window::columns(s, any, &spatial, &w),
                1 => window::max_pool(s, number, &spatial, &w),
                2 => window::avg_pool(s, float, &spatial, &w, true),
                _ => {
                    let groups = rng.int(1, 3) as usize;
                    let channels = [rng.int(0, 3) as usize, groups * size(rng, 6), groups * size(rng, 9)];
                    let random = number.is_float() && rng.int(0, 1) == 1;
                    window::convolutions(s, number, channels, groups, &spatial, &w, random);
                }
            }
        }
        10 | 11 => {
            let hk = rng.int(1, 3) as usize;
            let h = hk * rng.int(1, 3) as usize;
            let dims = [rng.int(0, 3) as usize, h, hk, size(rng, 40), size(rng, 70), size(rng, 20), size(rng, 20)];
            let mask = pick(rng, &[attention::Mask::None, attention::Mask::Bool, attention::Mask::Float]);
            attention::attention(s, float, dims, mask, rng.int(0, 1) == 1);
        }
        _ => {
            let (n, c) = (size(rng, 40), size(rng, 70).max(1));
            let ignore = (rng.int(0, 1) == 1).then_some(if index == DType::U32 { 7000 } else { -100 });
            cross_entropy::cross_entropy(s, float, index, n, c, rng.int(0, 10) as f64 / 10.0, ignore);
        }
    }
    s.set_prefix(String::new());
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.int(0, of.len() as i64 - 1) as usize]
}

/// A size: usually small, sometimes 0 or 1, occasionally as large as `largest`.
fn size(rng: &mut Rng, largest: usize) -> usize {
    match rng.int(0, 9) {
        0 => rng.int(0, 1) as usize,
        1..=6 => rng.int(2, (largest as i64).min(7)) as usize,
        _ => rng.int(1, largest as i64) as usize,
    }
}

/// A shape of `least` to `most` axes.
fn sizes(rng: &mut Rng, least: i64, most: i64, largest: usize) -> Vec<usize> {
    (0..rng.int(least, most)).map(|_| size(rng, largest)).collect()
}

/// A shape and one of its axes.
fn lane(rng: &mut Rng) -> (Vec<usize>, usize) {
    let dims = sizes(rng, 1, 4, 40);
    let axis = rng.int(0, dims.len() as i64 - 1) as usize;
    (dims, axis)
}

/// Spatial sizes and a window over them. The window may be too large for them.
fn window(rng: &mut Rng) -> (Vec<usize>, Window) {
    let rank = rng.int(1, 3) as usize;
    let mut w =
        Window { rank, kernel: [1; 3], stride: [1; 3], dilation: [1; 3], pad_before: [0; 3], pad_after: [0; 3] };
    let spatial = (0..rank).map(|_| rng.int(1, if rank == 3 { 6 } else { 14 }) as usize).collect();
    for i in 0..rank {
        w.kernel[i] = rng.int(1, 4) as usize;
        w.stride[i] = rng.int(1, 3) as usize;
        w.dilation[i] = rng.int(1, 2) as usize;
        w.pad_before[i] = rng.int(0, 2) as usize;
        w.pad_after[i] = rng.int(0, 2) as usize;
    }
    (spatial, w)
}
