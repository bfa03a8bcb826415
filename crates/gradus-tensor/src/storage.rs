//! Versioned storage: every write is counted and logged, so that a stale value is always detected.
//!
//! **Invariant**: the bytes of a [`Storage`] that others can see change only through a [`WriteGuard`]. Creating the
//! guard raises the version and logs the write in the [`WriteLog`], so no operation can forget to do so. The only
//! exception is [`Storage::rewrite`], which reuses the memory of a value that nobody else holds for the next value.
//!
//! Memory can be [given back](Storage::give_back) and [filled](Storage::fill) again while the storage lives on. Neither is
//! a write: the caller promises that the bytes are the same. In between, the buffer is an empty one, and every access is
//! an error.

use std::ops::{Deref, DerefMut, Range};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use gradus_backend::{Buffer, Error, ErrorKind, Result};

use crate::autograd::{Guarded, birth};
use crate::footprint::Footprint;
use crate::limit::alloc;
use crate::write_log::{Write, WriteLog};
use crate::{Device, Tensor, ops};

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
    /// Holds `bytes` bytes, or none while the memory is given back.
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

    /// Locks the buffer for reading. Writers wait until the guard is dropped. Fails if the memory is given back.
    #[inline]
    pub(crate) fn read(&self) -> Result<RwLockReadGuard<'_, Buffer>> {
        // A panic during a write can leave unfinished values behind, but breaks no invariant.
        let buffer = self.buffer.read().unwrap_or_else(|e| e.into_inner());
        self.check_there(&buffer)?;
        Ok(buffer)
    }

    /// Locks the buffer for writing, as [`read`](Storage::read) does.
    fn lock(&self) -> Result<RwLockWriteGuard<'_, Buffer>> {
        let buffer = self.buffer.write().unwrap_or_else(|e| e.into_inner());
        self.check_there(&buffer)?;
        Ok(buffer)
    }

    #[inline]
    fn check_there(&self, buffer: &Buffer) -> Result<()> {
        if buffer.bytes() == self.bytes { Ok(()) } else { Err(self.given_back()) }
    }

    #[cold]
    fn given_back(&self) -> Error {
        let m = format!(
            "the {} bytes of this tensor were given back, and it has no values until they are filled",
            self.bytes
        );
        Error::new(ErrorKind::InvalidArgument, "storage", m)
            .help("a sharded parameter has values inside of the step of its optimiser, or after optimizer.gather()?")
    }

    /// Whether the memory is given back.
    pub fn is_given_back(&self) -> bool {
        self.buffer.read().unwrap_or_else(|e| e.into_inner()).bytes() != self.bytes
    }

    /// Gives the memory back to the device. The storage and all tensors over it live on, with their identities and
    /// gradients, but every access to the values is an [`ErrorKind::InvalidArgument`] until [`fill`](Storage::fill).
    ///
    /// For parameters whose values other ranks keep between uses. This is not a write: graphs that saved the values stay
    /// valid, and their gradients can be computed once the same values are back.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let w = Tensor::from_vec(vec![1.0f32, 2.0], [2], &device)?.with_grad()?;
    /// let kept = w.to_vec::<f32>()?;
    /// let y = w.square()?.sum_all()?; // saves the values of w
    /// w.storage().give_back()?;
    /// assert!(w.to_vec::<f32>().is_err());
    /// w.storage().fill(Tensor::from_vec(kept, [2], &device)?)?;
    /// assert_eq!(y.backward()?.get(&w).unwrap().to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the device.
    #[track_caller]
    pub fn give_back(&self) -> Result<()> {
        let empty = alloc(&self.device, 0)?;
        let mut buffer = self.buffer.write().unwrap_or_else(|e| e.into_inner());
        let before = std::mem::replace(&mut *buffer, empty);
        ops::note_given_back(self);
        // The memory is freed when nothing is locked.
        drop(buffer);
        drop(before);
        Ok(())
    }

    /// Fills memory that was [given back](Storage::give_back) with the elements of `values`, whose memory it takes over
    /// if nobody else holds it. They must be the bytes that were given back, or those that
    /// [`note_change`](Storage::note_change) announced: the version stays.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the memory is there, and if the size or the device is another one.
    #[track_caller]
    pub fn fill(self: &Arc<Self>, values: Tensor) -> Result<()> {
        let bytes = values.numel() * values.dtype().size();
        if bytes != self.bytes || *values.device() != self.device {
            let m = format!(
                "{} bytes of {} are filled with {bytes} of {}",
                self.bytes,
                self.device.name(),
                values.device().name()
            );
            return Err(Error::argument("fill", m));
        }
        let own = values.into_own()?;
        let from = Arc::downgrade(own.storage());
        let filled = own.into_memory()?;
        let mut buffer = self.buffer.write().unwrap_or_else(|e| e.into_inner());
        // A storage without bytes looks the same given back.
        if self.bytes > 0 && buffer.bytes() == self.bytes {
            return Err(
                Error::argument("fill", "the memory was not given back").help("write in place: x.copy_(&values)?")
            );
        }
        *buffer = filled;
        ops::note_filled(self, from);
        Ok(())
    }

    /// Announces that the values that are given back change, as a write to all bytes by `op`: the next
    /// [`fill`](Storage::fill) brings other values, and a graph that saved the old ones reports `location`.
    ///
    /// # Errors
    /// [`ErrorKind::Autograd`] if a graph protects the values
    /// ([`strict_inplace`](crate::autograd::strict_inplace)).
    #[track_caller]
    pub fn note_change(&self, op: &'static str, location: &'static Location<'static>) -> Result<()> {
        let place = Footprint::dense(0..self.bytes);
        self.needed(&place).iter().try_for_each(|(by, slot)| by.refuse_change(*slot, op))?;
        self.log([(place, location)], op);
        Ok(())
    }

    /// The buffer, if this is the last handle to the storage.
    pub(crate) fn into_buffer(self) -> Buffer {
        self.buffer.into_inner().unwrap_or_else(|e| e.into_inner())
    }

    /// Locks the buffer for a write to `place`, raises the version and logs the write. The caller has already checked
    /// the graphs that [need](Storage::needed) these bytes. Fails if the memory is given back.
    pub(crate) fn write(
        &self,
        place: Footprint,
        op: &'static str,
        location: &'static Location<'static>,
    ) -> Result<WriteGuard<'_>> {
        let buffer = self.lock()?;
        self.log([(place, location)], op);
        Ok(WriteGuard { buffer })
    }

    /// [`write`](Storage::write) for several places, each with the line of its write. Raises the version once for each.
    pub(crate) fn write_all(
        &self,
        places: &[(Footprint, &'static Location<'static>)],
        op: &'static str,
    ) -> Result<WriteGuard<'_>> {
        let buffer = self.lock()?;
        self.log(places.iter().cloned(), op);
        Ok(WriteGuard { buffer })
    }

    /// Raises the version and logs the write, for each place.
    fn log(&self, places: impl IntoIterator<Item = (Footprint, &'static Location<'static>)>, op: &'static str) {
        let mut log = self.log.get_or_init(Default::default).lock().unwrap_or_else(|e| e.into_inner());
        let epoch = EPOCH.load(Ordering::SeqCst);
        for (place, location) in places {
            let version = self.version.fetch_add(1, Ordering::AcqRel) + 1;
            log.add(Write::new(version, place.bytes().clone(), op, location, epoch), place);
        }
    }

    /// Locks the buffer for writing without raising the version. Only the single handle to a value that is not read
    /// again may use it ([`Tensor::is_spare`](crate::Tensor::is_spare)). The storage then belongs to a new value.
    pub(crate) fn rewrite(&self) -> Result<RwLockWriteGuard<'_, Buffer>> {
        self.lock()
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
