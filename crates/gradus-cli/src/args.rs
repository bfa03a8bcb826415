//! The command line.

#[cfg(all(feature = "mpi", unix))]
mod bench;
mod common;
mod digits;
mod generate;
mod images;
mod launch;
mod new;
mod predict;
mod tabular;
mod text;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[cfg(all(feature = "mpi", unix))]
pub(crate) use bench::{BenchArgs, PlanArgs};
pub(crate) use common::{Common, TrainOptions};
pub(crate) use digits::DigitsArgs;
pub(crate) use generate::GenerateArgs;
pub(crate) use images::ImagesArgs;
pub(crate) use launch::LaunchArgs;
pub(crate) use new::NewArgs;
pub(crate) use predict::{EvaluateArgs, PredictArgs};
pub(crate) use tabular::{GoalName, TabularArgs, TabularModel, Unknown};
pub(crate) use text::TextArgs;

/// Trains neural networks, predicts with them, and filters pictures.
#[derive(Debug, Parser)]
#[command(name = "gradus", version, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a network and save it
    Train {
        #[command(subcommand)]
        what: TrainCommand,
    },
    /// Predict with a trained model: pictures, whole folders, or CSV files
    #[command(after_help = predict::HELP)]
    Predict(PredictArgs),
    /// Measure how good a trained model is on other data
    #[command(after_help = predict::EVALUATE_HELP)]
    Evaluate(EvaluateArgs),
    /// Write a small project that trains a network and tests itself
    New(NewArgs),
    /// Write text with a trained language model
    #[command(after_help = generate::HELP)]
    Generate(GenerateArgs),
    /// Filter a picture: blur, find edges, resize and more, also in chains
    #[command(arg_required_else_help = true, after_help = crate::filters::HELP)]
    Image {
        #[command(subcommand)]
        filter: crate::filters::Filter,
    },
    /// Show what an ONNX model holds, or run it
    #[cfg(feature = "onnx")]
    Onnx {
        #[command(subcommand)]
        what: OnnxCommand,
    },
    /// Train on several ranks: processes of one machine or of several, started by MPI
    #[command(after_help = launch::HELP)]
    Launch(LaunchArgs),
    /// Measure what ranks compute and exchange, for `gradus plan`; started by `gradus launch`
    #[cfg(all(feature = "mpi", unix))]
    #[command(after_help = bench::HELP)]
    Bench(BenchArgs),
    /// Say how ranks should share a language model, and what memory, traffic and time a step takes
    #[cfg(all(feature = "mpi", unix))]
    #[command(after_help = bench::PLAN_HELP)]
    Plan(PlanArgs),
    /// List the devices that this machine can compute on
    Devices(DevicesArgs),
    /// Run a command and report where its time went
    #[command(after_help = PROFILE_HELP)]
    Profile(ProfileArgs),
}

/// What to train. Each task has its options in a file of its own.
#[derive(Debug, Subcommand)]
pub(crate) enum TrainCommand {
    /// Train a small convolutional network on images of digits
    #[command(after_help = digits::HELP)]
    Digits(DigitsArgs),
    /// Train a network that predicts a column of a CSV file from the others
    #[command(after_help = tabular::HELP)]
    Tabular(TabularArgs),
    /// Train a language model (GPT) on a text
    #[command(after_help = text::HELP)]
    Text(TextArgs),
    /// Train a network on pictures, a folder for each class
    #[command(after_help = images::HELP)]
    Images(ImagesArgs),
}

#[cfg(feature = "onnx")]
#[derive(Debug, Subcommand)]
pub(crate) enum OnnxCommand {
    /// List operators, inputs, outputs and parameters, and what would not run
    Inspect {
        /// The model
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Run a model on arrays of NumPy
    Run(OnnxRunArgs),
    /// Measure how long loading and running a model takes, and how long each operator does
    #[command(after_help = ONNX_BENCH_HELP)]
    Bench(OnnxBenchArgs),
    /// Write a model that `gradus train` saved as an ONNX model, for a batch of any size
    Export(OnnxExportArgs),
}

#[cfg(feature = "onnx")]
#[derive(Debug, clap::Args)]
pub(crate) struct OnnxExportArgs {
    /// The model, or the folder of its run
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,

    /// File for the ONNX model; an existing file is replaced
    #[arg(long, value_name = "FILE.onnx")]
    pub(crate) out: PathBuf,

    /// The highest opset that may be used
    #[arg(long, value_name = "N", default_value_t = 23, value_parser = clap::value_parser!(i64).range(13..=28))]
    pub(crate) opset: i64,
}

#[cfg(feature = "onnx")]
#[derive(Debug, clap::Args)]
pub(crate) struct OnnxRunArgs {
    /// The model
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// An input of the model, and a .npy file of its dtype and shape; repeated for each input
    #[arg(long = "input", value_name = "NAME=FILE.npy")]
    pub(crate) inputs: Vec<String>,

    /// File for the outputs, under their names; an existing file is replaced
    #[arg(long, value_name = "FILE.npz")]
    pub(crate) out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) common: Common,
}

#[cfg(feature = "onnx")]
const ONNX_BENCH_HELP: &str = "\
Inputs are given as arrays of NumPy, or made: normal numbers for floats, and zeros for integers and booleans. --size is \
needed only for inputs whose sizes the model leaves open.

  gradus onnx bench resnet18.onnx --size image=4x3x224x224 --threads 2";

#[cfg(feature = "onnx")]
#[derive(Debug, clap::Args)]
pub(crate) struct OnnxBenchArgs {
    /// The model
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The sizes of an input; repeated for each such input
    #[arg(long = "size", value_name = "NAME=1x3x224x224")]
    pub(crate) sizes: Vec<String>,

    /// An input of the model, and a .npy file of its dtype and shape; repeated for each such input
    #[arg(long = "input", value_name = "NAME=FILE.npy")]
    pub(crate) inputs: Vec<String>,

    /// How often the model is run
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DevicesArgs {
    /// Print one JSON object as the last line
    #[arg(long)]
    pub(crate) json: bool,
}

const PROFILE_HELP: &str = "\
The trace has every call of the device with its operands; https://ui.perfetto.dev and chrome://tracing show it as a picture.
Each call is waited for, so a device that works beside the program is slower than usual.

  gradus profile -- train digits --epochs 2

GRADUS_LOG=op prints a line for each call instead, with any command.";

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// File for the trace; an existing file is replaced
    #[arg(long, value_name = "FILE", default_value = "profile.json")]
    pub(crate) out: PathBuf,

    /// The command to run, without the leading `gradus`
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
