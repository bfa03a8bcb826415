//! Assigns blocks of memory to temporary values.

use std::collections::BTreeMap;

use crate::graph::Graph;

/// The first and the last node that use a memory, for each memory that a node uses.
pub(crate) fn lifetimes(graph: &Graph) -> Vec<Option<(usize, usize)>> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; graph.memories.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        for p in node.inputs.iter().chain(&node.outputs) {
            let life = lives[p.memory].get_or_insert((i, i));
            life.1 = i;
        }
    }
    lives
}

/// The time at which most memory is needed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Peak {
    /// The bytes of the temporary values that are needed then.
    pub(crate) bytes: usize,
    /// The number of nodes that need as many.
    pub(crate) nodes: usize,
    /// The first of these nodes.
    pub(crate) at: usize,
}

/// The time at which most memory is needed.
pub(crate) fn peak(graph: &Graph, lives: &[Option<(usize, usize)>]) -> Peak {
    let mut change = vec![0isize; graph.nodes.len() + 1];
    for (m, life) in lives.iter().enumerate() {
        if let Some((first, last)) = life.filter(|_| graph.is_temporary(m)) {
            change[first] += graph.memories[m].bytes as isize;
            change[last + 1] -= graph.memories[m].bytes as isize;
        }
    }
    let (mut live, mut peak) = (0isize, Peak::default());
    for (at, change) in change.iter().enumerate() {
        live += change;
        match live as usize {
            bytes if bytes > peak.bytes => peak = Peak { bytes, nodes: 1, at },
            bytes if bytes == peak.bytes => peak.nodes += 1,
            _ => {}
        }
    }
    peak
}

/// Assigns a block to each temporary memory, and returns the sizes of the blocks too, the largest first. Memories share
/// a block only if no two of them are needed at the same time.
///
/// The largest memory chooses first, so a block has the size of its first memory, and what comes later takes the
/// smallest block that is free during its life.
pub(crate) fn assigned(graph: &Graph) -> (Vec<Option<usize>>, Vec<usize>) {
    let lives = lifetimes(graph);
    let mut order: Vec<usize> = (0..lives.len()).filter(|&m| lives[m].is_some() && graph.is_temporary(m)).collect();
    order.sort_by_key(|&m| std::cmp::Reverse(graph.memories[m].bytes));
    let mut block_of = vec![None; lives.len()];
    let mut sizes: Vec<usize> = vec![];
    // For each block, the lives of its memories: the last node by the first.
    let mut taken: Vec<BTreeMap<usize, usize>> = vec![];
    for m in order {
        let Some((first, last)) = lives[m] else { continue };
        let is_free = |lives: &BTreeMap<usize, usize>| {
            let before = lives.range(..=last).next_back();
            before.is_none_or(|(_, &end)| end < first)
        };
        let block = taken.iter().rposition(is_free).unwrap_or_else(|| {
            sizes.push(graph.memories[m].bytes);
            taken.push(BTreeMap::new());
            sizes.len() - 1
        });
        taken[block].insert(first, last);
        block_of[m] = Some(block);
    }
    (block_of, sizes)
}
