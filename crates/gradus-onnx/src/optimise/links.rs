//! [`Links`]: who makes and who reads each value of a graph, which is what patterns are matched by.

use crate::graph::{Attribute, Graph, Node, Slot};
use crate::value::{Array, OnnxValue};

/// The links between the nodes of a graph.
pub(super) struct Links {
    /// For each slot, the number of the node that makes it.
    pub(super) maker: Vec<Option<usize>>,
    /// For each slot, the numbers of the nodes that read it, once for each input. A node whose sub-graph captures the
    /// slot reads it too.
    pub(super) readers: Vec<Vec<usize>>,
    /// Whether a slot is an output of the graph.
    leaves: Vec<bool>,
    constants: Vec<Option<OnnxValue>>,
}

/// The slots that a node reads.
pub(super) fn reads(node: &Node) -> impl Iterator<Item = Slot> {
    let inner = node.attributes.iter().flat_map(|(_, a)| match a {
        Attribute::Graph(g) => g.captures.as_slice(),
        _ => &[],
    });
    node.inputs.iter().flatten().copied().chain(inner.map(|&(outer, _)| outer))
}

impl Links {
    pub(super) fn of(graph: &Graph) -> Links {
        let mut links = Links {
            maker: vec![None; graph.slots],
            readers: vec![Vec::new(); graph.slots],
            leaves: vec![false; graph.slots],
            constants: vec![None; graph.slots],
        };
        for (at, node) in graph.nodes.iter().enumerate() {
            reads(node).for_each(|slot| links.readers[slot].push(at));
            node.outputs.iter().flatten().for_each(|&slot| links.maker[slot] = Some(at));
        }
        graph.outputs.iter().for_each(|&(_, slot)| links.leaves[slot] = true);
        for (_, slot, value) in &graph.constants {
            links.constants[*slot] = Some(value.clone());
        }
        links
    }

    /// The value of a constant slot.
    pub(super) fn constant(&self, slot: Option<Slot>) -> Option<&OnnxValue> {
        self.constants[slot?].as_ref()
    }

    /// The tensor of a constant input of a node.
    pub(super) fn constant_input(&self, node: &Node, input: usize) -> Option<&Array> {
        match self.constant(node.inputs.get(input).copied().flatten())? {
            OnnxValue::Tensor(array) => Some(array),
            _ => None,
        }
    }

    /// The only node that reads the first output of node `at`, if the graph does not return that output and nothing
    /// reads the other outputs.
    pub(super) fn only_reader(&self, graph: &Graph, at: usize) -> Option<usize> {
        let mut outputs = graph.nodes[at].outputs.iter();
        let first = (*outputs.next()?)?;
        let unused = |slot: &Option<Slot>| slot.is_none_or(|s| self.readers[s].is_empty() && !self.leaves[s]);
        match &self.readers[first][..] {
            [reader] if !self.leaves[first] && outputs.all(unused) => Some(*reader),
            _ => None,
        }
    }
}

/// Adds a constant to a graph, and returns its slot.
pub(super) fn add_constant(graph: &mut Graph, value: OnnxValue) -> Slot {
    let slot = graph.slots;
    graph.slots += 1;
    graph.constants.push((String::new(), slot, value));
    slot
}
