//! Errors that an asynchronous device finds after the call that caused them has returned: bookkeeping for backends.
//!
//! A bad index or an integer division by zero is found by a kernel, which cannot stop the queue. It writes to a slot of
//! a fault buffer instead, and the next read fetches the slots together with its own bytes. A slot has 8 words,
//! initially 0. They hold a flag that says whether the slot is filled, the inverted position (so that the maximum is
//! the first position), the index (an i64) and the size of the axis. The [`Log`] determines which buffers a filled slot
//! spoils.

mod log;

pub use log::{Access, Check, Contents, LONG, Log};

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, ErrorKind, Result};

/// The number of slots in the fault buffer.
const SLOTS: usize = 1024;
/// The size of a slot in bytes.
pub const SLOT: usize = 32;
/// The size of the fault buffer in bytes.
pub const FAULT_BYTES: u64 = (SLOTS * SLOT) as u64;

/// The meaning of a filled slot.
#[derive(Debug, Clone)]
pub struct Fault {
    op: String,
    /// The line of the user's code that made the call, if it is known.
    line: Option<&'static Location<'static>>,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    /// An index outside the axis that it indexes.
    Index,
    /// An error without a position.
    Arithmetic(&'static str),
}

impl Fault {
    /// An index outside the axis that it indexes, in a call of `op`. The slot says which.
    pub fn index(op: &str) -> Fault {
        Fault { op: op.to_owned(), line: crate::line_of_call(), what: What::Index }
    }

    /// An error without a position, in a call of `op`.
    pub fn arithmetic(op: &str, message: &'static str) -> Fault {
        Fault { op: op.to_owned(), line: crate::line_of_call(), what: What::Arithmetic(message) }
    }

    fn error(&self, words: [u32; 5]) -> Error {
        let error = match self.what {
            What::Index => {
                let (pos, size) = (!words[1] as usize, words[4] as usize);
                let index = ((u64::from(words[3]) << 32) | u64::from(words[2])) as i64;
                let m = format!("index {index} at position {pos} is outside an axis of size {size}");
                Error::new(ErrorKind::IndexOutOfBounds { pos, index, size }, self.op.clone(), m)
            }
            What::Arithmetic(message) => Error::argument(self.op.clone(), message),
        };
        error.late(self.line).note("found by the device after the call had returned")
    }

    /// The error for a slot whose contents could not be read from the device.
    fn unknown(&self, why: &Error) -> Error {
        let m = format!("whether its operands are valid is not known: {}", why.message());
        Error::new(why.kind().clone(), self.op.clone(), m).late(self.line)
    }
}

/// An error that the device found late.
#[derive(Debug)]
pub struct Found {
    error: Error,
    /// Whether the error has been returned to a caller.
    told: AtomicBool,
}

impl Found {
    /// An error that no caller has received yet.
    pub fn new(error: Error) -> Arc<Found> {
        Arc::new(Found { error, told: AtomicBool::new(false) })
    }

    /// Returns the error for a caller, and records that it has been told.
    pub fn tell(&self) -> Error {
        self.told.store(true, Ordering::Relaxed);
        self.error.clone()
    }

    /// Whether a caller has received the error.
    pub fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }
}

/// The slots of the fault buffer. A slot belongs to one call of an operation. It becomes free when the call has
/// returned and the last check of the slot has ended.
#[derive(Debug, Default)]
pub struct Slots {
    all: Vec<Slot>,
    free: Vec<u32>,
    /// The slots that work queued since the last check depends on.
    armed: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    fault: Fault,
    /// Whether the call is still running.
    held: bool,
    armed: bool,
    /// The number of checks in progress that include this slot.
    checks: u32,
    found: Option<Arc<Found>>,
}

impl Slots {
    /// Takes a slot for a call; `None` if all are in use.
    pub fn take(&mut self, fault: Fault) -> Option<u32> {
        let new = Slot { fault, held: true, armed: false, checks: 0, found: None };
        if let Some(slot) = self.free.pop() {
            self.all[slot as usize] = new;
            return Some(slot);
        }
        (self.all.len() < SLOTS).then(|| {
            self.all.push(new);
            self.all.len() as u32 - 1
        })
    }

    /// Ends the call that a slot belongs to.
    pub fn release(&mut self, slot: u32) {
        self.all[slot as usize].held = false;
        self.reuse(slot);
    }

    fn reuse(&mut self, slot: u32) {
        let s = &self.all[slot as usize];
        if !s.held && !s.armed && s.checks == 0 {
            self.free.push(slot);
        }
    }

    /// Records that a queued kernel may fill the slot, or uses operands that such a kernel checks.
    pub fn arm(&mut self, slot: u32) {
        let s = &mut self.all[slot as usize];
        if !std::mem::replace(&mut s.armed, true) {
            self.armed.push(slot);
        }
    }

    /// The number of bytes of the fault buffer that a check must read; 0 if no slot is armed.
    pub fn bytes(&self) -> u64 {
        self.armed.iter().max().map_or(0, |&slot| (slot as usize + 1) * SLOT) as u64
    }

    /// Starts a check of the armed slots, and returns them. Afterwards, no slot is armed.
    pub fn check(&mut self) -> Vec<u32> {
        let armed = std::mem::take(&mut self.armed);
        for &slot in &armed {
            let s = &mut self.all[slot as usize];
            (s.armed, s.checks) = (false, s.checks + 1);
        }
        armed
    }

    /// Records what a check read from the fault buffer, or why it could not be read. Returns the errors that are new.
    pub fn fetched(&mut self, slots: &[u32], bytes: Result<&[u8], &Error>) -> Vec<Arc<Found>> {
        let mut new = Vec::new();
        for &slot in slots {
            let s = &mut self.all[slot as usize];
            let error = match bytes {
                Ok(bytes) => {
                    let word = |k: usize| {
                        let at = slot as usize * SLOT + k * 4;
                        bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
                    };
                    (word(0) != 0).then(|| s.fault.error([word(0), word(1), word(2), word(3), word(4)]))
                }
                Err(why) => Some(s.fault.unknown(why)),
            };
            if let (Some(error), None) = (error, &s.found) {
                let found = Found::new(error);
                s.found = Some(found.clone());
                new.push(found);
            }
        }
        new
    }

    /// The error found in a slot, if any.
    pub fn found(&self, slot: u32) -> Option<&Arc<Found>> {
        self.all[slot as usize].found.as_ref()
    }

    /// Ends a check of these slots.
    pub fn checked(&mut self, slots: &[u32]) {
        for &slot in slots {
            self.all[slot as usize].checks -= 1;
            self.reuse(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_reused_after_its_call_and_its_checks() {
        let mut slots = Slots::default();
        let all: Vec<u32> = (0..SLOTS).map(|_| slots.take(Fault::index("op")).expect("a slot")).collect();
        assert!(slots.take(Fault::index("op")).is_none());
        slots.arm(all[3]);
        slots.release(all[3]);
        let first = slots.check();
        assert_eq!((first.as_slice(), slots.bytes()), ([all[3]].as_slice(), 0));
        // Work after the check depends on the same slot.
        slots.arm(all[3]);
        slots.checked(&first);
        assert!(slots.take(Fault::index("op")).is_none());
        let second = slots.check();
        slots.checked(&second);
        assert_eq!(slots.take(Fault::index("op")), Some(all[3]));
    }

    #[test]
    fn a_filled_slot_is_the_error_of_its_call_until_it_is_reused() {
        let mut slots = Slots::default();
        let names = ["op 0", "op 1", "op 2"];
        let taken = names.map(|op| slots.take(Fault::index(op)).expect("a slot"));
        taken.iter().for_each(|&slot| slots.arm(slot));
        let mut bytes = vec![0; slots.bytes() as usize];
        bytes[taken[1] as usize * SLOT] = 1;
        let check = slots.check();
        let new = slots.fetched(&check, Ok(&bytes));
        assert!(new.len() == 1 && new[0].error.op() == "op 1" && !new[0].is_told());
        assert!(slots.found(taken[1]).is_some() && slots.found(taken[0]).is_none());
        // An error that was found stays recorded, although its slot is empty by now.
        assert!(slots.fetched(&check, Ok(&vec![0; bytes.len()])).is_empty() && slots.found(taken[1]).is_some());
        let why = Error::new(ErrorKind::Backend, "download", "gone");
        assert_eq!(slots.fetched(&check, Err(&why)).len(), 2);
    }
}
