//! What the suite runs: one module a family of operations.

mod attention;
mod elementwise;
mod indexing;
mod matrix;
mod memory;
mod network;
mod reduction;
mod refusals;
mod training;
mod window;

use gradus_backend::DType;

use crate::suite::{Output, Suite};

/// Every float dtype.
const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// Runs everything.
pub(crate) fn run(s: &mut Suite<'_>) {
    memory::run(s);
    elementwise::run(s);
    reduction::run(s);
    matrix::run(s);
    indexing::run(s);
    window::run(s);
    network::run(s);
    attention::run(s);
    training::run(s);
    refusals::run(s);
}

/// Sizes as part of a name: `2x3x4`, or `scalar`.
fn sizes(dims: &[usize]) -> String {
    match dims {
        [] => "scalar".to_owned(),
        _ => dims.iter().map(usize::to_string).collect::<Vec<_>>().join("x"),
    }
}

/// An output that is overwritten.
fn fresh(dtype: DType, dims: &[usize]) -> Output {
    Output::Fresh(dtype, dims.to_vec())
}
