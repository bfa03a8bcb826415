//! The recorded graph and the engine that runs it backwards.
//!
//! There is no global tape: the graph hangs off the tensors. A tracked tensor holds an edge to the [`Node`] that
//! made it; a node holds edges to the nodes of its inputs and the values that its gradient needs, each with the version
//! that its storage had. Traversal and drop are iterative, so that depth is limited by memory only; how deep
//! functions of the user run inside each other is [limited](MAX_NESTING).

mod access;
mod checkpoint;
mod checksum;
mod custom;
mod draws;
mod engine;
mod explain;
mod functional;
mod gradcheck;
mod guarded;
mod hooks;
mod inspect;
mod mode;
mod nesting;
mod node;
mod nonfinite;
mod observe;
mod packed;
mod places;
mod queue;
mod range;
mod record;
mod saved;
mod spread;
mod untracked;
mod vmap;
mod waiting;

pub(crate) use access::{birth, note_access, note_view};
pub use checkpoint::{checkpoint, checkpoint_with, once};
pub use custom::{CustomOp, apply_custom};
pub(crate) use draws::note_draw;
pub use engine::{BackwardOptions, Gradients, grad};
pub use explain::{Dependence, explain_grad};
pub use functional::{Tensors, hessian, hvp, jacobian, jvp, vjp};
pub use gradcheck::{GradcheckOptions, gradcheck, gradcheck_with, gradgradcheck, gradgradcheck_with};
pub(crate) use guarded::{Guarded, before_overwrite};
pub use hooks::Hook;
pub use inspect::{GraphStats, OpStats};
pub use mode::{
    GradModeGuard, allow_mutation_on_saved_tensors, allow_mutation_on_saved_tensors_guard, enable_grad,
    enable_grad_guard, inference, inference_guard, is_grad_enabled, is_inference, no_grad, no_grad_guard, strict,
    strict_guard, strict_inplace, strict_inplace_guard,
};
pub(crate) use mode::{
    beside, checks_access, guards_saved, holding, is_observed, is_traced, is_watched, notes_access, refuses_reads,
    tracing,
};
pub use nesting::MAX_NESTING;
pub(crate) use nesting::Nested;
pub(crate) use node::Edge;
pub use node::Node;
pub use nonfinite::{NonFiniteReport, Origin, find_nan, find_nonfinite};
pub(crate) use observe::{PartsOf, after_write, before_write, ran_operation};
pub use packed::{SavedTensorsHooksGuard, saved_tensors_hooks, saved_tensors_hooks_guard};
pub use range::ValueRange;
pub use saved::Context;
pub use saved::Keep;
pub(crate) use saved::Saved;
pub(crate) use untracked::Untracked;
pub use vmap::vmap;
