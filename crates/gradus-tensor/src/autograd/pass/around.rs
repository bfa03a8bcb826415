//! The code that runs around a node in a backward pass: the node's hooks, which may change gradients, and the observer.

use gradus_backend::Result;

use super::hooks::Hooks;
use super::queue::ZERO;
use super::waiting::version_of;
use crate::Tensor;
use crate::autograd::diagnose::observe::{Pass as Observed, UserCode};
use crate::autograd::graph::node::Node;
use crate::autograd::graph::saved::Context;
use crate::tensor::Spec;

/// Gradients and the versions of their storages.
type Grads<'g> = (&'g [Option<Tensor>], &'g [u64]);

/// The hooks and the observer around one node.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) node: &'a Node,
    pub(super) hooks: Option<&'a Hooks>,
    pub(super) observer: Option<&'a Observed>,
    pub(super) create_graph: bool,
}

impl Around<'_> {
    fn user_code(&self) -> Option<UserCode> {
        self.observer.map(|o| o.user_code(self.node))
    }

    fn hooked(&self, of: &str, grads: &[Option<Tensor>]) -> Result<()> {
        self.observer.map_or(Ok(()), |o| o.hooked(self.node, of, grads))
    }

    /// Called when the gradients of the node's outputs are complete. Runs the hooks of the tensors.
    #[track_caller]
    pub(super) fn complete(&self, grads: &mut [Option<Tensor>], versions: &mut [u64]) -> Result<()> {
        let told = |grads: &[Option<Tensor>]| self.observer.map_or(Ok(()), |o| o.complete(self.node, grads));
        let Some(hooks) = self.hooks else { return told(grads) };
        // If the derivative of an output is zero, its hooks receive a tensor of zeros, which they may replace.
        for (output, version) in versions.iter_mut().enumerate().filter(|(_, v)| **v == ZERO) {
            grads[output] = Some(zero(self.node, output)?);
            *version = 0;
        }
        told(grads)?;
        let user = self.user_code();
        hooks.on_tensors(self.node, grads, versions, self.create_graph)?;
        drop(user);
        self.hooked("output", grads)
    }

    /// Called before the node's rule runs on these gradients.
    #[track_caller]
    pub(super) fn before(&self, grads: &mut [Option<Tensor>], versions: &mut [u64]) -> Result<()> {
        let Some(hooks) = self.hooks else { return Ok(()) };
        let user = self.user_code();
        hooks.before(self.node, grads, versions, self.create_graph)?;
        drop(user);
        self.hooked("output", grads)
    }

    /// Returns the guard that is held while the node's rule runs.
    pub(super) fn rule(&self) -> Option<UserCode> {
        self.observer.and_then(|o| o.rule(self.node))
    }

    /// Called after the node's rule has computed the gradients `behind` of its inputs. Returns their versions if the
    /// node has hooks, which may have changed them.
    #[track_caller]
    pub(super) fn after(
        &self,
        ctx: &Context<'_>,
        behind: &mut [Option<Tensor>],
        (grads, versions): Grads<'_>,
    ) -> Result<Option<Vec<u64>>> {
        let Some(hooks) = self.hooks else { return Ok(None) };
        behind.iter_mut().enumerate().filter(|(i, _)| !ctx.needs(*i)).for_each(|(_, g)| *g = None);
        let user = self.user_code();
        let mut at: Vec<u64> = behind.iter().map(|g| version_of(g.as_ref(), grads, versions)).collect();
        hooks.after(self.node, (behind, &mut at), (grads, versions), |i| ctx.needs(i), self.create_graph)?;
        drop(user);
        self.hooked("input", behind)?;
        Ok(Some(at))
    }
}

/// The gradient of an output whose derivative is zero: a tensor of zeros.
#[track_caller]
pub(super) fn zero(node: &Node, output: usize) -> Result<Tensor> {
    let Spec { shape, dtype } = node.outputs[output];
    Tensor::zeros(shape, dtype, &node.device)
}
