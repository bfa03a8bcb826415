//! Pinned memory through which copies between the host and the device go, so that nobody waits for more than they ask for.

use std::collections::VecDeque;

use gradus_backend::Result;

use super::{Device, Pinned};

/// The bytes of a block.
pub(crate) const BLOCK: usize = 1 << 20;
/// The largest number of blocks for uploads.
const BLOCKS: usize = 8;
/// What is uploaded begins at a multiple of this.
const ALIGNED: usize = 256;

/// A ring of blocks for uploads. A block is filled with one upload after the other, and used again once all of them are
/// done.
#[derive(Default)]
pub(crate) struct Uploads {
    /// The block that is being filled, and how much of it is.
    current: Option<(Pinned, usize)>,
    /// Full blocks, with a mark behind their copies; the oldest first.
    full: VecDeque<Pinned>,
}

impl Uploads {
    /// Copies at most [`BLOCK`] bytes to pinned memory, where they stay until their copy to the device is done. That has to
    /// be queued before the next call. `None` if there is no pinned memory.
    pub(crate) fn stage(&mut self, device: &Device, op: &str, bytes: &[u8]) -> Result<Option<&[u8]>> {
        if let Some((block, used)) = self.current.take_if(|(_, used)| *used + bytes.len() > BLOCK) {
            debug_assert!(used <= BLOCK);
            if let Err(e) = device.mark(op, &block) {
                // Without its mark, the block may only be used again after a wait for everything. If that fails too, copies
                // may read it for as long as the process lives.
                if device.wait(op).is_ok() {
                    self.full.push_back(block);
                }
                return Err(e);
            }
            self.full.push_back(block);
        }
        if self.current.is_none() {
            let Some(block) = self.block(device, op)? else { return Ok(None) };
            self.current = Some((block, 0));
        }
        let Some((block, used)) = &mut self.current else { return Ok(None) };
        let room = &mut block.bytes_mut()[*used..*used + bytes.len()];
        room.copy_from_slice(bytes);
        *used = (*used + bytes.len()).next_multiple_of(ALIGNED);
        Ok(Some(room))
    }

    /// A block that no copy uses: a new one, or the one that was full first, after its copies. `None` if there is neither.
    fn block(&mut self, device: &Device, op: &str) -> Result<Option<Pinned>> {
        if self.full.len() < BLOCKS
            && let Ok(block) = device.pinned(BLOCK)
        {
            return Ok(Some(block));
        }
        if let Some(oldest) = self.full.front() {
            device.wait_for(op, oldest)?;
        }
        Ok(self.full.pop_front())
    }

    /// All blocks. No copy uses them any more.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Pinned> {
        self.current.take().map(|(block, _)| block).into_iter().chain(std::mem::take(&mut self.full))
    }
}

/// Two blocks for downloads, which take turns: one is filled while the other is emptied.
#[derive(Default)]
pub(crate) struct Downloads {
    blocks: Vec<Pinned>,
}

impl Downloads {
    /// Queues the first copies to the blocks, of `bytes` bytes from `from` on. Returns whether there is pinned memory.
    ///
    /// # Safety
    /// So many bytes are allocated there, until [`finish`](Self::finish) has returned.
    pub(crate) unsafe fn begin(&mut self, device: &Device, op: &str, from: u64, bytes: usize) -> Result<bool> {
        while self.blocks.len() < 2 {
            let Ok(block) = device.pinned(BLOCK) else { return Ok(false) };
            self.blocks.push(block);
        }
        for at in (0..bytes).step_by(BLOCK).take(2) {
            // SAFETY: the caller's promise.
            unsafe { self.fill(device, op, from, at, bytes) }?;
        }
        Ok(true)
    }

    /// Fills `bytes` as the copies are done, and queues the others.
    ///
    /// # Safety
    /// As for [`begin`](Self::begin), which was called for as many bytes.
    pub(crate) unsafe fn finish(&mut self, device: &Device, op: &str, from: u64, bytes: &mut [u8]) -> Result<()> {
        let all = bytes.len();
        for (i, chunk) in bytes.chunks_mut(BLOCK).enumerate() {
            let block = &self.blocks[i % 2];
            device.wait_for(op, block)?;
            chunk.copy_from_slice(&block.bytes()[..chunk.len()]);
            if (i + 2) * BLOCK < all {
                // SAFETY: the caller's promise.
                unsafe { self.fill(device, op, from, (i + 2) * BLOCK, all) }?;
            }
        }
        Ok(())
    }

    /// Queues the copy of a block, from byte `at` on.
    ///
    /// # Safety
    /// As for [`begin`](Self::begin).
    unsafe fn fill(&mut self, device: &Device, op: &str, from: u64, at: usize, all: usize) -> Result<()> {
        let block = &mut self.blocks[at / BLOCK % 2];
        let room = &mut block.bytes_mut()[..BLOCK.min(all - at)];
        // SAFETY: the source is allocated, as the caller promises; the block is read only after a wait for its mark.
        unsafe { device.copy_out(op, room, from + at as u64) }?;
        device.mark(op, block)
    }

    /// The blocks. No copy uses them any more.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Pinned> {
        std::mem::take(&mut self.blocks).into_iter()
    }
}
