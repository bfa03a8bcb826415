//! The `gradus` command: trains networks, predicts with them, filters pictures, and lists the available devices.
//!
//! The exit code is 0 on success. It is 1 after an error, whose message is printed to standard error, and 2 for an
//! invalid command line. Ranks of `gradus launch` have more of them (`commands/mpi.rs`).
#![forbid(unsafe_code)]

mod args;
mod chain;
mod commands;
mod config_file;
mod filters;
mod interrupt;
mod numbers;
mod output;
mod progress;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::fail(&error);
            commands::mpi::exit_code(&error)
        }
    }
}

/// Runs the command with these words, which come after the name of the program.
fn run(words: &[OsString]) -> gradus::Result<()> {
    // A chain of filters is parsed separately, because each of its filters is a command line of its own.
    if let Some((first, filters)) = words.split_first()
        && first == "image"
    {
        return filter(chain::parse(filters));
    }
    let program = std::env::args_os().next().unwrap_or_else(|| "gradus".into());
    let words = config_file::with_options(words)?;
    match Args::parse_from(std::iter::once(program).chain(words)).command {
        Command::Train { what } => commands::train::run(&what),
        Command::Predict(args) => commands::predict::run(&args),
        Command::Evaluate(args) => commands::evaluate::run(&args),
        Command::New(args) => commands::new::run(&args),
        Command::Generate(args) => commands::generate::run(&args),
        Command::Image { filter: only } => filter(chain::chain(vec![only])),
        #[cfg(feature = "onnx")]
        Command::Onnx { what } => commands::onnx::run(&what),
        Command::Launch(args) => commands::launch::run(&args),
        #[cfg(all(feature = "mpi", unix))]
        Command::Bench(args) => commands::bench::run(&args),
        #[cfg(all(feature = "mpi", unix))]
        Command::Plan(args) => commands::plan::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Profile(args) => commands::profile::run(&args, run),
    }
}

fn filter(chain: Result<chain::Chain, clap::Error>) -> gradus::Result<()> {
    match chain {
        Ok(chain) => commands::image::run(&chain),
        Err(e) => e.exit(),
    }
}
