//! `config.toml`: the settings of a run, which allow it to be repeated.

use gradus::{Error, ErrorKind, Result};
use serde::Serialize;

/// The contents of the file.
#[derive(Debug, Serialize)]
pub(crate) struct Config {
    /// The version of Gradus.
    pub(crate) gradus: String,
    /// The command.
    pub(crate) command: String,
    /// The folder of the IDX files; absent for the digits that come with the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
    /// The seed as text, because TOML's integers cannot represent every seed.
    pub(crate) seed: String,
    pub(crate) epochs: usize,
    pub(crate) batch_size: usize,
    pub(crate) lr: f64,
    pub(crate) device: String,
    pub(crate) network: Network,
    pub(crate) result: Outcome,
}

/// The dimensions of the network.
#[derive(Debug, Serialize)]
pub(crate) struct Network {
    /// Channels, height, width.
    pub(crate) input: [usize; 3],
    pub(crate) classes: usize,
    pub(crate) parameters: usize,
}

/// The results.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) epochs_done: usize,
    pub(crate) interrupted: bool,
    pub(crate) training_samples: usize,
    pub(crate) test_samples: usize,
    pub(crate) test_accuracy: f64,
}

impl Config {
    /// The text of the file.
    pub(crate) fn text(&self) -> Result<String> {
        toml::to_string(self)
            .map_err(|e| Error::new(ErrorKind::Format, "train", format!("config.toml: {e}")).with_source(e))
    }
}
