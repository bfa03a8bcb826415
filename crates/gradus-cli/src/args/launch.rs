//! The options of `gradus launch`.

use std::ffi::OsString;
use std::path::PathBuf;

pub(super) const HELP: &str = "\
It starts mpirun (Open MPI or MPICH), and the ranks compute the same bits for any number of them. One of them writes the
results and prints the progress. Ctrl-C, or SIGTERM, ends the training on all ranks and saves what was learnt; a second one
ends it at once. If a rank is lost, the others end with an error that names it.

  gradus launch -n 4 -- train digits
  gradus launch -n 8 --hosts hosts.txt --restarts 3 -- train images photos --out out/photos";

#[derive(Debug, clap::Args)]
pub(crate) struct LaunchArgs {
    /// Number of ranks: 1, 2, 4, 8 or 16
    #[arg(short = 'n', value_name = "N", value_parser = ranks)]
    pub(crate) ranks: usize,

    /// File that lists one machine per line, as mpirun reads it; the program and the data are at the same places on all
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: Option<PathBuf>,

    /// How many times to restart from the newest state after the loss of a rank; needs --out, and implies --resume
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) restarts: u32,

    /// How long a rank waits for the others
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub(crate) deadline: u32,

    /// The command to run, without the leading `gradus`
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

fn ranks(text: &str) -> Result<usize, String> {
    let ranks = text.parse().ok().filter(|ranks| [1, 2, 4, 8, 16].contains(ranks));
    ranks.ok_or_else(|| "a batch is cut into 16 parts, so there are 1, 2, 4, 8 or 16 ranks".into())
}
