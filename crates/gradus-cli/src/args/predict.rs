//! The options of `gradus predict` and `gradus evaluate`.

use std::path::PathBuf;

use super::common::Common;
use crate::numbers::memory;

pub(super) const HELP: &str = "\
What is given is what the model was trained on: pictures, or CSV files with the columns of the training file, where the
target may be absent. Of a folder, all pictures or CSV files in it and its subfolders are taken. A build with
the feature `parquet` takes Parquet and Arrow files where it takes CSV files.

--out writes a CSV file with a row for each prediction: the file, for tables the number of the row, the prediction, its
probability, and the probability of each class.

A model of `train images` sees the middle of a picture, resized so that it covers the network's input.

A model of `train digits` sees a picture in this way: colours become luminance (Rec. 709); with --invert brightness is
turned round; transparent parts become background; background is added, at both sides alike, up to the input's ratio of
width to height; then the picture is resized to the input's size, bilinearly, averaging over areas when it shrinks.";

#[derive(Debug, clap::Args)]
pub(crate) struct PredictArgs {
    /// The model.safetensors of a training run, or the folder with it; nothing else is needed
    #[arg(long, value_name = "PATH")]
    pub(crate) model: PathBuf,

    /// PNG or JPEG pictures, CSV files, or folders of them
    #[arg(required = true, value_name = "INPUT")]
    pub(crate) inputs: Vec<PathBuf>,

    /// CSV file for the predictions; an existing file is replaced
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) out: Option<PathBuf>,

    /// The pictures are dark on bright, such as ink on paper; for models of `train digits`
    #[arg(long)]
    pub(crate) invert: bool,

    /// The most memory to use for reading a picture, such as 512MiB [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) max_memory: Option<usize>,

    #[command(flatten)]
    pub(crate) common: Common,
}

pub(super) const EVALUATE_HELP: &str = "\
DATA is of the form that the model was trained on: for `train digits` a folder of IDX files, of which the test files are
taken if there are any; for `train images` also a folder with a folder of pictures for each class, or with train and val, of
which val is taken; for `train tabular` a CSV file with the target column; for `train text` a text file in UTF-8.";

#[derive(Debug, clap::Args)]
pub(crate) struct EvaluateArgs {
    /// The model.safetensors of a training run, or the folder with it; nothing else is needed
    #[arg(long, value_name = "PATH")]
    pub(crate) model: PathBuf,

    /// The data, with the right answers
    #[arg(value_name = "DATA")]
    pub(crate) data: PathBuf,

    #[command(flatten)]
    pub(crate) common: Common,
}
