//! Reuse: an elementwise operation writes its result over an input that nothing reads afterwards.

use gradus_tensor::ops::{Arg, Op, Update};

use crate::assign::lifetimes;
use crate::graph::{Graph, Node, Place};

/// Lets elementwise operations write over an input at its last use, so that both need memory only once. The input is
/// temporary, fills its memory, and has the layout and dtype of the result.
pub fn reuse_inputs(graph: &mut Graph) {
    let mut last: Vec<usize> = lifetimes(graph).into_iter().map(|life| life.map_or(0, |(_, last)| last)).collect();
    // For each memory, the memory that takes its place and the versions that precede those of the memory.
    let mut now: Vec<(usize, u32)> = (0..graph.memories.len()).map(|m| (m, 0)).collect();
    for i in 0..graph.nodes.len() {
        let node = &mut graph.nodes[i];
        for p in node.inputs.iter_mut().chain(&mut node.outputs) {
            let (memory, versions) = now[p.memory];
            *p = Place { memory, version: p.version + versions, ..*p };
        }
        let Some((at, updated)) = in_place(graph, i, &last) else { continue };
        let (input, output) = (graph.nodes[i].inputs[at], graph.nodes[i].outputs[0]);
        // Later versions of the result follow on this one.
        now[output.memory] = (input.memory, input.version + 1);
        last[input.memory] = last[output.memory];
        graph.nodes[i] = updated;
    }
}

/// The number of an input that node `i` may write over, and the node that does.
fn in_place(graph: &Graph, i: usize, last: &[usize]) -> Option<(usize, Node)> {
    let node = &graph.nodes[i];
    let ([output], Op::Map(map), false) = (&node.outputs[..], &node.op, node.in_place) else { return None };
    let fills =
        |p: &Place| p.layout.is_contiguous() && p.layout.offset() == 0 && bytes(p) == graph.memories[p.memory].bytes;
    if node.source.is_some() || output.version > 0 || !graph.is_temporary(output.memory) || !fills(output) {
        return None;
    }
    let ends = |p: &Place| {
        let alike = p.layout == output.layout && p.dtype == output.dtype && fills(p);
        let only = node.inputs.iter().all(|q| q.memory != p.memory || q == p);
        alike && only && graph.is_temporary(p.memory) && last[p.memory] == i
    };
    let at = node.inputs.iter().position(ends)?;
    let input = node.inputs[at];
    let mut inputs: Vec<Place> = vec![];
    let args = map.args.iter().map(|arg| match arg {
        Arg::Tensor(k) if node.inputs[*k] == input => Arg::Output(0),
        Arg::Tensor(k) => {
            inputs.push(node.inputs[*k]);
            Arg::Tensor(inputs.len() - 1)
        }
        &other => other,
    });
    let op = Op::from(Update { kernel: map.kernel.clone(), args: args.collect() });
    let outputs = vec![Place { version: input.version + 1, ..input }];
    Some((at, Node { op, inputs, outputs, in_place: true, ..node.clone() }))
}

fn bytes(p: &Place) -> usize {
    p.layout.numel() * p.dtype.size()
}
