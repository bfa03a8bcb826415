//! Gradients on their way: that nobody overwrites one, and that those given to the user are nobody else's.
//!
//! Rules pass gradients on without a copy, so several that wait, a seed and one that was found can be the same bytes. A
//! hook, the code of a custom operation or another thread could write there; what it would change is then an error.

use std::collections::HashSet;

use gradus_backend::{Error, ErrorKind, Result};

use super::node::Node;
use super::saved::overwritten;
use crate::{Storage, Tensor};

/// The gradient of output `output` of a node is what it was when its storage had `version`.
#[inline]
pub(super) fn unchanged(node: &Node, output: usize, g: &Tensor, version: u64) -> Result<()> {
    if g.storage().version() == version { Ok(()) } else { changed(node, output, g, version) }
}

/// [`unchanged`] for all outputs that a gradient arrived for.
#[inline]
pub(super) fn all_unchanged(node: &Node, grads: &[Option<Tensor>], versions: &[u64]) -> Result<()> {
    for (output, (g, &version)) in grads.iter().zip(versions).enumerate() {
        if let Some(g) = g {
            unchanged(node, output, g, version)?;
        }
    }
    Ok(())
}

#[cold]
fn changed(node: &Node, output: usize, g: &Tensor, version: u64) -> Result<()> {
    let Some(write) = g.storage().overwritten(version, &g.byte_span()) else { return Ok(()) };
    let m = format!("{} overwrote the gradient of output {output} of {} during the pass", write.op, node.name());
    let e = g.describe(Error::new(ErrorKind::Autograd, "backward", m), "gradient");
    Err(overwritten(e, node.name(), node.location(), &write, version)
        .help("gradients share memory while a pass runs: let the hook give a new tensor, g.mul(..)? instead of g.mul_(..)?"))
}

/// Makes each gradient memory of its own, so that a write into one changes no other, no seed and no value of the graph.
/// Seldom a copy: most gradients are already.
pub(super) fn separate<'a>(
    found: impl IntoIterator<Item = &'a mut Tensor>,
    seeds: &[usize],
    create_graph: bool,
) -> Result<()> {
    let mut seen: HashSet<usize> = HashSet::new();
    for g in found {
        // With create_graph, the graph of the gradients holds them too, and checks them.
        let shared = if create_graph {
            seeds.contains(&address(g.storage())) || !seen.insert(address(g.storage()))
        } else {
            !g.is_unshared()
        };
        if shared {
            *g = g.copy()?;
        }
    }
    Ok(())
}

/// Tells storages apart that live at the same time.
pub(super) fn address(storage: &std::sync::Arc<Storage>) -> usize {
    std::sync::Arc::as_ptr(storage) as usize
}
