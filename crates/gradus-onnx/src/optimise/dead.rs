//! Dead code: nodes whose outputs nothing reads, and constants that nothing reads.

use std::collections::HashSet;

use super::links::reads;
use crate::graph::Graph;

/// Removes nodes and constants that no output of the graph depends on.
pub(super) fn remove_dead(graph: &mut Graph) {
    let mut needed: HashSet<usize> = graph.outputs.iter().map(|&(_, slot)| slot).collect();
    let mut keep = vec![false; graph.nodes.len()];
    for (node, keep) in graph.nodes.iter().zip(&mut keep).rev() {
        // A node without outputs cannot be told from a damaged one, which must fail.
        *keep = node.outputs.is_empty() || node.outputs.iter().flatten().any(|slot| needed.contains(slot));
        if *keep {
            needed.extend(reads(node));
        }
    }
    let mut keep = keep.into_iter();
    graph.nodes.retain(|_| keep.next().unwrap_or(true));
    graph.constants.retain(|(_, slot, _)| needed.contains(slot));
}
