//! Sizes at which a kernel with one plain loop takes more than 65,536 iterations. Some GPU drivers end such loops, a
//! few of them without an error.

use gradus_backend::{DType, ReduceOp, Window};

use super::{attention, cross_entropy, indexing, matrix, network, reduction, window};
use crate::suite::Suite;

/// More iterations than some drivers run before they end a loop.
const LONG: usize = 70_001;

/// Runs every kernel that contains a loop on long operands, mostly in one dtype, because the loop is the same for all
/// dtypes. Scans, fold and the gradient of average pooling are left out, because the oracle takes minutes for them.
pub(crate) fn run(s: &mut Suite<'_>) {
    s.set_prefix("long/".to_owned());
    for d in [DType::F32, DType::BF16, DType::I32, DType::I64] {
        matrix::product(s, d, &[], [2, LONG, 3], (1, 0), false);
    }
    matrix::product(s, DType::F32, &[], [20, LONG, 20], (2, 1), false);
    matrix::product(s, DType::F32, &[3], [1, 5 * LONG, 1], (1, 0), false);
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
        reduction::reduction(s, op, DType::F32, &[LONG, 2], &[0], false);
        reduction::reduction(s, op, DType::I64, &[2, LONG], &[1], false);
    }
    for d in [DType::F32, DType::I64] {
        reduction::arg_reductions(s, d, &[LONG, 2], 0);
        reduction::sorts(s, d, &[2, LONG], 1);
    }
    for log in [false, true] {
        network::softmax(s, DType::F32, &[LONG, 2], 0, log);
    }
    for rms in [false, true] {
        network::normalize(s, DType::F32, &[2, LONG], &[1], rms);
    }
    cross_entropy::cross_entropy(s, DType::F32, DType::I64, 2, LONG, 0.1, None);
    // Many indices select among few rows.
    indexing::gather(s, DType::F32, DType::I64, &[2, 3], 0, LONG);
    indexing::lookup(s, DType::F32, DType::I64, 2, 3, &[LONG]);
    attention::attention(s, DType::F32, [1, 1, 1, 2, LONG, 3, 3], attention::Mask::None, true);
    attention::attention(s, DType::F32, [1, 1, 1, LONG, 2, 3, 3], attention::Mask::None, false);
    let line = |kernel: usize, padding: usize| Window {
        rank: 1,
        kernel: [kernel, 1, 1],
        stride: [1; 3],
        dilation: [1; 3],
        pad_before: [padding, 0, 0],
        pad_after: [padding, 0, 0],
    };
    // A backend may pass the longest windows on, and loop over shorter ones.
    for taps in [LONG, 30_000] {
        window::max_pool(s, DType::F32, &[taps + 2], &line(taps, 0));
        window::avg_pool(s, DType::F32, &[taps + 2], &line(taps, 0), false);
    }
    // Many channels, many filters and many positions each lengthen one of the three sums.
    window::convolutions(s, DType::F32, [1, LONG / 3 + 1, 2], 1, &[3], &line(3, 0), false);
    window::convolutions(s, DType::F32, [1, 2, LONG / 3 + 1], 1, &[3], &line(3, 0), false);
    window::convolutions(s, DType::F32, [2, 2, 2], 1, &[LONG / 2 + 1], &line(3, 1), false);
    s.set_prefix(String::new());
}
