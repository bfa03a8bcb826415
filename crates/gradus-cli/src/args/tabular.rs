//! The options of `gradus train tabular`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::common::TrainOptions;
use crate::numbers::number;

pub(super) const HELP: &str = "\
FILE is a CSV file whose first line names the columns. The column --target is predicted from all others, as a class or as a
number. Columns of numbers are standardised, and a missing number becomes the mean; a missing category becomes the most
frequent one. All of this is saved with the model, so that `gradus predict` takes the same columns. In a build with the
feature `parquet`, FILE may also be a Parquet file (.parquet, .pq) or an Arrow file (.arrow, .feather, .ipc).

20 % of the rows are held out for the test, the same share of every class. With --cv K the rows are divided into K folds:
K models are trained, each without one fold and tested on it, and then the model that is saved is trained on all rows.

Defaults: --batch-size 32 (256 from 10,000 rows on), --lr 0.002, --epochs as many as 2,000 steps need, but 10 to
100 (ft-transformer: 40).

  gradus train tabular penguins.csv --target species --cv 5
  gradus predict --model out/penguins/model.safetensors new.csv --out predictions.csv";

#[derive(Debug, clap::Args)]
pub(crate) struct TabularArgs {
    /// CSV file to train on
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The column to predict
    #[arg(long, value_name = "COLUMN")]
    pub(crate) target: String,

    /// What the column holds [default: numbers if it has numbers that are not whole or differ much, and classes if not]
    #[arg(long, value_name = "GOAL")]
    pub(crate) goal: Option<GoalName>,

    /// The network
    #[arg(long, value_name = "NAME", default_value = "mlp")]
    pub(crate) model: TabularModel,

    /// Leave out a column, such as a name or a number of the row; may be repeated
    #[arg(long, value_name = "COLUMN")]
    pub(crate) drop: Vec<String>,

    /// The character between two values: one ASCII character, or `tab`
    #[arg(long, value_name = "CHAR", default_value = ",", value_parser = delimiter)]
    pub(crate) delimiter: u8,

    /// What becomes of a category in a row to predict or to test that no training row has
    #[arg(long, value_name = "WHAT", default_value = "refuse")]
    pub(crate) unknown_category: Unknown,

    /// Cross-validate with this many folds before training on all rows
    #[arg(long, value_name = "K", value_parser = folds)]
    #[arg(conflicts_with_all = ["fast_dev_run", "overfit_batch", "find_lr", "resume"])]
    pub(crate) cv: Option<usize>,

    #[command(flatten)]
    pub(crate) options: TrainOptions,
}

/// What is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GoalName {
    Classification,
    Regression,
}

/// The networks for tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TabularModel {
    /// Linear layers with ReLU
    Mlp,
    /// A transformer over the columns
    FtTransformer,
}

/// What becomes of a category that no training row has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unknown {
    /// An error, which names the row; rows that alone have their category are trained on and not tested
    Refuse,
    /// None of the known categories: the other columns decide
    None,
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        &[byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(byte),
        _ => Err("give one ASCII character, such as , or ; or the word tab".into()),
    }
}

fn folds(text: &str) -> Result<usize, String> {
    number(text, 2, 100)
}
