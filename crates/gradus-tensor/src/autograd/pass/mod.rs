//! The backward pass: the engine, the queue of nodes, gradients in flight, and hooks.

mod accumulate;
mod around;
pub(super) mod engine;
pub(super) mod hooks;
pub(super) mod queue;
pub(super) mod taken;
pub(super) mod waiting;
