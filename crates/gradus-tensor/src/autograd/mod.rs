//! The recorded graph and the engine that runs it backwards.
//!
//! There is no global tape: the tensors hold the graph. A tracked tensor has an edge to the [`Node`] that computed it.
//! A node has edges to the nodes of its inputs, and holds the values that its gradient needs, each with the version
//! that its storage had. Graphs are walked and dropped without recursion, so their depth is limited only by memory. How
//! deeply user functions may be nested is [limited](MAX_NESTING).
//!
//! The module `graph` holds what is recorded, `pass` the backward pass, `guard` the protection of saved values,
//! `region` checkpointed regions, `diagnose` the observers of a computation, and `functions` the features built from
//! all of these. `mode` holds the switches of a thread.

mod diagnose;
mod functions;
mod graph;
mod guard;
mod mode;
mod nesting;
mod pass;
mod region;

pub use diagnose::explain::{Dependence, explain_grad};
pub use diagnose::nonfinite::{NonFiniteReport, Origin, find_nan, find_nonfinite};
pub(crate) use diagnose::observe::{PartsOf, after_write, before_write, line_of_whole, ran_operation};
pub use diagnose::range::ValueRange;
pub use functions::custom::{CustomOp, apply_custom};
pub use functions::functional::{Tensors, hessian, hvp, jacobian, jvp, vjp};
pub use functions::gradcheck::{GradcheckOptions, gradcheck, gradcheck_with, gradgradcheck, gradgradcheck_with};
pub use functions::vmap::vmap;
pub use graph::inspect::{GraphStats, OpStats};
pub use graph::node::Node;
pub(crate) use graph::node::{Edge, line};
pub use graph::saved::Context;
pub use graph::saved::Keep;
pub(crate) use graph::saved::Saved;
pub(crate) use graph::untracked::Untracked;
pub(crate) use guard::guarded::{Guarded, before_overwrite};
pub use guard::packed::{SavedTensorsHooksGuard, saved_tensors_hooks, saved_tensors_hooks_guard};
pub use mode::{
    GradModeGuard, allow_mutation_on_saved_tensors, allow_mutation_on_saved_tensors_guard, autocast, autocast_dtype,
    autocast_guard, enable_grad, enable_grad_guard, inference, inference_guard, is_grad_enabled, is_inference,
    no_autocast, no_autocast_guard, no_grad, no_grad_guard, saved_value_modes, strict, strict_guard, strict_inplace,
    strict_inplace_guard,
};
pub(crate) use mode::{
    beside, beside_in_step, checks_access, guards_saved, holding, is_observed, is_supplied, is_traced, is_watched,
    notes_access, packs_saved, refuses_host_reads, refuses_reads, refusing_host_reads, supplying, tracing,
};
pub use nesting::MAX_NESTING;
pub(crate) use nesting::Nested;
pub use pass::engine::{BackwardOptions, Gradients, grad};
pub use pass::hooks::Hook;
pub use pass::taken::{Take, take_gradients};
pub(crate) use region::access::{birth, note_access, note_view};
pub use region::checkpoint::{checkpoint, checkpoint_with, once};
pub(crate) use region::draws::note_draw;
