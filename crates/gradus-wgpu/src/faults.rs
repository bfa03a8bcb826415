//! Errors that a device reports late: they are kept here until the next read or `synchronize`.
//!
//! Validation errors, memory errors and the loss of the device come from wgpu's callbacks. A bad index or an integer
//! division by zero is found by a kernel, which cannot stop the queue: it writes to a slot of the fault buffer, and
//! every read fetches the slots together with its own bytes. A slot has 8 words, initially 0: whether it is filled, the
//! inverted position (so that the first position is the maximum), the value (i64) and the size of the axis.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gradus_backend::{Error, ErrorKind, Result};

/// Slots of the fault buffer.
const SLOTS: usize = 1024;
/// Bytes of a slot.
const SLOT: usize = 32;
/// Bytes of the fault buffer.
pub(crate) const FAULT_BYTES: u64 = (SLOTS * SLOT) as u64;

/// The meaning of a filled slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// An index outside the axis that it indexes.
    Index { op: String },
    /// An error without a position.
    Arithmetic { op: String, message: &'static str },
}

impl Fault {
    fn error(&self, words: [u32; 5]) -> Error {
        match self {
            Fault::Index { op } => {
                let (pos, size) = (!words[1] as usize, words[4] as usize);
                let index = ((u64::from(words[3]) << 32) | u64::from(words[2])) as i64;
                let m = format!("index {index} at position {pos} is outside an axis of size {size}");
                Error::new(ErrorKind::IndexOutOfBounds { pos, index, size }, op.clone(), m)
            }
            Fault::Arithmetic { op, message } => Error::argument(op.clone(), *message),
        }
    }
}

/// The slots in use. A slot belongs to the fault that first uses it, until all are taken: then one that is not armed is
/// reassigned.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    numbers: HashMap<Fault, u32>,
    faults: Vec<Fault>,
    /// Where the search for a slot to reassign starts.
    next: u32,
    /// Slots that kernels may have filled since the last check, in the order of their first use.
    armed: Vec<u32>,
}

impl Slots {
    /// The slot of a fault, or `None` if kernels may fill all of the others.
    pub(crate) fn number(&mut self, fault: &Fault) -> Option<u32> {
        if let Some(&slot) = self.numbers.get(fault) {
            return Some(slot);
        }
        let slot = if self.faults.len() < SLOTS {
            self.faults.push(fault.clone());
            self.faults.len() as u32 - 1
        } else {
            // One that no kernel fills before the next check, taking turns.
            let free = |slot: &u32| !self.armed.contains(slot);
            let slot = (self.next..SLOTS as u32).chain(0..self.next).find(free)?;
            self.next = (slot + 1) % SLOTS as u32;
            let old = std::mem::replace(&mut self.faults[slot as usize], fault.clone());
            self.numbers.remove(&old);
            slot
        };
        self.numbers.insert(fault.clone(), slot);
        Some(slot)
    }

    /// Records that a kernel may fill a slot.
    pub(crate) fn arm(&mut self, slot: u32) {
        if !self.armed.contains(&slot) {
            self.armed.push(slot);
        }
    }

    /// Bytes of the fault buffer to check: none if no kernel can have filled a slot.
    pub(crate) fn bytes(&self) -> u64 {
        if self.armed.is_empty() { 0 } else { (self.faults.len() * SLOT) as u64 }
    }

    /// The slots that kernels may have filled; afterwards none is armed.
    pub(crate) fn disarm(&mut self) -> Armed {
        let armed = std::mem::take(&mut self.armed);
        Armed(armed.into_iter().map(|slot| (slot, self.faults[slot as usize].clone())).collect())
    }
}

/// Slots and their meanings, in the order of their first use.
#[derive(Debug)]
pub(crate) struct Armed(Vec<(u32, Fault)>);

impl Armed {
    /// Checks the bytes of the fault buffer: the first fault is the error, the others become its notes.
    pub(crate) fn filled(&self, bytes: &[u8]) -> Option<Error> {
        let words = |slot: u32| {
            let word = |k: usize| {
                let at = slot as usize * SLOT + k * 4;
                bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
            };
            [word(0), word(1), word(2), word(3), word(4)]
        };
        let filled = self.0.iter().map(|(slot, fault)| (words(*slot), fault)).filter(|(words, _)| words[0] != 0);
        filled.map(|(words, fault)| fault.error(words)).reduce(|first, other| first.note(other.to_string()))
    }
}

/// The errors that wgpu's callbacks reported.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    lost: AtomicBool,
    reports: Mutex<Reports>,
}

#[derive(Debug, Default)]
struct Reports {
    lost: String,
    errors: Vec<Error>,
}

impl Faults {
    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an error that belongs to no call.
    pub(crate) fn report(&self, error: wgpu::Error) {
        let (kind, what) = match error {
            wgpu::Error::OutOfMemory { source } => (ErrorKind::OutOfMemory { requested: 0 }, source.to_string()),
            wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
                (ErrorKind::Backend, description)
            }
        };
        self.reports().errors.push(Error::new(kind, "wgpu", what));
    }

    /// Records that the device is lost.
    pub(crate) fn report_lost(&self, why: String) {
        self.reports().lost = why;
        self.lost.store(true, Ordering::Release);
    }

    /// Whether the device is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// An error if the device is lost: nothing works on it any more.
    pub(crate) fn check_lost(&self, op: &str) -> Result<()> {
        if !self.is_lost() {
            return Ok(());
        }
        let why = self.reports().lost.clone();
        Err(Error::new(ErrorKind::Backend, op, format!("the device is lost: {why}"))
            .help("open the device again; what was on it is gone"))
    }

    /// The first of the errors received, if any, with the others as its notes.
    pub(crate) fn take(&self) -> Result<()> {
        let errors = std::mem::take(&mut self.reports().errors);
        errors.into_iter().reduce(|first, other| first.note(other.to_string())).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(i: usize) -> Fault {
        Fault::Index { op: format!("op {i}") }
    }

    #[test]
    fn slots_are_taken_over_when_all_are_in_use_and_none_that_is_armed() {
        let mut slots = Slots::default();
        for i in 0..3 * SLOTS {
            let slot = slots.number(&fault(i)).expect("a slot");
            assert_eq!(slots.number(&fault(i)), Some(slot));
        }
        let kept = slots.number(&fault(3 * SLOTS - 1)).expect("a slot");
        slots.arm(kept);
        for i in 0..2 * SLOTS {
            assert_ne!(slots.number(&fault(i)), Some(kept));
        }
        (0..SLOTS as u32).for_each(|slot| slots.arm(slot));
        assert_eq!(slots.number(&fault(9 * SLOTS)), None);
        slots.disarm();
        assert!(slots.number(&fault(9 * SLOTS)).is_some());
    }

    #[test]
    fn faults_after_the_first_are_its_notes() {
        let mut slots = Slots::default();
        let mut bytes = vec![0; 3 * SLOT];
        for i in [2, 0, 1] {
            let slot = slots.number(&fault(i)).expect("a slot");
            slots.arm(slot);
            bytes[slot as usize * SLOT] = u8::from(i != 0);
        }
        assert_eq!(slots.bytes(), bytes.len() as u64);
        let armed = slots.disarm();
        let error = armed.filled(&bytes).expect("faults").to_string();
        assert!(error.contains("op 2") && error.contains("op 1") && !error.contains("op 0"), "{error}");
        assert!(armed.filled(&vec![0; bytes.len()]).is_none() && slots.bytes() == 0);
    }
}
