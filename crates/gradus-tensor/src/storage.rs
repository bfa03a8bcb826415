//! Versioned storage: every write is counted and logged, so that a stale value is always detected.
//!
//! **Invariant**: the bytes of a [`Storage`] that others can see change only through a [`WriteGuard`]. Creating the
//! guard raises the version and logs the write in the [`WriteLog`], so no operation can forget to do so. The only
//! exception is [`Storage::rewrite`], which reuses the memory of a value that nobody else holds for the next value.

use std::ops::{Deref, DerefMut, Range};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use gradus_backend::Buffer;

use crate::Device;
use crate::autograd::{Guarded, birth};
use crate::footprint::Footprint;
use crate::write_log::{Write, WriteLog};

/// Counts epochs, which tell whether a write came before or after a given point of the program.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Begins a new epoch. Writes from this point on belong to it or to a later one; earlier writes do not.
pub(crate) fn next_epoch() -> u64 {
    EPOCH.fetch_add(1, Ordering::SeqCst) + 1
}

/// A buffer, its device, and the log of writes to it. Shared by all views of a tensor.
///
/// Users can see the log but not the bytes. The bytes are copied in ([`Tensor::from_bytes`](crate::Tensor::from_bytes))
/// and out ([`Tensor::to_bytes`](crate::Tensor::to_bytes)), and the operations whose names end in `_` change them.
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
    /// Created by the first write. Most storages never have a log, because the kernel that first fills a storage does
    /// not count as a write.
    log: OnceLock<Box<Mutex<WriteLog>>>,
    /// Values of live graphs that a write must check first. Created when the first such value is registered.
    needed: OnceLock<Box<Mutex<Needs>>>,
    /// See [`birth`].
    born: u64,
}

/// A value of a graph that lies in a storage: slot `slot` of the guarded values of a node.
#[derive(Debug)]
struct Need {
    place: Footprint,
    by: Weak<Guarded>,
    slot: usize,
}

#[derive(Debug, Default)]
struct Needs {
    list: Vec<Need>,
    /// The length at which the list is next searched for dead entries.
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

    /// The device that holds the bytes.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The storage's position in the order of recording (see [`birth`]); 0 if accesses were not being noted.
    pub(crate) fn born(&self) -> u64 {
        self.born
    }

    /// The number of writes since the storage was created.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Locks the buffer for reading. Writers wait until the guard is dropped.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Buffer> {
        // A panic during a write can leave unfinished values behind, but breaks no invariant.
        self.buffer.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Locks the buffer for a write to `place`, raises the version and logs the write. The caller has already checked
    /// the graphs that [need](Storage::needed) these bytes.
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

    /// [`write`](Storage::write) for several places, each with the line of its write. Raises the version once for each.
    pub(crate) fn write_all(
        &self,
        places: &[(Footprint, &'static Location<'static>)],
        op: &'static str,
    ) -> WriteGuard<'_> {
        let buffer = self.buffer.write().unwrap_or_else(|e| e.into_inner());
        let mut log = self.log.get_or_init(Default::default).lock().unwrap_or_else(|e| e.into_inner());
        let epoch = EPOCH.load(Ordering::SeqCst);
        for (place, location) in places {
            let version = self.version.fetch_add(1, Ordering::AcqRel) + 1;
            log.add(Write::new(version, place.bytes().clone(), op, location, epoch), place.clone());
        }
        WriteGuard { buffer }
    }

    /// Locks the buffer for writing without raising the version. Only the single handle to a value that is not read
    /// again may use it ([`Tensor::is_spare`](crate::Tensor::is_spare)). The storage then belongs to a new value.
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

    /// The latest write in `epoch` or later, up to version `last`, that may have changed a byte of `place`. If later
    /// writes covered the same bytes, the result may be a false alarm, but no such write is ever missed.
    pub(crate) fn overwritten_since(&self, epoch: u64, last: u64, place: &Footprint) -> Option<Write> {
        let log = self.log.get()?.lock().unwrap_or_else(|e| e.into_inner());
        log.since(epoch, last, place).cloned()
    }

    /// Makes later writes into `place` check slot `slot` of `by` first, for as long as `by` lives and the slot's value
    /// lies in this storage.
    pub(crate) fn register(&self, place: Footprint, by: &Arc<Guarded>, slot: usize) {
        let needs = self.needed.get_or_init(Default::default);
        let mut needs = needs.lock().unwrap_or_else(|e| e.into_inner());
        let mut dead = vec![];
        if needs.list.len() >= needs.full {
            // The list doubles before the next search, so the amortised cost of a registration is constant.
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
        // One of these handles may have become the last one, so they are dropped outside the lock.
        drop(dead);
    }

    /// Whether a graph has ever registered a value here.
    #[inline]
    pub(crate) fn is_guarded(&self) -> bool {
        self.needed.get().is_some()
    }

    /// The registered values of live graphs that overlap `place`.
    pub(crate) fn needed(&self, place: &Footprint) -> Vec<(Arc<Guarded>, usize)> {
        let Some(needs) = self.needed.get() else { return vec![] };
        let needs = needs.lock().unwrap_or_else(|e| e.into_inner());
        let overlapping = needs.list.iter().filter(|n| n.place.meets(place));
        let living: Vec<_> = overlapping.filter_map(|n| Some((n.by.upgrade()?, n.slot))).collect();
        drop(needs);
        living.into_iter().filter(|(by, slot)| by.lies_in(*slot, self)).collect()
    }
}

/// Write access to a buffer; see [`Storage::write`].
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
