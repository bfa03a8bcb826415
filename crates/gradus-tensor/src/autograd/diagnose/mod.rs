//! Diagnosis of a step: where a NaN comes from, and why a gradient is missing.

pub(super) mod explain;
pub(super) mod nonfinite;
pub(super) mod observe;
pub(super) mod places;
pub(super) mod range;
pub(super) mod spread;
