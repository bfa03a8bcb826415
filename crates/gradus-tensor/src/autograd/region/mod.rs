//! Regions that run again: what a checkpoint notes in the first run and compares in the second.

pub(super) mod access;
pub(super) mod checkpoint;
pub(super) mod checksum;
pub(super) mod draws;
pub(super) mod record;
