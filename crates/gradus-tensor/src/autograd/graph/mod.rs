//! What is recorded: nodes, the values that they keep, and what can be asked of them.

pub(super) mod inspect;
pub(super) mod node;
pub(super) mod saved;
pub(super) mod untracked;
