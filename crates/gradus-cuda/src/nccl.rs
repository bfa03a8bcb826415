//! NCCL, NVIDIA's library of collectives between GPUs, loaded when it is first needed.
//!
//! A [`Communicator`] belongs to one GPU and one rank. It is non-blocking: nothing here waits for another rank. The caller
//! polls, and ends what does not end by itself with [`Communicator::abort`]. Collectives run on a stream of their own,
//! after all work that was queued on the GPU before, so that a rank that does not come holds up nothing else.

pub use crate::driver::{
    Communicator, Moving, Reduction, Transfer, UniqueId, can_reduce, installed_version, unique_id, version_text,
};
