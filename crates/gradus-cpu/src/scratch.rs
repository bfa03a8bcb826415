//! Working memory of a thread: small, reused, never shared.
//!
//! For packed panels, rows and tiles, up to a few MiB. What grows with a tensor belongs in the pool
//! ([`CpuBackend::alloc`](gradus_backend::Backend::alloc)), where the memory budget sees it.

use std::cell::RefCell;

use crate::access::Plain;

/// Alignment of the memory, in bytes: a cache line and the widest vector.
const ALIGN: usize = 64;
/// Blocks above this many bytes are not kept.
const KEEP: usize = 4 << 20;

thread_local!(static FREE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) });

/// Calls `f` with `len` elements of unspecified contents.
#[inline]
pub(crate) fn with<T: Plain, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    let (mut block, start) = take(len.saturating_mul(size_of::<T>()));
    // SAFETY: `take` found room for as many bytes from `start` on; they are aligned for every type, initialised, and
    // borrowed from `block`, which nothing else touches before `f` returns; every bit pattern is a `T`.
    let slice = unsafe { std::slice::from_raw_parts_mut(block.as_mut_ptr().cast::<u8>().add(start).cast::<T>(), len) };
    let result = f(slice);
    give(block);
    result
}

/// A block, and where so many bytes of it begin that are aligned.
fn take(bytes: usize) -> (Vec<u64>, usize) {
    let mut block = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten().unwrap_or_default();
    let words = bytes.saturating_add(ALIGN).div_ceil(8);
    if block.len() < words {
        block.resize(words, 0);
    }
    let start = block.as_ptr().cast::<u8>().align_offset(ALIGN);
    assert!(bytes <= block.len() * 8 - start);
    (block, start)
}

/// Keeps a block for the next time, unless it is large.
fn give(block: Vec<u64>) {
    if block.len() * 8 <= KEEP {
        let _ = FREE.try_with(|free| free.borrow_mut().push(block));
    }
}

/// [`with`] for several blocks of these lengths, each of which starts a cache line.
pub(crate) fn split<T: Plain, R, const N: usize>(lens: [usize; N], f: impl FnOnce([&mut [T]; N]) -> R) -> R {
    let line = ALIGN / size_of::<T>();
    with(lens.iter().map(|len| len.next_multiple_of(line)).sum(), |mut rest: &mut [T]| {
        f(lens.map(|len| {
            let (block, others) = std::mem::take(&mut rest).split_at_mut(len.next_multiple_of(line));
            rest = others;
            &mut block[..len]
        }))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn nested_blocks_are_distinct_and_aligned() {
        super::with(100, |a: &mut [f32]| {
            a.fill(1.0);
            super::with(100, |b: &mut [f32]| b.fill(2.0));
            assert!(a.iter().all(|&v| v == 1.0));
            assert_eq!(a.as_ptr() as usize % 64, 0);
        });
        super::with(0, |a: &mut [f64]| assert!(a.is_empty()));
        super::split([3, 0, 20], |parts: [&mut [f64]; 3]| {
            assert_eq!(parts.each_ref().map(|p| p.len()), [3, 0, 20]);
            assert!(parts.iter().all(|p| (p.as_ptr() as usize).is_multiple_of(64)));
        });
    }
}
