//! Functions of functions: products with Jacobians, operations of users, batches, checks of gradients.

pub(super) mod custom;
pub(super) mod functional;
pub(super) mod gradcheck;
pub(super) mod vmap;
