//! The options that commands share.

use std::path::PathBuf;

use crate::numbers::{number, threads};

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

/// The options of every `gradus train`. Where a default depends on the task, the option is absent here.
#[derive(Debug, clap::Args)]
pub(crate) struct TrainOptions {
    /// Folder for the results; must not hold results already [default: out/NAME, or out/NAME-2 .. if that is used]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Replace the files of an earlier run in the output folder
    #[arg(long, conflicts_with = "resume")]
    pub(crate) force: bool,

    /// Go on from the state that a run has saved in --out, if any; states are saved after each epoch, and at least every
    /// ten seconds or so, as they are without this option
    #[arg(long)]
    pub(crate) resume: bool,

    /// TOML file with options: their long names are its keys; options on the command line take precedence
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) config: Option<PathBuf>,

    /// Passes over the training set
    #[arg(long, value_name = "N", value_parser = epochs)]
    pub(crate) epochs: Option<usize>,

    /// Samples per training step
    #[arg(long, value_name = "N", value_parser = batch_size)]
    pub(crate) batch_size: Option<usize>,

    /// Highest learning rate; the rate rises to it at the start, then falls along a cosine
    #[arg(long, value_name = "RATE", value_parser = lr, allow_negative_numbers = true)]
    pub(crate) lr: Option<f64>,

    /// Random seed; determines what is held out, the initial weights and the order of the training samples
    #[arg(long, value_name = "S", default_value = "0", value_parser = seed)]
    pub(crate) seed: u64,

    /// On several ranks: each holds only a part of the weights, of their gradients and of the optimiser's state while it
    /// trains (ZeRO 3); the bits are the same
    #[arg(long, conflicts_with_all = ["overfit_batch", "find_lr"])]
    pub(crate) shard: bool,

    /// Only try everything out: one training step and one test, and nothing is saved
    #[arg(long, conflicts_with_all = ["overfit_batch", "find_lr", "resume"])]
    pub(crate) fast_dev_run: bool,

    /// Only train on a single batch, again and again, to see whether the model can learn; nothing is saved
    #[arg(long, conflicts_with_all = ["find_lr", "resume"])]
    pub(crate) overfit_batch: bool,

    /// Only look for a good learning rate; nothing is saved
    #[arg(long, conflicts_with = "resume")]
    pub(crate) find_lr: bool,

    #[command(flatten)]
    pub(crate) common: Common,
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
