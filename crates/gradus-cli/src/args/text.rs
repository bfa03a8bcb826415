//! The options of `gradus train text`.

use std::path::PathBuf;

use gradus::tasks::text::Tokens;

use super::common::TrainOptions;
use crate::numbers::{fraction, number};

pub(super) const HELP: &str = "\
The file is text in UTF-8. Its last tenth is held out for validation, which follows each epoch; an epoch is as many steps
as cover the rest once. The model has the shape of GPT-2. The defaults learn a megabyte of text on two cores within
minutes.

Defaults: --epochs 5, --batch-size 16 (sections of --context tokens), --lr 0.002.

  gradus train text FILE --layers 6 --heads 6 --width 384 --context 256 --dropout 0.2 --lr 0.001

The state of the run is saved after each epoch and within long ones; --resume --out DIR goes on with a run that was
stopped. `gradus generate` writes with the model. The same seed gives the same bits, for any number of threads.";

#[derive(Debug, clap::Args)]
pub(crate) struct TextArgs {
    /// Text file in UTF-8; its last tenth is held out for validation
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// What a token is: chars, bytes, or bpe:N for a byte pair encoding of N tokens that is learned from the text
    #[arg(long, value_name = "KIND", default_value = "chars", value_parser = tokens)]
    pub(crate) tokenizer: Tokens,

    /// Number of blocks
    #[arg(long, value_name = "N", default_value = "4", value_parser = size)]
    pub(crate) layers: usize,

    /// Number of attention heads; must divide --width
    #[arg(long, value_name = "N", default_value = "4", value_parser = size)]
    pub(crate) heads: usize,

    /// Number of features of a token
    #[arg(long, value_name = "N", default_value = "128", value_parser = size)]
    pub(crate) width: usize,

    /// Number of tokens that the model sees at once
    #[arg(long, value_name = "N", default_value = "128", value_parser = size)]
    pub(crate) context: usize,

    /// Share of features and attention weights that are dropped in training, for models that are large for their text
    #[arg(long, value_name = "P", default_value = "0", value_parser = fraction, allow_negative_numbers = true)]
    pub(crate) dropout: f64,

    /// Weight decay of AdamW, for matrices
    #[arg(long, value_name = "D", default_value = "0.1", value_parser = fraction, allow_negative_numbers = true)]
    pub(crate) weight_decay: f64,

    #[command(flatten)]
    pub(crate) options: TrainOptions,
}

fn tokens(text: &str) -> Result<Tokens, String> {
    text.parse().map_err(|_| "write chars, bytes, or bpe:N with N from 257 to 1048576, such as bpe:1000".into())
}

fn size(text: &str) -> Result<usize, String> {
    number(text, 1, 1 << 20)
}
