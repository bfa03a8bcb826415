//! Records which storages a piece of a program reads and writes. A checkpointed region depends on the storages it
//! reads.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::autograd::graph::node::next_seq;
use crate::autograd::mode::{GradModeGuard, NOTE_ACCESS, is_set, set};
use crate::footprint::Footprint;
use crate::tensor::Spec;
use crate::write_log::Write;
use crate::{Storage, Tensor};

/// The maximum number of places of one storage that are kept apart. If there are more, they are replaced by the range
/// that covers them all.
const PLACES: usize = 64;

/// One storage that was read or written. The weak handle keeps its address from being reused, but does not keep its
/// bytes.
#[derive(Clone)]
pub(in crate::autograd) struct Access {
    storage: Weak<Storage>,
    /// The version at the first access.
    version: u64,
    /// The version at the first read.
    read: Option<u64>,
    /// The places that were read or written. No place contains another.
    places: SmallVec<[Footprint; 1]>,
    wrote: bool,
}

impl Access {
    /// The storage, if it is still alive.
    pub(in crate::autograd) fn storage(&self) -> Option<Arc<Storage>> {
        self.storage.upgrade()
    }

    /// The storage's version at the first access.
    pub(in crate::autograd) fn version(&self) -> u64 {
        self.version
    }

    /// The address of the storage: unique while this entry exists.
    pub(in crate::autograd) fn address(&self) -> *const Storage {
        self.storage.as_ptr()
    }

    /// Whether this is an access to `storage`.
    pub(in crate::autograd) fn is_to(&self, storage: &Storage) -> bool {
        std::ptr::eq(self.storage.as_ptr(), storage)
    }

    /// The places that were read or written.
    pub(in crate::autograd) fn places(&self) -> &[Footprint] {
        &self.places
    }

    /// The range that covers all accessed places.
    pub(in crate::autograd) fn span(&self) -> Range<usize> {
        let ranges = self.places.iter().map(|p| p.bytes().clone());
        ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    /// A write to one of the places since the storage had `version`.
    pub(in crate::autograd) fn overwritten(&self, version: u64) -> Option<Write> {
        let storage = self.storage.upgrade()?;
        self.places.iter().find_map(|place| storage.overwritten_at(version, place))
    }

    /// Whether any of the places was written.
    pub(in crate::autograd) fn wrote(&self) -> bool {
        self.wrote
    }

    /// The same access, with the version at its first read. `None` unless the storage was read, still exists, and has
    /// not been written since that read.
    pub(in crate::autograd) fn final_read(mut self) -> Option<Access> {
        self.version = self.storage.upgrade()?.version();
        (self.read == Some(self.version)).then_some(self)
    }

    fn join(&mut self, later: &Access) {
        later.places.iter().for_each(|place| self.add(place));
        self.read = self.read.or(later.read);
        self.wrote |= later.wrote;
    }

    fn add(&mut self, place: &Footprint) {
        if self.places.iter().any(|p| p.covers(place)) {
            return;
        }
        self.places.retain(|p| !place.covers(p));
        self.places.push(place.clone());
        if self.places.len() > PLACES {
            self.places = SmallVec::from_elem(Footprint::dense(self.span()), 1);
        }
    }
}

/// One open watch.
struct Open {
    /// The position in the log at which its accesses begin.
    start: usize,
    /// If it watches a checkpointed region, the number of the last node recorded before that region.
    region: Option<u64>,
    /// Of the tracked tensors that were read or viewed, the one that was recorded first: its number, shape and dtype.
    tracked: Option<(u64, Spec)>,
}

impl Open {
    fn track(&mut self, seq: u64, spec: Spec) {
        if self.tracked.as_ref().is_none_or(|t| seq < t.0) {
            self.tracked = Some((seq, spec));
        }
    }
}

#[derive(Default)]
struct Log {
    /// The open watches, the outermost first.
    open: Vec<Open>,
    accesses: Vec<Access>,
    /// The length at which the log is next searched for entries to drop.
    full: usize,
}

impl Log {
    /// Reduces the log to one entry for each live storage and watch. The log doubles before this is done again.
    fn shrink(&mut self) {
        let total = self.accesses.len();
        let mut all = std::mem::take(&mut self.accesses).into_iter();
        for i in 0..self.open.len() {
            let end = self.open.get(i + 1).map_or(total, |o| o.start);
            let segment = living(all.by_ref().take(end - self.open[i].start));
            self.open[i].start = self.accesses.len();
            self.accesses.extend(segment);
        }
        self.full = self.accesses.len() * 2 + 256;
    }
}

/// Merges the accesses into one entry for each storage that is still alive. As long as an entry exists, no other
/// storage can get the same address.
fn living(accesses: impl Iterator<Item = Access>) -> Vec<Access> {
    let mut found: HashMap<*const Storage, usize> = HashMap::new();
    let mut merged: Vec<Access> = vec![];
    for a in accesses.filter(|a| a.storage.strong_count() > 0) {
        match found.get(&a.storage.as_ptr()).and_then(|&i| merged.get_mut(i)) {
            Some(m) => m.join(&a),
            None => {
                found.insert(a.storage.as_ptr(), merged.len());
                merged.push(a);
            }
        }
    }
    merged
}

thread_local! {
    static LOG: RefCell<Log> = RefCell::default();
}

/// Records the accesses of this thread for as long as it exists. Watches nest: an outer watch includes the accesses of
/// the inner ones.
pub(in crate::autograd) struct Watch {
    depth: usize,
    _mode: GradModeGuard,
}

impl Watch {
    pub(in crate::autograd) fn new() -> Self {
        Watch::open(None)
    }

    /// A watch for a checkpointed region that begins after node number `before`.
    pub(in crate::autograd) fn region(before: u64) -> Self {
        Watch::open(Some(before))
    }

    fn open(region: Option<u64>) -> Self {
        let depth = LOG.with_borrow_mut(|log| {
            log.open.push(Open { start: log.accesses.len(), region, tracked: None });
            log.open.len() - 1
        });
        Watch { depth, _mode: set(NOTE_ACCESS, true) }
    }

    /// The shape and dtype of a tracked tensor that was read or viewed and whose node has a number up to `before`, if
    /// there is one.
    pub(in crate::autograd) fn tracked(&self, before: u64) -> Option<Spec> {
        let found = LOG.with_borrow(|log| log.open.get(self.depth).and_then(|o| o.tracked));
        found.filter(|(seq, _)| *seq <= before).map(|(_, spec)| spec)
    }

    /// Ends the watch. Returns one entry for each accessed storage that somebody still holds.
    pub(in crate::autograd) fn finish(self) -> Vec<Access> {
        LOG.with_borrow_mut(|log| {
            let start = log.open.get(self.depth).map_or(log.accesses.len(), |o| o.start);
            let seen = living(log.accesses.drain(start..));
            // Enclosing watches see these merged entries instead of every single access.
            log.accesses.extend_from_slice(&seen);
            log.open.iter_mut().skip(self.depth + 1).for_each(|inner| inner.start = log.accesses.len());
            seen
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        LOG.with_borrow_mut(|log| {
            let inner = log.open.drain(self.depth..).filter_map(|o| o.tracked).min_by_key(|t| t.0);
            match (log.open.last_mut(), inner) {
                (Some(outer), Some((seq, spec))) => outer.track(seq, spec),
                (Some(_), None) => {}
                (None, _) => *log = Log::default(),
            }
        });
    }
}

/// The number of the last node recorded before the innermost checkpointed region that this thread is in; `None` outside
/// of regions.
pub(in crate::autograd) fn region_began() -> Option<u64> {
    if !is_set(NOTE_ACCESS) {
        return None;
    }
    LOG.with_borrow(|log| log.open.iter().rev().find_map(|o| o.region))
}

/// Records that `tensor` is about to be read or written.
#[cold]
pub(crate) fn note_access(tensor: &Tensor, wrote: bool) {
    let storage = tensor.storage();
    let version = storage.version();
    let access = Access {
        storage: Arc::downgrade(storage),
        version,
        read: (!wrote).then_some(version),
        places: SmallVec::from_elem(tensor.footprint(), 1),
        wrote,
    };
    LOG.with_borrow_mut(|log| {
        if log.accesses.len() >= log.full.max(256) {
            log.shrink();
        }
        log.accesses.push(access);
    });
    if !wrote {
        note_view(tensor);
    }
}

/// Records that `tensor` was viewed outside the graph, so that it may later be read through another tensor.
#[cold]
pub(crate) fn note_view(tensor: &Tensor) {
    let Some(edge) = tensor.edge() else { return };
    LOG.with_borrow_mut(|log| {
        if let Some(open) = log.open.last_mut() {
            open.track(edge.node.seq, tensor.spec());
        }
    });
}

/// The value for the `born` field of a new storage: a number above those of all nodes recorded so far if accesses are
/// noted, otherwise 0.
#[inline]
pub(crate) fn birth() -> u64 {
    if is_set(NOTE_ACCESS) { next_seq() } else { 0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use gradus_backend::DType;
    use gradus_cpu::CpuBackend;

    use super::{LOG, Watch};
    use crate::{Device, Tensor};

    #[test]
    fn the_log_grows_with_what_lives_and_each_watch_keeps_its_own() {
        let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
        let one = || Tensor::ones([1], DType::F64, &device).unwrap();
        let (a, b) = (one(), one());
        let len = || LOG.with_borrow(|log| log.accesses.len());
        let outer = Watch::new();
        let _ = a.neg().unwrap();
        let run = |t: &Tensor| {
            for _ in 0..5_000 {
                let _ = t.neg().unwrap().neg().unwrap();
                assert!(len() < 1_000, "{}", len());
            }
        };
        let inner = Watch::new();
        run(&b);
        let seen = inner.finish();
        assert!(seen.len() == 1 && seen[0].is_to(b.storage()));
        run(&b);
        let seen = outer.finish();
        assert!(seen.len() == 2 && seen[0].is_to(a.storage()) && seen[1].is_to(b.storage()));
        assert_eq!(len(), 0);
    }
}
