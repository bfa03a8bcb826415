//! Passes that make a graph smaller. Each pass preserves the bits of the results.

mod dead;
mod join;

pub use dead::dead_code;
pub use join::join_elementwise;
