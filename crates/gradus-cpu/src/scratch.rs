//! Working memory of a thread: reused, never shared.
//!
//! For packed panels, rows and tiles. Memory whose size grows with a tensor ([`large`]) comes from the pool once it is
//! large, so that the memory budget counts it. Kernels cannot fail: if memory is short their work is skipped, and the
//! operation, which ends with [`CpuBackend::finished`], reports it.

use std::cell::RefCell;

use gradus_backend::{Buffer, Result};

use crate::CpuBackend;
use crate::access::Plain;
use crate::shortage::{note_missing, take_missing};

/// Alignment of the memory, in bytes: a cache line and the widest vector.
const ALIGN: usize = 64;
/// Blocks above this many bytes are not kept.
const KEEP: usize = 4 << 20;

thread_local! {
    static FREE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

impl CpuBackend {
    /// The result of an operation whose kernels use working memory: an error if memory was short.
    #[inline]
    pub(crate) fn finished(&self, op: &str, result: Result<()>) -> Result<()> {
        match take_missing() {
            0 => result,
            bytes => result.and_then(|()| Err(self.pool().out_of_memory(op, bytes, "no memory is left to work in"))),
        }
    }
}

/// Memory to work in.
struct Block {
    /// The thread's own block; empty if the memory is the pool's.
    words: Vec<u64>,
    _pool: Option<Buffer>,
}

/// At least `bytes` bytes, aligned for every type and initialised, and where they begin. Blocks too large for a thread
/// to keep come from the pool of `cpu`, if it is given.
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
        // At most what was just reserved.
        words.resize(needed, 0);
    }
    let start = words.as_ptr().cast::<u8>().align_offset(ALIGN);
    assert!(bytes <= words.len() * 8 - start);
    let at = words.as_mut_ptr().cast::<u8>().wrapping_add(start);
    Some((Block { words, _pool: None }, at))
}

/// Gives a block back.
fn recycle(block: Block) {
    if (1..=KEEP / 8).contains(&block.words.len()) {
        let _ = FREE.try_with(|free| free.borrow_mut().push(block.words));
    }
}

#[inline]
fn run<T: Plain>(cpu: Option<&CpuBackend>, len: usize, f: impl FnOnce(&mut [T])) {
    let bytes = len.saturating_mul(size_of::<T>());
    let Some((block, at)) = take(cpu, bytes) else { return note_missing(bytes) };
    // SAFETY: `take` gives so many initialised bytes, aligned for every type, which nothing else touches before `block` is
    // given back; every bit pattern is a `T`.
    f(unsafe { std::slice::from_raw_parts_mut(at.cast::<T>(), len) });
    recycle(block);
}

/// Calls `f` with `len` elements of unspecified contents, a few MiB at most.
#[inline]
pub(crate) fn with<T: Plain>(len: usize, f: impl FnOnce(&mut [T])) {
    run(None, len, f);
}

/// Calls `f` with `len` elements of unspecified contents, whose number grows with a tensor.
#[inline]
pub(crate) fn large<T: Plain>(cpu: &CpuBackend, len: usize, f: impl FnOnce(&mut [T])) {
    run(Some(cpu), len, f);
}

/// [`large`] for several blocks of these lengths, each of which starts a cache line.
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
