//! Joining into loads: an elementwise operation is merged into the reduction or softmax that reads its result.

use gradus_tensor::ops::{Mapped, Op};

use super::join::{Users, extended, only_reader};
use crate::Graph;

/// Joins elementwise operations into the reductions and softmaxes that alone read their results, where the device gains by
/// computing such a result piece by piece, as it is loaded. It is never stored as a whole. Each piece is rounded to its
/// dtype, so the results are the same. Inputs that are then kept for longer take no more memory than the result would.
pub fn join_loads(graph: &mut Graph) {
    let mut keep = vec![true; graph.nodes.len()];
    let mut users = Users::of(graph);
    for first in 0..graph.nodes.len() {
        let Some(second) = only_reader(graph, &users, first) else { continue };
        let (node, reader) = (&graph.nodes[first], &graph.nodes[second]);
        let (Op::Map(map), [between]) = (&node.op, &node.outputs[..]) else { continue };
        if reader.inputs[..] != [*between] {
            continue;
        }
        if extended(graph, first, second, &keep) > graph.memories[between.memory].bytes {
            continue;
        }
        let Some(mapped) = Mapped::new(map.clone(), &reader.op) else { continue };
        if graph.device.backend().joins_load(mapped.reader(), between.layout.shape(), between.dtype) {
            users.join(graph, first, second);
            let inputs = node.inputs.clone();
            let second = &mut graph.nodes[second];
            (second.op, second.inputs) = (mapped.into(), inputs);
            keep[first] = false;
        }
    }
    graph.retain(&keep);
}
