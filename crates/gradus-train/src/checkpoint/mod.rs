//! Checkpoints: everything that a run needs to continue with the same bits, in files that survive a kill at any
//! instant.

mod file;
mod folder;
mod state;
mod writer;

pub(crate) use file::{from_bytes, to_bytes};
pub use folder::Checkpoints;
pub use state::Checkpoint;
pub(crate) use state::check_state_name;
