//! Accesses to the memory of a block.

use super::race::Access;
use super::{Context, Mistake};
use crate::FaultKind;
use crate::memory::byte_bits;

impl Context<'_> {
    fn shared_outside<T>(&self, pc: u32, lane: u32, offset: u64, len: usize) -> Result<T, Box<Mistake>> {
        let before = self.job.shared.iter().filter(|(start, _)| *start <= offset).max();
        let place = match before {
            Some((start, size)) if offset < start + size => {
                format!("{len} bytes at offset {} of a variable of {size} bytes", offset - start)
            }
            Some((start, size)) => {
                format!("{len} bytes, {} bytes past the end of a variable of {size} bytes", offset - start - size)
            }
            None => format!("{len} bytes at offset {offset}, before all variables"),
        };
        self.mistake(FaultKind::OutOfBounds, pc, lane, format!("an access outside shared memory: {place}"))
    }

    /// Bytes of one word of shared memory.
    #[inline]
    pub(super) fn shared_read(&mut self, access: Access, offset: u64, len: usize) -> Result<u32, Box<Mistake>> {
        let index = (offset / 4) as usize;
        let bits = byte_bits((offset % 4) as usize, len);
        let Some(&state) = self.shared.state.get(index) else {
            return self.shared_outside(access.pc, access.lane, offset, len);
        };
        if state & bits != bits {
            return self.shared_outside(access.pc, access.lane, offset, len);
        }
        if self.shared.pending[index] & bits != 0 {
            return self.pending(access, "reads");
        }
        if self.races.on() {
            let records = self.shared.shadow[index];
            self.shared.shadow[index][1] = self.note_read(Access { bits, ..access }, records, "shared")?;
        }
        self.shared_value(access, offset, len)
    }

    /// Bytes of one word of shared memory, without a note of the read.
    pub(super) fn shared_value(&self, access: Access, offset: u64, len: usize) -> Result<u32, Box<Mistake>> {
        let (index, from) = ((offset / 4) as usize, (offset % 4) as usize);
        let bits = byte_bits(from, len);
        if self.shared.state[index] >> 4 & bits != bits {
            let text = format!("a read of shared memory that was never written, at offset {offset}");
            return self.mistake(FaultKind::Uninitialised, access.pc, access.lane, text);
        }
        let word = self.shared.words[index];
        Ok(if len == 4 { word } else { word >> (8 * from) & ((1 << (8 * len)) - 1) })
    }

    #[cold]
    fn pending<T>(&self, access: Access, does: &str) -> Result<T, Box<Mistake>> {
        let text = format!("the thread {does} shared memory to which a cp.async was issued that was not waited for");
        self.mistake(FaultKind::Race, access.pc, access.lane, text)
    }

    /// Checks a write of bytes of one word of shared memory and notes it.
    pub(super) fn shared_check(&mut self, access: Access, offset: u64, len: usize) -> Result<(), Box<Mistake>> {
        let index = (offset / 4) as usize;
        let bits = byte_bits((offset % 4) as usize, len);
        if self.shared.state.get(index).is_none_or(|state| state & bits != bits) {
            return self.shared_outside(access.pc, access.lane, offset, len);
        }
        if self.shared.pending[index] & bits != 0 {
            return self.pending(access, "writes");
        }
        if self.races.on() {
            let records = self.shared.shadow[index];
            self.shared.shadow[index][0] = self.note_write(Access { bits, ..access }, records, "shared")?;
        }
        Ok(())
    }

    /// Writes bytes of one word of shared memory.
    #[inline]
    pub(super) fn shared_write(
        &mut self,
        access: Access,
        offset: u64,
        len: usize,
        value: u32,
    ) -> Result<(), Box<Mistake>> {
        self.shared_check(access, offset, len)?;
        let (index, from) = ((offset / 4) as usize, (offset % 4) as usize);
        self.shared.state[index] |= byte_bits(from, len) << 4;
        let word = &mut self.shared.words[index];
        if len == 4 {
            *word = value;
        } else {
            let mask = ((1u32 << (8 * len)) - 1) << (8 * from);
            *word = *word & !mask | value << (8 * from) & mask;
        }
        Ok(())
    }
}
