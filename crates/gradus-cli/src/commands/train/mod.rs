//! `gradus train`: trains a model, tests it, and saves it. What all tasks share is here; a task has a file of its own,
//! which loads the data, builds the model, and says what to measure and to show.

mod config;
mod digits;
mod examples;
mod fingerprint;
mod folds;
mod held_out;
mod images;
mod job;
mod report;
mod run;
mod session;
mod table_fit;
mod tabular;
mod team;
mod text;
mod trial;
#[cfg(all(feature = "mpi", unix))]
mod world;

use gradus::prelude::*;

pub(crate) use config::describes;
pub(crate) use session::newest_state;
#[cfg(all(feature = "mpi", unix))]
pub(super) use team::{SHARDS, Team};
#[cfg(all(feature = "mpi", unix))]
pub(super) use world::threads;

use crate::args::TrainCommand;

/// Runs the command.
pub(crate) fn run(what: &TrainCommand) -> Result<()> {
    match what {
        TrainCommand::Digits(args) => digits::run(args),
        TrainCommand::Tabular(args) => tabular::run(args),
        TrainCommand::Text(args) => text::run(args),
        TrainCommand::Images(args) => images::run(args),
    }
}
