//! The working memory of each thread, which is reused and never shared.
//!
//! It holds packed panels, rows and tiles. Memory whose size grows with a tensor ([`large`]) comes from the pool once
//! it exceeds [`KEEP`], so that the memory budget counts it. Kernels cannot return errors: if memory runs out, their
//! work is skipped, and the operation reports the error at its end, in [`CpuBackend::finished`].

use std::cell::RefCell;

use gradus_backend::{Buffer, Result};

use crate::CpuBackend;
use crate::access::Plain;
use crate::shortage::{note_missing, take_missing};

/// Alignment of the memory in bytes: the size of a cache line and of the widest vector.
const ALIGN: usize = 64;
/// Threads do not keep blocks of more than this many bytes.
const KEEP: usize = 4 << 20;

thread_local! {
    static FREE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

impl CpuBackend {
    /// Returns the result of an operation whose kernels use working memory, or an error if that memory ran out.
    #[inline]
    pub(crate) fn finished(&self, op: &str, result: Result<()>) -> Result<()> {
        match take_missing() {
            0 => result,
            bytes => result.and_then(|()| Err(self.pool().out_of_memory(op, bytes, "no memory is left to work in"))),
        }
    }
}

/// A block of working memory.
struct Block {
    /// The thread's own block; empty if the memory belongs to the pool.
    words: Vec<u64>,
    _pool: Option<Buffer>,
}

/// Takes at least `bytes` initialised bytes, aligned for every type, and returns them with their address. A block that
/// is too large for a thread to keep comes from the pool of `cpu`, if `cpu` is given.
fn take(cpu: Option<&CpuBackend>, bytes: usize) -> Option<(Block, *mut u8)> {
    if let Some(cpu) = cpu.filter(|_| bytes > KEEP) {
        let buffer = cpu.pool().alloc(bytes).ok()?;
        let at = buffer.as_ptr().as_ptr();
        return Some((Block { words: Vec::new(), _pool: Some(buffer) }, at));
    }
    let mut words = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten().unwrap_or_default();
    let needed = bytes.saturating_add(ALIGN).div_ceil(8);
    if words.len() < needed {
        words.try_reserve_exact(needed - words.len()).ok()?;
        // The new length is at most the capacity that was just reserved, so this does not allocate.
        words.resize(needed, 0);
    }
    let start = words.as_ptr().cast::<u8>().align_offset(ALIGN);
    assert!(bytes <= words.len() * 8 - start);
    let at = words.as_mut_ptr().cast::<u8>().wrapping_add(start);
    Some((Block { words, _pool: None }, at))
}

/// Returns a block to its thread or to the pool.
fn recycle(block: Block) {
    if (1..=KEEP / 8).contains(&block.words.len()) {
        let _ = FREE.try_with(|free| free.borrow_mut().push(block.words));
    }
}

#[inline]
fn run<T: Plain>(cpu: Option<&CpuBackend>, len: usize, f: impl FnOnce(&mut [T])) {
    let bytes = len.saturating_mul(size_of::<T>());
    let Some((block, at)) = take(cpu, bytes) else { return note_missing(bytes) };
    // SAFETY: `take` returns at least this many initialised bytes, aligned for every type, which nothing else accesses
    // before `block` is given back. Every bit pattern is a `T`.
    f(unsafe { std::slice::from_raw_parts_mut(at.cast::<T>(), len) });
    recycle(block);
}

/// Calls `f` with `len` elements with unspecified contents. This is meant for a few MiB at most, because the memory
/// budget does not count this memory.
#[inline]
pub(crate) fn with<T: Plain>(len: usize, f: impl FnOnce(&mut [T])) {
    run(None, len, f);
}

/// Like [`with`], but for a number of elements that grows with a tensor.
#[inline]
pub(crate) fn large<T: Plain>(cpu: &CpuBackend, len: usize, f: impl FnOnce(&mut [T])) {
    run(Some(cpu), len, f);
}

/// Like [`large`], but with one block for each of `lens`. Each block starts on a new cache line.
pub(crate) fn split<T: Plain, const N: usize>(cpu: &CpuBackend, lens: [usize; N], f: impl FnOnce([&mut [T]; N])) {
    let line = ALIGN / size_of::<T>();
    large(cpu, lens.iter().map(|len| len.next_multiple_of(line)).sum(), |mut rest: &mut [T]| {
        f(lens.map(|len| {
            let (block, others) = std::mem::take(&mut rest).split_at_mut(len.next_multiple_of(line));
            rest = others;
            &mut block[..len]
        }));
    });
}

#[cfg(test)]
mod tests {
    use gradus_backend::{Backend, ErrorKind};

    use crate::CpuBackend;

    #[test]
    fn nested_blocks_are_distinct_and_aligned() {
        super::with(100, |a: &mut [f32]| {
            a.fill(1.0);
            super::with(100, |b: &mut [f32]| b.fill(2.0));
            assert!(a.iter().all(|&v| v == 1.0));
            assert_eq!(a.as_ptr() as usize % 64, 0);
        });
        super::with(0, |a: &mut [f64]| assert!(a.is_empty()));
        let cpu = CpuBackend::with_threads(1).unwrap();
        for long in [20, 1 << 20] {
            super::split(&cpu, [3, 0, long], |parts: [&mut [f64]; 3]| {
                assert_eq!(parts.each_ref().map(|p| p.len()), [3, 0, long]);
                assert!(parts.iter().all(|p| (p.as_ptr() as usize).is_multiple_of(64)));
            });
        }
        assert_eq!(crate::shortage::take_missing(), 0);
    }

    #[test]
    fn work_without_memory_is_left_out_and_reported_on_whichever_thread_it_was() {
        let cpu = CpuBackend::with_threads(3).unwrap();
        cpu.set_memory_budget(Some(1000)).unwrap();
        for (items, of) in [(1, 0), (100, 63)] {
            cpu.parallel_for(items, 1, |r| {
                let len = if r.contains(&of) { 8 << 20 } else { 8 };
                super::large(&cpu, len, |a: &mut [u8]| assert_eq!(a.len(), 8));
            });
            let e = cpu.finished("test", Ok(())).unwrap_err();
            assert_eq!((e.op(), e.kind()), ("test", &ErrorKind::OutOfMemory { requested: 8 << 20 }));
            cpu.finished("test", Ok(())).unwrap();
        }
    }
}
