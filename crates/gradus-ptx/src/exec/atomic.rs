//! Atomic operations.

use std::sync::atomic::Ordering::Relaxed;

use super::access::{Target, target};
use super::race::Access;
use super::warp::Warp;
use super::{Context, Mistake, lanes};
use crate::FaultKind;
use crate::code::{Atomic, Update};
use crate::memory::byte_bits;

impl Warp {
    pub(super) fn atomic(
        &mut self,
        context: &mut Context<'_>,
        pc: u32,
        active: u32,
        atomic: &Atomic,
    ) -> Result<(), Box<Mistake>> {
        let addresses = self.addresses(context, &atomic.address);
        let (mut b, mut c, mut out) = ([0; 32], [0; 32], [0; 32]);
        self.w(context, atomic.b, &mut b);
        self.w(context, atomic.c, &mut c);
        let mask = u64::MAX >> (64 - 8 * atomic.size);
        for lane in lanes(active) {
            context.aligned(pc, lane as u32, addresses[lane], atomic.size.into())?;
            let access = Access { warp: self.index, lane: lane as u32, pc, bits: 0 };
            let (b, c) = (b[lane] & mask, c[lane] & mask);
            out[lane] = match target(atomic.address.window, addresses[lane]) {
                Target::Global(at) => context.global_atomic(access, at, atomic, b, c)?,
                Target::Shared(at) => context.shared_atomic(access, at, atomic, b, c)?,
                Target::Local(_) | Target::Param(_) => {
                    let text = "an atomic operation on memory that is neither global nor shared";
                    return context.mistake(FaultKind::OutOfBounds, pc, lane as u32, text);
                }
            };
        }
        self.put_w(atomic.to, active, &out);
        Ok(())
    }
}

/// Applies an update to some bytes of a word.
fn updated(word: u32, from: usize, len: usize, update: Update, b: u64, c: u64) -> u32 {
    let mask = (u64::MAX >> (64 - 8 * len)) as u32;
    let old = word >> (8 * from) & mask;
    let new = update(old.into(), b, c) as u32 & mask;
    word & !(mask << (8 * from)) | new << (8 * from)
}

impl Context<'_> {
    fn global_atomic(&mut self, access: Access, at: u64, atomic: &Atomic, b: u64, c: u64) -> Result<u64, Box<Mistake>> {
        let size = atomic.size as usize;
        let one = self.allocation(access.pc, access.lane, at, size as u64)?;
        let (index, from) = (((at - one.base) / 4) as usize, ((at - one.base) % 4) as usize);
        for word in 0..size.div_ceil(4) {
            let bits = byte_bits(from, size.min(4));
            if !one.is_written(index + word, bits) {
                let text = format!(
                    "an atomic operation on bytes that were never written, at {}",
                    self.job.memory.describe(at)
                );
                return self.mistake(FaultKind::Uninitialised, access.pc, access.lane, text);
            }
            if self.races.on() {
                let [write, read] = &one.shadow()[index + word];
                let records = [write.load(Relaxed), read.load(Relaxed)];
                write.store(self.note_write(Access { bits, ..access }, records, "global")?, Relaxed);
            }
        }
        if size == 8 {
            let _guard = self.job.memory.lock();
            let (low, high) = (one.word(index), one.word(index + 1));
            let old = u64::from(high.load(Relaxed)) << 32 | u64::from(low.load(Relaxed));
            let new = (atomic.update)(old, b, c);
            low.store(new as u32, Relaxed);
            high.store((new >> 32) as u32, Relaxed);
            return Ok(old);
        }
        let update = |word| Some(updated(word, from, size, atomic.update, b, c));
        // The closure always gives a value, so both results hold the old word.
        let (Ok(old) | Err(old)) = one.word(index).fetch_update(Relaxed, Relaxed, update);
        Ok(u64::from(old >> (8 * from)) & (u64::MAX >> (64 - 8 * size)))
    }

    fn shared_atomic(&mut self, access: Access, at: u64, atomic: &Atomic, b: u64, c: u64) -> Result<u64, Box<Mistake>> {
        let size = atomic.size as usize;
        let mut old = 0;
        let parts = size.div_ceil(4) as u64;
        for part in 0..parts {
            // The read is noted before the write, by the same thread.
            self.shared_check(access, at + 4 * part, size.min(4))?;
            let word = self.shared_value(access, at + 4 * part, size.min(4))?;
            old |= u64::from(word) << (32 * part);
        }
        let new = (atomic.update)(old, b, c);
        for part in 0..parts {
            self.shared_write(access, at + 4 * part, size.min(4), (new >> (32 * part)) as u32)?;
        }
        Ok(old)
    }
}
