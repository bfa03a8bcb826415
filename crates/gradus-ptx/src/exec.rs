//! Executes compact code: one block on one thread of the host.

mod access;
mod atomic;
mod block;
mod convert;
mod copies;
mod copy;
mod dispatch;
mod lanes;
mod matrix;
mod note;
mod print;
mod race;
mod scratch;
mod shared;
mod shared_access;
mod sync;
mod warp;

use crate::code::Code;
use crate::launch::{Launch, Limits};
use crate::memory::{Allocations, Memory};
use crate::{FaultKind, Stats};

pub(crate) use block::run_block;
use lanes::lanes;
pub(crate) use scratch::Scratch;
pub(crate) use shared::mark;

/// What all blocks of a launch share.
pub(crate) struct Job<'a> {
    pub(crate) code: &'a Code,
    /// The constants, with the addresses of variables put in.
    pub(crate) constants: Vec<u64>,
    pub(crate) launch: &'a Launch,
    pub(crate) limits: &'a Limits,
    pub(crate) memory: &'a Memory,
    pub(crate) live: Allocations,
    /// Segments below this one belong to earlier launches; see `race.rs`.
    pub(crate) first_segment: u32,
    /// The places of variables in a block's memory, with the dynamic part.
    pub(crate) shared: Vec<(u64, u64)>,
    /// For each word of a thread's memory, a bit for each byte that belongs to a variable.
    pub(crate) local: Vec<u8>,
}

/// A mistake, before it is known in which thread of which block.
#[derive(Debug)]
pub(crate) struct Mistake {
    pub(crate) kind: FaultKind,
    pub(crate) pc: u32,
    pub(crate) lane: u32,
    pub(crate) text: String,
    /// The other instruction of a race.
    pub(crate) other: Option<u32>,
}

/// A mistake with its block and thread.
pub(crate) struct Located {
    pub(crate) mistake: Mistake,
    pub(crate) block: [u32; 3],
    pub(crate) thread: [u32; 3],
}

/// What a block can use beside its warps.
struct Context<'a> {
    job: &'a Job<'a>,
    block: [u32; 3],
    shared: shared::Shared,
    races: race::Races,
    /// For each instruction, the allocation that it used last.
    sites: Vec<u32>,
    stats: Stats,
}

impl Context<'_> {
    fn mistake<T>(&self, kind: FaultKind, pc: u32, lane: u32, text: impl Into<String>) -> Result<T, Box<Mistake>> {
        Err(Box::new(Mistake { kind, pc, lane, text: text.into(), other: None }))
    }
}
