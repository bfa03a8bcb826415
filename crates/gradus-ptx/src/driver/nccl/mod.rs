//! A library that stands in for NCCL, as far as the CUDA backend calls it, between devices of this process: non-blocking
//! communicators only, whose ranks are threads.
//!
//! It is stricter than the real one. Ranks whose calls do not fit, memory that is not there or was never written, the
//! context or the stream of another device, and calls of a communicator that is not ready or not there any more are
//! reported as faults. A call returns before it is under way: it is begun when its communicator has been asked for its
//! state often enough. Reductions begin with the last rank, so that nobody counts on their order.
//!
//! A plan of calls that fail (`inject.rs`) may have codes of the library for its functions, and also: 1000, the call is
//! never done; 1000 + n, it is under way after n questions; 2000 + c, it is done, and the communicator has the error c.

mod api;
mod carry;
mod reduce;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::abi::{Code, Handle};

/// The codes of the library.
const CUDA_ERROR: Code = Code(1);
const INVALID_ARGUMENT: Code = Code(4);
const INVALID_USAGE: Code = Code(5);
const IN_PROGRESS: Code = Code(7);

/// From here on, a code says how a call behaves, rather than what it returns.
pub(super) const BEHAVIOUR: u32 = 1000;
const ASYNCHRONOUS: u32 = 2000;

/// What the library keeps.
#[derive(Default)]
pub(super) struct Nccl {
    ids: u64,
    cliques: Vec<Clique>,
    comms: HashMap<Handle, Comm>,
    /// How the call that is being made behaves, if a plan says so.
    pub(super) behaviour: Option<u32>,
}

/// The ranks with one identity.
struct Clique {
    id: u64,
    /// The communicators by rank, of those that have come.
    members: Vec<Option<Handle>>,
    calls: HashMap<Key, Call>,
}

/// A communicator.
struct Comm {
    clique: usize,
    rank: usize,
    device: usize,
    /// How often the answer to the question of its state is still that it is not ready; `None` if it is never ready.
    questions: Option<u32>,
    error: Option<Code>,
    /// What is under way when it is ready.
    begun: Vec<(Handle, Arc<Launch>)>,
    is_ending: bool,
    collectives: u64,
    /// How many messages were sent to, and received from, each rank.
    pairs: HashMap<(usize, usize), u64>,
}

/// What belongs together of the calls of ranks: the collectives with one number, and the messages between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Collective(u64),
    Message { from: usize, to: usize, number: u64 },
}

/// A call of several ranks.
#[derive(Default)]
struct Call {
    /// By rank, those that the order of their streams has reached.
    parts: BTreeMap<usize, Part>,
    is_done: bool,
    /// How many ranks have found it done.
    seen: usize,
}

/// The call of one rank.
#[derive(Clone, Copy, Debug)]
struct Part {
    key: Key,
    what: What,
    device: usize,
    /// Of the memory that is read and of that which is written; 0 where there is none.
    from: u64,
    to: u64,
}

/// What all ranks of a call must agree on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    AllReduce { bytes: usize, kind: i32, reduction: i32 },
    ReduceScatter { bytes: usize, kind: i32, reduction: i32 },
    AllGather { bytes: usize },
    Broadcast { bytes: usize, root: usize },
    Message { bytes: usize },
}

impl What {
    /// The bytes that a rank of `size` reads and writes.
    fn bytes(&self, size: usize) -> (usize, usize) {
        match *self {
            What::AllReduce { bytes, .. } | What::Broadcast { bytes, .. } | What::Message { bytes } => (bytes, bytes),
            What::ReduceScatter { bytes, .. } => (bytes * size, bytes),
            What::AllGather { bytes } => (bytes, bytes * size),
        }
    }
}

/// Calls of one rank that are made at once, in the order of a stream.
pub(super) struct Launch {
    comm: Handle,
    clique: usize,
    rank: usize,
    parts: Vec<Part>,
    is_endless: bool,
}
