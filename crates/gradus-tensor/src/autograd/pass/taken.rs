//! [`take_gradients`]: gradients of leaves that leave a backward pass as soon as they are complete.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use gradus_backend::{Error, ErrorKind, Here, Result};

use crate::Tensor;
use crate::autograd::beside_in_step;
use crate::autograd::graph::node::{Edge, Node};
use crate::autograd::pass::around::zero;
use crate::autograd::pass::queue::{ByEdge, Seqs, ZERO};
use crate::autograd::pass::waiting::Found;

/// Receives the number of a leaf and its gradient.
pub type Take = dyn Fn(usize, &Tensor) -> Result<()>;

/// Receives the complete gradients of some leaves.
pub(in crate::autograd) struct Taker {
    /// The numbers of the leaves.
    leaves: HashMap<(u64, usize), usize>,
    take: Rc<Take>,
}

thread_local! {
    static TAKER: RefCell<Option<Rc<Taker>>> = const { RefCell::new(None) };
}

/// Puts the outer taker back when it is dropped.
struct Outer(Option<Rc<Taker>>);

impl Drop for Outer {
    fn drop(&mut self) {
        drop(TAKER.replace(self.0.take()));
    }
}

/// Runs `f`. Every [`backward`](Tensor::backward) of this thread in it calls `take` with the gradient of a leaf and its
/// number in `leaves` as soon as the gradient is complete, and does not return that gradient. So gradients of a large
/// model need not all be there at once. `take` may read the gradient, not write it, and nothing that it does is
/// recorded; its error ends the pass. In a captured step, a replay repeats its operations. A leaf that is not reached is
/// not taken. Inside, an outer `take_gradients` has no effect.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::{cell::Cell, rc::Rc, sync::Arc};
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let leaf = |value: f32| Tensor::scalar(value, &device)?.with_grad();
/// let (a, b) = (leaf(2.0)?, leaf(3.0)?);
/// let seen = Rc::new(Cell::new(0.0));
/// let sum = seen.clone();
/// let take = move |_: usize, gradient: &Tensor| Ok(sum.set(sum.get() + gradient.item()?));
/// let rest = autograd::take_gradients(&[&a], Rc::new(take), || a.mul(&b)?.backward())??;
/// assert!(seen.get() == 3.0 && rest.get(&a).is_none() && rest.get(&b).is_some());
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Autograd`] if a tensor of `leaves` is none, or requires no gradient.
#[track_caller]
pub fn take_gradients<R>(leaves: &[&Tensor], take: Rc<Take>, f: impl FnOnce() -> R) -> Result<R> {
    let number = |(i, leaf): (usize, &&Tensor)| match leaf.edge() {
        Some(edge) if leaf.is_leaf() => Ok(((edge.node.seq, edge.output), i)),
        _ => {
            let m = format!("tensor {i} is no leaf that requires a gradient");
            Err(leaf.describe(Error::new(ErrorKind::Autograd, "take_gradients", m), "leaf"))
        }
    };
    let leaves = leaves.iter().enumerate().map(number).collect::<Result<_>>().here()?;
    let _outer = Outer(TAKER.replace(Some(Rc::new(Taker { leaves, take }))));
    Ok(f())
}

impl Taker {
    /// The innermost one of this thread.
    pub(in crate::autograd) fn of_thread() -> Option<Rc<Taker>> {
        TAKER.with_borrow(Clone::clone)
    }

    /// The numbers of the leaves that nodes behind `roots` use, by the number of the first of these nodes. `runs` says
    /// which nodes take part.
    pub(in crate::autograd) fn first_uses<'a>(
        &self,
        roots: impl Iterator<Item = &'a Edge>,
        runs: impl Fn(&Node) -> bool,
    ) -> BTreeMap<u64, Vec<u64>> {
        let mut first: ByEdge<u64> = ByEdge::default();
        let mut seen = Seqs::default();
        let mut stack: Vec<&Arc<Node>> = roots.map(|edge| &edge.node).collect();
        while let Some(node) = stack.pop() {
            if !runs(node) || !seen.insert(node.seq) {
                continue;
            }
            for edge in node.inputs.iter().flatten() {
                let leaf = (edge.node.seq, edge.output);
                if self.leaves.contains_key(&leaf) {
                    let user = first.entry(leaf).or_insert(node.seq);
                    *user = node.seq.min(*user);
                } else {
                    stack.push(&edge.node);
                }
            }
        }
        let mut uses: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        first.into_iter().for_each(|((leaf, _), user)| uses.entry(user).or_default().push(leaf));
        // In the order of the leaves, whatever the order of the map.
        uses.values_mut().for_each(|leaves| leaves.sort_unstable());
        uses
    }

    /// Takes the gradient of an output of a node, if that is one of the leaves. Returns whether it is.
    #[track_caller]
    pub(in crate::autograd) fn take(&self, output: (u64, usize), gradient: &Tensor) -> Result<bool> {
        let Some(&leaf) = self.leaves.get(&output) else { return Ok(false) };
        let _mode = beside_in_step();
        (self.take)(leaf, &gradient.detach()).here()?;
        Ok(true)
    }
}

/// Collects the complete gradients that the caller of the pass requested, except those that `taker` takes.
#[track_caller]
pub(in crate::autograd) fn collect(
    found: &mut Vec<Found>,
    node: &Arc<Node>,
    grads: &[Option<Tensor>],
    versions: &[u64],
    asked: &impl Fn(&Node, usize) -> bool,
    taker: Option<&Taker>,
) -> Result<()> {
    for (output, g) in grads.iter().enumerate() {
        let (gradient, version) = match g {
            Some(g) if asked(node, output) => (g.clone(), versions[output]),
            None if versions[output] == ZERO && asked(node, output) => (zero(node, output)?, 0),
            _ => continue,
        };
        if let Some(taker) = taker
            && taker.take((node.seq, output), &gradient)?
        {
            continue;
        }
        found.push(Found { node: node.clone(), output, gradient, version });
    }
    Ok(())
}
