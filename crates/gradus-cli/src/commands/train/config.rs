//! `config.toml`: the options of a run, which allow it to be repeated with `--config`, and its results.

use std::fmt::Write;

use toml::Value;

use super::job::{Metric, Settings};

/// The bytes of disk space that are reserved for the file.
pub(super) const MOST_BYTES: usize = 8192;

/// The keys of `[network]`, and those of `[result]` that are no metrics.
const NETWORK: &[&str] = &["input", "classes", "features", "outputs", "vocabulary", "parameters"];
const RESULT: &[&str] =
    &["epochs_done", "interrupted", "training_samples", "test_samples", "training_tokens", "validation_tokens"];

/// The keys of metrics, without what they were measured on.
const METRICS: &[&str] = &["loss", "accuracy", "f1", "auc", "mae", "rmse", "r2", "perplexity", "bits_per_byte"];

/// Whether a run may write this key into the table `[network]` or `[result]`. Both hold no options.
pub(crate) fn describes(table: &str, key: &str) -> bool {
    let part = ["test_", "validation_", "cv_"].iter().find_map(|part| key.strip_prefix(part)).unwrap_or(key);
    let metric = part.strip_suffix("_std").unwrap_or(part);
    match table {
        "network" => NETWORK.contains(&key),
        _ => RESULT.contains(&key) || METRICS.contains(&metric),
    }
}

/// What the file says about a run.
pub(super) struct Config<'a> {
    pub(super) settings: &'a Settings,
    pub(super) network: &'a [(&'static str, Value)],
    pub(super) counts: &'a [(&'static str, usize)],
    pub(super) metrics: &'a [Metric],
    pub(super) epochs_done: usize,
    pub(super) interrupted: bool,
}

impl Config<'_> {
    /// The text of the file. The tables `[network]` and `[result]` hold no options.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: &dyn std::fmt::Display| {
            // Writing to a text does not fail.
            let _ = writeln!(text, "{key} = {value}");
        };
        line("gradus", &Value::from(env!("CARGO_PKG_VERSION")));
        line("command", &Value::from(format!("train {}", self.settings.task)));
        for (key, value) in &self.settings.options {
            line(key, value);
        }
        text.push_str("\n[network]\n");
        for (key, value) in self.network {
            let _ = writeln!(text, "{key} = {value}");
        }
        text.push_str("\n[result]\n");
        let _ = writeln!(text, "epochs_done = {}\ninterrupted = {}", self.epochs_done, self.interrupted);
        for (key, count) in self.counts {
            let _ = writeln!(text, "{key} = {count}");
        }
        for metric in self.metrics {
            let _ = writeln!(text, "{} = {}", metric.key, Value::from(metric.value));
        }
        text
    }
}
