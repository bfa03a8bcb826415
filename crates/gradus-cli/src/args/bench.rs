//! The options of `gradus bench` and `gradus plan`.

use std::path::PathBuf;

use super::common::Common;
use crate::numbers::{memory, number};

pub(super) const HELP: &str = "\
It measures calls between the ranks, blocks of a transformer and passes over memory, and keeps what it finds in a file, one
entry for each number of ranks. A file is of one device: a measurement of another one replaces its entries. With --model it
also trains that model for a few steps, and prints what `gradus plan` would have said of them.

  for n in 1 2 4; do gradus launch -n $n -- bench; done
  gradus plan --model gpt2-124m --gpus 4 --memory 16GiB";

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// File for what was measured; entries of other numbers of ranks on the same device stay
    #[arg(long, value_name = "FILE", default_value = MEASURED)]
    pub(crate) out: PathBuf,

    /// Also measure training steps of this model, a name or a saved language model, as in `gradus plan`
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// Sequences in a step of the model, on all ranks together
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = batch)]
    pub(crate) batch: usize,

    #[command(flatten)]
    pub(crate) common: Common,
}

/// The file of measurements unless another is named.
const MEASURED: &str = "gradus-bench.json";

pub(super) const PLAN_HELP: &str = "\
Models: gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1.5b, or the model.safetensors of `gradus train text`. Times come from what
`gradus launch -n N -- bench` measured on the machines in question; for other numbers of ranks they are extrapolated, and
are marked so. Communication is not hidden behind computation in these times.

  gradus plan --model gpt2-124m --gpus 8 --memory 24GiB --batch 64";

#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// The model: a name, or a saved language model
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: String,

    /// Number of ranks, each with a device of its own
    #[arg(long, value_name = "N", value_parser = ranks)]
    pub(crate) gpus: usize,

    /// Memory of each device
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: usize,

    /// Sequences in a step, on all ranks together
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = batch)]
    pub(crate) batch: usize,

    /// What `gradus bench` measured
    #[arg(long, value_name = "FILE", default_value = MEASURED)]
    pub(crate) bench: PathBuf,

    /// Print one JSON object as the last line
    #[arg(long)]
    pub(crate) json: bool,
}

fn batch(text: &str) -> Result<usize, String> {
    number(text, 1, 1_000_000)
}

fn ranks(text: &str) -> Result<usize, String> {
    number(text, 1, 65_536)
}
