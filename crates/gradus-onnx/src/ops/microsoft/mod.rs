//! The domain `com.microsoft`: operators that ONNX Runtime defines, and that exporters and its optimiser write.

mod attention;
mod cache;
mod fused;
mod norm;
mod pool;
mod quantised;

use crate::graph::Row;

/// The families of the domain.
pub(super) const FAMILIES: &[&[Row]] =
    &[attention::ROWS, cache::ROWS, fused::ROWS, norm::ROWS, pool::ROWS, quantised::ROWS];
