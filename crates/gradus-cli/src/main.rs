//! The `gradus` command: trains networks, predicts with them, and shows what it can compute on.
//!
//! The exit code is 0 when all is well, 1 for an error, whose text goes to standard error, and 2 for a command line that
//! makes no sense.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod config;
mod interrupt;
mod network;
mod output;
mod picture;
mod progress;
mod resize;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command, TrainCommand};

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Train { what: TrainCommand::Digits(args) } => commands::train::run(&args),
        Command::Predict(args) => commands::predict::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}
