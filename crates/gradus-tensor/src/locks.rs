//! Access to the buffers of several tensors at once.
//!
//! Each storage is locked once, in the order of addresses, so that operations on the same tensors from several threads
//! cannot wait for each other in a circle.

use std::panic::Location;
use std::sync::{Arc, RwLockReadGuard};

use gradus_backend::{Buffer, Error, ErrorKind, Result, View, ViewMut};
use smallvec::SmallVec;

use crate::Tensor;
use crate::storage::WriteGuard;

/// Locked buffers: of tensors to read, and of tensors to write.
pub(crate) struct Locks<'a> {
    reads: SmallVec<[(usize, RwLockReadGuard<'a, Buffer>); 4]>,
    writes: SmallVec<[(usize, WriteGuard<'a>); 1]>,
}

/// Views of an operation's inputs. A view is large: few are kept inline, and they are filled in place, not moved.
pub(crate) type Views<'a> = SmallVec<[View<'a>; 2]>;

fn address(t: &Tensor) -> usize {
    Arc::as_ptr(t.storage()) as usize
}

impl<'a> Locks<'a> {
    /// Locks the storages of `tensors` for reading.
    pub(crate) fn read(tensors: &[&'a Tensor]) -> Self {
        let mut locks = Locks { reads: SmallVec::new(), writes: SmallVec::new() };
        match tensors {
            [one] => {
                locks.reads.push((address(one), one.storage().read()));
                return locks;
            }
            [a, b] => {
                let (first, second) = if address(a) <= address(b) { (a, b) } else { (b, a) };
                locks.reads.push((address(first), first.storage().read()));
                if address(first) != address(second) {
                    locks.reads.push((address(second), second.storage().read()));
                }
                return locks;
            }
            _ => {}
        }
        let mut order: SmallVec<[&'a Tensor; 4]> = tensors.into();
        order.sort_unstable_by_key(|t| address(t));
        order.dedup_by_key(|t| address(t));
        locks.reads.extend(order.into_iter().map(|t| (address(t), t.storage().read())));
        locks
    }

    /// Locks the storages of `written` for writing by `op`, which raises and logs their versions, and those of `tensors`
    /// for reading. No storage may occur on both sides, or twice among the written.
    pub(crate) fn write(
        written: &[&'a Tensor],
        tensors: &[&'a Tensor],
        op: &'static str,
        location: &'static Location<'static>,
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
        let mut locks = Locks { reads: SmallVec::new(), writes: SmallVec::new() };
        for (at, write, t) in order {
            if write {
                locks.writes.push((at, t.storage().write(t.byte_span(), op, location)));
            } else {
                locks.reads.push((at, t.storage().read()));
            }
        }
        Ok(locks)
    }

    /// Views of locked tensors: `written` and `tensors` as they were locked.
    pub(crate) fn views<const N: usize>(
        &mut self,
        written: &[&Tensor; N],
        tensors: &[&Tensor],
    ) -> (SmallVec<[ViewMut<'_>; 3]>, Views<'_>) {
        let mut outs: SmallVec<[(usize, ViewMut<'_>); 3]> = SmallVec::new();
        for (at, guard) in &mut self.writes {
            if let Some(i) = written.iter().position(|t| address(t) == *at) {
                outs.push((i, ViewMut { buffer: guard, dtype: written[i].dtype(), layout: *written[i].layout() }));
            }
        }
        outs.sort_unstable_by_key(|o| o.0);
        let mut views = Views::new();
        read_views(&self.reads, tensors, &mut views);
        (outs.into_iter().map(|o| o.1).collect(), views)
    }

    /// Adds views of the tensors that [`read`](Locks::read) locked.
    pub(crate) fn read_views<'g>(&'g self, tensors: &[&Tensor], views: &mut Views<'g>) {
        read_views(&self.reads, tensors, views);
    }
}

fn read_views<'g>(reads: &'g [(usize, RwLockReadGuard<'_, Buffer>)], tensors: &[&Tensor], views: &mut Views<'g>) {
    for t in tensors {
        // Every tensor was locked; the list is sorted by address and usually one or two long.
        let at = reads.partition_point(|r| r.0 < address(t));
        views.push(View { buffer: &reads[at].1, dtype: t.dtype(), layout: *t.layout() });
    }
}
