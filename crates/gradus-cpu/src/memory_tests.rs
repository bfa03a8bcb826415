//! Tests of the pool.

use gradus_backend::{Backend, HostVec};

use super::*;

#[test]
fn classes_are_tight_and_invertible() {
    let mut last = (0, 0);
    for bytes in (1..100_000).chain((17..50).map(|b| (1usize << b) + 1)).chain((17..61).map(|b| 1usize << b)) {
        let (c, capacity) = class(bytes);
        assert!(capacity >= bytes && capacity == capacity_of(c), "{bytes}");
        assert!(bytes <= 64 || capacity <= bytes + bytes / 4, "{bytes} {capacity}");
        assert!(c < CLASSES && (c < SMALL_CLASSES) == (capacity <= SMALL));
        if bytes < 100_000 {
            assert!((c, capacity) >= last);
            last = (c, capacity);
        }
    }
}

#[test]
fn blocks_are_aligned_initialised_and_reused() {
    let pool = Pool::new();
    for bytes in [0usize, 1, 64, 65, 4096, 100_000, 5 << 20] {
        let first = pool.alloc(bytes).unwrap();
        let at = first.as_ptr();
        assert_eq!(at.as_ptr() as usize % alignment(class(bytes).1), 0);
        drop(first);
        assert_eq!(pool.alloc(bytes).unwrap().as_ptr(), at);
    }
    assert_eq!(pool.stats().system_allocations, 5, "1 and 64 bytes are one class, 0 bytes need none");
    assert_eq!((pool.stats().in_use, pool.stats().buffers), (0, 0));
    pool.trim();
    assert_eq!(pool.stats().cached, 0);
}

#[test]
fn a_budget_is_kept_and_a_refusal_changes_nothing() {
    let pool = Pool::new();
    let a = pool.alloc(600_000).unwrap();
    pool.set_budget(Some(1_000_000));
    let before = pool.stats();
    let e = pool.alloc(500_000).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::OutOfMemory { requested: 500_000 });
    assert!(e.to_string().contains("budget 1000000"), "{e}");
    assert_eq!(pool.stats(), before);
    let b = pool.alloc(400_000).unwrap();
    drop((a, b));
    let c = pool.alloc(1_000_000).unwrap();
    assert!(pool.stats().cached == 0, "the cache gave way to the budget: {:?}", pool.stats());
    drop(c);
    pool.set_budget(Some(10));
    assert_eq!(pool.stats().cached, 0);
    pool.set_budget(None);
    assert!(pool.alloc(2_000_000).is_ok());
    for absurd in [usize::MAX, isize::MAX as usize, isize::MAX as usize / 8] {
        assert!(matches!(pool.alloc(absurd).unwrap_err().kind(), ErrorKind::OutOfMemory { .. }));
    }
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn the_cache_is_bounded() {
    let pool = Pool::new();
    let all: Vec<_> = (0..40).map(|i| pool.alloc((4 << 20) + (i << 18)).unwrap()).collect();
    let peak = pool.stats().peak;
    drop(all);
    assert!(pool.stats().cached <= peak + peak / 4);
    let small: Vec<_> = (0..2000).map(|_| pool.alloc(50_000).unwrap()).collect();
    drop(small);
    assert!(pool.stats().cached <= peak + peak / 4 + SHARDS * SHARD_BOUND);
}

#[test]
fn many_threads_share_blocks_without_mixing_them_up() {
    let pool = Pool::new();
    let (send, receive) = std::sync::mpsc::channel::<(Buffer, u8)>();
    let receive = Mutex::new(receive);
    let check = |b: &Buffer, tag: u8| {
        // SAFETY: the pool allocated the buffer, and nothing else writes to it.
        let bytes = unsafe { std::slice::from_raw_parts(b.as_ptr().as_ptr(), b.bytes()) };
        assert!(bytes.iter().all(|&v| v == tag));
    };
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let (send, pool) = (send.clone(), &pool);
            s.spawn(move || {
                for i in 0..3000usize {
                    let bytes = [8, 64, 300, 5000, 70_000][(i * 7 + usize::from(t)) % 5];
                    let b = pool.alloc(bytes).unwrap();
                    let tag = (i % 251) as u8;
                    // SAFETY: the buffer is new, has this size and is not shared yet.
                    unsafe { b.as_ptr().as_ptr().write_bytes(tag, bytes) };
                    if i % 3 == 0 { drop(b) } else { send.send((b, tag)).unwrap() }
                }
            });
        }
        for _ in 0..2 {
            s.spawn(|| {
                for _ in 0..4000 {
                    let (b, tag) = receive.lock().unwrap().recv().unwrap();
                    check(&b, tag);
                }
            });
        }
    });
    let s = pool.stats();
    assert_eq!((s.in_use, s.buffers), (0, 0));
    assert!(s.system_allocations < 4 * 3000 + 1);
    pool.trim();
    assert_eq!(pool.stats().cached, 0);
}

#[test]
fn vectors_of_the_host_count_while_they_live() {
    let cpu = crate::CpuBackend::with_threads(1).unwrap();
    cpu.set_memory_budget(Some(1_000_000)).unwrap();
    let mut v = HostVec::with_capacity(&cpu, "list", 25_000).unwrap();
    v.extend("list", (0..25_000).map(|i| i as f64)).unwrap();
    assert_eq!((v.len(), cpu.memory_stats().in_use), (25_000, 200_000));
    // Growth counts the new capacity, and a vector that cannot grow keeps its contents.
    v.push("list", 1.0).unwrap();
    assert_eq!(cpu.memory_stats().in_use, 400_000);
    assert_eq!(v.reserve("list", 200_000).unwrap_err().kind(), &ErrorKind::OutOfMemory { requested: 1_800_008 });
    assert_eq!((v.len(), v[25_000], cpu.memory_stats().in_use), (25_001, 1.0, 400_000));
    let e = HostVec::filled(&cpu, "other", 0u8, 600_001).unwrap_err();
    assert!(e.op() == "other" && e.to_string().contains("budget 1000000"), "{e}");
    assert_eq!(v.into_vec().len(), 25_001);
    assert_eq!(cpu.memory_stats().in_use, 0);
    // Small allocations are not counted.
    cpu.set_memory_budget(Some(0)).unwrap();
    assert_eq!(HostVec::collect(&cpu, "small", 0..100).unwrap().len(), 100);
    cpu.set_memory_budget(None).unwrap();
    for absurd in [1 << 44, usize::MAX / 8, usize::MAX] {
        let e = HostVec::<u64>::with_capacity(&cpu, "absurd", absurd).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }) && e.op() == "absurd", "{e}");
    }
    assert_eq!(cpu.memory_stats().in_use, 0);
}
