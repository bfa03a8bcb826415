//! Notes accesses for the search for races.

use super::race::{Access, LAST_PC, Record};
use super::{Context, Mistake};
use crate::FaultKind;

impl Context<'_> {
    /// Notes a read of bytes of a word; the records are the last write and the last read.
    #[inline]
    pub(super) fn note_read(&mut self, access: Access, records: [u64; 2], what: &str) -> Result<u64, Box<Mistake>> {
        match self.races.read(self.job.memory, &self.job.code.strong, access, records[0], records[1]) {
            Ok(record) => Ok(record),
            Err(other) => self.raced(access, other, "reads", what),
        }
    }

    /// Notes a write of bytes of a word.
    #[inline]
    pub(super) fn note_write(&mut self, access: Access, records: [u64; 2], what: &str) -> Result<u64, Box<Mistake>> {
        match self.races.write(self.job.memory, &self.job.code.strong, access, records[0], records[1]) {
            Ok(record) => Ok(record),
            Err(other) => self.raced(access, other, "writes", what),
        }
    }

    #[cold]
    fn raced(&self, access: Access, other: u64, does: &str, what: &str) -> Result<u64, Box<Mistake>> {
        let other = Record(other);
        let who = match self.races.find(other.segment()) {
            Some((warp, _)) => format!("thread {} of its block", self.thread_text(warp * 32 + other.lane())),
            None => "a thread of another block".into(),
        };
        let text =
            format!("the thread {does} a word of {what} memory that {who} accesses, and no barrier orders the two");
        let other = (other.pc() < LAST_PC).then(|| other.pc());
        Err(Box::new(Mistake { kind: FaultKind::Race, pc: access.pc, lane: access.lane, text, other }))
    }

    /// A thread's index, for messages.
    pub(super) fn thread_text(&self, linear: u32) -> String {
        let [x, y, z] = self.thread(linear);
        format!("({x}, {y}, {z})")
    }

    /// A thread's index by its number in the block.
    pub(super) fn thread(&self, linear: u32) -> [u32; 3] {
        let [x, y, _] = self.job.launch.block;
        [linear % x, linear / x % y, linear / (x * y)]
    }
}
