//! The recorded graph: nodes, the values that they save for the gradient, and ways to inspect them.

pub(super) mod inspect;
pub(super) mod node;
pub(super) mod saved;
pub(super) mod untracked;
