//! The record of one run of a checkpointed region: the tensors that the region depends on, and a hash that identifies
//! the computation.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, Weak};

use gradus_backend::Result;

use crate::Tensor;
use crate::autograd::graph::node::{Edge, Node};
use crate::autograd::pass::engine::key;
use crate::autograd::pass::queue::SeqHasher;
use crate::autograd::region::checksum::checksum;

/// Constants that a region creates are compared between its runs up to this size in bytes. Reading that much costs no
/// more than hashing the operation.
const SMALL: usize = 1 << 14;

/// The part of the graph that a region recorded, from its outputs back to the nodes that are older than the region.
pub(in crate::autograd) struct Record {
    /// The edges that lead out of the region or to leaves inside it, each once, in the order in which a walk from the
    /// outputs meets them.
    pub(in crate::autograd) across: Vec<Edge>,
    /// A hash of the operations, their parameters and their connections. Nodes are numbered in the order of the walk,
    /// so two records of the same computation have the same hash, regardless of what other threads do.
    pub(in crate::autograd) sum: u64,
    /// The checksums of the small constants that operations saved and that were created after the region began. The key
    /// is the index of the operation and the number of its input.
    constants: HashMap<(usize, usize), u64>,
    /// The nodes of the operations.
    nodes: Vec<Weak<Node>>,
}

impl Record {
    /// Records the part of the graph of `outputs` that comes after node number `before`.
    #[track_caller]
    pub(in crate::autograd) fn new(outputs: &[Tensor], before: u64) -> Result<Self> {
        let mut walk =
            Walk { before, across: vec![], stack: vec![], numbers: HashMap::default(), hash: DefaultHasher::new() };
        let (mut nodes, mut constants) = (vec![], HashMap::new());
        outputs.iter().for_each(|t| walk.edge(t.edge()));
        while let Some(node) = walk.stack.pop() {
            for (input, t) in node.kept_constants() {
                if t.storage().born() > before && t.numel() * t.dtype().size() <= SMALL {
                    constants.insert((nodes.len(), input), checksum(&t)?);
                }
            }
            nodes.push(Arc::downgrade(node));
            walk.node(node);
        }
        Ok(Record { sum: walk.hash.finish(), across: walk.across.into_iter().cloned().collect(), constants, nodes })
    }

    /// Called once the outputs have been dropped. Returns the operations that someone still holds: they belong to a
    /// part of the graph through which no gradient of the region passes.
    pub(in crate::autograd) fn left_behind(&self) -> impl Iterator<Item = Arc<Node>> {
        self.nodes.iter().filter_map(Weak::upgrade)
    }
}

/// The parts of the first run's record that are kept for comparison with the second run.
pub(in crate::autograd) struct Known {
    sum: u64,
    constants: HashMap<(usize, usize), u64>,
    /// For each edge in the first record's `across`, the input of the node that stands for the region; `None` for a
    /// leaf that the run created for itself.
    places: Vec<Option<usize>>,
}

impl Known {
    /// Keeps parts of the record of the first run, whose outputs must have been dropped. Also returns the input edges
    /// for the node that stands for the region: first the edges of the function's inputs (`None` if no output depends
    /// on the input), then the edges of the tensors that the function captured.
    pub(in crate::autograd) fn new(first: Record, inputs: &[&Tensor], before: u64) -> (Self, Vec<Option<Edge>>) {
        let mut behind = vec![None; inputs.len()];
        let mut passed = HashMap::new();
        for (at, edge) in inputs.iter().enumerate().filter_map(|(at, t)| Some((at, t.edge()?))) {
            passed.entry(key(edge)).or_insert(at);
        }
        let mut places = vec![];
        for edge in first.across {
            if edge.node.seq > before && Arc::strong_count(&edge.node) == 1 {
                places.push(None);
                continue;
            }
            let at = passed.get(&key(&edge)).copied().unwrap_or_else(|| {
                behind.push(None);
                behind.len() - 1
            });
            behind[at] = Some(edge);
            places.push(Some(at));
        }
        (Known { sum: first.sum, constants: first.constants, places }, behind)
    }

    /// Whether `second` records the same computation with the same input edges, in a run that began after node number
    /// `before`.
    pub(in crate::autograd) fn is(&self, second: &Record, inputs: &[Option<Edge>], before: u64) -> bool {
        let same = |(edge, place): (&Edge, &Option<usize>)| match place {
            Some(at) => inputs.get(*at).and_then(Option::as_ref).is_some_and(|e| e.is(edge)),
            None => edge.node.seq > before,
        };
        self.sum == second.sum
            && self.places.len() == second.across.len()
            && second.across.iter().zip(&self.places).all(same)
            // The second run may reuse constants of the first run. These are older than the second run and not in its
            // record.
            && second.constants.iter().all(|(which, sum)| self.constants.get(which) == Some(sum))
    }

    /// A hash of the computation that does not depend on the inputs.
    pub(in crate::autograd) fn identity(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (self.sum, &self.places).hash(&mut hash);
        hash.finish()
    }
}

struct Walk<'a> {
    before: u64,
    across: Vec<&'a Edge>,
    stack: Vec<&'a Arc<Node>>,
    /// The index in the record of a node inside the region, by `(number of the node, 0)`, or of an edge to another
    /// node, by `(number of the node, output + 1)`.
    numbers: HashMap<(u64, usize), usize, BuildHasherDefault<SeqHasher>>,
    hash: DefaultHasher,
}

impl<'a> Walk<'a> {
    fn edge(&mut self, edge: Option<&'a Edge>) {
        let Some(edge) = edge else { return self.add("constant") };
        let inner = edge.node.seq > self.before && !edge.node.is_leaf();
        let (fresh, key) = (self.numbers.len(), if inner { 0 } else { edge.output + 1 });
        let number = match self.numbers.entry((edge.node.seq, key)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(slot) => {
                if inner {
                    self.stack.push(&edge.node)
                } else {
                    self.across.push(edge)
                }
                *slot.insert(fresh)
            }
        };
        self.add((inner, number, edge.output));
    }

    fn node(&mut self, node: &'a Node) {
        self.add(&node.op);
        for spec in &node.outputs {
            self.add((spec.shape.dims(), spec.dtype));
        }
        self.add(node.hooks.get().map_or([0; 3], |hooks| hooks.living()));
        self.add(node.inputs.len());
        node.inputs.iter().for_each(|edge| self.edge(edge.as_ref()));
    }

    fn add(&mut self, what: impl Hash) {
        what.hash(&mut self.hash);
    }
}
