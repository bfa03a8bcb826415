//! [`Engine`]: what carries bytes between ranks. The collectives are written once, over this trait.

use std::fmt;
use std::time::{Duration, Instant};

/// A stream of messages between each two ranks. Messages of one stream arrive in the order in which they were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Channel {
    /// The number of the communicator; 0 is that of all ranks.
    pub(crate) context: u32,
    /// Whether it carries the data of a call, rather than what the call is. Messages of the latter kind begin with their
    /// length, of [`LENGTH`] bytes, so that an engine may send them in pieces.
    pub(crate) body: bool,
}

/// The bytes of a length: a u64, little endian.
pub(crate) const LENGTH: usize = 8;

/// Bytes for another rank.
pub(crate) struct Outgoing<'a> {
    pub(crate) to: usize,
    pub(crate) bytes: &'a [u8],
}

/// Room for bytes of another rank, which may be fewer.
pub(crate) struct Incoming<'a> {
    pub(crate) from: usize,
    pub(crate) room: &'a mut [u8],
}

/// What an exchange waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// All bytes of this exchange have come, and all that were sent since the last such exchange of the channel have gone.
    Done,
    /// All bytes of this exchange have come. What it sends may still be on its way.
    Received,
}

/// What a rank tells all others, outside of any call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The rank has dropped its communicators and will make no more calls.
    Left,
    /// The rank has given up, for this reason. Nobody can go on.
    Failed(String),
}

/// Why an exchange did not complete.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The deadline passed while bytes from, or to, these ranks were missing.
    Late { from: Vec<usize>, to: Vec<usize> },
    /// A rank whose bytes are missing has left.
    Left { rank: usize },
    /// A rank has given up and says why.
    Failed { rank: usize, why: String },
    /// The process of a rank of this machine is gone.
    #[cfg(feature = "mpi")]
    Died { rank: usize },
    /// The engine itself reports an error.
    #[cfg(feature = "mpi")]
    Engine(String),
}

/// How long after the notice that a rank has left its last messages may still arrive.
pub(crate) const GRACE: Duration = Duration::from_millis(300);

/// A way of carrying bytes between ranks, numbered from 0.
pub(crate) trait Engine: Send + Sync + fmt::Debug {
    /// `threads` or `MPI`, with its version.
    fn name(&self) -> String;

    /// The number of this rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Sends and receives all of these at once. If it stops early, the contents of the incoming bytes are undefined.
    ///
    /// # Safety
    /// Bytes that are sent [until received](Until::Received) neither change nor move until the channel is
    /// [done](Until::Done). If an exchange stops early, the memory of all these bytes is never freed: the engine, or
    /// another rank, may still be at work on it.
    unsafe fn exchange(
        &self,
        channel: Channel,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        until: Until,
        deadline: Instant,
    ) -> Result<(), Stop>;

    /// Whether a rank has given up, or the process of one of these ranks is gone. Never waits.
    #[cfg(all(feature = "nccl", unix))]
    fn look(&self, ranks: &[usize]) -> Result<(), Stop>;

    /// Tells all other ranks; never waits for one of them. If the rank has given up, exchanges on its other threads stop,
    /// too.
    fn notify(&self, notice: &Notice);

    /// Called once, when the last communicator is dropped. `healthy` says whether no call has failed.
    fn close(&self, healthy: bool, deadline: Instant);
}
