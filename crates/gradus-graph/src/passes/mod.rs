//! Passes that make a graph smaller. Each pass preserves the bits of the results.

mod common;
mod dead;
mod join;

pub use common::common_subexpressions;
pub use dead::dead_code;
pub use join::join_elementwise;

use gradus_tensor::Result;

use crate::Graph;

/// Runs all passes. Debug builds [check](Graph::check) the graph before and after each.
///
/// # Errors
/// Fails if a pass has broken the graph.
#[track_caller]
pub fn run_all(graph: &mut Graph) -> Result<()> {
    let checked = |graph: &Graph| if cfg!(debug_assertions) { graph.check() } else { Ok(()) };
    checked(graph)?;
    for pass in [dead_code, common_subexpressions, join_elementwise] {
        pass(graph);
        checked(graph)?;
    }
    Ok(())
}
