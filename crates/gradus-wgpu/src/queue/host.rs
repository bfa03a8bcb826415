//! Transfers between the host and the device, and waiting for them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use gradus_backend::{Error, ErrorKind, Result};

use super::{Queue, State};
use crate::faults::Faults;
use crate::kept::Table;
use crate::pool::Block;
use gradus_backend::late::FAULT_BYTES;
use gradus_backend::late::{Access, Check};

/// The size in bytes of the largest buffer for reading back.
const READBACK: u64 = 64 << 20;
/// The largest number of bytes that one read can fetch. The rest of that buffer is for the fault buffer's contents.
pub(crate) const MOST_READ: usize = (READBACK - FAULT_BYTES) as usize;
/// The largest number of bytes passed to wgpu at a time. wgpu keeps a copy of them on the host until the next
/// submission is done, and the device is lost if there is no memory for the copy.
const PIECE: usize = 32 << 20;
/// When such copies reach this many bytes, they are submitted. The writing thread then waits until the previous such
/// submission is done.
const STAGED: usize = 2 * PIECE;

impl Queue {
    /// Writes bytes to a buffer. The offset and the length must be multiples of 4. `access` is [`Access::Replace`] if
    /// these bytes, or these and those of the calls that follow, fill the whole buffer. The copies on the host stay below three times [`STAGED`], plus one and a half times [`STAGED`] for
    /// each further thread that writes at the same time.
    pub(crate) fn write(&self, block: &Block, offset: u64, bytes: &[u8], mut access: Access) -> Result<()> {
        for (piece, offset) in bytes.chunks(PIECE).zip((offset..).step_by(PIECE)) {
            let mut state = self.ready("upload")?;
            if access != Access::Replace || !self.copy_kept(&mut state, block, piece) {
                // wgpu writes before it executes the commands of the next submission, so earlier commands that use the
                // buffer must be submitted first.
                if block.is_touched(state.epoch) {
                    self.flush(&mut state);
                }
                state.log.note(None, [(&block.contents, access)].into_iter());
                self.upload(&mut state, &block.raw, offset, piece);
            }
            // The first piece has replaced what was there before.
            access = Access::Write;
            if state.staged < STAGED {
                continue;
            }
            state.staged = 0;
            let (submission, _) = self.submit(&mut state);
            let before = state.uploaded.replace(submission);
            drop(state);
            // Waits for the previous submission, not this one: the device stays busy while the next bytes are copied.
            if before.is_some() {
                self.wait("upload", before)?;
            }
        }
        Ok(())
    }

    /// Overwrites the start of `block` with a copy of a table that the device keeps, or will keep from now on. Returns
    /// whether it did.
    fn copy_kept(&self, state: &mut State, block: &Block, bytes: &[u8]) -> bool {
        let table = match state.kept.find(bytes) {
            Table::Host => return false,
            Table::Device(table) => table,
            Table::Again(key) => {
                let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
                let Some(table) = self.pool.make(bytes.len() as u64, usage) else { return false };
                state.counters.buffers += 1;
                self.upload(state, &table, 0, bytes);
                state.kept.keep(key, table.clone());
                table
            }
        };
        state.log.note(None, [(&block.contents, Access::Replace)].into_iter());
        block.touch(state.epoch);
        self.encode_copy(state, (&table, 0), (&block.raw, 0), bytes.len() as u64);
        true
    }

    fn upload(&self, state: &mut State, to: &wgpu::Buffer, offset: u64, bytes: &[u8]) {
        self.queue.write_buffer(to, offset, bytes);
        state.counters.uploads += 1;
        state.staged += bytes.len();
    }

    /// Waits for all work, checks the fault buffer, and passes bytes of a buffer to `take`. `from` is the buffer, the
    /// offset and the size in bytes, which must be multiples of 4.
    fn fetch(&self, op: &str, from: Option<(&Block, u64, u64)>, take: impl FnOnce(&[u8])) -> Result<()> {
        self.faults.check_lost(op)?;
        let mut guard = self.state();
        let bytes = from.map_or(0, |(_, _, size)| size);
        if bytes + guard.slots.bytes() == 0 {
            self.flush(&mut guard);
            let check = self.begin(guard);
            let waited = self.wait(op, None);
            return self.end(op, check, waited, None);
        }
        let size = (bytes + FAULT_BYTES).next_power_of_two().max(64 << 10);
        // A buffer that is too small is dropped before a larger one is allocated.
        let kept = guard.readback.take().filter(|b| b.size() >= size);
        let readback = match kept {
            Some(b) => b,
            None => {
                drop(guard);
                let made = self.readback(op, size)?;
                guard = self.state();
                guard.counters.buffers += 1;
                made
            }
        };
        // From here on, no buffer is allocated. Another thread may have checked the slots in the meantime.
        let state = &mut *guard;
        let slots = state.slots.bytes();
        let total = (bytes + slots).max(4);
        state.pass = None;
        let encoder = state.encoder.get_or_insert_with(|| self.device.create_command_encoder(&Default::default()));
        if let Some((block, at, size)) = from {
            encoder.copy_buffer_to_buffer(&block.raw, at, &readback, 0, size);
        }
        if slots > 0 {
            encoder.copy_buffer_to_buffer(&self.fault_buffer, 0, &readback, bytes, slots);
            // The slots are cleared after they have been copied, so that later work finds them empty.
            encoder.clear_buffer(&self.fault_buffer, 0, Some(slots));
        }
        let rejected = self.flush(state);
        // Other threads continue while this one waits.
        let check = self.begin(guard);
        if let Some(found) = rejected {
            // Nothing was copied to the buffer for reading back, neither the bytes nor the slots.
            return self.end(op, check, Err(found.tell()), None);
        }
        let (tell, told) = mpsc::channel();
        readback.map_async(wgpu::MapMode::Read, 0..total, move |r| {
            let _ = tell.send(r);
        });
        let mapped = loop {
            if let Err(e) = self.wait(op, None) {
                return self.end(op, check, Err(e), None);
            }
            // Another waiting thread may be about to send the answer.
            match told.recv_timeout(Duration::from_millis(10)) {
                Ok(answer) => break answer.is_ok(),
                Err(mpsc::RecvTimeoutError::Disconnected) => break false,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        };
        let Some(mapped) = mapped.then(|| readback.get_mapped_range(0..total).ok()).flatten() else {
            let m = "the device does not give its memory to read";
            let failed = self.faults.check_lost(op).and(Err(Error::new(ErrorKind::Backend, op, m)));
            return self.end(op, check, failed, None);
        };
        take(&mapped[..bytes as usize]);
        let ended = self.end(op, check, Ok(()), Some(&mapped[bytes as usize..]));
        drop(mapped);
        readback.unmap();
        let kept = &mut self.state().readback;
        if kept.as_ref().is_none_or(|k| k.size() < readback.size()) {
            *kept = Some(readback);
        }
        ended
    }

    /// Begins a check of the submitted work, and unlocks the state so that other threads can continue.
    fn begin(&self, mut state: MutexGuard<'_, State>) -> Option<Check> {
        let state = &mut *state;
        state.log.check(&mut state.slots)
    }

    /// Ends a check with the bytes read from the fault buffer, after all earlier checks have ended. Returns the error
    /// of `done`, or else an error that cannot be attributed to a call.
    fn end(&self, op: &str, check: Option<Check>, done: Result<()>, bytes: Option<&[u8]>) -> Result<()> {
        if let Some(check) = check {
            let mut state = self.state();
            while !state.log.is_next(&check) {
                state = self.checked.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let state = &mut *state;
            let bytes = done.as_ref().map(|()| bytes.unwrap_or_default());
            state.log.end(check, &mut state.slots, bytes);
            self.checked.notify_all();
        }
        done?;
        // A lost device is reported first: all other errors that wgpu raised on it are consequences of the loss.
        self.faults.check_lost(op)?;
        self.faults.take().map_or(Ok(()), Err)
    }

    /// Allocates a buffer for reading back. If memory is short, it drops the buffers kept for reuse and tries again, so
    /// the state must not be locked.
    fn readback(&self, op: &str, size: u64) -> Result<wgpu::Buffer> {
        let make = || self.pool.make(size, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
        let made = make().or_else(|| {
            self.pool.trim();
            self.reclaim();
            make()
        });
        self.faults.check_lost(op)?;
        made.ok_or_else(|| self.pool.out_of_memory(op, size as usize, "the device has no more to read through"))
    }

    /// Waits for a submission and all before it; `None` waits for all submissions.
    pub(super) fn wait(&self, op: &str, submission_index: Option<wgpu::SubmissionIndex>) -> Result<()> {
        let until = wgpu::PollType::Wait { submission_index, timeout: None };
        let waited = polled(&self.faults, || self.device.poll(until));
        self.faults.check_lost(op)?;
        waited.map(drop).map_err(|e| Error::new(ErrorKind::Backend, op, format!("waiting for the device: {e}")))
    }

    /// Reads bytes of a buffer. The offset and the size must be multiples of 4, and the size at most [`MOST_READ`].
    /// Fails if the buffer is spoiled by a call that failed on the device.
    pub(crate) fn read(&self, block: &Block, offset: u64, size: u64, take: impl FnOnce(&[u8])) -> Result<()> {
        self.fetch("download", Some((block, offset, size)), take)?;
        block.contents.spoiled().map_or(Ok(()), |found| Err(found.tell()))
    }

    /// Waits for all work. If errors were found that no caller has received yet, returns them as one error.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.check("synchronize")?;
        self.state().log.untold().map_or(Ok(()), Err)
    }

    /// Waits for all work, and finds out which buffers are spoiled.
    pub(super) fn check(&self, op: &str) -> Result<()> {
        self.fetch(op, None, |_| {})
    }
}

/// The message of a panic, if it is a text.
pub(crate) fn said(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref().copied()).map(str::trim)
}

/// Calls `poll`, which waits for the device. wgpu panics if the device is lost meanwhile. Such a panic is caught, the
/// loss is recorded, and the result is `None`.
fn polled<T>(
    faults: &Faults,
    poll: impl FnOnce() -> std::result::Result<T, wgpu::PollError>,
) -> std::result::Result<Option<T>, wgpu::PollError> {
    // Any state that wgpu left half-changed is not used again, because every later call first checks whether the device
    // is lost.
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(waited) => waited.map(Some),
        Err(_) if faults.is_lost() => Ok(None),
        Err(panic) => {
            faults.report_lost(said(&*panic).unwrap_or("wgpu panicked while waiting").to_owned());
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WgpuBackend;
    use crate::kept::LARGEST;
    use gradus_backend::late::Fault;
    use gradus_backend::{Backend, Buffer};
    use std::sync::atomic::Ordering::Relaxed;

    /// A backend on a device that executes nothing.
    fn opened() -> WgpuBackend {
        WgpuBackend::of(0, &crate::adapter::open_nothing(crate::adapter::Profile::Full).expect("wgpu's own device"))
    }

    /// Queues a copy over the whole of `to`.
    fn copy(backend: &WgpuBackend, from: &Buffer, to: &Buffer) {
        let [from, to] = [from, to].map(|x| backend.pool().block("", x).expect("a block"));
        let bytes = from.raw.size().min(to.raw.size());
        backend.queue().copy((from, 0), (to, 0), bytes, true).expect("a copy");
    }

    /// A buffer whose use wgpu rejects.
    fn destroyed(backend: &WgpuBackend) -> Buffer {
        let buffer = backend.allocate(256).expect("memory");
        backend.pool().block("", &buffer).expect("a block").raw.destroy();
        buffer
    }

    #[test]
    fn a_read_whose_submission_is_rejected_is_an_error() {
        let backend = opened();
        let [bad, x, y] = [destroyed(&backend), backend.allocate(256).expect("x"), backend.allocate(256).expect("y")];
        let held = backend.queue().hold("gather", || Fault::index("gather")).expect("a slot");
        for reads in [true, false] {
            copy(&backend, &bad, &x);
            backend.queue().state().slots.arm(held.slot);
            // `y` is read in the submission that is rejected.
            let read = if reads { backend.download(&y, 0, &mut [0; 8]) } else { backend.synchronize() };
            let error = read.expect_err("nothing was read");
            assert!(error.kind() == &ErrorKind::Backend && error.to_string().contains("destroyed"), "{error}");
            backend.download(&x, 0, &mut [0; 8]).expect_err("it was not written");
            backend.download(&y, 0, &mut [0; 8]).expect("it was not to be written");
        }
    }

    #[test]
    fn an_upload_of_any_size_over_a_spoiled_buffer_replaces_its_contents() {
        let backend = opened();
        let bad = destroyed(&backend);
        for bytes in [3, 1024, 1027, LARGEST - 1, LARGEST + 1, LARGEST + 4, PIECE + 4, 2 * PIECE + 1] {
            let mut x = backend.allocate(bytes).expect("memory");
            copy(&backend, &bad, &x);
            backend.download(&x, 0, &mut [0]).expect_err("the copy is rejected");
            backend.upload(&mut x, 0, &vec![0; bytes / 2]).expect("an upload");
            backend.download(&x, 0, &mut [0]).expect_err("the other half is still spoiled");
            backend.upload(&mut x, 0, &vec![0; bytes]).expect("an upload");
            backend.download(&x, 0, &mut [0]).unwrap_or_else(|e| panic!("{bytes} bytes: {e}"));
        }
    }

    #[test]
    fn a_kept_table_needs_no_submission_and_the_first_copy_of_one_counts_as_an_upload() {
        let backend = opened();
        let table = vec![7; 1024];
        let [mut x, y] = [(); 2].map(|()| backend.allocate(1024).expect("memory"));
        backend.upload(&mut x, 0, &table).expect("an upload");
        let mut large = backend.allocate(STAGED).expect("memory");
        backend.upload(&mut large, 0, &vec![0; STAGED - 1024 - 512]).expect("an upload");
        let before = backend.counters().submissions;
        // The second upload of the table keeps it, and is the one that reaches the limit.
        backend.upload(&mut x, 0, &table).expect("an upload");
        assert_eq!((backend.counters().submissions, backend.queue().state().staged), (before + 1, 0));
        copy(&backend, &x, &y);
        backend.upload(&mut x, 0, &table).expect("an upload");
        assert_eq!(backend.counters().submissions, before + 1);
    }

    #[test]
    fn uploads_alone_are_submitted_too() {
        let backend = opened();
        let bytes = vec![0; STAGED - 4];
        let mut buffer = backend.allocate(bytes.len()).expect("memory");
        for done in 0..4 {
            assert_eq!(backend.counters().submissions, done);
            backend.upload(&mut buffer, 0, &bytes).expect("an upload");
            backend.upload(&mut buffer, 0, &[0; 4]).expect("an upload");
        }
        assert_eq!(backend.queue().state().staged, 0);
    }

    #[test]
    fn a_read_that_finds_no_memory_loses_nothing() {
        let backend = opened();
        let (queue, pool) = (backend.queue(), backend.pool());
        let (x, y) = (backend.allocate(256).expect("memory"), backend.allocate(256).expect("memory"));
        queue
            .copy((pool.block("", &x).expect("x"), 0), (pool.block("", &y).expect("y"), 0), 256, true)
            .expect("a copy");
        let held = queue.hold("gather", || Fault::index("gather")).expect("a slot");
        queue.state().slots.arm(held.slot);
        drop(backend.allocate(1 << 20).expect("memory"));
        for reads in [true, false] {
            pool.refused.store(2, Relaxed);
            let read = if reads { backend.download(&y, 0, &mut [0; 8]) } else { backend.synchronize() };
            let error = read.expect_err("no memory");
            assert_eq!(error.kind(), &ErrorKind::OutOfMemory { requested: 64 << 10 }, "{error}");
            assert_eq!(backend.memory_stats().cached, 0);
            // The copy has been submitted, but the slot has not been checked yet.
            let state = queue.state();
            assert!(state.encoder.is_none() && state.counters.submissions > 0 && state.slots.bytes() > 0);
        }
        pool.refused.store(1, Relaxed);
        backend.download(&y, 0, &mut [0; 8]).expect("memory at the second try");
        assert_eq!(queue.state().slots.bytes(), 0);
    }

    #[test]
    fn a_panic_of_wgpu_while_waiting_is_the_loss_of_the_device() {
        let faults = Faults::default();
        assert_eq!(polled(&faults, || Ok(3)).expect("no error"), Some(3));
        assert!(faults.check_lost("download").is_ok());
        assert_eq!(polled::<()>(&faults, || panic!("Error in {}: gone", "poll")).expect("no error"), None);
        let error = faults.check_lost("download").expect_err("the device is gone");
        assert!(error.kind() == &ErrorKind::Backend && error.to_string().contains("Error in poll: gone"), "{error}");
    }
}
