//! Versioned storage: every write is counted and logged, so that a stale value is always caught.
//!
//! **Invariant**: bytes of a [`Storage`] that others can see change only behind a [`WriteGuard`], and creating one
//! raises the version and logs the write ([`WriteLog`]), so no operation can forget to. The only exception,
//! [`Storage::rewrite`], hands the memory of a value that nobody else holds to the next value.

use std::ops::{Deref, DerefMut, Range};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use gradus_backend::Buffer;

use crate::Device;
use crate::autograd::{Guarded, birth};
use crate::footprint::Footprint;
use crate::write_log::{Write, WriteLog};

/// A counter of epochs, so that writes can be ordered before or after a point of the program.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Begins a new epoch: writes from now on have at least this epoch, and no earlier write has.
pub(crate) fn next_epoch() -> u64 {
    EPOCH.fetch_add(1, Ordering::SeqCst) + 1
}

/// A buffer, its device, and the log of writes to it. Shared by all views of a tensor.
///
/// Users see the log, and never the bytes: these are copied in ([`Tensor::from_bytes`](crate::Tensor::from_bytes)) and out
/// ([`Tensor::to_bytes`](crate::Tensor::to_bytes)), and changed by the operations that end in `_`.
///
/// ```compile_fail,E0624
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
/// let x = Tensor::zeros([4], DType::F32, &device).unwrap();
/// let bytes = x.storage().write(0..16, "mine", std::panic::Location::caller());
/// ```
#[derive(Debug)]
pub struct Storage {
    device: Device,
    bytes: usize,
    buffer: RwLock<Buffer>,
    version: AtomicU64,
    /// Created by the first write. Most storages never have one: the kernel that fills them does not count.
    log: OnceLock<Box<Mutex<WriteLog>>>,
    /// Values of living graphs that a write must ask for first; created with the first of them.
    needed: OnceLock<Box<Mutex<Needs>>>,
    /// See [`birth`].
    born: u64,
}

/// A graph's value that lies in a storage: slot number `slot` of a node's guarded values.
#[derive(Debug)]
struct Need {
    place: Footprint,
    by: Weak<Guarded>,
    slot: usize,
}

#[derive(Debug, Default)]
struct Needs {
    list: Vec<Need>,
    /// Length at which the list is next searched for entries to drop.
    full: usize,
}

impl Storage {
    #[inline]
    pub(crate) fn new(device: Device, buffer: Buffer) -> Self {
        Storage {
            device,
            bytes: buffer.bytes(),
            buffer: RwLock::new(buffer),
            version: AtomicU64::new(0),
            log: OnceLock::new(),
            needed: OnceLock::new(),
            born: birth(),
        }
    }

    /// The device that the bytes live on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its position in the order of recording; 0 if accesses were not watched.
    pub(crate) fn born(&self) -> u64 {
        self.born
    }

    /// Number of writes since the storage was made.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The buffer, readable. Writers wait until the guard is dropped.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Buffer> {
        // A panic while writing can leave unfinished numbers behind, but no broken invariant.
        self.buffer.read().unwrap_or_else(|e| e.into_inner())
    }

    /// The buffer, writable within `place`: the version is raised and the write logged. Graphs that
    /// [need](Storage::needed) the bytes have been asked before.
    pub(crate) fn write(
        &self,
        place: Footprint,
        op: &'static str,
        location: &'static Location<'static>,
    ) -> WriteGuard<'_> {
        let buffer = self.buffer.write().unwrap_or_else(|e| e.into_inner());
        let mut log = self.log.get_or_init(Default::default).lock().unwrap_or_else(|e| e.into_inner());
        let version = self.version.fetch_add(1, Ordering::AcqRel) + 1;
        let write = Write::new(version, place.bytes().clone(), op, location, EPOCH.load(Ordering::SeqCst));
        log.add(write, place);
        WriteGuard { buffer }
    }

    /// The buffer, writable, without a version of its own: only for the single handle to a value that is not read again
    /// ([`Tensor::is_spare`](crate::Tensor::is_spare)). The storage then belongs to a new value.
    pub(crate) fn rewrite(&self) -> RwLockWriteGuard<'_, Buffer> {
        self.buffer.write().unwrap_or_else(|e| e.into_inner())
    }

    /// The latest write after `version` that may have changed one of `bytes`.
    pub fn overwritten(&self, version: u64, bytes: &Range<usize>) -> Option<Write> {
        self.overwritten_at(version, &Footprint::dense(bytes.clone()))
    }

    /// The latest write after `version` that may have changed one of the bytes of `place`.
    pub(crate) fn overwritten_at(&self, version: u64, place: &Footprint) -> Option<Write> {
        if self.version() == version {
            return None;
        }
        let log = self.log.get()?.lock().unwrap_or_else(|e| e.into_inner());
        log.after(version, place).cloned()
    }

    /// The latest write from `epoch` on, up to version `last`, that may have changed one of the bytes of `place`. Later
    /// writes over the same bytes may make it find one wrongly, but never miss one.
    pub(crate) fn overwritten_since(&self, epoch: u64, last: u64, place: &Footprint) -> Option<Write> {
        let log = self.log.get()?.lock().unwrap_or_else(|e| e.into_inner());
        log.since(epoch, last, place).cloned()
    }

    /// From now on a write into `place` asks for slot `slot` of `by`, as long as that node lives and its value lies
    /// here.
    pub(crate) fn register(&self, place: Footprint, by: &Arc<Guarded>, slot: usize) {
        let needs = self.needed.get_or_init(Default::default);
        let mut needs = needs.lock().unwrap_or_else(|e| e.into_inner());
        let mut dead = vec![];
        if needs.list.len() >= needs.full {
            // The list doubles before the next search: a constant cost for each registration.
            needs.list.retain(|need| match need.by.upgrade() {
                Some(by) => {
                    let stays = by.lies_in(need.slot, self);
                    dead.push(by);
                    stays
                }
                None => false,
            });
            needs.full = needs.list.len() * 2 + 8;
        }
        needs.list.push(Need { place, by: Arc::downgrade(by), slot });
        drop(needs);
        // Handles that have become the last one are dropped outside the lock.
        drop(dead);
    }

    /// Whether a graph's value was ever registered here.
    #[inline]
    pub(crate) fn is_guarded(&self) -> bool {
        self.needed.get().is_some()
    }

    /// The registered values of living graphs that lie in bytes of `place`.
    pub(crate) fn needed(&self, place: &Footprint) -> Vec<(Arc<Guarded>, usize)> {
        let Some(needs) = self.needed.get() else { return vec![] };
        let needs = needs.lock().unwrap_or_else(|e| e.into_inner());
        let overlapping = needs.list.iter().filter(|n| n.place.meets(place));
        let living: Vec<_> = overlapping.filter_map(|n| Some((n.by.upgrade()?, n.slot))).collect();
        drop(needs);
        living.into_iter().filter(|(by, slot)| by.lies_in(*slot, self)).collect()
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
