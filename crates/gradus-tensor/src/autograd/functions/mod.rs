//! Transformations of functions: Jacobian products, custom operations, `vmap` and gradient checks.

pub(super) mod custom;
pub(super) mod functional;
pub(super) mod gradcheck;
pub(super) mod vmap;
