//! Gradients in flight: they must not be overwritten, and those that are returned to the user share no memory with
//! others.
//!
//! Rules pass gradients on without copying, so several gradients in flight, a seed and a result may share the same
//! bytes. A hook, a custom operation or another thread could write there. Using a gradient after such a write is an
//! error.

use std::collections::HashSet;
use std::sync::Arc;

use gradus_backend::{Error, ErrorKind, Result};

use crate::autograd::graph::node::{AtLineOf, Node};
use crate::autograd::graph::saved::overwritten;
use crate::autograd::graph::untracked::Untracked;
use crate::autograd::pass::queue::ByEdge;
use crate::{Storage, Tensor};

/// Fails if the gradient of output `output` of a node was overwritten since its storage had `version`.
#[inline]
#[track_caller]
pub(in crate::autograd) fn unchanged(node: &Node, output: usize, g: &Tensor, version: u64) -> Result<()> {
    if g.storage().version() == version { Ok(()) } else { changed(node, output, g, version) }
}

/// [`unchanged`] for all outputs for which a gradient has arrived.
#[inline]
#[track_caller]
pub(in crate::autograd) fn all_unchanged(node: &Node, grads: &[Option<Tensor>], versions: &[u64]) -> Result<()> {
    for (output, (g, &version)) in grads.iter().zip(versions).enumerate() {
        if let Some(g) = g {
            unchanged(node, output, g, version)?;
        }
    }
    Ok(())
}

#[cold]
#[track_caller]
fn changed(node: &Node, output: usize, g: &Tensor, version: u64) -> Result<()> {
    let Some(write) = g.overwritten(version) else { return Ok(()) };
    let m = format!("{} overwrote the gradient of output {output} of {} during the pass", write.op, node.name());
    let e = g.describe(Error::new(ErrorKind::Autograd, "backward", m), "gradient");
    let value = format!("gradient of output {output}");
    Err(overwritten(e, node.name(), node.location(), value, &write, version).help(
        "gradients share memory while a pass runs: let the hook give a new tensor, g.mul(..)? instead of g.mul_(..)?",
    ))
}

/// A gradient that the user requested, and the version that its storage had when the gradient was complete.
pub(in crate::autograd) struct Found {
    pub(in crate::autograd) node: Arc<Node>,
    pub(in crate::autograd) output: usize,
    pub(in crate::autograd) gradient: Tensor,
    pub(in crate::autograd) version: u64,
}

/// The version of its storage at which a gradient returned by a node is valid. This is the current version, unless the
/// node passed on a gradient that it had received: then it is the version noted on arrival.
#[inline]
pub(in crate::autograd) fn version_of(g: Option<&Tensor>, given: &[Option<Tensor>], versions: &[u64]) -> u64 {
    let Some(g) = g else { return 0 };
    let same = |old: &&Option<Tensor>| old.as_ref().is_some_and(|old| Arc::ptr_eq(old.storage(), g.storage()));
    let at = given.iter().position(|old| same(&old)).and_then(|i| versions.get(i));
    at.copied().unwrap_or_else(|| g.storage().version())
}

/// The gradients that a pass returns to the user. Each has memory of its own, so that writing into one changes no other
/// gradient, no seed and no value of the graph. Most gradients already have their own memory and are not copied. It is
/// an error if a gradient was written after it was complete. `foreign` says whether hooks or user rules ran, since
/// these may still hold the tensors that they returned.
#[track_caller]
pub(in crate::autograd) fn unshared(
    found: Vec<Found>,
    seeds: &[Tensor],
    create_graph: bool,
    foreign: bool,
) -> Result<ByEdge<Tensor>> {
    let mut seen: HashSet<*const Storage> = HashSet::new();
    if create_graph {
        seen.extend(seeds.iter().map(|seed| Arc::as_ptr(seed.storage())));
    }
    let mut given = ByEdge::with_capacity_and_hasher(found.len(), Default::default());
    for Found { node, output, gradient, version } in found {
        // With `create_graph`, the graph of the gradients saves these tensors too, and checks their versions.
        let shared = match create_graph {
            true => foreign || !seen.insert(Arc::as_ptr(gradient.storage())),
            false => !gradient.is_unshared(),
        };
        // The gradient's own elements must not overlap either, because in-place operations refuse such a tensor.
        let shared = shared || (!gradient.is_contiguous() && gradient.layout().overlaps_itself());
        let own = if shared {
            let _line = AtLineOf::new(&node);
            gradient.copy()?
        } else {
            gradient.clone()
        };
        unchanged(&node, output, &gradient, version)?;
        let own = if own.requires_grad() { own } else { own.untracked(Untracked::Gradient) };
        given.insert((node.seq, output), own);
    }
    Ok(given)
}
