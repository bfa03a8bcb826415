//! [`HostVec`]: memory of the host whose size comes from a shape, a file or an argument.
//!
//! A `Vec` of the standard library aborts the process when an allocation fails. Vectors that can be large are therefore made
//! here: if the system has no more memory, or the memory budget of a device does not allow it, the result is an
//! [`ErrorKind::OutOfMemory`] error.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::{Backend, Buffer, Element, Error, ErrorKind, Here, Result};

/// Vectors of up to this many bytes are not counted, so that a user can read or print a tensor even when the budget is
/// exhausted: a printed tensor shows up to 1000 elements, of up to 48 bytes each.
const UNCOUNTED: usize = 64 << 10;

/// Counts [`Claim`]s: the pool behind a backend.
pub trait ClaimCount: Send + Sync + fmt::Debug {
    /// Counts `bytes` bytes more, or returns an error of `op` if the budget does not allow them.
    fn claim(&self, op: &str, bytes: usize) -> Result<()>;

    /// Counts `bytes` bytes less.
    fn release(&self, bytes: usize);
}

/// Bytes on the host that count towards a device's memory budget until this is dropped.
#[derive(Debug)]
pub struct Claim {
    bytes: usize,
    count: Option<Arc<dyn ClaimCount>>,
}

impl Claim {
    /// A claim of 0 bytes, to [grow](Claim::grow); `None` counts nowhere.
    pub fn new(count: Option<Arc<dyn ClaimCount>>) -> Self {
        Claim { bytes: 0, count }
    }

    /// Claims `bytes` bytes more for `op`; [`ErrorKind::OutOfMemory`] where the budget does not allow them.
    #[track_caller]
    pub fn grow(&mut self, op: &str, bytes: usize) -> Result<()> {
        if let Some(count) = &self.count {
            count.claim(op, bytes).here()?;
            self.bytes += bytes;
        }
        Ok(())
    }

    /// Releases `bytes` of the claimed bytes.
    fn shrink(&mut self, bytes: usize) {
        if let Some(count) = &self.count {
            count.release(bytes);
            self.bytes -= bytes;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// How many bytes of a vector are counted.
fn counted(bytes: usize) -> usize {
    if bytes > UNCOUNTED { bytes } else { 0 }
}

/// A vector on the host that counts towards the memory budget of a device while it lives. Derefs to a slice.
///
/// ```
/// use gradus_backend::{Backend, HostVec};
/// # fn demo(backend: &dyn Backend) -> gradus_backend::Result<()> {
/// let squares = HostVec::collect(backend, "squares", (0..10).map(|i| i * i))?;
/// assert_eq!(squares[3], 9);
/// // Far more than there is: an error, where `vec![0u8; 1 << 60]` ends the process.
/// assert!(HostVec::filled(backend, "squares", 0u8, 1 << 60).is_err());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct HostVec<T> {
    items: Vec<T>,
    claim: Claim,
    /// Bytes that are counted for `items`.
    room: usize,
}

impl<T> HostVec<T> {
    /// An empty vector with room for `count` elements, made for `op`.
    #[track_caller]
    pub fn with_capacity(backend: &(impl Backend + ?Sized), op: &str, count: usize) -> Result<Self> {
        let mut v = HostVec { items: Vec::new(), claim: backend.host_claim(), room: 0 };
        v.reserve(op, count)?;
        Ok(v)
    }

    /// The items of an iterator, made for `op`. Room for the lower bound of its `size_hint` is reserved at once.
    #[track_caller]
    pub fn collect(backend: &(impl Backend + ?Sized), op: &str, items: impl IntoIterator<Item = T>) -> Result<Self> {
        let items = items.into_iter();
        let mut v = HostVec::with_capacity(backend, op, items.size_hint().0)?;
        v.extend(op, items)?;
        Ok(v)
    }

    /// `count` times `value`, made for `op`.
    #[track_caller]
    pub fn filled(backend: &(impl Backend + ?Sized), op: &str, value: T, count: usize) -> Result<Self>
    where
        T: Clone,
    {
        let mut v = HostVec::with_capacity(backend, op, count)?;
        v.items.resize(count, value);
        Ok(v)
    }

    /// Makes room for `more` elements beyond those that it has.
    #[track_caller]
    pub fn reserve(&mut self, op: &str, more: usize) -> Result<()> {
        let needed = self.items.len().saturating_add(more);
        if needed <= self.items.capacity() {
            return Ok(());
        }
        // While the items move, the old and the new memory exist at once.
        let bytes = counted(needed.saturating_mul(size_of::<T>()));
        self.claim.grow(op, bytes)?;
        let made = reserve(op, &mut self.items, more);
        self.claim.shrink(if made.is_ok() { std::mem::replace(&mut self.room, bytes) } else { bytes });
        made
    }

    /// Appends an element; doubles the capacity if it is full.
    #[track_caller]
    pub fn push(&mut self, op: &str, value: T) -> Result<()> {
        if self.items.len() == self.items.capacity() {
            self.reserve(op, self.items.len().max(4))?;
        }
        self.items.push(value);
        Ok(())
    }

    /// [Pushes](HostVec::push) every item.
    #[track_caller]
    pub fn extend(&mut self, op: &str, items: impl IntoIterator<Item = T>) -> Result<()> {
        items.into_iter().try_for_each(|value| self.push(op, value)).here()
    }

    /// The plain vector, no longer counted: for results that a user receives.
    pub fn into_vec(self) -> Vec<T> {
        self.items
    }
}

/// `count` elements of a buffer from element `start` on, read for `op`.
#[track_caller]
pub fn download<T: Element, B: Backend + ?Sized>(
    backend: &B,
    op: &str,
    src: &Buffer,
    start: usize,
    count: usize,
) -> Result<HostVec<T>> {
    let mut items = HostVec::filled(backend, op, T::default(), count)?;
    if count == 0 {
        return Ok(items);
    }
    let start = start * size_of::<T>();
    if let Some(bytes) = T::as_bytes_mut(&mut items) {
        backend.download(src, start, bytes)?;
        return Ok(items);
    }
    let mut bytes = HostVec::filled(backend, op, 0u8, count)?;
    backend.download(src, start, &mut bytes)?;
    items.iter_mut().zip(bytes.iter()).for_each(|(item, &byte)| *item = T::from_f64(f64::from(byte)));
    Ok(items)
}

/// An empty `Vec` with room for `count` elements, counted nowhere: [`ErrorKind::OutOfMemory`] of `op` where the system has
/// no more.
#[track_caller]
pub fn vec_of<T>(op: &str, count: usize) -> Result<Vec<T>> {
    let mut v = Vec::new();
    reserve(op, &mut v, count)?;
    Ok(v)
}

/// The items of an iterator in a `Vec`, counted nowhere: [`ErrorKind::OutOfMemory`] of `op` where the system has no more.
#[track_caller]
pub fn collect<T>(op: &str, items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut v = vec_of(op, items.len())?;
    v.extend(items);
    Ok(v)
}

#[track_caller]
fn reserve<T>(op: &str, v: &mut Vec<T>, more: usize) -> Result<()> {
    v.try_reserve_exact(more)
        .map_err(|_| {
            let requested = v.len().saturating_add(more).saturating_mul(size_of::<T>());
            let m = format!("{requested} bytes of the host asked for, but the system has no more memory");
            Error::new(ErrorKind::OutOfMemory { requested }, op, m)
                .help("drop what is not needed, or work on smaller pieces")
        })
        .here()
}

/// An error if the host cannot allocate `count` times `bytes` bytes now, or the budget does not allow it. For code that
/// makes many small allocations afterwards.
#[track_caller]
pub fn check_room(backend: &(impl Backend + ?Sized), op: &str, count: usize, bytes: usize) -> Result<()> {
    HostVec::<u8>::with_capacity(backend, op, count.saturating_mul(bytes)).map(drop)
}

impl<T> Deref for HostVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for HostVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<T> AsRef<[T]> for HostVec<T> {
    fn as_ref(&self) -> &[T] {
        &self.items
    }
}
