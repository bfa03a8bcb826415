//! Access to the buffers of several tensors at once.
//!
//! Each storage is locked once, in the order of addresses, so that operations on the same tensors in several threads
//! cannot deadlock. Functions that watch a device are called after all locks are released. If a user function runs
//! while its thread holds locks, and would have to wait for one of them, it gets an error instead.

use std::cell::RefCell;
use std::panic::Location;
use std::sync::{Arc, RwLockReadGuard};

use gradus_backend::{Buffer, Error, ErrorKind, Here, Postponed, Result, View, ViewMut, postpone, with_line_of_call};
use smallvec::SmallVec;

use crate::Tensor;
use crate::autograd::{GradModeGuard, before_overwrite, checks_access, holding, note_access, notes_access};
use crate::storage::WriteGuard;
use crate::supply::supply;

/// Views of an operation's inputs.
pub(crate) type Views<'a> = SmallVec<[View<'a>; 3]>;

fn address(t: &Tensor) -> usize {
    Arc::as_ptr(t.storage()) as usize
}

fn view<'g>(t: &'g Tensor, buffer: &'g Buffer) -> View<'g> {
    View { buffer, dtype: t.dtype(), layout: t.layout() }
}

/// Locks the storage of a tensor for reading.
#[inline]
fn read(t: &Tensor) -> Result<RwLockReadGuard<'_, Buffer>> {
    t.storage().read().map_err(|e| t.describe(e, "tensor"))
}

/// Calls `f` with views of `tensors`, with their storages locked for reading.
#[inline]
#[track_caller]
pub(crate) fn with_read<R>(tensors: &[&Tensor], f: impl FnOnce(&[View<'_>]) -> Result<R>) -> Result<R> {
    if checks_access() {
        supply(tensors, &[])?;
        check_access(tensors, false)?;
    }
    let _told = postpone();
    let done = with_line_of_call(Location::caller(), || match *tensors {
        [t] => f(&[view(t, &*read(t)?)]),
        [a, b] if address(a) < address(b) => {
            let (first, second) = (read(a)?, read(b)?);
            f(&[view(a, &first), view(b, &second)])
        }
        [a, b] if address(a) > address(b) => {
            let (first, second) = (read(b)?, read(a)?);
            f(&[view(a, &second), view(b, &first)])
        }
        _ => {
            let reads = lock_reads(tensors)?;
            f(&read_views(&reads, tensors))
        }
    });
    of_device(done)
}

/// Sets the location of a backend's error to the line of the user's call, which the backend does not know.
#[inline]
#[track_caller]
pub(crate) fn of_device<R>(mut result: Result<R>) -> Result<R> {
    if let Err(e) = &mut result {
        e.relocate(Location::caller());
    }
    result
}

/// Records the accesses if a region is being watched. Fails if this thread has locked one of the storages itself.
#[cold]
#[track_caller]
fn check_access(tensors: &[&Tensor], wrote: bool) -> Result<()> {
    if let Some(t) = tensors.iter().find(|t| HELD.with_borrow(|held| held.contains(&address(t)))) {
        let m = "a function that runs on the memory of tensors cannot use them meanwhile";
        let e = t.describe(Error::new(ErrorKind::InvalidArgument, "dispatch_compute", m), "binding");
        return Err(e.help("read and write what the function is called with, or bind a copy: x.copy()?"));
    }
    if notes_access() {
        tensors.iter().for_each(|t| note_access(t, wrote));
    }
    Ok(())
}

thread_local! {
    /// The storages that this thread has locked for the user functions that are running on it.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(vec![]) };
}

/// While this exists, it is an error if its thread accesses the locked storages again: that would deadlock.
pub(crate) struct Holding {
    before: usize,
    _mode: GradModeGuard,
}

impl Drop for Holding {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| held.truncate(self.before));
    }
}

type Reads<'a> = SmallVec<[(usize, RwLockReadGuard<'a, Buffer>); 4]>;

fn lock_reads<'a>(tensors: &[&'a Tensor]) -> Result<Reads<'a>> {
    let mut order: SmallVec<[&'a Tensor; 4]> = tensors.into();
    order.sort_unstable_by_key(|t| address(t));
    order.dedup_by_key(|t| address(t));
    order.into_iter().map(|t| Ok((address(t), read(t)?))).collect()
}

fn read_views<'g>(reads: &'g [(usize, RwLockReadGuard<'_, Buffer>)], tensors: &[&'g Tensor]) -> Views<'g> {
    // Finds the lock of a tensor; the list is sorted by address.
    tensors.iter().map(|t| view(t, &reads[reads.partition_point(|r| r.0 < address(t))].1)).collect()
}

/// The locked buffers of the tensors that an operation reads and writes.
pub(crate) struct Locks<'a> {
    reads: Reads<'a>,
    writes: SmallVec<[(usize, WriteGuard<'a>); 1]>,
    /// This field is dropped last, when nothing is locked.
    _told: Option<Postponed>,
}

impl<'a> Locks<'a> {
    /// Locks the storages of `written` for writing by `op`, which raises their versions and logs the writes, and those
    /// of `tensors` for reading. Fails if a storage belongs to two tensors of `written`, or to a tensor of each list.
    /// Calls `accepted` once all checks have passed, before anything is locked.
    #[track_caller]
    pub(crate) fn write(
        written: &[&'a Tensor],
        tensors: &[&'a Tensor],
        op: &'static str,
        location: &'static Location<'static>,
        accepted: impl FnOnce(),
    ) -> Result<Self> {
        let mut order: SmallVec<[(usize, bool, &'a Tensor); 4]> = SmallVec::new();
        order.extend(tensors.iter().map(|&t| (address(t), false, t)));
        order.sort_unstable_by_key(|o| o.0);
        order.dedup_by_key(|o| o.0);
        order.extend(written.iter().map(|&t| (address(t), true, t)));
        order.sort_unstable_by_key(|o| o.0);
        if let Some(pair) = order.windows(2).find(|w| w[0].0 == w[1].0) {
            let e = Error::new(
                ErrorKind::InvalidArgument,
                op,
                "a tensor that is written shares memory with another operand",
            );
            return Err(pair[0].2.describe(e, "operand").help("pass a copy: x.copy()?"));
        }
        if checks_access() {
            supply(tensors, written)?;
            check_access(tensors, false)?;
            check_access(written, true)?;
        }
        // This is done before anything is locked, because a graph may have to copy its value first.
        written.iter().filter(|t| t.storage().is_guarded()).try_for_each(|t| before_overwrite(t, op)).here()?;
        accepted();
        let mut locks = Locks { reads: SmallVec::new(), writes: SmallVec::new(), _told: postpone() };
        for (at, write, t) in order {
            if write {
                let guard = t.storage().write(t.footprint(), op, location);
                locks.writes.push((at, guard.map_err(|e| t.describe(e, "self")).here()?));
            } else {
                locks.reads.push((at, read(t).here()?));
            }
        }
        Ok(locks)
    }

    /// Marks the storages as locked while a user function works on them.
    pub(crate) fn hold(&self) -> Holding {
        let _mode = holding();
        HELD.with_borrow_mut(|held| {
            let before = held.len();
            held.extend(self.reads.iter().map(|r| r.0).chain(self.writes.iter().map(|w| w.0)));
            Holding { before, _mode }
        })
    }

    /// Views of the tensors that were locked. `written` and `tensors` are those passed to [`Locks::write`].
    pub(crate) fn views<'g>(
        &'g mut self,
        written: &[&'g Tensor],
        tensors: &[&'g Tensor],
    ) -> (SmallVec<[ViewMut<'g>; 3]>, Views<'g>) {
        let mut outs: SmallVec<[(usize, ViewMut<'_>); 3]> = SmallVec::new();
        for (at, guard) in &mut self.writes {
            if let Some(i) = written.iter().position(|t| address(t) == *at) {
                outs.push((i, ViewMut { buffer: guard, dtype: written[i].dtype(), layout: written[i].layout() }));
            }
        }
        outs.sort_unstable_by_key(|o| o.0);
        let views = read_views(&self.reads, tensors);
        (outs.into_iter().map(|o| o.1).collect(), views)
    }
}
