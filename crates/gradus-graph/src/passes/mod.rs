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
    let pack_weights = |graph: &mut Graph| pack_weights(graph, known);
    let mut passes: Vec<&dyn Fn(&mut Graph)> = vec![&join_elementwise, &join_loads, &recompute];
    // A limit does not count copies of weights, nor the values that live longer because operations are joined.
    if limit == MemoryLimit::Cheap {
        passes.extend([&pack_weights as &dyn Fn(&mut Graph), &join_small]);
    }
    passes.push(&reuse_inputs);
    for pass in passes {
        pass(graph);
        checked(graph)?;
    }
    Ok(())
}
