//! Checkpointed regions: what the first run records, and what the second run is compared with.

pub(super) mod access;
pub(super) mod checkpoint;
pub(super) mod checksum;
pub(super) mod draws;
pub(super) mod record;
