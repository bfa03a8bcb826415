//! Which buffers an error spoils that the device finds late.
//!
//! What is queued is noted here until the next check of the fault buffer: the slot that a launch depends on, and the
//! buffers it reads and writes. If the check finds a slot filled, the notes are gone through in order: what a failed
//! launch wrote is spoiled, and so is everything written with an input that is spoiled. Reading a spoiled buffer is the
//! error, every time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::faults::{Found, Slots};

/// Most notes before a check is made for their sake alone.
pub(crate) const LONG: usize = 1 << 20;
/// Most errors kept for `synchronize`.
const UNTOLD: usize = 64;

/// What a buffer holds, from its allocation to its release.
#[derive(Debug, Default)]
pub(crate) struct Contents(Mutex<Option<Arc<Found>>>);

impl Contents {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Found>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error that spoiled it.
    pub(crate) fn spoiled(&self) -> Option<Arc<Found>> {
        self.lock().clone()
    }
}

/// How a launch uses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// Elements may keep their value or depend on it.
    Write,
    /// Nothing stays of what was there.
    Replace,
}

#[derive(Debug)]
enum Note {
    /// A launch or a copy, and the slot that it depends on; its uses follow.
    Work(Option<u32>),
    Use(Arc<Contents>, Access),
}

/// The notes.
#[derive(Debug, Default)]
pub(crate) struct Log {
    notes: Vec<Note>,
    /// Notes of work that is submitted.
    submitted: usize,
    /// Checks that were begun.
    begun: u64,
    /// Checks that are over: they end in the order in which they began.
    ended: u64,
    /// Whether an error was ever found; until then no buffer is spoiled.
    any: bool,
    untold: Vec<Arc<Found>>,
}

/// A check under way: the notes that it decides about.
#[derive(Debug)]
pub(crate) struct Check {
    number: u64,
    slots: Vec<u32>,
    notes: Vec<Note>,
}

impl Log {
    pub(crate) fn len(&self) -> usize {
        self.notes.len()
    }

    /// Notes a launch, and what it uses.
    pub(crate) fn note<'a>(&mut self, slot: Option<u32>, uses: impl Iterator<Item = (&'a Arc<Contents>, Access)>) {
        self.notes.push(Note::Work(slot));
        self.notes.extend(uses.map(|(contents, access)| Note::Use(contents.clone(), access)));
    }

    /// Called after a submission. Without a slot that is armed, nothing is left to find out about it.
    pub(crate) fn submitted(&mut self, slots: &Slots, error: Option<gradus_backend::Error>) {
        if let Some(found) = error.map(Found::new) {
            for note in &self.notes[self.submitted..] {
                if let Note::Use(contents, Access::Write | Access::Replace) = note {
                    *contents.lock() = Some(found.clone());
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

    /// Begins a check of everything noted, which is submitted; `None` if there is nothing to find out.
    pub(crate) fn check(&mut self, slots: &mut Slots) -> Option<Check> {
        if slots.bytes() == 0 && self.begun == self.ended {
            return None;
        }
        self.begun += 1;
        self.submitted = 0;
        let notes = std::mem::take(&mut self.notes);
        Some(Check { number: self.begun, slots: slots.check(), notes })
    }

    /// Whether every check before this one has ended.
    pub(crate) fn is_next(&self, check: &Check) -> bool {
        self.ended + 1 == check.number
    }

    /// Ends a check, when those before it have ended; `bytes` is what it read from the fault buffer, or why it could not.
    pub(crate) fn end(&mut self, check: Check, slots: &mut Slots, bytes: Result<&[u8], &gradus_backend::Error>) {
        debug_assert!(self.is_next(&check));
        slots.fetched(&check.slots, bytes).into_iter().for_each(|found| self.keep(found));
        self.spread(&check.notes, slots);
        slots.checked(&check.slots);
        self.ended = check.number;
    }

    fn keep(&mut self, found: Arc<Found>) {
        self.any = true;
        self.untold.retain(|f| !f.is_told());
        if self.untold.len() < UNTOLD {
            self.untold.push(found);
        }
    }

    /// The errors that no caller got yet.
    pub(crate) fn untold(&mut self) -> Option<gradus_backend::Error> {
        let untold = self.untold.drain(..).filter(|f| !f.is_told());
        untold.map(|f| f.tell()).reduce(|first, other| first.note(other.to_string()))
    }

    fn spread(&self, notes: &[Note], slots: &Slots) {
        if !self.any {
            return;
        }
        // The first note is a launch, since all notes of one are taken together.
        for work in notes.chunk_by(|_, next| matches!(next, Note::Use(..))) {
            let [Note::Work(slot), uses @ ..] = work else { continue };
            let spoiled = |note: &Note| match note {
                Note::Use(contents, Access::Read | Access::Write) => contents.spoiled(),
                _ => None,
            };
            let cause = slot.and_then(|s| slots.found(s).cloned()).or_else(|| uses.iter().find_map(spoiled));
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
