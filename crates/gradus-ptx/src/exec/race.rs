//! Finds accesses that nothing orders.
//!
//! The time of a warp is cut into segments by the barriers in which it takes part. For each word of shared and global
//! memory a record tells the segment, the lane, the instruction and the bytes of the last write, and another one of the
//! last read. Each warp knows up to which segment of every other warp of its block all accesses lie before its own.
//! Accesses of two blocks of a launch are never ordered.

use crate::memory::Memory;
use std::sync::atomic::Ordering::Relaxed;

/// Numbers of segments are taken from the memory in chunks of this size.
const CHUNK: u32 = 64;

/// Places in the code from here on are not told apart in records.
pub(super) const LAST_PC: u32 = (1 << 21) - 1;

/// Who accesses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) warp: u32,
    pub(super) lane: u32,
    pub(super) pc: u32,
    /// The bytes of the word.
    pub(super) bits: u8,
}

/// Which readers a record of a read stands for beside the one that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Others {
    None,
    Lanes,
    Warps,
    Blocks,
}

/// One record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record(pub(super) u64);

impl Record {
    fn bits_of(segment: u32, access: Access, others: Others) -> u64 {
        let place = u64::from(access.lane) << 27 | u64::from(access.pc.min(LAST_PC)) << 6;
        u64::from(segment) << 32 | place | (others as u64) << 4 | u64::from(access.bits)
    }

    pub(super) fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn lane(self) -> u32 {
        (self.0 >> 27 & 31) as u32
    }

    pub(super) fn pc(self) -> u32 {
        (self.0 >> 6 & u64::from(LAST_PC)) as u32
    }

    fn others(self) -> Others {
        match self.0 >> 4 & 3 {
            0 => Others::None,
            1 => Others::Lanes,
            2 => Others::Warps,
            _ => Others::Blocks,
        }
    }

    fn bits(self) -> u8 {
        (self.0 & 15) as u8
    }
}

/// How a recorded access lies to the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Before it, or of an earlier launch.
    Before,
    /// Of the same thread, and nothing between.
    Own,
    Lane,
    Warp,
    Block,
}

/// The order of the accesses of one block.
pub(super) struct Races {
    on: bool,
    warps: usize,
    /// For each warp, for each warp: the epochs below this lie before what it does now.
    known: Vec<u32>,
    epoch: Vec<u32>,
    /// The epochs below this lie before the last barrier of the whole block.
    whole: Vec<u32>,
    /// The segment of each warp's epoch; 0 where it has none yet.
    segment: Vec<u32>,
    /// The block's segments: for each chunk its first number, and each segment's warp and epoch.
    chunks: Vec<(u32, Vec<(u32, u32)>)>,
    first: u32,
}

impl Races {
    pub(super) fn new(on: bool, warps: usize, first: u32) -> Self {
        let zeros = vec![0; warps];
        let known = vec![0; warps * warps];
        Self { on, warps, known, epoch: zeros.clone(), whole: zeros.clone(), segment: zeros, chunks: Vec::new(), first }
    }

    pub(super) fn on(&self) -> bool {
        self.on
    }

    /// The segment in which a warp is.
    #[inline]
    fn current(&mut self, warp: u32, memory: &Memory) -> u32 {
        let known = self.segment[warp as usize];
        if known != 0 { known } else { self.begin(warp, memory) }
    }

    #[cold]
    fn begin(&mut self, warp: u32, memory: &Memory) -> u32 {
        if self.chunks.last().is_none_or(|(_, used)| used.len() as u32 == CHUNK) {
            let start = memory.segments.fetch_add(u64::from(CHUNK), Relaxed) as u32;
            self.chunks.push((start, Vec::new()));
        }
        let epoch = self.epoch[warp as usize];
        let Some((start, used)) = self.chunks.last_mut() else { return 0 };
        used.push((warp, epoch));
        let segment = *start + used.len() as u32 - 1;
        self.segment[warp as usize] = segment;
        segment
    }

    /// The warp and the epoch of a segment of this block.
    pub(super) fn find(&self, segment: u32) -> Option<(u32, u32)> {
        let chunk = self.chunks.iter().rev().find(|(start, _)| segment.wrapping_sub(*start) < CHUNK)?;
        chunk.1.get((segment - chunk.0) as usize).copied()
    }

    fn order(&self, record: Record, segment: u32, access: Access) -> Order {
        if record.segment() == segment {
            return if record.lane() == access.lane { Order::Own } else { Order::Lane };
        }
        if record.segment() < self.first {
            return Order::Before;
        }
        let Some((warp, epoch)) = self.find(record.segment()) else { return Order::Block };
        let ordered = epoch < self.known[access.warp as usize * self.warps + warp as usize];
        if ordered { Order::Before } else { Order::Warp }
    }

    /// Whether all the readers for which a record stands lie before the present access, or are its own thread.
    fn readers_ordered(&self, record: Record, segment: u32, access: Access) -> bool {
        let order = self.order(record, segment, access);
        if record.segment() < self.first && record.segment() != segment {
            return true;
        }
        match (order, record.others()) {
            (Order::Lane | Order::Warp | Order::Block, _) | (_, Others::Blocks) => false,
            (Order::Own, others) => others == Others::None,
            (Order::Before, Others::None | Others::Lanes) => true,
            // The others were read between the same two barriers of the block.
            (Order::Before, _) => {
                self.find(record.segment()).is_some_and(|(warp, epoch)| epoch < self.whole[warp as usize])
            }
        }
    }

    /// The new record of a read, or the write with which it races.
    pub(super) fn read(
        &mut self,
        memory: &Memory,
        strong: &[bool],
        access: Access,
        write: u64,
        read: u64,
    ) -> Result<u64, u64> {
        let segment = self.current(access.warp, memory);
        let last = Record(write);
        if write != 0 && last.bits() & access.bits != 0 {
            let order = self.order(last, segment, access);
            if !matches!(order, Order::Before | Order::Own) && !both_strong(strong, last, access) {
                return Err(write);
            }
        }
        let reader = Record(read);
        if read == 0 {
            return Ok(Record::bits_of(segment, access, Others::None));
        }
        let order = self.order(reader, segment, access);
        // A record cannot tell which of several readers read which bytes, so one of other bytes is forgotten. Otherwise
        // a thread that reads and writes its own half of a word would seem to race with the reader of the other half.
        if reader.bits() & access.bits == 0 && matches!(order, Order::Lane | Order::Warp | Order::Block) {
            return Ok(Record::bits_of(segment, access, Others::None));
        }
        let others = match order {
            Order::Before => return Ok(Record::bits_of(segment, access, Others::None)),
            Order::Own => reader.others(),
            Order::Lane => reader.others().max(Others::Lanes),
            Order::Warp => reader.others().max(Others::Warps),
            Order::Block => Others::Blocks,
        };
        let bits = access.bits | reader.bits();
        Ok(Record::bits_of(segment, Access { bits, ..access }, others))
    }

    /// The new record of a write, or the access with which it races.
    pub(super) fn write(
        &mut self,
        memory: &Memory,
        strong: &[bool],
        access: Access,
        write: u64,
        read: u64,
    ) -> Result<u64, u64> {
        let segment = self.current(access.warp, memory);
        let last = Record(write);
        if write != 0 && last.bits() & access.bits != 0 {
            let order = self.order(last, segment, access);
            if !matches!(order, Order::Before | Order::Own) && !both_strong(strong, last, access) {
                return Err(write);
            }
        }
        let reader = Record(read);
        let overlaps = read != 0 && reader.bits() & access.bits != 0;
        if overlaps && !self.readers_ordered(reader, segment, access) && !both_strong(strong, reader, access) {
            return Err(read);
        }
        Ok(Record::bits_of(segment, access, Others::None))
    }

    /// A barrier orders the lanes of a warp.
    pub(super) fn join_warp(&mut self, warp: usize) {
        self.epoch[warp] += 1;
        self.known[warp * self.warps + warp] = self.epoch[warp];
        self.segment[warp] = 0;
    }

    /// A barrier orders these warps, or all of the block.
    pub(super) fn join(&mut self, warps: &[usize]) {
        let whole = warps.len() == self.warps;
        let mut joined = vec![0; self.warps];
        for &warp in warps {
            for (all, known) in joined.iter_mut().zip(&self.known[warp * self.warps..]) {
                *all = (*all).max(*known);
            }
        }
        for &warp in warps {
            self.epoch[warp] += 1;
            joined[warp] = self.epoch[warp];
            self.segment[warp] = 0;
        }
        for &warp in warps {
            self.known[warp * self.warps..][..self.warps].copy_from_slice(&joined);
        }
        if whole {
            self.whole.copy_from_slice(&self.epoch);
        }
    }
}

/// Atomic operations and volatile accesses do not race with each other.
fn both_strong(strong: &[bool], record: Record, access: Access) -> bool {
    let is = |pc: u32| strong.get(pc as usize).copied().unwrap_or(false);
    is(record.pc()) && is(access.pc)
}
