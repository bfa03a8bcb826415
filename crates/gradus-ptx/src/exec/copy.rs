//! Asynchronous copies from global to shared memory.

use super::copies::Copy;
use super::race::Access;
use super::warp::Warp;
use super::{Context, Mistake, lanes};
use crate::FaultKind;
use crate::code::CopyAsync;

impl Warp {
    pub(super) fn copy_async(
        &mut self,
        context: &mut Context<'_>,
        pc: u32,
        active: u32,
        copy: &CopyAsync,
    ) -> Result<(), Box<Mistake>> {
        let (to, from) = (self.addresses(context, &copy.to), self.addresses(context, &copy.from));
        let mut buffer = [0; 32];
        let sizes = match copy.source_size {
            Some(src) => *self.v(context, src, &mut buffer),
            None => [copy.size; 32],
        };
        let size = u64::from(copy.size);
        for lane in lanes(active) {
            let access = Access { warp: self.index, lane: lane as u32, pc, bits: 0 };
            context.aligned(pc, lane as u32, to[lane], size)?;
            context.aligned(pc, lane as u32, from[lane], size)?;
            if sizes[lane] > copy.size {
                let text = format!("cp.async of {size} bytes with a source of {} bytes", sizes[lane]);
                return context.mistake(FaultKind::BadOperand, pc, lane as u32, text);
            }
            let mut words = Vec::with_capacity(4);
            for at in (0..copy.size).step_by(4) {
                let given = sizes[lane].saturating_sub(at).min(4) as usize;
                let address = from[lane] + u64::from(at);
                let mut word = 0;
                // A part of a word may be 3 bytes, which is read one by one.
                match given {
                    0 => {}
                    3 => {
                        for byte in 0..3 {
                            word |= context.global_read(access, address + byte, 1)? << (8 * byte);
                        }
                    }
                    given => word = context.global_read(access, address, given)?,
                }
                context.shared_check(access, to[lane] + u64::from(at), 4)?;
                words.push(word);
            }
            for at in 0..words.len() {
                context.shared.pending[to[lane] as usize / 4 + at] = 15;
            }
            self.copies.push(Copy { lane: lane as u32, pc, to: to[lane], words });
        }
        Ok(())
    }

    pub(super) fn copy_wait(&mut self, context: &mut Context<'_>, active: u32, most: u32) -> Result<(), Box<Mistake>> {
        for copy in self.copies.arrived(active, most) {
            let access = Access { warp: self.index, lane: copy.lane, pc: copy.pc, bits: 0 };
            for (at, word) in copy.words.into_iter().enumerate() {
                context.shared.pending[copy.to as usize / 4 + at] = 0;
                context.shared_write(access, copy.to + 4 * at as u64, 4, word)?;
            }
        }
        Ok(())
    }
}
