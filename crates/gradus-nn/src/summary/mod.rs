//! [`summary`]: a table of the layers of a model, and [`step_memory`]: the memory that a training step takes.

mod layers;
mod step_memory;
mod table;

pub use layers::{LayerSummary, Summary, summary};
pub use step_memory::{StepMemory, step_memory};
