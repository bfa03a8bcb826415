//! The backward pass: the engine, the queue of nodes, the gradients in flight, hooks.

mod around;
pub(super) mod engine;
pub(super) mod hooks;
pub(super) mod queue;
pub(super) mod waiting;
