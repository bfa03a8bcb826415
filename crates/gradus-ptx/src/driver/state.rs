//! What a driver keeps: devices with their memory, streams, events, modules, graphs.

use std::alloc::Layout;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::abi::{Code, Handle, Host, INVALID_VALUE, OUT_OF_MEMORY};
use super::kernel::Ready;
use super::settings::Settings;
use super::work::Work;
use crate::{Memory, Module};

/// A device and its primary context, the only one that it has.
pub(super) struct Device {
    pub(super) memory: Space,
    /// How often the primary context is retained.
    pub(super) retained: u32,
    /// The error of work that failed and that no call has returned yet.
    pub(super) pending: Option<Code>,
    /// The error that every call returns, once one has returned it.
    pub(super) lost: Option<Code>,
}

impl Device {
    pub(super) fn new(settings: &Settings) -> Device {
        Device { memory: Space::new(settings), retained: 0, pending: None, lost: None }
    }

    /// What a call that waits returns: the error of the work that it waited for, from then on for ever.
    pub(super) fn surface(&mut self) -> Result<(), Code> {
        if let Some(code) = self.pending.take() {
            self.lost = Some(code);
        }
        self.lost.map_or(Ok(()), Err)
    }
}

/// The memory of a device, with its limit.
pub(super) struct Space {
    pub(super) memory: Memory,
    sizes: HashMap<u64, usize>,
    total: usize,
    pub(super) used: usize,
    pub(super) most: usize,
    /// What `cuMemPoolSetAttribute` set; read back, without effect, since freed memory is always given back.
    pub(super) release_threshold: u64,
}

impl Space {
    pub(super) fn new(settings: &Settings) -> Space {
        let (memory, sizes) = (Memory::new(), HashMap::new());
        Space { memory, sizes, total: settings.memory, used: 0, most: 0, release_threshold: 0 }
    }

    pub(super) fn allocate(&mut self, bytes: usize) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        if bytes > self.total - self.used {
            return Err(OUT_OF_MEMORY);
        }
        let address = self.memory.alloc(bytes as u64).map_err(|_| OUT_OF_MEMORY)?;
        self.sizes.insert(address, bytes);
        self.used += bytes;
        self.most = self.most.max(self.used);
        Ok(address)
    }

    pub(super) fn free(&mut self, address: u64) -> Result<(), Code> {
        let bytes = self.sizes.remove(&address).ok_or(INVALID_VALUE)?;
        self.used -= bytes;
        self.memory.free(address).map_err(|_| INVALID_VALUE)
    }

    pub(super) fn blocks(&self) -> usize {
        self.sizes.len()
    }
}

/// Where the memory is allocated whose copies may begin after the call.
#[derive(Default)]
pub(super) struct Pinned(pub(super) HashMap<usize, Layout>);

impl Pinned {
    /// Whether these bytes lie in one block.
    pub(super) fn holds(&self, host: Host, bytes: usize) -> bool {
        let at = host.0 as usize;
        self.0.iter().any(|(start, layout)| *start <= at && at - start + bytes <= layout.size())
    }
}

/// Work in order.
pub(super) struct Stream {
    pub(super) device: usize,
    /// Whether its work is ordered with that of the default stream.
    pub(super) blocking: bool,
    /// Work that was given and not done yet; empty unless work is done late or waits for other ranks.
    pub(super) queue: VecDeque<Work>,
    pub(super) capture: Option<Capture>,
}

pub(super) struct Capture {
    pub(super) work: Vec<Work>,
    /// Whether something that a capture does not permit was called meanwhile.
    pub(super) invalid: bool,
}

impl Stream {
    pub(super) fn new(device: usize, blocking: bool) -> Stream {
        Stream { device, blocking, queue: VecDeque::new(), capture: None }
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.capture = None;
    }
}

/// A mark in the order of a stream.
pub(super) struct Event {
    pub(super) device: usize,
    pub(super) timed: bool,
    /// Which record was given last, counted from 1, and to which stream.
    pub(super) given: (u64, Handle),
    /// Which was reached last, and when.
    pub(super) reached: (u64, Instant),
    /// Whether the last record is part of a graph.
    pub(super) captured: bool,
}

/// A graph, or one that is ready to be launched: here they are the same.
#[derive(Clone)]
pub(super) struct Graph {
    pub(super) device: usize,
    pub(super) work: Arc<[Work]>,
}

/// A module of a device.
pub(super) struct Loaded {
    pub(super) device: usize,
    pub(super) module: Arc<Module>,
}

/// A kernel of a loaded module.
pub(super) struct Function {
    pub(super) device: usize,
    pub(super) module: Handle,
    pub(super) ready: Arc<Ready>,
    /// What the caller set as the most dynamic shared memory.
    pub(super) dynamic_bytes: i32,
}
