//! Constants: operations that read nothing but constants run once, when the plan is made.

use gradus_tensor::ops::{Block, Effect, Op, Progress, ReplayCall, ReplayOperand, ReplayState, replay};
use gradus_tensor::{Result, Tensor};
use smallvec::SmallVec;

use crate::compare::bytes_of;
use crate::graph::{Graph, Node, Origin, Place};

/// The largest result that is kept between replays, in bytes.
const LARGEST: usize = 1 << 20;

/// Runs the operations whose results are the same in each replay: positions, masks and other values that the step computes
/// from numbers of the host, if they take a MiB at most, and are neither written nor returned.
///
/// # Errors
/// Fails if one of them does, and then leaves the graph as it is.
#[track_caller]
pub fn fold_constants(graph: &mut Graph) -> Result<()> {
    let mut written = vec![false; graph.memories.len()];
    for node in graph.nodes.iter().filter(|n| n.in_place) {
        node.outputs.iter().for_each(|p| written[p.memory] = true);
    }
    let mut known: Vec<bool> = graph.memories.iter().map(|m| matches!(m.origin, Origin::Constant(_))).collect();
    let mut keep = vec![true; graph.nodes.len()];
    for (node, keep) in graph.nodes.iter().zip(&mut keep) {
        let is_pure = node.op.effect() == Effect::Pure && !node.op.can_fail() && !matches!(node.op, Op::Rule(_));
        let is_free = node.source.is_none() && node.repeats.is_none() && !node.in_place;
        let small = |p: &Place| graph.is_temporary(p.memory) && graph.memories[p.memory].bytes <= LARGEST;
        if is_pure
            && is_free
            && node.inputs.iter().all(|p| known[p.memory])
            && node.outputs.iter().all(|p| small(p) && !written[p.memory])
        {
            node.outputs.iter().for_each(|p| known[p.memory] = true);
            *keep = false;
        }
    }
    if keep.iter().all(|&stays| stays) {
        return Ok(());
    }
    let values = computed(graph, &keep)?;
    graph.retain(&keep);
    for (memory, value) in values {
        // What only such operations read is not kept.
        if graph.nodes.iter().any(|node| node.inputs.iter().any(|p| p.memory == memory)) {
            graph.memories[memory].origin = Origin::Constant(value);
        }
    }
    Ok(())
}

/// Runs the nodes that are not kept. Returns the memories that they write, each with all its bytes.
fn computed(graph: &Graph, keep: &[bool]) -> Result<Vec<(usize, Tensor)>> {
    let nodes: Vec<&Node> = graph.nodes.iter().zip(keep).filter(|(_, keep)| !**keep).map(|(node, _)| node).collect();
    let mut memories: Vec<usize> =
        nodes.iter().flat_map(|n| n.inputs.iter().chain(&n.outputs)).map(|p| p.memory).collect();
    memories.sort_unstable();
    memories.dedup();
    // In a replay, tensors are numbered first.
    let is_tensor = |&m: &usize| matches!(graph.memories[m].origin, Origin::Constant(_));
    let (tensors, made): (Vec<usize>, Vec<usize>) = memories.into_iter().partition(is_tensor);
    let number = |m: usize| tensors.iter().chain(&made).position(|&known| known == m).unwrap_or(usize::MAX);
    let operand = |p: &Place| ReplayOperand { memory: number(p.memory), layout: p.layout, dtype: p.dtype };
    let call = |node: &&Node| ReplayCall {
        op: node.op.clone(),
        inputs: node.inputs.iter().map(operand).collect(),
        outputs: node.outputs.iter().map(operand).collect(),
        begins: SmallVec::new(), // The blocks are new.
        location: node.location,
    };
    let calls: Vec<ReplayCall> = nodes.iter().map(call).collect();
    let constant =
        |&m: &usize| if let Origin::Constant(t) = &graph.memories[m].origin { Some(t.clone()) } else { None };
    let tensors: Vec<Tensor> = tensors.iter().filter_map(constant).collect();
    let mut blocks =
        made.iter().map(|&m| Block::new(&graph.device, graph.memories[m].bytes)).collect::<Result<Vec<_>>>()?;
    replay(&graph.device, &calls, &tensors, blocks.iter_mut(), &mut Progress::default(), &mut ReplayState::default())?;
    let value = |(m, block): (usize, Block)| Ok((m, bytes_of(&block.into_storage(&graph.device)?)?));
    made.into_iter().zip(blocks).map(value).collect()
}
