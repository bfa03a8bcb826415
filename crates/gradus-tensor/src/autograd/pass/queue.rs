//! The nodes of a backward pass that are waiting for gradients.

use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use gradus_backend::Result;
use smallvec::SmallVec;

use crate::Tensor;
use crate::autograd::graph::node::{Edge, Node};
use crate::autograd::pass::waiting::unchanged;
use crate::autograd::{is_grad_enabled, is_observed};
use crate::ops::table::ADD;
use crate::ops::{Arg, map_over};

/// A map from outputs of nodes, each identified by the number of the node and the number of the output.
pub(in crate::autograd) type ByEdge<T> = HashMap<(u64, usize), T, BuildHasherDefault<SeqHasher>>;

/// A set of node numbers.
pub(in crate::autograd) type Seqs = HashSet<u64, BuildHasherDefault<SeqHasher>>;

/// A node that is waiting for gradients.
pub(in crate::autograd) struct Pending {
    pub(in crate::autograd) node: Arc<Node>,
    pub(in crate::autograd) grads: SmallVec<[Option<Tensor>; 1]>,
    /// The versions of the gradients' storages on arrival; [`ZERO`] if only derivatives of zero have arrived.
    pub(in crate::autograd) versions: SmallVec<[u64; 1]>,
}

/// Used instead of a version if the gradient is zero and has no tensor.
pub(in crate::autograd) const ZERO: u64 = u64::MAX;

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
    #[track_caller]
    fn add(&mut self, output: usize, g: Tensor, version: u64, exposed: bool) -> Result<()> {
        let (slot, held) = (&mut self.grads[output], &mut self.versions[output]);
        let Some(sum) = slot.take() else {
            (*slot, *held) = (Some(g), version);
            return Ok(());
        };
        let total = total(&sum, &g)?;
        if exposed {
            unchanged(&self.node, output, &sum, *held)?;
            unchanged(&self.node, output, &g, version)?;
        }
        *held = total.storage().version();
        *slot = Some(total);
        Ok(())
    }
}

/// The sum of two gradients. If nobody else holds one of them, the sum is written into its memory.
#[track_caller]
fn total(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if is_grad_enabled() || is_observed() || a.spec() != b.spec() {
        return a.add(b);
    }
    match [a, b].into_iter().find(|g| g.is_spare()) {
        Some(g) => map_over(g, &ADD.kernel(g.dtype())?, &[Arg::Tensor(0), Arg::Tensor(1)], &[a, b]),
        None => a.add(b),
    }
}

/// The waiting nodes, ordered so that the last one recorded comes first.
#[derive(Default)]
pub(in crate::autograd) struct Queue {
    /// If set, a node recorded after all those in `rest`. A chain of nodes uses only this slot.
    next: Option<Pending>,
    /// The nodes of `rest`, and those of leaves that have left it early.
    order: BinaryHeap<u64>,
    rest: HashMap<u64, Pending, BuildHasherDefault<SeqHasher>>,
    /// Leaves that do not wait for their turn: they come as soon as no node that uses them is left. The key is the node
    /// that was the first to use them, which runs last.
    early: BTreeMap<u64, Vec<u64>>,
}

impl Queue {
    /// Adds a gradient to the sum that has arrived at an edge. `version` is the version of its storage at which the
    /// gradient is valid. `exposed` says whether anyone else could have written into a gradient.
    #[track_caller]
    pub(in crate::autograd) fn send(&mut self, edge: &Edge, g: Tensor, version: u64, exposed: bool) -> Result<()> {
        self.at(edge).add(edge.output, g, version, exposed)
    }

    /// Records that a derivative of zero arrived at an edge.
    #[cold]
    pub(in crate::autograd) fn send_zero(&mut self, edge: &Edge) {
        let waiting = self.at(edge);
        if waiting.grads[edge.output].is_none() {
            waiting.versions[edge.output] = ZERO;
        }
    }

    /// Lets leaves come early; see [`Queue::early`].
    pub(in crate::autograd) fn hurry(&mut self, first_uses: BTreeMap<u64, Vec<u64>>) {
        self.early = first_uses;
    }

    pub(in crate::autograd) fn pop(&mut self) -> Option<Pending> {
        if !self.early.is_empty()
            && let Some(leaf) = self.pop_early()
        {
            return Some(leaf);
        }
        if let Some(next) = self.next.take() {
            return Some(next);
        }
        loop {
            let seq = self.order.pop()?;
            if let Some(waiting) = self.rest.remove(&seq) {
                return Some(waiting);
            }
        }
    }

    /// A leaf whose users have all run.
    #[cold]
    fn pop_early(&mut self) -> Option<Pending> {
        let upcoming = self.upcoming();
        while let Some(mut entry) = self.early.last_entry().filter(|entry| Some(*entry.key()) > upcoming) {
            match entry.get_mut().pop() {
                Some(leaf) => {
                    if let Some(waiting) = self.rest.remove(&leaf) {
                        return Some(waiting);
                    }
                }
                None => drop(entry.remove()),
            }
        }
        None
    }

    /// The highest number that may be waiting.
    #[inline]
    fn upcoming(&self) -> Option<u64> {
        self.next.as_ref().map(|p| p.node.seq).or_else(|| self.order.peek().copied())
    }

    /// The entry for the node of an edge, created if there is none yet.
    #[inline]
    fn at(&mut self, edge: &Edge) -> &mut Pending {
        let seq = edge.node.seq;
        let last = self.upcoming();
        if last < Some(seq) {
            if let Some(earlier) = self.next.take() {
                self.order.push(earlier.node.seq);
                self.rest.insert(earlier.node.seq, earlier);
            }
            return self.next.insert(Pending::new(edge));
        }
        match &mut self.next {
            Some(next) if last == Some(seq) => next,
            _ => self.rest.entry(seq).or_insert_with(|| {
                self.order.push(seq);
                Pending::new(edge)
            }),
        }
    }
}

/// Leaves the number of a node unmixed, so that nodes recorded one after the other have neighbouring hashes. Only the
/// highest bits, which the hash table uses as a tag, are mixed.
#[derive(Default)]
pub(in crate::autograd) struct SeqHasher(u64);

impl Hasher for SeqHasher {
    fn finish(&self) -> u64 {
        const TAG: u64 = !(u64::MAX >> 7);
        self.0 & !TAG | self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) & TAG
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = self.0.wrapping_mul(5).wrapping_add(n);
    }
}
