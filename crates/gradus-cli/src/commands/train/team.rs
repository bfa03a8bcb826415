//! [`Team`]: the processes that share a run, if a launcher of MPI started this one.

use std::cell::RefCell;
use std::io::Read;
use std::sync::Arc;

#[cfg(all(feature = "mpi", unix))]
use gradus::dist::{Communicator, DataParallel, FullyShardedDataParallel};
use gradus::prelude::*;
use gradus::train::Ranks;

use crate::args::Common;
use crate::commands::mpi::{SIZE, announced};
use crate::commands::open;

/// The parts into which a batch is cut, whatever the number of ranks.
pub(in crate::commands) const SHARDS: usize = 16;

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

    /// Of all processes that the launcher started, and the device of this one. Those other than the first print nothing but
    /// errors. With `shard`, each holds a part of the parameters.
    pub(super) fn join(shard: bool, common: &Common) -> Result<(Team, Device)> {
        let (size, is_with_mpi) = (announced(&SIZE), cfg!(feature = "mpi"));
        // Some launchers announce a single process to every program.
        if size.is_none() || (size == Some(1) && !is_with_mpi) {
            return if shard {
                Err(alone_with_shard())
            } else {
                Ok((Team::alone(), open(&common.device, common.threads)?))
            };
        }
        Team::of_ranks(size, shard, common)
    }

    #[cfg(all(feature = "mpi", unix))]
    fn of_ranks(_: Option<usize>, shard: bool, common: &Common) -> Result<(Team, Device)> {
        let (team, comm, device) = Team::connect(common)?;
        let parallel = DataParallel::with_shards(comm, SHARDS)?;
        let ranks: Arc<dyn Ranks> =
            if shard { Arc::new(FullyShardedDataParallel::new(parallel)?) } else { Arc::new(parallel) };
        Ok((Team { ranks: RefCell::new(Some(ranks)), ..team }, device))
    }

    #[cfg(not(all(feature = "mpi", unix)))]
    fn of_ranks(size: Option<usize>, _: bool, _: &Common) -> Result<(Team, Device)> {
        let size = size.unwrap_or_default();
        let m = format!("a launcher of MPI started {size} processes, and this program was built without MPI");
        Err(crate::commands::mpi::without_mpi(m))
    }

    /// All processes that the launcher started, which train nothing, and the device of this one.
    #[cfg(all(feature = "mpi", unix))]
    pub(in crate::commands) fn connect(common: &Common) -> Result<(Team, Arc<dyn Communicator>, Device)> {
        let Some(size) = announced(&SIZE) else {
            let e = Error::argument("bench", "no launcher of MPI started this process");
            return Err(e.help("gradus launch -n 4 -- bench"));
        };
        let (comm, device) = super::world::connect(common)?;
        Ok((Team { ranks: RefCell::default(), rank: comm.rank(), size: Some(size) }, comm, device))
    }

    /// Whether this process prints and saves.
    pub(super) fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// How many ranks a launcher started; `None` if this process is alone.
    pub(super) fn size(&self) -> Option<usize> {
        self.size
    }

    /// The trainer, for all ranks together.
    pub(super) fn share(&self, trainer: Trainer) -> Trainer {
        match &*self.ranks.borrow() {
            // A process alone adds gradients in another order, and cannot go on with the same bits.
            Some(ranks) => trainer.ranks(ranks.clone()).config("virtual-shards", SHARDS),
            None => trainer,
        }
    }

    /// An error that this process alone has, of which the others are told.
    pub(super) fn told(&self, e: Error) -> Error {
        if let Some(ranks) = &*self.ranks.borrow() {
            ranks.give_up(e.message());
        }
        e
    }

    /// The end of the training: all ranks do this at the same time, once no trainer holds the ranks any more.
    pub(super) fn part(&self) {
        self.ranks.take();
    }

    /// Calls `stop` when `gradus launch` ends or wants the ranks to stop: then something comes on the standard input of the
    /// first, or that ends.
    pub(in crate::commands) fn watch_launcher(&self, stop: impl FnOnce() + Send + 'static) {
        if !self.is_first() || std::env::var_os(crate::commands::mpi::LAUNCHED).is_none() {
            return;
        }
        std::thread::spawn(move || {
            // Whatever comes, and an error too.
            let _ = std::io::stdin().lock().read(&mut [0]);
            stop();
        });
    }
}

fn alone_with_shard() -> Error {
    let e = Error::argument("train", "--shard divides the weights among ranks, and this process is alone");
    e.help("start several: gradus launch -n 4 -- train .. --shard")
}
