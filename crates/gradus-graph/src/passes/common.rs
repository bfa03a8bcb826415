//! Common subexpressions: an operation that computes what an earlier one has computed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use gradus_tensor::ops::Effect;

use crate::Graph;
use crate::graph::{Node, Place};

/// Removes operations that have an earlier operation's parameters and inputs. What read their results reads those of
/// the earlier operation instead. Operations that draw random numbers or write in place stay, and so do those whose
/// results are written later or leave the step.
pub fn common_subexpressions(graph: &mut Graph) {
    let mut written = vec![false; graph.memories.len()];
    for node in graph.nodes.iter().filter(|n| n.in_place) {
        node.outputs.iter().for_each(|p| written[p.memory] = true);
    }
    let kept: Vec<bool> = (0..graph.memories.len()).map(|m| !written[m]).collect();
    let replaceable: Vec<bool> = (0..graph.memories.len()).map(|m| kept[m] && graph.is_temporary(m)).collect();
    // For each memory, the memory that takes its place.
    let mut now: Vec<usize> = (0..graph.memories.len()).collect();
    let mut known: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut keep = vec![true; graph.nodes.len()];
    for (i, keep) in keep.iter_mut().enumerate() {
        graph.nodes[i].inputs.iter_mut().for_each(|p| p.memory = now[p.memory]);
        let node = &graph.nodes[i];
        let pure = node.op.effect() == Effect::Pure && node.source.is_none() && !node.in_place;
        if !pure || !node.outputs.iter().all(|p| kept[p.memory]) {
            continue;
        }
        let same = known.entry(hash(node)).or_default();
        let earlier = same.iter().copied().find(|&e| computes_the_same(&graph.nodes[e], node));
        match earlier {
            Some(earlier) if node.outputs.iter().all(|p| replaceable[p.memory]) => {
                for (old, new) in node.outputs.iter().zip(&graph.nodes[earlier].outputs) {
                    now[old.memory] = new.memory;
                }
                *keep = false;
            }
            Some(_) => {}
            None => same.push(i),
        }
    }
    graph.retain(&keep);
}

fn hash(node: &Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    node.op.hash(&mut hasher);
    for Place { memory, version, layout, dtype } in &node.inputs {
        (memory, version, layout, dtype).hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether two nodes compute the same values, and store them in the same way.
fn computes_the_same(a: &Node, b: &Node) -> bool {
    let like = |a: &Place, b: &Place| (a.layout, a.dtype, a.version) == (b.layout, b.dtype, b.version);
    let outputs = a.outputs.len() == b.outputs.len() && a.outputs.iter().zip(&b.outputs).all(|(a, b)| like(a, b));
    outputs && a.inputs == b.inputs && a.op == b.op
}
