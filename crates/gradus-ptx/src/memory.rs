//! The address space of a device: allocations with gaps between them, and for each byte whether it was ever written.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// The first address that is given out. Everything below is null or a small number.
const FIRST: u64 = 0x10_0000_0000;
/// The last address that may be given out; other state spaces have their windows above.
const LAST: u64 = 0x6fff_0000_0000;
/// What lies between two allocations at least, so that an address past an end belongs to no other allocation.
const GAP: u64 = 1 << 16;
/// Allocations start at multiples of this, as on a GPU.
const ALIGN: u64 = 512;
/// How many freed ranges are remembered for messages.
const REMEMBERED: usize = 4096;

/// An access of the host that the memory cannot serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryError(pub(crate) String);

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MemoryError {}

/// One allocation. The bytes are kept in words, so that a word is read and written at once.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) len: u64,
    words: Box<[AtomicU32]>,
    /// For each word, a bit for each byte that was written.
    written: Box<[AtomicU8]>,
    /// For each word, the last writer and the last reader of the launch; see `race.rs`.
    shadow: OnceLock<Box<[[AtomicU64; 2]]>>,
}

/// The bits of the bytes `from..from + len` of a word.
pub(crate) fn byte_bits(from: usize, len: usize) -> u8 {
    ((1u32 << (from + len)) - (1 << from)) as u8
}

impl Allocation {
    /// An allocation of bytes that were never written, or none where the host has no memory for it.
    fn new(base: u64, len: u64) -> Option<Self> {
        let count = usize::try_from(len.div_ceil(4)).ok()?;
        let words = bytemuck::allocation::try_zeroed_slice_box(count).ok()?;
        let written = bytemuck::allocation::try_zeroed_slice_box(count).ok()?;
        Some(Self { base, len, words, written, shadow: OnceLock::new() })
    }

    /// Whether the bytes from this address on lie inside.
    pub(crate) fn holds(&self, address: u64, len: u64) -> bool {
        address >= self.base && address - self.base <= self.len && len <= self.len - (address - self.base)
    }

    /// The word with this index.
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        &self.words[index]
    }

    /// Whether these bytes of the word were all written.
    pub(crate) fn is_written(&self, index: usize, bits: u8) -> bool {
        self.written[index].load(Relaxed) & bits == bits
    }

    /// Notes that these bytes of the word are written.
    pub(crate) fn mark(&self, index: usize, bits: u8) {
        let written = &self.written[index];
        if bits == 15 {
            written.store(15, Relaxed);
        } else if written.load(Relaxed) & bits != bits {
            written.fetch_or(bits, Relaxed);
        }
    }

    /// The records of the last writer and the last reader of each word.
    pub(crate) fn shadow(&self) -> &[[AtomicU64; 2]] {
        self.shadow.get_or_init(|| bytemuck::allocation::zeroed_slice_box(self.words.len()))
    }

    /// Stores bytes that lie in one word.
    pub(crate) fn store_part(&self, index: usize, from: usize, len: usize, value: u32) {
        let word = &self.words[index];
        if len == 4 {
            word.store(value, Relaxed);
        } else {
            let mask = ((1u32 << (8 * len)) - 1) << (8 * from);
            let put = |old: u32| Some(old & !mask | (value << (8 * from)) & mask);
            // The closure always gives a value, so the update cannot fail.
            let _ = word.fetch_update(Relaxed, Relaxed, put);
        }
        self.mark(index, byte_bits(from, len));
    }

    /// Reads bytes from an offset on.
    fn read(&self, offset: u64, to: &mut [u8]) {
        let mut at = offset as usize;
        let mut to = to;
        while !to.is_empty() {
            let from = at % 4;
            let len = (4 - from).min(to.len());
            let word = self.words[at / 4].load(Relaxed).to_le_bytes();
            let (part, rest) = to.split_at_mut(len);
            part.copy_from_slice(&word[from..from + len]);
            to = rest;
            at += len;
        }
    }

    /// Writes bytes from an offset on.
    fn write(&self, offset: u64, mut bytes: &[u8]) {
        let mut at = offset as usize;
        while !bytes.is_empty() {
            let from = at % 4;
            let len = (4 - from).min(bytes.len());
            let (part, rest) = bytes.split_at(len);
            let mut word = [0; 4];
            word[..len].copy_from_slice(part);
            self.store_part(at / 4, from, len, u32::from_le_bytes(word));
            bytes = rest;
            at += len;
        }
    }

    /// For each of the bytes from an offset on, whether it was written.
    fn written(&self, offset: u64, len: usize) -> impl Iterator<Item = bool> {
        let at = offset as usize;
        (at..at + len).map(|at| self.is_written(at / 4, 1 << (at % 4)))
    }
}

/// The allocations, sorted by their addresses.
pub(crate) type Allocations = Arc<Vec<Arc<Allocation>>>;

#[derive(Debug)]
struct Table {
    live: Allocations,
    next: u64,
    used: u64,
    freed: VecDeque<(u64, u64)>,
}

/// The address space of a device. All methods may be called from several threads.
#[derive(Debug)]
pub struct Memory {
    table: RwLock<Table>,
    /// Tells this memory from all others of the process.
    id: u64,
    /// The next number of a segment of execution; see `race.rs`.
    pub(crate) segments: AtomicU64,
    /// Held by atomic operations on 64 bits, which are two words here.
    wide: Mutex<()>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An address space without allocations.
    pub fn new() -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let table = Table { live: Arc::default(), next: FIRST, used: 0, freed: VecDeque::new() };
        Self {
            table: RwLock::new(table),
            id: IDS.fetch_add(1, Relaxed),
            segments: AtomicU64::new(1),
            wide: Mutex::default(),
        }
    }

    /// The first segment of a launch that begins now. Long before the numbers would be used up they start again, and all
    /// records of the past are dropped.
    pub(crate) fn first_segment(&self) -> u32 {
        let mut first = self.segments.load(Relaxed);
        if first > u64::from(u32::MAX / 2) {
            for record in self.live().iter().filter_map(|one| one.shadow.get()).flatten().flatten() {
                record.store(0, Relaxed);
            }
            self.segments.store(1, Relaxed);
            first = 1;
        }
        first as u32
    }

    /// Makes an access of 64 bits atomic.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.wide.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Reserves bytes and gives their address, a multiple of 512. No address is given out twice.
    ///
    /// # Errors
    /// If `len` is 0, or if the host or the address space has no room for it.
    pub fn alloc(&self, len: u64) -> Result<u64, MemoryError> {
        if len == 0 {
            return Err(MemoryError("alloc: 0 bytes were asked for".into()));
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let full = || MemoryError(format!("alloc: no room for {len} bytes"));
        let base = table.next;
        let end = base.checked_add(len).filter(|end| *end < LAST).ok_or_else(full)?;
        let allocation = Arc::new(Allocation::new(base, len).ok_or_else(full)?);
        table.next = (end + GAP).next_multiple_of(ALIGN);
        table.used += len;
        Arc::make_mut(&mut table.live).push(allocation);
        Ok(base)
    }

    /// Gives an allocation back. A kernel that is running keeps what it has.
    ///
    /// # Errors
    /// If no live allocation starts at this address.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Ok(at) = table.live.binary_search_by_key(&address, |one| one.base) else {
            drop(table);
            return Err(MemoryError(format!("free: {}", self.describe(address))));
        };
        let allocation = Arc::make_mut(&mut table.live).remove(at);
        table.used -= allocation.len;
        table.freed.push_back((allocation.base, allocation.len));
        if table.freed.len() > REMEMBERED {
            table.freed.pop_front();
        }
        Ok(())
    }

    /// How many bytes are allocated.
    pub fn used(&self) -> u64 {
        self.table.read().unwrap_or_else(PoisonError::into_inner).used
    }

    /// The start and the length of the live allocation that holds this address.
    pub fn range_of(&self, address: u64) -> Option<(u64, u64)> {
        self.find(address, 1).map(|one| (one.base, one.len))
    }

    /// Copies bytes to the host. Bytes that were never written are zero.
    ///
    /// # Errors
    /// If the bytes do not lie in one live allocation.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        let one = self.need("read", address, to.len() as u64)?;
        one.read(address - one.base, to);
        Ok(())
    }

    /// Copies bytes from the host.
    ///
    /// # Errors
    /// If the bytes do not lie in one live allocation.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryError> {
        let one = self.need("write", address, from.len() as u64)?;
        one.write(address - one.base, from);
        Ok(())
    }

    /// Repeats a pattern over `len` bytes; the last repetition may be cut.
    ///
    /// # Errors
    /// If the bytes do not lie in one live allocation, or if the pattern is empty.
    pub fn fill(&self, address: u64, pattern: &[u8], len: u64) -> Result<(), MemoryError> {
        let one = self.need("fill", address, len)?;
        if pattern.is_empty() {
            return Err(MemoryError("fill: the pattern is empty".into()));
        }
        let chunk: Vec<u8> = pattern.iter().copied().cycle().take(pattern.len() * 1024).collect();
        let mut done = 0;
        while done < len {
            let part = (len - done).min(chunk.len() as u64);
            one.write(address - one.base + done, &chunk[..part as usize]);
            done += part;
        }
        Ok(())
    }

    /// Copies bytes inside this memory, and with each byte whether it was written. The ranges may overlap.
    ///
    /// # Errors
    /// If either range does not lie in one live allocation.
    pub fn copy(&self, from: u64, to: u64, len: u64) -> Result<(), MemoryError> {
        let source = self.need("copy from", from, len)?;
        let target = self.need("copy to", to, len)?;
        let mut bytes = vec![0; len as usize];
        source.read(from - source.base, &mut bytes);
        let written: Vec<bool> = source.written(from - source.base, bytes.len()).collect();
        let mut at = 0;
        for run in written.chunk_by(|a, b| a == b) {
            let offset = (to - target.base) as usize + at;
            target.write(offset as u64, &bytes[at..at + run.len()]);
            if !run[0] {
                for byte in offset..offset + run.len() {
                    target.written[byte / 4].fetch_and(!(1 << (byte % 4)), Relaxed);
                }
            }
            at += run.len();
        }
        Ok(())
    }

    /// Whether every one of these bytes was written.
    ///
    /// # Errors
    /// If the bytes do not lie in one live allocation.
    pub fn is_written(&self, address: u64, len: u64) -> Result<bool, MemoryError> {
        let one = self.need("is_written", address, len)?;
        Ok(one.written(address - one.base, len as usize).all(|written| written))
    }

    /// The allocations as they are now.
    pub(crate) fn live(&self) -> Allocations {
        self.table.read().unwrap_or_else(PoisonError::into_inner).live.clone()
    }

    fn find(&self, address: u64, len: u64) -> Option<Arc<Allocation>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let at = find(&table.live, address)?;
        let one = &table.live[at];
        one.holds(address, len).then(|| one.clone())
    }

    fn need(&self, what: &str, address: u64, len: u64) -> Result<Arc<Allocation>, MemoryError> {
        let missing = || MemoryError(format!("{what}: {len} bytes at {address:#x}: {}", self.describe(address)));
        self.find(address, len).ok_or_else(missing)
    }

    /// What lies at an address, for messages.
    pub(crate) fn describe(&self, address: u64) -> String {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let freed = table.freed.iter().find(|(base, len)| address >= *base && address < base + len);
        if let Some((base, len)) = freed {
            return format!("it lies in the allocation of {len} bytes at {base:#x}, which was freed");
        }
        let before = table.live.partition_point(|one| one.base <= address);
        let below = before.checked_sub(1).and_then(|at| table.live.get(at));
        let above = table.live.get(before).filter(|one| one.base - address < GAP);
        match (below, above) {
            (Some(one), _) if address - one.base < one.len => {
                let (offset, len, base) = (address - one.base, one.len, one.base);
                format!("offset {offset} of the allocation of {len} bytes at {base:#x}")
            }
            (Some(one), _) if address - one.base - one.len < GAP => {
                let (past, len, base) = (address - one.base - one.len, one.len, one.base);
                format!("{past} bytes past the end of the allocation of {len} bytes at {base:#x}")
            }
            (_, Some(one)) => {
                format!("{} bytes before the allocation of {} bytes at {:#x}", one.base - address, one.len, one.base)
            }
            _ => "no allocation is near".into(),
        }
    }
}

/// The index of the last allocation that starts at or below an address.
pub(crate) fn find(live: &[Arc<Allocation>], address: u64) -> Option<usize> {
    live.partition_point(|one| one.base <= address).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_with_their_state() {
        let memory = Memory::new();
        let (a, b) = (memory.alloc(11).unwrap(), memory.alloc(11).unwrap());
        memory.write(a + 1, &[1, 2, 3, 4, 5, 6]).unwrap();
        assert!(memory.is_written(a + 1, 6).unwrap() && !memory.is_written(a, 1).unwrap());
        memory.fill(b, &[7], 11).unwrap();
        memory.copy(a, b + 2, 8).unwrap();
        let mut bytes = [0; 11];
        memory.read(b, &mut bytes).unwrap();
        assert_eq!(bytes, [7, 7, 0, 1, 2, 3, 4, 5, 6, 0, 7]);
        assert!(!memory.is_written(b + 2, 1).unwrap() && memory.is_written(b + 3, 6).unwrap());
        assert!(!memory.is_written(b + 9, 1).unwrap() && memory.is_written(b + 10, 1).unwrap());
    }

    #[test]
    fn what_is_outside_is_an_error_that_says_where() {
        let memory = Memory::new();
        let a = memory.alloc(8).unwrap();
        let error = memory.write(a + 4, &[0; 5]).unwrap_err().to_string();
        assert!(error.contains("5 bytes") && error.contains("offset 4 of the allocation of 8 bytes"), "{error}");
        let error = memory.read(a + 8, &mut [0]).unwrap_err().to_string();
        assert!(error.contains("0 bytes past the end"), "{error}");
        memory.free(a).unwrap();
        let error = memory.free(a).unwrap_err().to_string();
        assert!(error.contains("which was freed"), "{error}");
        assert_eq!(memory.used(), 0);
        assert!(memory.alloc(0).is_err() && memory.alloc(u64::MAX).is_err());
        assert!(memory.alloc(1).unwrap() > a);
    }
}
