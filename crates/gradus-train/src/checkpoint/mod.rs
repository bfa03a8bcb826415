//! Checkpoints: everything that a run needs to continue with the same bits, in files that survive a kill at any
//! instant.

mod file;
mod folder;
mod pack;
mod state;
mod stored;
mod writer;

pub(crate) use file::{Listed, data_name, write_data};
pub use folder::Checkpoints;
pub(crate) use pack::{from_bytes, to_bytes};
pub use state::Checkpoint;
pub(crate) use state::{Cut, check_state_name, listed};
pub(crate) use stored::{Stored, Wanted};
pub(crate) use writer::REST;
