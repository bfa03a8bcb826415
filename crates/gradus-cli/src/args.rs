//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::numbers::{memory, number, threads};

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
    /// Classify pictures with a trained network
    Predict(PredictArgs),
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
    /// List the devices that this machine can compute on
    Devices(DevicesArgs),
    /// Run a command and report where its time went
    #[command(after_help = PROFILE_HELP)]
    Profile(ProfileArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum TrainCommand {
    /// Train a small convolutional network on images of digits
    #[command(after_help = TRAIN_HELP)]
    Digits(TrainArgs),
}

const TRAIN_HELP: &str = "\
Without --data it trains on 1,797 real handwritten digits of 8x8 pixels that come with the program (UCI Optical
Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, CC BY 4.0). 20 % of them are held out for the test, the
same share of every digit; which ones depends on --seed.

With --data DIR it trains on IDX files (MNIST, Fashion-MNIST and others of their form, plain or gzip):
train-images-idx3-ubyte and train-labels-idx1-ubyte, and for the test t10k-images-idx3-ubyte and
t10k-labels-idx1-ubyte; without the latter pair 20 % are held out. Any image size from 2x2 to 128x128.

The same seed gives the same bits, for any number of threads. Ctrl-C, or SIGTERM, ends the training and saves what was
learnt; a second one ends it at once. The room on the disk is taken at the start. What cannot be written at the end all the
same is put in the system's temporary folder, which the error names.";

#[derive(Debug, clap::Args)]
pub(crate) struct TrainArgs {
    /// Folder of IDX files to train on, instead of the digits that come with the program
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Folder for the results; must not hold results already [default: out/digits, or out/digits-2 .. if that is used]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Replace the files of an earlier run in the output folder
    #[arg(long)]
    pub(crate) force: bool,

    /// Passes over the training images [default: 20, with --data 5]
    #[arg(long, value_name = "N", value_parser = epochs)]
    pub(crate) epochs: Option<usize>,

    /// Images per training step
    #[arg(long, value_name = "N", default_value = "64", value_parser = batch_size)]
    pub(crate) batch_size: usize,

    /// Highest learning rate; the rate rises to it during the first tenth of the run, then falls along a cosine
    #[arg(long, value_name = "RATE", default_value = "0.003", value_parser = lr, allow_negative_numbers = true)]
    pub(crate) lr: f64,

    /// Random seed; determines which images are held out, the initial weights and the order of the training images
    #[arg(long, value_name = "S", default_value = "0", value_parser = seed)]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, clap::Args)]
#[command(after_help = PREDICT_HELP)]
pub(crate) struct PredictArgs {
    /// The model.safetensors of a training run; nothing else is needed
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,

    /// PNG or JPEG pictures, one digit each, bright on dark
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<PathBuf>,

    /// The pictures are dark on bright, such as ink on paper
    #[arg(long)]
    pub(crate) invert: bool,

    /// The most memory to use for reading a picture, such as 512MiB [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) max_memory: Option<usize>,

    #[command(flatten)]
    pub(crate) common: Common,
}

const PREDICT_HELP: &str = "\
A picture becomes the network's input in this way: colours become luminance (Rec. 709); with --invert brightness is
turned round; transparent parts become background; background is added, at both sides alike, up to the input's ratio of
width to height; then the picture is resized to the input's size, bilinearly, averaging over areas when it shrinks.";

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

/// The options of every command that computes.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// The device to compute on; `gradus devices` lists them
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub(crate) device: String,

    /// Number of CPU threads [default: one per core, or GRADUS_NUM_THREADS]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// Print one JSON object as the last line
    #[arg(long)]
    pub(crate) json: bool,
}

fn epochs(text: &str) -> Result<usize, String> {
    number(text, 1, 1_000_000)
}

fn batch_size(text: &str) -> Result<usize, String> {
    number(text, 1, 1_000_000)
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("give a whole number from 0 to {}", u64::MAX))
}

fn lr(text: &str) -> Result<f64, String> {
    let lr = text.parse::<f64>().ok().filter(|&lr| lr > 0.0 && lr <= 100.0);
    lr.ok_or_else(|| "give a number above 0 and at most 100, such as 0.003".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for text in ["0", "-1", "1.5", "", "x", "1000001", "99999999999999999999999"] {
            assert!(epochs(text).is_err() && batch_size(text).is_err() && threads(text).is_err(), "{text}");
        }
        for text in ["0", "-0.1", "nan", "inf", "-inf", "1e300", "", "x"] {
            assert!(lr(text).is_err(), "{text}");
        }
        assert_eq!((lr("1e-3"), seed("18446744073709551615")), (Ok(1e-3), Ok(u64::MAX)));
        assert!(seed("-1").is_err() && seed("18446744073709551616").is_err());
    }
}
