//! Dead code: operations whose results nobody reads.

use crate::Graph;

/// Removes the operations whose results are neither read, nor returned, nor kept. An operation with a source stays,
/// because its source advances with each call, and so does one that fails on some elements, such as an index that is out
/// of range.
pub fn dead_code(graph: &mut Graph) {
    let mut read: Vec<bool> = (0..graph.memories.len()).map(|m| !graph.is_temporary(m)).collect();
    let mut live = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        live[i] = node.source.is_some() || node.op.can_fail() || node.outputs.iter().any(|out| read[out.memory]);
        if live[i] {
            node.inputs.iter().for_each(|input| read[input.memory] = true);
            // It may read what it updates, or keep a part of it.
            node.outputs.iter().filter(|_| node.in_place).for_each(|out| read[out.memory] = true);
        }
    }
    graph.retain(&live);
}

impl Graph {
    /// Removes the nodes whose entry in `keep` is false. A node that repeats another is removed only together with it.
    pub(crate) fn retain(&mut self, keep: &[bool]) {
        let mut renamed = vec![0; keep.len()];
        let mut kept = 0;
        for (i, &stays) in keep.iter().enumerate() {
            renamed[i] = kept;
            kept += usize::from(stays);
        }
        let mut i = 0;
        self.nodes.retain(|_| {
            i += 1;
            keep[i - 1]
        });
        for node in &mut self.nodes {
            node.repeats = node.repeats.map(|r| renamed[r]);
        }
    }
}
