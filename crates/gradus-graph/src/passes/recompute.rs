//! Recomputation: a value is computed again where it is next read, instead of being kept until then.

use gradus_tensor::ops::{Effect, Op};

use super::reuse::reuse_inputs;
use crate::assign::{assigned, lifetimes, peak};
use crate::graph::{Graph, Memory, Node, Origin, Place};

/// The part of the estimated time of a step that [`recompute`] may add if there is no limit on memory.
const CHEAP: f64 = 0.01;

/// A candidate must lower the peak by this part, unless there is a limit on memory.
const WORTH: f64 = 0.005;

/// The largest number of operations that are added, by the number of those that are there.
const ADDED: usize = 2;

/// The largest number of candidates that are tried, by the number of nodes.
const WORK: usize = 1_000_000;

/// How much memory temporary values may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryLimit {
    /// Values are computed again if that costs next to no time: elementwise results and normalised values, up to an
    /// estimated hundredth of the time of the step. Weights are copied where that makes products and convolutions faster.
    #[default]
    Cheap,
    /// Temporary values are to take at most this many bytes. Any value may be computed again, the cheapest first. If
    /// the limit cannot be kept, the step takes as little as recomputation can achieve. Weights are not copied, and
    /// elementwise operations are joined only if nothing else reads the value between them.
    Bytes(usize),
}

/// Shortens the lives of values at the point where most memory is needed: a value that is read before and after that
/// point, but not there, is computed again before it is next read. The results are the same, since the operation and
/// the values that it reads are.
pub fn recompute(graph: &mut Graph, limit: MemoryLimit) {
    let mut left = match limit {
        MemoryLimit::Cheap => CHEAP * graph.nodes.iter().map(|node| cost(graph, node)).sum::<f64>(),
        MemoryLimit::Bytes(_) => f64::INFINITY,
    };
    let mut refused = vec![false; graph.memories.len()];
    let largest = (ADDED + 1) * graph.nodes.len();
    for _ in 0..WORK / graph.nodes.len().max(1) {
        let lives = lifetimes(graph);
        let most = peak(graph, &lives);
        if graph.nodes.len() >= largest || matches!(limit, MemoryLimit::Bytes(bytes) if blocks(graph) <= bytes) {
            return;
        }
        let candidates = (0..graph.memories.len()).filter(|&m| !refused[m]);
        let candidates = candidates.filter_map(|m| Candidate::new(graph, &lives, m, most.at));
        let allowed = candidates.filter(|c| match limit {
            MemoryLimit::Cheap => c.is_cheap(graph) && c.cost <= left && c.gain as f64 >= WORTH * most.bytes as f64,
            MemoryLimit::Bytes(_) => true,
        });
        let by_score = |a: &Candidate, b: &Candidate| a.score().total_cmp(&b.score());
        let Some(best) = allowed.max_by(by_score) else { return };
        let before = graph.clone();
        best.apply(graph);
        refused.resize(graph.memories.len(), false);
        let now = peak(graph, &lifetimes(graph));
        // Less memory is needed, or at fewer nodes. So this comes to an end.
        if (now.bytes, now.nodes) >= (most.bytes, most.nodes) {
            *graph = before;
            refused.truncate(graph.memories.len());
            refused[best.memory] = true;
        } else {
            left -= best.cost;
        }
    }
}

/// The bytes of the blocks that the plan will have: between their values there may be gaps, so these can be more than the
/// peak.
fn blocks(graph: &Graph) -> usize {
    let mut graph = graph.clone();
    reuse_inputs(&mut graph);
    assigned(&graph).1.iter().sum()
}

/// A value that can be computed again.
struct Candidate {
    memory: usize,
    /// The node that computes it.
    writer: usize,
    /// The node before which it is computed again.
    next: usize,
    /// The bytes that are no longer needed at the peak.
    gain: usize,
    /// The estimated time of the operation, in nanoseconds.
    cost: f64,
}

impl Candidate {
    fn new(graph: &Graph, lives: &[Option<(usize, usize)>], memory: usize, at: usize) -> Option<Candidate> {
        let (writer, last) = lives[memory]?;
        if writer >= at || last <= at || !graph.is_temporary(memory) {
            return None;
        }
        let node = graph.nodes.get(writer)?;
        let is_pure = node.op.effect() == Effect::Pure && node.source.is_none() && node.repeats.is_none();
        let writes = node.outputs.iter().any(|p| p.memory == memory);
        if !is_pure || node.in_place || node.op.can_fail() || !writes || matches!(node.op, Op::Rule(_)) {
            return None;
        }
        let reads = |node: &Node| node.inputs.iter().any(|p| p.memory == memory);
        if graph.nodes[at].outputs.iter().any(|p| p.memory == memory) || reads(&graph.nodes[at]) {
            return None;
        }
        let next = at + 1 + graph.nodes[at + 1..].iter().position(reads)?;
        // Neither the value nor what it is computed from changes.
        let fixed = |m: usize| {
            let between = &graph.nodes[writer + 1..=last];
            !between.iter().any(|n| n.outputs.iter().any(|p| p.memory == m))
        };
        let mut sources: Vec<usize> = node.inputs.iter().map(|p| p.memory).collect();
        sources.sort_unstable();
        sources.dedup();
        if !fixed(memory) || !sources.iter().all(|&m| fixed(m)) {
            return None;
        }
        let ends = |&&m: &&usize| graph.is_temporary(m) && lives[m].is_some_and(|(_, last)| last < at);
        let extended: usize = sources.iter().filter(ends).map(|&m| graph.memories[m].bytes).sum();
        let gain = graph.memories[memory].bytes.checked_sub(extended).filter(|&gain| gain > 0)?;
        Some(Candidate { memory, writer, next, gain, cost: cost(graph, node) })
    }

    fn score(&self) -> f64 {
        self.gain as f64 / self.cost.max(1.0)
    }

    fn is_cheap(&self, graph: &Graph) -> bool {
        matches!(graph.nodes[self.writer].op, Op::Map(_) | Op::Normalize(_) | Op::Contiguous(_))
    }

    /// Computes the value again. The operation writes new memory, which later nodes read.
    fn apply(&self, graph: &mut Graph) {
        let mut again = graph.nodes[self.writer].clone();
        for p in &mut again.outputs {
            let bytes = graph.memories[p.memory].bytes;
            graph.memories.push(Memory { origin: Origin::Computed, bytes, is_steady: false });
            let memory = graph.memories.len() - 1;
            if p.memory == self.memory {
                let later = graph.nodes[self.next..].iter_mut().flat_map(|n| &mut n.inputs);
                later.filter(|q| q.memory == self.memory).for_each(|q| q.memory = memory);
            }
            *p = Place { memory, ..*p };
        }
        graph.nodes.insert(self.next, again);
        for node in &mut graph.nodes {
            node.repeats = node.repeats.map(|r| if r >= self.next { r + 1 } else { r });
        }
    }
}

/// The estimated time of an operation on a processor, in nanoseconds: its bytes, and its arithmetic. Only ratios matter.
fn cost(graph: &Graph, node: &Node) -> f64 {
    let bytes = |p: &Place| (p.layout.numel() * p.dtype.size()).min(graph.memories[p.memory].bytes) as f64;
    let moved: f64 = node.inputs.iter().chain(&node.outputs).map(bytes).sum();
    let results: f64 = node.outputs.iter().map(|p| p.layout.numel() as f64).sum();
    let elements = |i: usize| node.inputs.get(i).map_or(1.0, |p| p.layout.numel() as f64);
    // The size of an axis, counted from the end if it is negative.
    let size = |i: usize, axis: isize| {
        let dims = node.inputs.get(i).map_or(&[][..], |p| p.layout.dims());
        let at = if axis < 0 { dims.len().checked_add_signed(axis) } else { Some(axis as usize) };
        at.and_then(|at| dims.get(at)).map_or(1.0, |&n| n.max(1) as f64)
    };
    let products = match &node.op {
        Op::Map(map) => 2.0 * results * map.kernel.insts().len() as f64,
        Op::Mapped(mapped) => {
            let rank = node.inputs.iter().map(|p| p.layout.rank()).max().unwrap_or(0);
            let longest = |axis: usize| (0..node.inputs.len()).map(|i| size(i, -1 - axis as isize)).fold(1.0, f64::max);
            let elements: f64 = (0..rank).map(longest).product();
            2.0 * elements * mapped.map().kernel.insts().len() as f64 + 4.0 * elements
        }
        Op::Matmul(_) | Op::MatmulI32(_) | Op::Linear(_) => results * size(0, -1),
        Op::Attention(_) => results * 4.0 * size(1, -2),
        Op::AttentionBackward(_) => results * 4.0 * size(1, -2),
        Op::Conv(_) | Op::ConvBackwardInput(_) => results * elements(1) / size(1, 0),
        Op::ConvBackwardWeight(_) => results * elements(1) / size(1, 1),
        _ => 4.0 * results,
    };
    moved / 16.0 + products / 32.0
}
