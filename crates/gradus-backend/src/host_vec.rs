//! [`HostVec`]: memory of the host whose size comes from a shape, a file or an argument.
//!
//! A `Vec` of the standard library ends the process where memory is short. Whatever can be large is made here instead: an
//! [`ErrorKind::OutOfMemory`] error where the system has no more, and where a device's memory budget does not allow it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::{Backend, Buffer, Element, Error, ErrorKind, Here, Result};

/// Vectors of up to this many bytes are not counted, so that an exhausted budget keeps nobody from reading a number, or from
/// printing what a printed tensor shows: 1000 elements of 48 bytes.
const UNCOUNTED: usize = 64 << 10;

/// Who counts [`Claim`]s: the pool behind a backend.
pub trait ClaimCount: Send + Sync + fmt::Debug {
    /// Counts `bytes` bytes more, or says in the name of `op` why the budget does not allow them.
    fn claim(&self, op: &str, bytes: usize) -> Result<()>;

    /// Counts `bytes` bytes less.
    fn release(&self, bytes: usize);
}

/// Bytes of the host that count under a device's memory budget until this is dropped.
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

    /// Gives up `bytes` bytes of what it claims.
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

/// How many of the bytes of a vector count.
fn counted(bytes: usize) -> usize {
    if bytes > UNCOUNTED { bytes } else { 0 }
}

/// A vector of the host that counts under the memory budget of a device while it lives. Derefs to a slice.
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

    /// The items of an iterator, made for `op`. Room for as many as it says at least is made at once.
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
        // While it moves, both the old memory and the new are there.
        let bytes = counted(needed.saturating_mul(size_of::<T>()));
        self.claim.grow(op, bytes)?;
        let made = reserve(op, &mut self.items, more);
        self.claim.shrink(if made.is_ok() { std::mem::replace(&mut self.room, bytes) } else { bytes });
        made
    }

    /// One element more; makes room for twice as many where there is none.
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

    /// The vector alone, which counts no longer: for what is given to a user.
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

/// An error where the host has no room for `count` things of `bytes` bytes each now, or the budget does not allow it: for
/// many small allocations that follow.
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
