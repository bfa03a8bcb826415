//! Queues work on the stream, and finds errors that kernels report late.
//!
//! The state is locked while work is queued, so that the log of what each launch uses has the order of the stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradus_backend::late::{Access, Check, FAULT_BYTES, Fault, LONG, Log, SLOT, Slots};
use gradus_backend::{Error, ErrorKind, Result};

use crate::arguments::Arguments;
use crate::driver::{BLOCK, Device, Downloads, Graph, Pinned, Product, Uploads};
use crate::memory::Block;
use crate::program::Programs;
use crate::recorded::Recorded;
use crate::recording::{self, What};

/// The call of an operation that a launch is a part of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    /// The operation's name, for errors.
    pub(crate) op: &'a str,
    /// The slot that spoils the outputs of the launch if it is filled.
    slot: Option<u32>,
    /// How many lists of operands the launch serves, of which none depends on another. Each has as many of the launch's uses,
    /// in order.
    lists: usize,
}

impl<'a> Call<'a> {
    /// A call that cannot fail on the device, for so many lists of operands.
    pub(crate) fn of_lists(op: &'a str, lists: usize) -> Self {
        Call { op, slot: None, lists }
    }
}

/// A call that cannot fail on the device.
impl<'a> From<&'a str> for Call<'a> {
    fn from(op: &'a str) -> Self {
        Call::of_lists(op, 1)
    }
}

/// How a launch uses a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Use<'a> {
    pub(crate) block: &'a Block,
    pub(crate) access: Access,
}

/// One run of a kernel.
pub(crate) struct Launch<'a> {
    pub(crate) call: Call<'a>,
    /// The hash of everything that `source` depends on.
    pub(crate) key: u128,
    /// The name of the kernel in the text.
    pub(crate) entry: &'a str,
    /// The text: CUDA C with `extern "C" __global__ void ENTRY(..)`.
    pub(crate) source: &'a dyn Fn() -> String,
    /// Every buffer that the kernel reads or writes.
    pub(crate) uses: &'a [Use<'a>],
    pub(crate) arguments: &'a Arguments,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of shared memory besides what the kernel declares.
    pub(crate) shared: u32,
}

/// A slot of the fault buffer, which is held while the call that it belongs to runs.
pub(crate) struct Held<'q> {
    queue: &'q Queue,
    slot: u32,
}

impl Held<'_> {
    /// The call of a launch that may fill the slot, or whose operands another such launch checks.
    pub(crate) fn call<'a>(&self, op: &'a str) -> Call<'a> {
        Call { op, slot: Some(self.slot), lists: 1 }
    }

    /// The address of the slot, as an argument of a kernel: `unsigned long long *fault`.
    pub(crate) fn address(&self) -> u64 {
        self.queue.faults + u64::from(self.slot) * SLOT as u64
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.queue.state().slots.release(self.slot);
    }
}

#[derive(Debug, Default)]
struct State {
    slots: Slots,
    log: Log,
}

/// The work of one device.
pub(crate) struct Queue {
    pub(crate) device: Arc<Device>,
    pub(crate) programs: Programs,
    /// The address of the fault buffer.
    faults: u64,
    state: Mutex<State>,
    uploads: Mutex<Uploads>,
    /// One read runs at a time.
    reading: Mutex<Option<Reading>>,
}

/// What a read needs.
struct Reading {
    /// A copy of the fault buffer.
    faults: Pinned,
    downloads: Downloads,
}

impl Queue {
    pub(crate) fn new(device: Arc<Device>) -> Result<Queue> {
        let bytes = FAULT_BYTES as usize;
        let none = || Error::new(ErrorKind::OutOfMemory { requested: bytes }, "cuda", "the device has no memory left");
        let faults = device.allocate(bytes)?.ok_or_else(none)?;
        // SAFETY: the memory was allocated with this size.
        unsafe { device.fill("cuda", faults, 0, bytes) }?;
        let reading = Reading { faults: device.pinned(bytes)?, downloads: Downloads::default() };
        Ok(Queue {
            device,
            programs: Programs::new(),
            faults,
            state: Mutex::default(),
            uploads: Mutex::default(),
            reading: Mutex::new(Some(reading)),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a fault. If all are in use, waits for a check that may free some.
    pub(crate) fn hold(&self, op: &str, fault: impl Fn() -> Fault) -> Result<Held<'_>> {
        for first in [true, false] {
            if let Some(slot) = self.state().slots.take(fault()) {
                recording::held(&self.device, slot, &fault);
                return Ok(Held { queue: self, slot });
            }
            if first {
                self.fetch(op, None)?;
            }
        }
        let m = "more operations that can fail run at the same time than the device keeps slots for";
        Err(Error::new(ErrorKind::Unsupported, op, m))
    }

    /// Locks the state. If the log is full, a check empties it first.
    fn ready(&self, op: &str) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.log.len() < LONG {
            return Ok(state);
        }
        drop(state);
        self.fetch(op, None)?;
        Ok(self.state())
    }

    /// Queues a kernel. A grid with a size of 0 is no work.
    pub(crate) fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let op = launch.call.op;
        if launch.grid.contains(&0) {
            return Ok(());
        }
        self.device.enter(op)?;
        let function = self.programs.get(&self.device, op, (launch.key, launch.entry), launch.source)?;
        self.run(launch.call, &function, launch.uses, launch.arguments, (launch.grid, launch.block, launch.shared))
    }

    /// Queues a function of a loaded module.
    pub(crate) fn run(
        &self,
        call: Call<'_>,
        function: &crate::driver::Function,
        uses: &[Use<'_>],
        arguments: &Arguments,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
    ) -> Result<()> {
        let mut pointers = arguments.pointers();
        let mut guard = self.ready(call.op)?;
        let State { slots, log } = &mut *guard;
        call.slot.iter().for_each(|&slot| slots.arm(slot));
        // SAFETY: the arguments are what the kernel's text declares, and the operands were checked to lie in buffers
        // that their owners keep until after this call; memory is freed and reused in the order of the stream.
        unsafe { self.device.launch(call.op, function, grid, block, shared, &mut pointers) }?;
        // At most as many lists as there are uses, so a part is not empty unless all are.
        let part = (uses.len() / call.lists.max(1)).max(1);
        for uses in uses.chunks(part) {
            log.note(call.slot, uses.iter().map(|u| (&u.block.contents, u.block.accessed(u.access))));
        }
        log.submitted(slots, None);
        let noted = uses.iter().map(|u| (u.block, u.block.accessed(u.access)));
        recording::queued(&self.device, (call.slot, part), noted, || What::Launch {
            kernel: function.kernel,
            shape: (grid, block, shared),
            arguments: arguments.clone(),
        });
        uses.iter().for_each(|u| u.block.queued(u.access));
        Ok(())
    }

    /// Queues a product of matrices. Returns whether it did: if it did not, it has to be computed otherwise.
    pub(crate) fn multiply(&self, op: &str, uses: &[Use<'_>; 3], product: &Product) -> Result<bool> {
        let mut guard = self.ready(op)?;
        // SAFETY: the operands were checked to lie in buffers that their owners keep until after this call, and the caller
        // of the operation borrows the result alone; memory is freed and reused in the order of the stream.
        if !unsafe { product.run(op) }? {
            return Ok(false);
        }
        let State { slots, log } = &mut *guard;
        log.note(None, uses.iter().map(|u| (&u.block.contents, u.block.accessed(u.access))));
        log.submitted(slots, None);
        let noted = uses.iter().map(|u| (u.block, u.block.accessed(u.access)));
        recording::queued(&self.device, (None, uses.len()), noted, || What::Multiply(product.clone()));
        uses.iter().for_each(|u| u.block.queued(u.access));
        Ok(true)
    }

    /// Notes work on buffers that is done and that cannot fail late.
    pub(crate) fn noted(&self, op: &str, uses: &[Use<'_>]) -> Result<()> {
        let mut guard = self.ready(op)?;
        let State { slots, log } = &mut *guard;
        log.note(None, uses.iter().map(|u| (&u.block.contents, u.block.accessed(u.access))));
        log.submitted(slots, None);
        uses.iter().for_each(|u| u.block.queued(u.access));
        Ok(())
    }

    /// Makes a graph of work that calls have queued. It clears its slots for faults first.
    pub(crate) fn capture(&self, op: &str, works: &[What], slots: u64, bytes: usize) -> Result<Graph> {
        // SAFETY: the recording owns the slots and the temporary memory; the operands of the list are allocated whenever
        // the graph is started, because it is only started if they are where they were. The calls have launched these
        // kernels with these arguments, except for the address of a slot, and have computed these products.
        self.device.capture(op, |capture| unsafe {
            if bytes > 0 {
                capture.fill(op, slots, 0, bytes)?;
            }
            works.iter().try_for_each(|what| match what {
                What::Launch { kernel, shape, arguments } => {
                    capture.launch(op, *kernel, *shape, &mut arguments.pointers())
                }
                What::Multiply(product) => capture.multiply(op, product),
                What::Copy { to, from, bytes } => capture.copy(op, *to, *from, *bytes),
            })
        })
    }

    /// Queues the work of a graph. Returns whether it did: it does not if memory of an operand was given back.
    pub(crate) fn replay(&self, op: &str, recorded: &Recorded) -> Result<bool> {
        let held = recorded.faults.iter().map(|fault| self.hold(op, || fault.clone())).collect::<Result<Vec<_>>>()?;
        let mut guard = self.ready(op)?;
        let Some(contents) = recorded.contents() else { return Ok(false) };
        // SAFETY: the recording owns its temporary memory, and the operands are where they were when it was made: see
        // `capture`.
        unsafe { self.device.start(op, &recorded.graph) }?;
        recorded.started();
        let State { slots, log } = &mut *guard;
        held.iter().for_each(|held| slots.arm(held.slot));
        let mut uses = recorded.uses.iter().map(|&(at, access)| (&contents[at], access));
        for &(fault, count) in &recorded.notes {
            log.note(fault.map(|fault| held[fault].slot), uses.by_ref().take(count));
        }
        // Slots that follow each other are copied together.
        let mut first = 0;
        for together in held.chunk_by(|a, b| a.slot + 1 == b.slot) {
            let from = recorded.slots + (first * SLOT) as u64;
            // SAFETY: the slots of the graph and those of the fault buffer are allocated.
            let copied = unsafe { self.device.copy(op, together[0].address(), from, together.len() * SLOT) };
            if let Err(why) = copied {
                // The work is queued, so this is no longer an error of the run.
                log.unknown(slots, &together.iter().map(|held| held.slot).collect::<Vec<_>>(), &why);
            }
            first += together.len();
        }
        log.submitted(slots, None);
        Ok(true)
    }

    /// Queues a copy from the host to `offset` bytes into a block.
    pub(crate) fn write(&self, block: &Block, offset: usize, bytes: &[u8], access: Access) -> Result<()> {
        const OP: &str = "upload";
        recording::refuse();
        self.device.enter(OP)?;
        let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut to = block.ptr + offset as u64;
        for part in bytes.chunks(BLOCK) {
            // Without pinned memory, the driver waits for the copy or copies the bytes itself.
            let source = uploads.stage(&self.device, OP, part)?.unwrap_or(part);
            // SAFETY: the caller has checked that the bytes lie in the block. What is pinned stays until it is copied.
            unsafe { self.device.copy_in(OP, to, source) }?;
            to += part.len() as u64;
        }
        // Nobody else uses the block, so the order of its notes is still that of the stream.
        let mut guard = self.ready(OP)?;
        let State { slots, log } = &mut *guard;
        log.note(None, [(&block.contents, block.accessed(access))].into_iter());
        log.submitted(slots, None);
        block.queued(access);
        Ok(())
    }

    /// Queues a copy between blocks. `whole` says that it replaces all that the destination holds.
    pub(crate) fn copy(
        &self,
        (from, from_offset): (&Block, usize),
        (to, to_offset): (&Block, usize),
        bytes: usize,
        whole: bool,
    ) -> Result<()> {
        let mut guard = self.ready("copy_buffer")?;
        let State { slots, log } = &mut *guard;
        // SAFETY: the caller has checked that the bytes lie in the blocks.
        unsafe {
            self.device.copy("copy_buffer", to.ptr + to_offset as u64, from.ptr + from_offset as u64, bytes)?;
        }
        let access = to.accessed(if whole { Access::Replace } else { Access::Write });
        log.note(None, [(&from.contents, Access::Read), (&to.contents, access)].into_iter());
        log.submitted(slots, None);
        let uses = [(from, Access::Read), (to, access)];
        recording::queued(&self.device, (None, uses.len()), uses.into_iter(), || What::Copy {
            to: to.ptr + to_offset as u64,
            from: from.ptr + from_offset as u64,
            bytes,
        });
        to.queued(access);
        Ok(())
    }

    /// Waits for all work, and copies bytes of a block, from `offset` on, to the host. Fails if a late error spoiled
    /// the block.
    pub(crate) fn read(&self, op: &str, block: &Block, offset: usize, bytes: &mut [u8]) -> Result<()> {
        recording::refuse();
        self.fetch(op, Some((block, offset, bytes)))?;
        match block.contents.spoiled() {
            Some(found) => Err(found.tell()),
            None => Ok(()),
        }
    }

    /// Waits for all work, and returns the late errors that no read has returned yet.
    pub(crate) fn synchronize(&self) -> Result<()> {
        recording::refuse();
        self.fetch("synchronize", None)?;
        self.state().log.untold().map_or(Ok(()), Err)
    }

    /// Waits for all work that is queued, copies bytes if asked to, and checks the slots of the fault buffer.
    fn fetch(&self, op: &str, mut from: Option<(&Block, usize, &mut [u8])>) -> Result<()> {
        self.device.enter(op)?;
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Reading { faults, downloads }) = reading.as_mut() else {
            return Err(Error::new(ErrorKind::Backend, op, "the device is closed"));
        };
        let mut guard = self.state();
        let state = &mut *guard;
        let filled = state.slots.bytes() as usize;
        // This includes work that another thread queues until the state is unlocked.
        let check = state.log.check(&mut state.slots);
        // SAFETY: the caller has checked that the bytes lie in the block; the fault buffer is as large as its copy. Both
        // destinations outlive the wait below.
        let queued = unsafe {
            let copied = match &mut from {
                Some((block, offset, bytes)) => {
                    let from = block.ptr + *offset as u64;
                    match downloads.begin(&self.device, op, from, bytes.len()) {
                        Ok(false) => self.device.copy_out(op, bytes, from).map(|()| false),
                        begun => begun,
                    }
                }
                None => Ok(false),
            };
            copied.and_then(|is_staged| {
                if filled == 0 {
                    return Ok(is_staged);
                }
                self.device.copy_out(op, &mut faults.bytes_mut()[..filled], self.faults)?;
                // They are cleared after they have been copied, so that later work finds them empty.
                self.device.fill(op, self.faults, 0, filled).map(|()| is_staged)
            })
        };
        drop(guard);
        // Other threads continue while this one waits. After a failure, too, nothing may write to the destinations.
        let waited = self.device.wait(op);
        let done = queued.and_then(|is_staged| waited.map(|()| is_staged));
        if let Some(check) = check {
            self.end(check, done.as_ref().map(|_| &faults.bytes()[..filled]));
        }
        match (done?, from) {
            // SAFETY: as above. Nobody writes to the block, of which the caller has a borrow.
            (true, Some((block, offset, bytes))) => unsafe {
                downloads.finish(&self.device, op, block.ptr + offset as u64, bytes)
            },
            _ => Ok(()),
        }
    }

    fn end(&self, check: Check, bytes: Result<&[u8], &Error>) {
        let mut guard = self.state();
        let State { slots, log } = &mut *guard;
        let arranged = bytes.map(|bytes| bytes.chunks_exact(SLOT).flat_map(arranged).collect::<Vec<u8>>());
        log.end(check, slots, arranged.as_ref().map(Vec::as_slice).map_err(|e| *e));
    }
}

/// A slot as kernels fill it, in the order of the words that [`Slots`] reads. Kernels write two numbers of 64 bits, of
/// which each has the inverted position in its high half, so that the maximum of all that are written belongs to the
/// first position. Their low halves are those of the index. The size and the flag follow.
fn arranged(slot: &[u8]) -> [u8; SLOT] {
    let mut words = [0; SLOT];
    for (to, from) in [5, 1, 0, 2, 4].into_iter().enumerate() {
        words[to * 4..to * 4 + 4].copy_from_slice(&slot[from * 4..from * 4 + 4]);
    }
    words
}

impl Drop for Queue {
    fn drop(&mut self) {
        let _ = self.device.wait("close");
        // SAFETY: no work uses the fault buffer any more.
        unsafe { self.device.free(self.faults) };
        let uploads = self.uploads.get_mut().unwrap_or_else(PoisonError::into_inner);
        uploads.take().for_each(|pinned| self.device.free_pinned(pinned));
        if let Some(mut reading) = self.reading.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            reading.downloads.take().chain([reading.faults]).for_each(|pinned| self.device.free_pinned(pinned));
        }
    }
}
