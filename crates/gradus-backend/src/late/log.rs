//! Tracks which buffers are spoiled by errors that the device finds late.
//!
//! Everything that is queued is noted here until the next check of the fault buffer: the slot that a launch depends on,
//! and the buffers that it reads and writes. If the check finds a filled slot, the notes are processed in order.
//! Everything that a failed launch wrote is spoiled, and so is everything computed from a spoiled buffer. Every read of
//! a spoiled buffer returns the error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Found, Slots};

/// The number of notes at which a check is made even if nothing is read.
pub const LONG: usize = 1 << 20;
/// The largest number of errors kept for `synchronize`.
const UNTOLD: usize = 64;

/// The state of a buffer's contents, from its allocation to its release: the error that spoiled them, if any.
#[derive(Debug, Default)]
pub struct Contents(Mutex<Option<Arc<Found>>>);

impl Contents {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Found>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error that spoiled the contents, if any.
    pub fn spoiled(&self) -> Option<Arc<Found>> {
        self.lock().clone()
    }
}

/// How a launch uses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The launch only reads the buffer.
    Read,
    /// The launch writes to the buffer, but some elements may keep their old values or depend on them.
    Write,
    /// The launch overwrites the whole buffer and does not depend on its old contents.
    Replace,
}

#[derive(Debug)]
enum Note {
    /// A launch or a copy, and the slot that it depends on. A `Use` for each of its buffers follows.
    Work(Option<u32>),
    /// The same in a submission that wgpu rejected, which spoils everything that it would have written.
    Rejected(Arc<Found>),
    Use(Arc<Contents>, Access),
}

/// The notes, the progress of the checks, and the errors found.
#[derive(Debug, Default)]
pub struct Log {
    notes: Vec<Note>,
    /// The number of notes about work that is already submitted.
    submitted: usize,
    /// The number of checks begun.
    begun: u64,
    /// The number of checks ended. Checks end in the order in which they began.
    ended: u64,
    /// Whether any error has been found. Until then, no buffer is spoiled.
    any: bool,
    untold: Vec<Arc<Found>>,
}

/// A check in progress: the slots that it reads, and the notes that it decides about.
#[derive(Debug)]
pub struct Check {
    number: u64,
    slots: Vec<u32>,
    notes: Vec<Note>,
}

impl Log {
    /// The number of notes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.notes.len()
    }

    /// Notes a launch or a copy, and the buffers that it uses.
    pub fn note<'a>(&mut self, slot: Option<u32>, uses: impl Iterator<Item = (&'a Arc<Contents>, Access)>) {
        self.notes.push(Note::Work(slot));
        self.notes.extend(uses.map(|(contents, access)| Note::Use(contents.clone(), access)));
    }

    /// Must be called after each submission. If wgpu rejected it, `rejected` is its error, which spoils everything that
    /// the submission would have written.
    /// If no slot is armed and no check is in progress, the notes can have no further effect and are dropped.
    pub fn submitted(&mut self, slots: &Slots, rejected: Option<Arc<Found>>) {
        if let Some(found) = rejected {
            for note in &mut self.notes[self.submitted..] {
                if let Note::Work(_) = note {
                    *note = Note::Rejected(found.clone());
                }
            }
            self.keep(found);
        }
        if slots.bytes() == 0 && self.begun == self.ended {
            let notes = std::mem::take(&mut self.notes);
            self.spread(&notes, slots);
            self.notes = notes;
            self.notes.clear();
        }
        self.submitted = self.notes.len();
    }

    /// Begins a check of all notes; their work must be submitted. Returns `None` if no slot is armed and no check is in
    /// progress.
    pub fn check(&mut self, slots: &mut Slots) -> Option<Check> {
        if slots.bytes() == 0 && self.begun == self.ended {
            return None;
        }
        self.begun += 1;
        self.submitted = 0;
        let notes = std::mem::take(&mut self.notes);
        Some(Check { number: self.begun, slots: slots.check(), notes })
    }

    /// Whether every check before this one has ended.
    pub fn is_next(&self, check: &Check) -> bool {
        self.ended + 1 == check.number
    }

    /// Ends a check, after all checks before it have ended. `bytes` is what the check read from the fault buffer, or
    /// why it could not read it.
    pub fn end(&mut self, check: Check, slots: &mut Slots, bytes: Result<&[u8], &crate::Error>) {
        debug_assert!(self.is_next(&check));
        slots.fetched(&check.slots, bytes).into_iter().for_each(|found| self.keep(found));
        self.spread(&check.notes, slots);
        slots.checked(&check.slots);
        self.ended = check.number;
    }

    /// Notes that what work writes to these slots will never be read, and why. Whether its operands are valid stays unknown,
    /// so everything that it writes is spoiled.
    pub fn unknown(&mut self, slots: &mut Slots, of: &[u32], why: &crate::Error) {
        slots.fetched(of, Err(why)).into_iter().for_each(|found| self.keep(found));
    }

    fn keep(&mut self, found: Arc<Found>) {
        self.any = true;
        self.untold.retain(|f| !f.is_told());
        if self.untold.len() < UNTOLD {
            self.untold.push(found);
        }
    }

    /// Removes the errors that no caller has received yet, and returns the first with the others as its notes.
    pub fn untold(&mut self) -> Option<crate::Error> {
        let untold = self.untold.drain(..).filter(|f| !f.is_told());
        untold.map(|f| f.tell()).reduce(|first, other| first.note(other.to_string()))
    }

    fn spread(&self, notes: &[Note], slots: &Slots) {
        if !self.any {
            return;
        }
        // The first note is always a `Work`, because a launch and its uses are never separated.
        for work in notes.chunk_by(|_, next| matches!(next, Note::Use(..))) {
            let [head, uses @ ..] = work else { continue };
            let failed = match head {
                Note::Rejected(found) => Some(found.clone()),
                Note::Work(Some(slot)) => slots.found(*slot).cloned(),
                _ => None,
            };
            let spoiled = |note: &Note| match note {
                Note::Use(contents, Access::Read | Access::Write) => contents.spoiled(),
                _ => None,
            };
            let cause = failed.or_else(|| uses.iter().find_map(spoiled));
            for note in uses {
                match note {
                    Note::Use(contents, Access::Write) if cause.is_some() => *contents.lock() = cause.clone(),
                    Note::Use(contents, Access::Replace) => *contents.lock() = cause.clone(),
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_rejected_submission_spoils_what_it_would_have_written_and_what_is_computed_from_it() {
        let (mut log, slots) = (Log::default(), Slots::default());
        let [x, before, y, z] = [(); 4].map(|()| Arc::<Contents>::default());
        let replaces = |from, to| [(from, Access::Read), (to, Access::Replace)].into_iter();
        log.note(None, replaces(&x, &before));
        log.submitted(&slots, None);
        log.note(None, replaces(&x, &y));
        let rejected = Found::new(Error::new(ErrorKind::Backend, "wgpu", "an invalid command buffer"));
        log.submitted(&slots, Some(rejected));
        log.note(None, replaces(&y, &z));
        log.submitted(&slots, None);
        assert!([&x, &before].iter().all(|c| c.spoiled().is_none()));
        assert!([&y, &z].iter().all(|c| c.spoiled().is_some()));
        log.note(None, replaces(&x, &y));
        log.submitted(&slots, None);
        assert!(y.spoiled().is_none(), "new contents");
        assert!(log.untold().is_some() && log.untold().is_none());
    }
}
