//! The nodes that wait for gradients in a backward pass.

use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use gradus_backend::Result;
use smallvec::SmallVec;

use super::node::{Edge, Node};
use super::waiting::unchanged;
use crate::Tensor;

/// Something for outputs of nodes: by the number of the node, and that of the output.
pub(super) type ByEdge<T> = HashMap<(u64, usize), T, BuildHasherDefault<SeqHasher>>;

/// Numbers of nodes.
pub(super) type Seqs = HashSet<u64, BuildHasherDefault<SeqHasher>>;

/// A node that waits for gradients.
pub(super) struct Pending {
    pub(super) node: Arc<Node>,
    pub(super) grads: SmallVec<[Option<Tensor>; 1]>,
    /// Those of the gradients' storages when they arrived; [`ZERO`] where nothing but derivatives of zero did.
    pub(super) versions: SmallVec<[u64; 1]>,
}

/// In place of a version: the gradient is zero, and has no tensor.
pub(super) const ZERO: u64 = u64::MAX;

impl Pending {
    #[inline]
    fn new(edge: &Edge) -> Self {
        let mut waiting = Pending { node: edge.node.clone(), grads: SmallVec::new(), versions: SmallVec::new() };
        for _ in 0..edge.node.outputs.len() {
            waiting.grads.push(None);
            waiting.versions.push(0);
        }
        waiting
    }

    #[inline]
    fn add(&mut self, output: usize, g: Tensor, version: u64, known: bool) -> Result<()> {
        let (slot, held) = (&mut self.grads[output], &mut self.versions[output]);
        let Some(sum) = slot.take() else {
            (*slot, *held) = (Some(g), version);
            return Ok(());
        };
        let total = sum.add(&g)?;
        if known {
            unchanged(&self.node, output, &sum, *held)?;
            unchanged(&self.node, output, &g, version)?;
        }
        *held = total.storage().version();
        *slot = Some(total);
        Ok(())
    }
}

/// The nodes that wait, the last recorded first.
#[derive(Default)]
pub(super) struct Queue {
    order: BinaryHeap<u64>,
    pending: HashMap<u64, Pending, BuildHasherDefault<SeqHasher>>,
}

impl Queue {
    /// Adds a gradient, which is what it is at a version of its storage, to what has arrived at an edge. `known` says whether
    /// somebody could have written into one.
    pub(super) fn send(&mut self, edge: &Edge, g: Tensor, version: u64, known: bool) -> Result<()> {
        match self.pending.entry(edge.node.seq) {
            Entry::Occupied(mut waiting) => waiting.get_mut().add(edge.output, g, version, known),
            Entry::Vacant(place) => {
                self.order.push(edge.node.seq);
                place.insert(Pending::new(edge)).add(edge.output, g, version, known)
            }
        }
    }

    /// Notes that a derivative of zero arrived at an edge.
    #[cold]
    pub(super) fn send_zero(&mut self, edge: &Edge) {
        let waiting = self.pending.entry(edge.node.seq).or_insert_with(|| {
            self.order.push(edge.node.seq);
            Pending::new(edge)
        });
        if waiting.grads[edge.output].is_none() {
            waiting.versions[edge.output] = ZERO;
        }
    }

    pub(super) fn pop(&mut self) -> Option<Pending> {
        self.pending.remove(&self.order.pop()?)
    }
}

/// Hashes the number of a node: consecutive ones are spread by a multiplication.
#[derive(Default)]
pub(super) struct SeqHasher(u64);

impl Hasher for SeqHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
