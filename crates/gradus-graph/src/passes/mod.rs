//! Passes that make a graph smaller, faster, or content with less memory. Each pass preserves the bits of the results.

mod common;
mod constants;
mod dead;
mod join;
mod load;
mod pack;
mod recompute;
mod reuse;

pub use common::common_subexpressions;
pub use constants::fold_constants;
pub use dead::dead_code;
pub use join::{join_elementwise, join_small};
pub use load::join_loads;
pub use pack::pack_weights;
pub use recompute::{MemoryLimit, recompute};
pub use reuse::reuse_inputs;

use std::sync::Arc;

use gradus_tensor::Result;

use crate::Graph;
use crate::panels::Panels;

/// Runs all passes. Panels of graphs for arguments of other sizes are passed as `known`, and used again. Debug builds
/// [check](Graph::check) the graph before and after each pass.
///
/// # Errors
/// Fails if a pass has broken the graph, or if the device cannot compute a constant.
#[track_caller]
pub fn run_all(graph: &mut Graph, limit: MemoryLimit, known: &[Arc<Panels>]) -> Result<()> {
    let checked = |graph: &Graph| if cfg!(debug_assertions) { graph.check() } else { Ok(()) };
    checked(graph)?;
    let recompute = |graph: &mut Graph| recompute(graph, limit);
    for pass in [&dead_code as &dyn Fn(&mut Graph), &common_subexpressions] {
        pass(graph);
        checked(graph)?;
    }
    fold_constants(graph)?;
    checked(graph)?;
    // A copy of a weight is memory that a limit does not count.
    let pack_weights = |graph: &mut Graph| {
        if limit == MemoryLimit::Cheap {
            pack_weights(graph, known)
        }
    };
    let passes: [&dyn Fn(&mut Graph); 6] =
        [&join_elementwise, &join_loads, &recompute, &pack_weights, &join_small, &reuse_inputs];
    for pass in passes {
        pass(graph);
        checked(graph)?;
    }
    Ok(())
}
