//! Selects the cases that run.

use super::{
    adjoint, attention, cross_entropy, deep, elementwise, indexing, joined, large_scores, long, matrix, memory,
    network, reduction, refusals, window,
};
use crate::suite::Suite;

/// The operations that a family of cases covers, and the function that runs it. The name of a case begins with its
/// operation.
type Family = (&'static [&'static str], fn(&mut Suite<'_>));

const FAMILIES: [Family; 13] = [
    (&["memory"], memory::run),
    (&["map"], elementwise::run),
    (&["map_into"], joined::run),
    (&["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "scan", "sort"], reduction::run),
    (&["gemm", "gemm_i32", "linear_i8"], matrix::run),
    (
        &["copy_strided", "fill", "gather", "scatter", "embedding", "embedding_backward", "arange", "random"],
        indexing::run,
    ),
    (
        &[
            "unfold",
            "fold",
            "conv",
            "conv_backward_input",
            "conv_backward_weight",
            "max_pool",
            "avg_pool",
            "avg_pool_backward",
        ],
        window::run,
    ),
    (
        &[
            "softmax",
            "log_softmax",
            "softmax_backward",
            "log_softmax_backward",
            "normalize",
            "normalize_backward",
            "normalize_affine_backward",
        ],
        network::run,
    ),
    (&["attention", "attention_backward"], attention::run),
    (&["attention", "attention_backward"], large_scores::run),
    (&["cross_entropy", "cross_entropy_backward"], cross_entropy::run),
    (&["adjoint"], adjoint::run),
    (&["refusals"], refusals::run),
];

/// Runs every family. If the filter begins with the name of an operation, runs only the families that cover it; if the
/// filter names a round of a deep run or a long case, runs only that.
pub(crate) fn run(s: &mut Suite<'_>) {
    if let ["deep", seed, round, ..] = s.filter().split('/').collect::<Vec<_>>()[..]
        && let (Ok(seed), Ok(round)) = (seed.parse(), round.parse())
    {
        return deep::round(s, seed, round);
    }
    let op = s.filter().split('/').next().unwrap_or_default();
    if op == "long" {
        return long::run(s);
    }
    let known = FAMILIES.iter().any(|(ops, _)| ops.contains(&op));
    for (ops, family) in FAMILIES {
        if !known || ops.contains(&op) {
            family(s);
        }
    }
}
