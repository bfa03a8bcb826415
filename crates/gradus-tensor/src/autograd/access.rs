//! Which storages a piece of a program reads and writes: what a checkpointed region depends on.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::mode::{GradModeGuard, NOTE_ACCESS, is_set, set};
use super::node::next_seq;
use crate::{Storage, Tensor};

/// One storage that was read or written. The weak handle keeps its address from being used again, not its bytes.
#[derive(Clone)]
pub(super) struct Access {
    storage: Weak<Storage>,
    /// The version at the first access.
    version: u64,
    /// The bytes that were read or written.
    bytes: Range<usize>,
    wrote: bool,
}

impl Access {
    /// The storage, if anybody still holds it, with its version at the first access.
    pub(super) fn storage(&self) -> Option<(Arc<Storage>, u64)> {
        Some((self.storage.upgrade()?, self.version))
    }

    /// The bytes that were read or written.
    pub(super) fn bytes(&self) -> &Range<usize> {
        &self.bytes
    }

    /// Whether they were written.
    pub(super) fn wrote(&self) -> bool {
        self.wrote
    }
}

#[derive(Default)]
struct Log {
    open: usize,
    accesses: Vec<Access>,
}

thread_local! {
    static LOG: RefCell<Log> = RefCell::default();
}

/// Notes the accesses of this thread while it lives. They nest: an outer one has those of the inner ones too.
pub(super) struct Watch {
    start: usize,
    _mode: GradModeGuard,
}

impl Watch {
    pub(super) fn new() -> Self {
        let start = LOG.with_borrow_mut(|log| {
            log.open += 1;
            log.accesses.len()
        });
        Watch { start, _mode: set(NOTE_ACCESS, true) }
    }

    /// One entry for each storage that was accessed and is still held by somebody.
    pub(super) fn finish(self) -> Vec<Access> {
        let mut found: HashMap<*const Storage, usize> = HashMap::new();
        let mut merged: Vec<Access> = vec![];
        LOG.with_borrow(|log| {
            for a in log.accesses.iter().skip(self.start).filter(|a| a.storage.strong_count() > 0) {
                match found.get(&a.storage.as_ptr()).and_then(|&i| merged.get_mut(i)) {
                    Some(m) => {
                        m.bytes = m.bytes.start.min(a.bytes.start)..m.bytes.end.max(a.bytes.end);
                        m.wrote |= a.wrote;
                    }
                    None => {
                        found.insert(a.storage.as_ptr(), merged.len());
                        merged.push(a.clone());
                    }
                }
            }
        });
        merged
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        LOG.with_borrow_mut(|log| {
            log.open -= 1;
            if log.open == 0 {
                log.accesses = Vec::new();
            }
        });
    }
}

/// Notes that `tensor` is about to be read or written.
#[cold]
pub(crate) fn note_access(tensor: &Tensor, wrote: bool) {
    let storage = tensor.storage();
    let access =
        Access { storage: Arc::downgrade(storage), version: storage.version(), bytes: tensor.byte_span(), wrote };
    LOG.with_borrow_mut(|log| log.accesses.push(access));
}

/// When a storage is made: a number above those of all nodes recorded before, if accesses are noted; else 0.
#[inline]
pub(crate) fn birth() -> u64 {
    if is_set(NOTE_ACCESS) { next_seq() } else { 0 }
}
