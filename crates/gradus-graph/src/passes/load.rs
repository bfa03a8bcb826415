//! Joining into loads: an elementwise operation is merged into the reduction or softmax that reads its result.

use gradus_tensor::ops::{Mapped, Op};

use super::join::only_reader;
use crate::Graph;

/// Joins elementwise operations into the reductions and softmaxes that alone read their results, where the device gains by
/// computing such a result piece by piece, as it is loaded. It is never stored as a whole. Each piece is rounded to its
/// dtype, so the results are the same. Inputs that are then kept for longer take no more memory than the result would.
pub fn join_loads(graph: &mut Graph) {
    let mut keep = vec![true; graph.nodes.len()];
    for first in 0..graph.nodes.len() {
        let Some(second) = only_reader(graph, first) else { continue };
        let (node, reader) = (&graph.nodes[first], &graph.nodes[second]);
        let (Op::Map(map), [between]) = (&node.op, &node.outputs[..]) else { continue };
        if reader.inputs[..] != [*between] {
            continue;
        }
        let follows = keep[first + 1..second].iter().all(|stays| !stays);
        if !follows && ending(graph, first) > graph.memories[between.memory].bytes {
            continue;
        }
        let Some(mapped) = Mapped::new(map.clone(), &reader.op) else { continue };
        if graph.device.backend().joins_load(mapped.reader(), between.layout.shape(), between.dtype) {
            let inputs = node.inputs.clone();
            let second = &mut graph.nodes[second];
            (second.op, second.inputs) = (mapped.into(), inputs);
            keep[first] = false;
        }
    }
    graph.retain(&keep);
}

/// The bytes of the temporary values that node `at` is the last to read.
fn ending(graph: &Graph, at: usize) -> usize {
    let mut memories: Vec<usize> = graph.nodes[at].inputs.iter().map(|p| p.memory).collect();
    memories.sort_unstable();
    memories.dedup();
    let later = &graph.nodes[at + 1..];
    let ends = |m: usize| graph.is_temporary(m) && !later.iter().any(|n| n.inputs.iter().any(|p| p.memory == m));
    memories.into_iter().filter(|&m| ends(m)).map(|m| graph.memories[m].bytes).sum()
}
