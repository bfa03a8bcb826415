//! The options of `gradus generate`.

use std::path::PathBuf;

use super::common::Common;
use crate::numbers::number;

pub(super) const HELP: &str = "\
The text appears token by token, with the prompt before it. The same seed gives the same text. When prompt and text fill
the context of the model, it goes on with the newer half of what it saw.";

#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// The model.safetensors of `gradus train text`, or the folder with it; nothing else is needed
    #[arg(long, value_name = "PATH")]
    pub(crate) model: PathBuf,

    /// The text to write on from; without it the model begins a new line or, if its text had none, with the first
    /// character of that text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,

    /// Most tokens to write
    #[arg(long, value_name = "N", default_value = "256", value_parser = count)]
    pub(crate) max_new_tokens: usize,

    /// 1 draws from the probabilities of the model, less prefers likely tokens, 0 takes the likeliest
    #[arg(long, value_name = "T", default_value = "0.8", value_parser = temperature, allow_negative_numbers = true)]
    pub(crate) temperature: f64,

    /// Draw only among the K likeliest tokens
    #[arg(long, value_name = "K", value_parser = count)]
    pub(crate) top_k: Option<usize>,

    /// Draw only among the likeliest tokens whose probabilities reach this sum
    #[arg(long, value_name = "P", default_value = "1", value_parser = top_p, allow_negative_numbers = true)]
    pub(crate) top_p: f64,

    /// Above 1, tokens that have occurred become less likely
    #[arg(long, value_name = "R", default_value = "1", value_parser = penalty, allow_negative_numbers = true)]
    pub(crate) repetition_penalty: f64,

    /// Random seed
    #[arg(long, value_name = "S", default_value = "0")]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) common: Common,
}

fn count(text: &str) -> Result<usize, String> {
    number(text, 1, 1_000_000_000)
}

fn temperature(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|t| (0.0..=1000.0).contains(t));
    value.ok_or_else(|| "give a number from 0 to 1000, such as 0.8".into())
}

fn top_p(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|&p| p > 0.0 && p <= 1.0);
    value.ok_or_else(|| "give a number above 0 and at most 1, such as 0.9".into())
}

fn penalty(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|&r| r > 0.0 && r <= 1000.0);
    value.ok_or_else(|| "give a number above 0 and at most 1000, such as 1.2".into())
}
