//! The test cases, one module per family of operations.

mod adjoint;
mod attention;
mod cross_entropy;
mod deep;
mod elementwise;
mod families;
mod indexing;
mod joined;
mod large_scores;
mod long;
mod matrix;
mod memory;
mod network;
mod reduction;
mod refusals;
mod window;

use gradus_backend::DType;

use crate::suite::Output;

pub(crate) use deep::{each, round as deep};
pub(crate) use families::run;
pub(crate) use long::run as long;

/// Every float dtype.
const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

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
