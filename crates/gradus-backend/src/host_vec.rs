//! [`HostVec`]: host memory whose size comes from a shape, a file or an argument.
//!
//! A standard `Vec` aborts the process when an allocation fails. Vectors that can grow large are therefore created
//! here: if the system has no more memory, or the memory budget of a device does not allow the allocation, the result
//! is an [`ErrorKind::OutOfMemory`] error.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::{Backend, Buffer, Element, Error, ErrorKind, Here, Result};

/// Vectors of up to this many bytes are not counted, so that a user can read or print a tensor even when the budget is
/// exhausted: a printed tensor shows up to 1000 elements, of up to 48 bytes each.
const UNCOUNTED: usize = 64 << 10;

/// Keeps count of [`Claim`]s; usually the memory pool of a backend.
pub trait ClaimCount: Send + Sync + fmt::Debug {
    /// Adds `bytes` bytes to the count, or returns an error that names `op` if the budget does not allow them.
    fn claim(&self, op: &str, bytes: usize) -> Result<()>;

    /// Subtracts `bytes` bytes from the count.
    fn release(&self, bytes: usize);
}

/// Bytes of host memory that count towards a device's memory budget until the claim is dropped.
#[derive(Debug)]
pub struct Claim {
    bytes: usize,
    count: Option<Arc<dyn ClaimCount>>,
}

impl Claim {
    /// A claim of 0 bytes, to be [grown](Claim::grow). With `None`, it is not counted anywhere.
    pub fn new(count: Option<Arc<dyn ClaimCount>>) -> Self {
        Claim { bytes: 0, count }
    }

    /// Claims `bytes` more bytes for `op`. Fails with [`ErrorKind::OutOfMemory`] if the budget does not allow them.
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

/// How many bytes of a vector of this size are counted.
fn counted(bytes: usize) -> usize {
    if bytes > UNCOUNTED { bytes } else { 0 }
}

/// A host vector that counts towards the memory budget of a device while it lives. It dereferences to a slice.
///
/// ```
/// use gradus_backend::{Backend, HostVec};
/// # fn demo(backend: &dyn Backend) -> gradus_backend::Result<()> {
/// let squares = HostVec::collect(backend, "squares", (0..10).map(|i| i * i))?;
/// assert_eq!(squares[3], 9);
/// // Far more memory than there is: this returns an error, where `vec![0u8; 1 << 60]` would end the process.
/// assert!(HostVec::filled(backend, "squares", 0u8, 1 << 60).is_err());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct HostVec<T> {
    items: Vec<T>,
    claim: Claim,
    /// Number of bytes counted for `items`.
    room: usize,
}

impl<T> HostVec<T> {
    /// An empty vector with room for `count` elements, allocated on behalf of `op`.
    #[track_caller]
    pub fn with_capacity(backend: &(impl Backend + ?Sized), op: &str, count: usize) -> Result<Self> {
        let mut v = HostVec { items: Vec::new(), claim: backend.host_claim(), room: 0 };
        v.reserve(op, count)?;
        Ok(v)
    }

    /// Collects an iterator on behalf of `op`. Room for the lower bound of its `size_hint` is reserved at once.
    #[track_caller]
    pub fn collect(backend: &(impl Backend + ?Sized), op: &str, items: impl IntoIterator<Item = T>) -> Result<Self> {
        let items = items.into_iter();
        let mut v = HostVec::with_capacity(backend, op, items.size_hint().0)?;
        v.extend(op, items)?;
        Ok(v)
    }

    /// A vector with `count` copies of `value`, allocated on behalf of `op`.
    #[track_caller]
    pub fn filled(backend: &(impl Backend + ?Sized), op: &str, value: T, count: usize) -> Result<Self>
    where
        T: Clone,
    {
        let mut v = HostVec::with_capacity(backend, op, count)?;
        v.items.resize(count, value);
        Ok(v)
    }

    /// Reserves room for `more` elements in addition to the existing ones.
    #[track_caller]
    pub fn reserve(&mut self, op: &str, more: usize) -> Result<()> {
        let needed = self.items.len().saturating_add(more);
        if needed <= self.items.capacity() {
            return Ok(());
        }
        // While the items are moved, the old and the new memory exist at the same time, so both are claimed.
        let bytes = counted(needed.saturating_mul(size_of::<T>()));
        self.claim.grow(op, bytes)?;
        let made = reserve(op, &mut self.items, more);
        self.claim.shrink(if made.is_ok() { std::mem::replace(&mut self.room, bytes) } else { bytes });
        made
    }

    /// Appends an element, doubling the capacity if the vector is full.
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

    /// Returns the plain vector, which is not counted any more. This is meant for results that are handed to the user.
    pub fn into_vec(self) -> Vec<T> {
        self.items
    }
}

/// Downloads `count` elements of a buffer on behalf of `op`, starting at element `start`.
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

/// An empty `Vec` with room for `count` elements, which is not counted anywhere. Returns an [`ErrorKind::OutOfMemory`]
/// error that names `op` if the system has no more memory.
#[track_caller]
pub fn vec_of<T>(op: &str, count: usize) -> Result<Vec<T>> {
    let mut v = Vec::new();
    reserve(op, &mut v, count)?;
    Ok(v)
}

/// Collects an iterator into a `Vec`, which is not counted anywhere. Returns an [`ErrorKind::OutOfMemory`] error that
/// names `op` if the system has no more memory.
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

/// Checks that the host can allocate `count * bytes` bytes at this moment and that the budget allows them. This is
/// meant for code that is about to make many small allocations.
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
