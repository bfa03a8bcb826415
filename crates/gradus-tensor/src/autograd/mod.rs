//! The recorded graph and the engine that runs it backwards.
//!
//! There is no global tape: the graph hangs off the tensors. A tracked tensor holds an edge to the [`Node`] that
//! made it; a node holds edges to the nodes of its inputs and the values that its gradient needs, each with the version
//! that its storage had. Traversal and drop are iterative, so that depth is limited by memory only.

mod access;
mod checkpoint;
mod custom;
mod engine;
mod functional;
mod gradcheck;
mod hooks;
mod inspect;
mod mode;
mod node;
mod saved;

pub(crate) use access::{birth, note_access};
pub use checkpoint::{checkpoint, checkpoint_with};
pub use custom::{CustomOp, apply_custom};
pub use engine::{BackwardOptions, Gradients, grad};
pub use functional::{Tensors, hessian, hvp, jacobian, jvp, vjp};
pub use gradcheck::{gradcheck, gradgradcheck};
pub use hooks::Hook;
pub use inspect::{GraphStats, OpStats};
pub(crate) use mode::notes_access;
pub use mode::{GradModeGuard, enable_grad, is_grad_enabled, no_grad};
pub(crate) use node::Edge;
pub use node::Node;
pub use saved::Context;
pub use saved::Keep;
pub(crate) use saved::Saved;
