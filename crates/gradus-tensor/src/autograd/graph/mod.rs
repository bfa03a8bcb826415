//! The recorded graph: nodes, the values they save for the gradient, and views of both.

pub(super) mod inspect;
pub(super) mod node;
pub(super) mod saved;
pub(super) mod untracked;
