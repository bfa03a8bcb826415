//! What makes a graph smaller. Each pass keeps the bits of the results.

mod dead;
mod join;

pub use dead::dead_code;
pub use join::join_elementwise;
