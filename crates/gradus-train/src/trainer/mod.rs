//! [`Trainer`]: trains a model step by step, in epochs.

mod divided;
mod early_stopping;
mod failure;
mod fit;
mod lr_finder;
mod options;
mod overfit;
mod parts;
mod passes;
mod progress;
mod resuming;
mod saving;
mod sharing;
mod step;

pub use early_stopping::{EarlyStopping, Monitor};
pub use lr_finder::{LrFinder, LrPoint, LrRange};
pub use options::{OnNonFinite, Trainer};
