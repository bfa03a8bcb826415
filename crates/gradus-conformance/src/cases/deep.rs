//! Cases with random shapes and parameters, for runs that go beyond the suite.

use gradus_backend::{DType, ReduceOp, Window};

use super::{FLOATS, attention, cross_entropy, elementwise, indexing, joined, matrix, network, reduction, window};
use crate::suite::{Rng, Suite};

/// The operations of a round, and the function that runs one.
type Kind = (&'static [&'static str], fn(&mut Suite<'_>, &mut Rng));

/// What rounds are of, in turn.
const KINDS: [Kind; 22] = [
    (&["map"], map),
    (&["sum", "prod", "max", "min", "any", "all"], reduce),
    (&["argmax", "argmin"], arg_reduce),
    (&["scan"], scan),
    (&["sort"], sort),
    (&["gemm"], gemm),
    (&["copy_strided", "fill"], copy),
    (&["arange"], arange),
    (&["random"], random),
    (&["gather", "scatter"], gather),
    (&["embedding", "embedding_backward"], embedding),
    (&["unfold", "fold"], columns),
    (&["conv", "conv_backward_input", "conv_backward_weight"], conv),
    (&["max_pool"], max_pool),
    (&["avg_pool", "avg_pool_backward"], avg_pool),
    (&["softmax", "log_softmax", "softmax_backward", "log_softmax_backward"], softmax),
    (&["normalize", "normalize_backward", "normalize_affine_backward"], normalize),
    (&["attention", "attention_backward"], attention),
    (&["cross_entropy", "cross_entropy_backward"], cross_entropy),
    (&["gemm_i32"], gemm_i32),
    (&["linear_i8"], linear_i8),
    (&["map_into"], map_into),
];

/// A round may have no case, because its window is too large or its dtype has not the numbers. So many in a row are a mistake.
const EMPTY: u64 = 1000;

/// Runs one round of the deep run with this seed: one operation on one shape, determined by the seed and the round.
pub(crate) fn round(s: &mut Suite<'_>, seed: u64, round: u64) {
    s.set_prefix(format!("deep/{seed}/{round}/"));
    let (_, run) = KINDS[(round % KINDS.len() as u64) as usize];
    run(s, &mut Rng::new(&format!("deep/{seed}/{round}")));
    s.set_prefix(String::new());
}

/// Runs rounds of each kind until each of its operations has had this many cases. Of `parts` parts, only the rounds of one run.
/// If `filter` is not empty, only the kind runs that has this operation.
pub(crate) fn each(s: &mut Suite<'_>, seed: u64, [part, parts]: [u64; 2], cases: usize, filter: &str) {
    let wanted = |operations: &[&str]| filter.is_empty() || operations.contains(&filter);
    if !KINDS.iter().any(|(operations, _)| wanted(operations)) {
        s.check(filter, |_| Err("no round has this operation".to_owned()));
    }
    for (kind, (operations, _)) in KINDS.iter().enumerate().filter(|(_, (operations, _))| wanted(operations)) {
        let (mut next, mut empty) = (part, 0);
        while let Some(operation) = operations.iter().find(|operation| s.cases_of(operation) < cases) {
            if empty == EMPTY {
                s.check(operation, |_| Err(format!("{EMPTY} rounds in a row have no case")));
                break;
            }
            let before = s.cases();
            round(s, seed, next * KINDS.len() as u64 + kind as u64);
            empty = if s.cases() == before { empty + 1 } else { 0 };
            next += parts;
        }
    }
}

fn map(s: &mut Suite<'_>, rng: &mut Rng) {
    let dims = sizes(rng, 0, 4, 20);
    elementwise::random(s, rng, &dims);
}

fn map_into(s: &mut Suite<'_>, rng: &mut Rng) {
    let (d, dims) = (pick(rng, &FLOATS), sizes(rng, 0, 4, 20));
    joined::random(s, rng, d, &dims);
}

fn reduce(s: &mut Suite<'_>, rng: &mut Rng) {
    let (d, dims) = (pick(rng, &DType::ALL), sizes(rng, 0, 5, 12));
    let axes: Vec<usize> = (0..dims.len()).filter(|_| rng.int(0, 1) == 1).collect();
    let special = d.is_float() && rng.int(0, 3) == 0;
    for op in reduction::REDUCTIONS {
        let sums_nothing = !matches!(op, ReduceOp::Max | ReduceOp::Min);
        if sums_nothing || axes.iter().all(|&a| dims[a] > 0) {
            reduction::reduction(s, op, d, &dims, &axes, special);
        }
    }
}

fn arg_reduce(s: &mut Suite<'_>, rng: &mut Rng) {
    let (dims, axis) = filled_lane(rng);
    reduction::arg_reductions(s, pick(rng, &DType::ALL), &dims, axis);
}

fn scan(s: &mut Suite<'_>, rng: &mut Rng) {
    let (dims, axis) = filled_lane(rng);
    reduction::scans(s, pick(rng, &DType::ALL), &dims, axis);
}

fn sort(s: &mut Suite<'_>, rng: &mut Rng) {
    let (dims, axis) = lane(rng);
    reduction::sorts(s, pick(rng, &DType::ALL), &dims, axis);
}

fn gemm(s: &mut Suite<'_>, rng: &mut Rng) {
    let number = number(rng);
    let batch = sizes(rng, 0, 2, 4);
    let mkn = [size(rng, 40), size(rng, 70), size(rng, 40)];
    let lowest = if number.is_signed() { -2 } else { 0 };
    let factors = (rng.int(lowest, 2), rng.int(lowest, 2));
    matrix::product(s, number, &batch, mkn, factors, number.is_float() && rng.int(0, 2) > 0);
}

fn gemm_i32(s: &mut Suite<'_>, rng: &mut Rng) {
    let dtypes = [pick(rng, &matrix::SMALL), pick(rng, &matrix::SMALL)];
    let batch = sizes(rng, 0, 2, 4);
    matrix::small_product(s, dtypes, &batch, [size(rng, 40), size(rng, 70), size(rng, 40)]);
}

fn linear_i8(s: &mut Suite<'_>, rng: &mut Rng) {
    let [m, k, n] = [size(rng, 30), size(rng, 70), size(rng, 40)];
    // Rounding changes no number of groups of seven or more.
    let k = if m * k < 7 { 0 } else { k };
    matrix::rounded_product(s, size(rng, 4), [m, k, n], rng.int(0, 1) == 1);
}

fn copy(s: &mut Suite<'_>, rng: &mut Rng) {
    let (d, dims) = (pick(rng, &DType::ALL), sizes(rng, 0, 5, 12));
    indexing::copy(s, d, &dims);
    indexing::filled(s, d, pick(rng, indexing::fillings(d)), &dims);
}

fn arange(s: &mut Suite<'_>, rng: &mut Rng) {
    let (d, dims) = (pick(rng, &DType::ALL), sizes(rng, 0, 4, 12));
    let count = dims.iter().product::<usize>().max(1) as i64;
    // Mostly numbers that the dtype has, which starts around 0.
    let most = if rng.int(0, 1) == 0 { 1 << (d.size() * 8 - 2).min(40) } else { 100 };
    let (start, step) = (rng.int(-most, most), rng.int(-2 * most, 2 * most) / count);
    indexing::arange(s, d, &dims, if d.is_signed() { start } else { start.abs() }, step);
}

fn random(s: &mut Suite<'_>, rng: &mut Rng) {
    let (d, dims) = (pick(rng, &DType::ALL), sizes(rng, 0, 4, 12));
    let (seed, offset) = (rng.int(0, 1 << 20) as u64, rng.int(0, 1 << 40) as u64);
    indexing::random(s, d, pick(rng, &indexing::DRAWS), &dims, seed, offset);
}

fn gather(s: &mut Suite<'_>, rng: &mut Rng) {
    let (dims, axis) = filled_lane(rng);
    indexing::gather(s, pick(rng, &DType::ALL), index(rng), &dims, axis, rng.int(0, 30) as usize);
}

fn embedding(s: &mut Suite<'_>, rng: &mut Rng) {
    let dims = sizes(rng, 0, 3, 9);
    indexing::lookup(s, pick(rng, &DType::ALL), index(rng), 2 + size(rng, 20), size(rng, 40), &dims);
}

fn columns(s: &mut Suite<'_>, rng: &mut Rng) {
    let (spatial, w) = window(rng);
    window::columns(s, pick(rng, &DType::ALL), &spatial, &w);
}

fn conv(s: &mut Suite<'_>, rng: &mut Rng) {
    let (number, (spatial, w)) = (number(rng), window(rng));
    let groups = rng.int(1, 3) as usize;
    let channels = [rng.int(0, 3) as usize, groups * size(rng, 6), groups * size(rng, 9)];
    let random = number.is_float() && rng.int(0, 1) == 1;
    window::convolutions(s, number, channels, groups, &spatial, &w, random);
}

fn max_pool(s: &mut Suite<'_>, rng: &mut Rng) {
    let (spatial, w) = window(rng);
    window::max_pool(s, number(rng), &spatial, &w);
}

fn avg_pool(s: &mut Suite<'_>, rng: &mut Rng) {
    let (spatial, w) = window(rng);
    window::avg_pool(s, pick(rng, &FLOATS), &spatial, &w, true);
}

fn softmax(s: &mut Suite<'_>, rng: &mut Rng) {
    let (dims, axis) = lane(rng);
    network::softmax(s, pick(rng, &FLOATS), &dims, axis, rng.int(0, 1) == 1);
}

fn normalize(s: &mut Suite<'_>, rng: &mut Rng) {
    let dims = sizes(rng, 1, 4, 20);
    let axes: Vec<usize> = (0..dims.len()).filter(|_| rng.int(0, 1) == 1).collect();
    // Statistics over no elements are undefined.
    if axes.iter().all(|&a| dims[a] > 0) {
        network::normalize(s, pick(rng, &FLOATS), &dims, &axes, rng.int(0, 1) == 1);
    }
}

fn attention(s: &mut Suite<'_>, rng: &mut Rng) {
    let hk = rng.int(1, 3) as usize;
    let h = hk * rng.int(1, 3) as usize;
    let dims = [rng.int(0, 3) as usize, h, hk, size(rng, 40), size(rng, 70), size(rng, 20), size(rng, 20)];
    let mask = pick(rng, &[attention::Mask::None, attention::Mask::Bool, attention::Mask::Float]);
    attention::attention(s, pick(rng, &FLOATS), dims, mask, rng.int(0, 1) == 1);
}

fn cross_entropy(s: &mut Suite<'_>, rng: &mut Rng) {
    let (n, c, index) = (size(rng, 40), size(rng, 70).max(1), index(rng));
    let ignore = (rng.int(0, 1) == 1).then_some(if index == DType::U32 { 7000 } else { -100 });
    let smoothing = rng.int(0, 10) as f64 / 10.0;
    cross_entropy::cross_entropy(s, pick(rng, &FLOATS), index, n, c, smoothing, ignore);
}

/// A dtype of numbers.
fn number(rng: &mut Rng) -> DType {
    match pick(rng, &DType::ALL) {
        DType::Bool => DType::I16,
        number => number,
    }
}

/// A dtype of indices.
fn index(rng: &mut Rng) -> DType {
    pick(rng, &[DType::I64, DType::I32, DType::U32])
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

/// A shape and one of its axes, which has elements.
fn filled_lane(rng: &mut Rng) -> (Vec<usize>, usize) {
    let (mut dims, axis) = lane(rng);
    dims[axis] = dims[axis].max(1);
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
