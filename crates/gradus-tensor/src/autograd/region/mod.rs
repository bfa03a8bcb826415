//! Checkpointed regions: the record of the first run, and the comparison with the second run.

pub(super) mod access;
pub(super) mod checkpoint;
pub(super) mod checksum;
pub(super) mod draws;
pub(super) mod record;
