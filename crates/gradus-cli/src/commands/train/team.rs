//! [`Team`]: the processes that share a run, if a launcher of MPI started this one.

use std::cell::RefCell;
use std::io::Read;
use std::sync::Arc;

#[cfg(all(feature = "mpi", unix))]
use gradus::dist::{Communicator, DataParallel, FullyShardedDataParallel, Options, mpi};
use gradus::prelude::*;
use gradus::train::Ranks;

use crate::output;

/// The parts into which a batch is cut, whatever the number of ranks.
pub(in crate::commands) const SHARDS: usize = 16;

/// The environment variables in which launchers give the number of all processes, and of those on this machine.
const SIZE: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
const HERE: [&str; 2] = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];

/// The processes that share a run.
pub(in crate::commands) struct Team {
    /// `None` if this process is alone, or when the training is over.
    ranks: RefCell<Option<Arc<dyn Ranks>>>,
    rank: usize,
    /// How many ranks there are; `None` if this process is alone.
    size: Option<usize>,
}

impl Team {
    /// Of this process alone.
    pub(super) fn alone() -> Team {
        Team { ranks: RefCell::default(), rank: 0, size: None }
    }

    /// Of all processes that the launcher started. Those other than the first print nothing but errors. With `shard`, each
    /// holds a part of the parameters.
    pub(super) fn join(shard: bool) -> Result<Team> {
        match announced(SIZE) {
            // Some launchers announce a single process to every program.
            Some(1) | None if shard && !cfg!(feature = "mpi") => Err(alone_with_shard()),
            Some(1) if !cfg!(feature = "mpi") => Ok(Team::alone()),
            None if shard => Err(alone_with_shard()),
            None => Ok(Team::alone()),
            Some(size) => {
                let ranks = world(size, shard)?;
                let rank = ranks.rank();
                output::of_rank(rank);
                Ok(Team { ranks: RefCell::new(Some(ranks)), rank, size: Some(size) })
            }
        }
    }

    /// All processes that the launcher started, which train nothing.
    #[cfg(all(feature = "mpi", unix))]
    pub(in crate::commands) fn connect() -> Result<(Team, Arc<dyn Communicator>)> {
        let Some(size) = announced(SIZE) else {
            let e = Error::argument("bench", "no launcher of MPI started this process");
            return Err(e.help("gradus launch -n 4 -- bench"));
        };
        let comm = connected()?;
        let rank = comm.rank();
        output::of_rank(rank);
        Ok((Team { ranks: RefCell::default(), rank, size: Some(size) }, comm))
    }

    /// Whether this process prints and saves.
    pub(super) fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// How many ranks a launcher started; `None` if this process is alone.
    pub(super) fn size(&self) -> Option<usize> {
        self.size
    }

    /// The number of threads of the CPU: the ranks of a machine share its cores.
    pub(in crate::commands) fn threads(&self, asked: Option<usize>) -> Option<usize> {
        if asked.is_some() || self.size.is_none() || std::env::var_os("GRADUS_NUM_THREADS").is_some() {
            return asked;
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Some((cores / announced(HERE).unwrap_or(1).max(1)).max(1))
    }

    /// The trainer, for all ranks together.
    pub(super) fn share(&self, trainer: Trainer) -> Trainer {
        match &*self.ranks.borrow() {
            // A process alone adds gradients in another order, and cannot go on with the same bits.
            Some(ranks) => trainer.ranks(ranks.clone()).config("virtual-shards", SHARDS),
            None => trainer,
        }
    }

    /// The end of the training: all ranks do this at the same time, once no trainer holds the ranks any more.
    pub(super) fn part(&self) {
        self.ranks.take();
    }

    /// Calls `stop` when `gradus launch` ends or wants the ranks to stop, which closes the standard input of the first.
    pub(in crate::commands) fn watch_launcher(&self, stop: impl FnOnce() + Send + 'static) {
        if !self.is_first() || std::env::var_os(crate::commands::mpi::LAUNCHED).is_none() {
            return;
        }
        std::thread::spawn(move || {
            let mut input = std::io::stdin().lock();
            while input.read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
            stop();
        });
    }
}

fn alone_with_shard() -> Error {
    let e = Error::argument("train", "--shard divides the weights among ranks, and this process is alone");
    e.help("start several: gradus launch -n 4 -- train .. --shard")
}

fn announced(names: [&str; 2]) -> Option<usize> {
    names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// The communicator of all ranks.
#[cfg(all(feature = "mpi", unix))]
fn connected() -> Result<Arc<dyn Communicator>> {
    use crate::commands::mpi::DEADLINE;

    let mut options = Options::default();
    if let Ok(text) = std::env::var(DEADLINE) {
        let seconds = text.parse().ok().filter(|&seconds: &u32| seconds > 0);
        let wrong = || Error::argument("train", format!("{DEADLINE} is {text:?}; it is a whole number of seconds"));
        options.deadline = std::time::Duration::from_secs(seconds.ok_or_else(wrong)?.into());
    }
    mpi::world(options)
}

/// All ranks, connected.
#[cfg(all(feature = "mpi", unix))]
fn world(_: usize, shard: bool) -> Result<Arc<dyn Ranks>> {
    let parallel = DataParallel::with_shards(connected()?, SHARDS)?;
    Ok(if shard { Arc::new(FullyShardedDataParallel::new(parallel)?) } else { Arc::new(parallel) })
}

#[cfg(not(all(feature = "mpi", unix)))]
fn world(size: usize, _shard: bool) -> Result<Arc<dyn Ranks>> {
    let m = format!("a launcher of MPI started {size} processes, and this program was built without MPI");
    Err(crate::commands::mpi::without_mpi(m))
}
