//! Versioned storage: every write is counted and logged, so that a stale value is always caught.
//!
//! **Invariant**: the bytes of a [`Storage`] change only behind a [`WriteGuard`], and making one raises the version and
//! logs the write. No operation can forget to.
//!
//! Note [write ring]: the log keeps the last [`RING`] writes one by one. Older ones are merged into one entry that spans
//! their bytes, so a check can err only towards an error, never towards a stale value.

use std::ops::{Deref, DerefMut, Range};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use gradus_backend::Buffer;

use crate::Device;
use crate::autograd::birth;

/// Writes that the log keeps apart.
const RING: usize = 16;

/// A buffer, its device, and the log of writes to it. Shared by all views of a tensor.
#[derive(Debug)]
pub struct Storage {
    device: Device,
    buffer: RwLock<Buffer>,
    version: AtomicU64,
    log: Mutex<WriteLog>,
    /// See [`birth`].
    born: u64,
}

/// One logged write.
#[derive(Debug, Clone)]
pub struct Write {
    /// The version that the storage had after it.
    pub version: u64,
    /// The bytes that it may have changed.
    pub bytes: Range<usize>,
    /// The operation that wrote.
    pub op: &'static str,
    /// The line of the user's code that called the operation.
    pub location: &'static Location<'static>,
}

#[derive(Debug, Default)]
struct WriteLog {
    // Oldest first; the first may stand for several older writes (Note [write ring]).
    writes: Vec<Write>,
}

impl Storage {
    pub(crate) fn new(device: Device, buffer: Buffer) -> Self {
        Storage {
            device,
            buffer: RwLock::new(buffer),
            version: AtomicU64::new(0),
            log: Mutex::default(),
            born: birth(),
        }
    }

    /// The device that the bytes live on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// When it was made, in the order of recording; 0 if nobody watched.
    pub(crate) fn born(&self) -> u64 {
        self.born
    }

    /// Number of writes since the storage was made.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The buffer, readable. Writers wait until the guard is gone.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Buffer> {
        // A panic while writing can leave unfinished numbers behind, but no broken invariant.
        self.buffer.read().unwrap_or_else(|e| e.into_inner())
    }

    /// The buffer, writable within `bytes`: the version is raised and the write logged.
    pub(crate) fn write(
        &self,
        bytes: Range<usize>,
        op: &'static str,
        location: &'static Location<'static>,
    ) -> WriteGuard<'_> {
        let buffer = self.buffer.write().unwrap_or_else(|e| e.into_inner());
        let mut log = self.log.lock().unwrap_or_else(|e| e.into_inner());
        let version = self.version.fetch_add(1, Ordering::AcqRel) + 1;
        if log.writes.len() == RING {
            let oldest = log.writes.remove(0);
            let next = &mut log.writes[0];
            next.bytes = next.bytes.start.min(oldest.bytes.start)..next.bytes.end.max(oldest.bytes.end);
        }
        log.writes.push(Write { version, bytes, op, location });
        WriteGuard { buffer }
    }

    /// The latest write after `version` that may have changed one of `bytes`.
    pub fn overwritten(&self, version: u64, bytes: &Range<usize>) -> Option<Write> {
        if self.version() == version {
            return None;
        }
        let log = self.log.lock().unwrap_or_else(|e| e.into_inner());
        let overlaps = |w: &&Write| w.version > version && w.bytes.start < bytes.end && bytes.start < w.bytes.end;
        log.writes.iter().rev().find(overlaps).cloned()
    }
}

/// Access for writing; see [`Storage::write`].
pub(crate) struct WriteGuard<'a> {
    buffer: RwLockWriteGuard<'a, Buffer>,
}

impl Deref for WriteGuard<'_> {
    type Target = Buffer;
    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}
impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut Buffer {
        &mut self.buffer
    }
}
