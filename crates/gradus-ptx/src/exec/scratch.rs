//! What the blocks that run on one thread of the host use one after the other.

/// Memory that is kept from block to block of one launch.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The registers of warps.
    pub(super) files: Vec<Vec<[u64; 16]>>,
    /// For each instruction, the allocation that it used last.
    pub(super) sites: Vec<u32>,
}
