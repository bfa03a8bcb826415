//! What is promised of kept values beyond their versions.

pub(super) mod guarded;
pub(super) mod packed;
