//! Buffers: sizes, transfers, counts and budget.

use std::sync::{Arc, Mutex, Weak};

use gradus_backend::{Buffer, DType, Element, ErrorKind, HostVec, Kernel, Layout, MapArg, Reclaim, View, ViewMut};

use crate::suite::{Refusal, Suite, said, shape, uploaded};

pub(super) fn run(s: &mut Suite<'_>) {
    s.check("memory/bytes_round_trip_at_every_offset", |b| {
        let mut buffer = uploaded(b, &[0; 19]).map_err(said)?;
        b.upload(&mut buffer, 5, &[1, 2, 3]).map_err(said)?;
        b.upload(&mut buffer, 18, &[9]).map_err(said)?;
        let mut back = [7; 19];
        b.download(&buffer, 0, &mut back).map_err(said)?;
        let mut want = [0; 19];
        (want[5], want[6], want[7], want[18]) = (1, 2, 3, 9);
        equal(back, want)?;
        let mut part = [0; 2];
        b.download(&buffer, 6, &mut part).map_err(said)?;
        equal(part, [2, 3])?;
        equal(buffer.bytes(), 19)
    });
    s.check("memory/empty_buffers", |b| {
        let (mut one, two) = (b.alloc(0).map_err(said)?, b.alloc(0).map_err(said)?);
        b.upload(&mut one, 0, &[]).map_err(said)?;
        b.download(&one, 0, &mut []).map_err(said)?;
        b.copy_buffer(&two, 0, &mut one, 0, 0).map_err(said)?;
        equal(one.bytes(), 0)
    });
    s.check("memory/copy_buffer", |b| {
        let from = uploaded(b, &[1, 2, 3, 4, 5, 6, 7]).map_err(said)?;
        let mut to = uploaded(b, &[0; 9]).map_err(said)?;
        b.copy_buffer(&from, 2, &mut to, 3, 4).map_err(said)?;
        let mut back = [0; 9];
        b.download(&to, 0, &mut back).map_err(said)?;
        equal(back, [0, 0, 0, 3, 4, 5, 6, 0, 0])
    });
    s.check("memory/counts", |b| {
        let before = b.memory_stats();
        let buffer = b.alloc(1000).map_err(said)?;
        let during = b.memory_stats();
        if during.in_use < before.in_use + 1000 || during.buffers != before.buffers + 1 || during.peak < during.in_use {
            return Err(format!("a buffer of 1000 bytes took the counts from {before:?} to {during:?}"));
        }
        drop(buffer);
        b.synchronize().map_err(said)?;
        let after = b.memory_stats();
        if after.in_use != before.in_use || after.buffers != before.buffers {
            return Err(format!("dropping it took them to {after:?}, from {before:?} at first"));
        }
        b.trim().map_err(said)?;
        equal(b.memory_stats().cached, 0)
    });
    s.check("memory/budget", |b| {
        let keep = uploaded(b, &[42; 64]).map_err(said)?;
        let in_use = b.memory_stats().in_use;
        b.set_memory_budget(Some(in_use + 4096)).map_err(said)?;
        let refused = b.alloc(1 << 20);
        let small = b.alloc(64);
        b.set_memory_budget(None).map_err(said)?;
        match refused.map_err(|e| e.kind().clone()) {
            Err(ErrorKind::OutOfMemory { requested }) if requested >= 1 << 20 => {}
            other => return Err(format!("beyond the budget: {other:?}")),
        }
        small.map_err(|e| format!("within the budget: {e}"))?;
        b.alloc(1 << 20).map_err(|e| format!("after the budget was lifted: {e}"))?;
        let mut back = [0; 64];
        b.download(&keep, 0, &mut back).map_err(said)?;
        equal(back, [42; 64])
    });
    s.check("memory/vectors_of_the_host", |b| {
        let vector = |n: usize| HostVec::filled(b, "test", 0u8, n);
        let before = b.memory_stats();
        let held = vector(1 << 20).map_err(said)?;
        let counted = b.memory_stats().in_use - before.in_use;
        if ![0, 1 << 20].contains(&counted) {
            return Err(format!("a vector of {} bytes counts {counted}", held.len()));
        }
        b.set_memory_budget(Some(before.in_use + (1 << 20) + 4096)).map_err(said)?;
        let (refused, small) = (vector(1 << 20), vector(4096));
        drop(held);
        let again = vector(1 << 20);
        b.set_memory_budget(None).map_err(said)?;
        small.map_err(|e| format!("within the budget: {e}"))?;
        again.map_err(|e| format!("within the budget again: {e}"))?;
        if counted > 0 {
            match refused.map_err(|e| (e.op().to_owned(), e.kind().clone())) {
                Err((op, ErrorKind::OutOfMemory { requested })) if op == "test" && requested == 1 << 20 => {}
                other => return Err(format!("beyond the budget: {other:?}")),
            }
        }
        equal(b.memory_stats().in_use, before.in_use)
    });
    s.check("memory/calls_from_several_threads", |b| {
        let add = Kernel::build("add", &[DType::F32; 2], |v| vec![v[0] + v[1]]).map_err(said)?;
        let layout = Layout::contiguous(shape(&[3, 5]));
        let one = |seed: usize| -> gradus_backend::Result<bool> {
            let values: Vec<f32> = (0..15).map(|i| (i * seed) as f32).collect();
            let (x, mut y) = (uploaded(b, f32::as_bytes(&values))?, uploaded(b, &[0; 60])?);
            let view = View { buffer: &x, dtype: DType::F32, layout: &layout };
            let out = ViewMut { buffer: &mut y, dtype: DType::F32, layout: &layout };
            b.map(&add, &[MapArg::View(view), MapArg::View(view)], &mut [out])?;
            let mut back = [0; 60];
            b.download(&y, 0, &mut back)?;
            Ok(f32::from_bytes(&back).iter().zip(&values).all(|(y, x)| *y == x + x))
        };
        let right = std::thread::scope(|scope| {
            let work = |thread: usize| move || (1..50).map(|i| one(thread * 100 + i)).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|t| scope.spawn(work(t))).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap_or_default()).collect::<gradus_backend::Result<Vec<_>>>()
        });
        equal(right.map_err(said)?, vec![true; 4 * 49])
    });
    s.check("memory/a_failure_belongs_to_what_it_spoiled", |b| {
        let layout = Layout::contiguous(shape(&[2]));
        let view = |buffer, dtype| View { buffer, dtype, layout: &layout };
        let (x, other) = (uploaded(b, &[1; 8]).map_err(said)?, uploaded(b, &[2; 8]).map_err(said)?);
        let index = uploaded(b, i64::as_bytes(&[0, 2])).map_err(said)?;
        let (mut y, mut copy) = (uploaded(b, &[0; 8]).map_err(said)?, uploaded(b, &[0; 8]).map_err(said)?);
        let out = &mut ViewMut { buffer: &mut y, dtype: DType::F32, layout: &layout };
        let done = b.gather(view(&x, DType::F32), 0, view(&index, DType::I64), out);
        let is_it = |e: &gradus_backend::Error| e.kind() == &ErrorKind::IndexOutOfBounds { pos: 1, index: 2, size: 2 };
        let mut back = [0; 8];
        match done {
            Err(e) if is_it(&e) => return Ok(()),
            Err(e) => return Err(format!("a bad index: {e}")),
            Ok(()) => {}
        }
        b.copy_buffer(&y, 0, &mut copy, 0, 8).map_err(said)?;
        for buffer in [&copy, &y, &copy, &y] {
            b.download(&other, 0, &mut back).map_err(|e| format!("a buffer that is not concerned: {e}"))?;
            equal(back, [2; 8])?;
            match b.download(buffer, 0, &mut back) {
                Err(e) if is_it(&e) => {}
                other => return Err(format!("reading a spoiled buffer: {other:?}")),
            }
        }
        b.synchronize().map_err(|e| format!("an error that was returned before: {e}"))?;
        b.upload(&mut copy, 0, &[3; 8]).map_err(said)?;
        b.download(&copy, 0, &mut back).map_err(said)?;
        equal(back, [3; 8])
    });
    s.check("memory/a_renewed_buffer_is_as_if_just_allocated", |b| {
        let layout = Layout::contiguous(shape(&[2]));
        let view = |buffer, dtype| View { buffer, dtype, layout: &layout };
        let x = uploaded(b, &[1; 8]).map_err(said)?;
        let index = uploaded(b, i64::as_bytes(&[0, 2])).map_err(said)?;
        let (mut y, mut copy) = (uploaded(b, &[0; 8]).map_err(said)?, uploaded(b, &[0; 8]).map_err(said)?);
        let out = &mut ViewMut { buffer: &mut y, dtype: DType::F32, layout: &layout };
        let is_late = b.gather(view(&x, DType::F32), 0, view(&index, DType::I64), out).is_ok();
        b.copy_buffer(&y, 0, &mut copy, 0, 8).map_err(said)?;
        b.renew(&mut y).map_err(said)?;
        // What is read was written since; the rest of the buffer is unspecified.
        b.upload(&mut y, 4, &[5; 4]).map_err(said)?;
        let mut back = [0; 4];
        b.download(&y, 4, &mut back).map_err(|e| format!("what was written after a buffer was renewed: {e}"))?;
        equal(back, [5; 4])?;
        // A copy that was made before is another matter.
        equal(b.download(&copy, 0, &mut back).is_err(), is_late)?;
        b.renew(&mut b.alloc(0).map_err(said)?).map_err(said)
    });
    s.check("memory/what_is_offered_is_taken_only_if_memory_is_short", |b| {
        let held = Arc::new(Held(Mutex::new(Some(b.alloc(1 << 20).map_err(said)?))));
        let is_held = || held.0.lock().is_ok_and(|held| held.is_some());
        let offered: Weak<Held> = Arc::downgrade(&held);
        b.offer(offered);
        b.set_memory_budget(Some(b.memory_stats().in_use + 4096)).map_err(said)?;
        let small = b.alloc(1024);
        let untouched = is_held();
        let large = b.alloc(1 << 20);
        b.set_memory_budget(None).map_err(said)?;
        small.map_err(|e| format!("within the budget: {e}"))?;
        equal(untouched, true)?;
        // A backend may make no use of the offer.
        match large {
            Ok(_) => equal(is_held(), false)?,
            Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) => {}
            Err(e) => return Err(format!("beyond the budget: {e}")),
        }
        drop(held);
        b.alloc(1 << 20).map(drop).map_err(|e| format!("after what was offered is gone: {e}"))
    });
    s.check("memory/identity", |b| {
        let info = b.info();
        equal(info.name.as_str(), b.name())?;
        if DType::ALL.into_iter().any(|d| b.supports(d)) { Ok(()) } else { Err("no dtype is supported".to_owned()) }
    });
    s.refuse("memory/upload_beyond_the_end", &Refusal::Any, |b| b.upload(&mut b.alloc(8)?, 5, &[0; 4]));
    s.refuse("memory/upload_far_beyond", &Refusal::Any, |b| b.upload(&mut b.alloc(8)?, usize::MAX, &[0; 4]));
    s.refuse("memory/download_beyond_the_end", &Refusal::Any, |b| b.download(&b.alloc(8)?, 8, &mut [0]));
    s.refuse("memory/copy_beyond_the_end", &Refusal::Any, |b| b.copy_buffer(&b.alloc(8)?, 0, &mut b.alloc(4)?, 0, 8));
    s.refuse("memory/absurd_size", &Refusal::Any, |b| b.alloc(usize::MAX / 2).map(drop));
    s.refuse("memory/absurd_vector_of_the_host", &Refusal::Any, |b| {
        HostVec::<u64>::with_capacity(b, "test", usize::MAX / 4).map(drop)
    });
}

/// A buffer that the backend may have back.
struct Held(Mutex<Option<Buffer>>);

impl Reclaim for Held {
    fn bytes(&self) -> usize {
        self.0.try_lock().map_or(0, |held| held.as_ref().map_or(0, Buffer::bytes))
    }

    fn clear(&self) -> bool {
        self.0.try_lock().is_ok_and(|mut held| held.take().is_some())
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(got: T, want: T) -> Result<(), String> {
    if got == want { Ok(()) } else { Err(format!("{got:?}, expected {want:?}")) }
}
