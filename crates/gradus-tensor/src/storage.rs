//! Versioned storage: every write is counted and logged, so that a stale value is always caught.
//!
//! **Invariant**: the bytes of a [`Storage`] that anybody else can see change only behind a [`WriteGuard`], and making one
//! raises the version and logs the write ([`WriteLog`]). No operation can forget to. The one other door,
//! [`Storage::rewrite`], gives the memory of a value that nobody else holds to the next value.

use std::ops::{Deref, DerefMut, Range};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use gradus_backend::Buffer;

use crate::Device;
use crate::autograd::{Guarded, birth};
use crate::footprint::Footprint;
use crate::write_log::{Write, WriteLog};

/// Counts moments of the program, so that writes can be said to lie before or after one.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// A moment: writes from now on, and none before, have at least this epoch.
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
    /// Made with the first write: most storages are written by the kernel that fills them, which is none.
    log: OnceLock<Box<Mutex<WriteLog>>>,
    /// Values of living graphs that a write has to ask for first; made with the first of them.
    needed: OnceLock<Box<Mutex<Needs>>>,
    /// See [`birth`].
    born: u64,
}

/// One value of a graph that lies in a storage: number `slot` of what a node guards.
#[derive(Debug)]
struct Need {
    place: Footprint,
    by: Weak<Guarded>,
    slot: usize,
}

#[derive(Debug, Default)]
struct Needs {
    list: Vec<Need>,
    /// Length from which on the list is searched for what is no longer needed.
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

    /// The buffer, writable within `place`: the version is raised and the write logged. Graphs that
    /// [need](Storage::needed) the bytes were asked before.
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

    /// The buffer, writable, without a version of its own: only for the one handle to a value that nobody reads again
    /// ([`Tensor::is_spare`](crate::Tensor::is_spare)). The storage is then that of a new value.
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
    /// writes over the same bytes can only make it err towards finding one.
    pub(crate) fn overwritten_since(&self, epoch: u64, last: u64, place: &Footprint) -> Option<Write> {
        let log = self.log.get()?.lock().unwrap_or_else(|e| e.into_inner());
        log.since(epoch, last, place).cloned()
    }

    /// From now on a write into `place` asks for slot `slot` of `by`, while that lives and its value lies here.
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
        // What was the last handle meanwhile is dropped without the lock.
        drop(dead);
    }

    /// Whether any value of a graph was ever registered here.
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
