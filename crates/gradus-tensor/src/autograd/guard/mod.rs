//! Protection of saved values beyond their versions.

pub(super) mod guarded;
pub(super) mod packed;
