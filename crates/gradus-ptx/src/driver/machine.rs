//! The driver itself: work is taken, ordered and done.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

use super::abi::{
    CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, Code, Handle, Host, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_HANDLE,
    INVALID_VALUE, LAUNCH_TIMEOUT,
};
use super::blas::Blas;
use super::counts::Counts;
use super::inject;
use super::kernel::Ready;
use super::nccl::Nccl;
use super::settings::Settings;
use super::state::{Device, Event, Function, Graph, Loaded, Pinned, Stream};
use super::work::{Work, code_of};
use crate::{Launch, Limits, MemoryError};

/// Everything that the driver of this process knows.
pub(super) struct Driver {
    pub(super) settings: Settings,
    pub(super) initialised: bool,
    pub(super) last_handle: Handle,
    pub(super) devices: Vec<Device>,
    pub(super) streams: HashMap<Handle, Stream>,
    pub(super) events: HashMap<Handle, Event>,
    pub(super) modules: HashMap<Handle, Loaded>,
    pub(super) functions: HashMap<Handle, Function>,
    pub(super) graphs: HashMap<Handle, Graph>,
    pub(super) pinned: Pinned,
    pub(super) blas: Blas,
    pub(super) nccl: Nccl,
    pub(super) calls: inject::Calls,
    pub(super) counts: Counts,
}

/// Where handles begin. Below are those of the default streams: 0, 1 and 2 in calls, and one for each device from
/// `DEFAULT_STREAM`.
pub(super) const FIRST_HANDLE: Handle = 0x1000;
pub(super) const DEFAULT_STREAM: Handle = 0x10;

impl Driver {
    pub(super) fn new() -> Driver {
        let settings = Settings::read(|name| std::env::var(name).ok());
        let mut calls = inject::Calls::default();
        if let Some(plan) = &settings.fail
            && let Err(part) = calls.plan(plan)
        {
            eprintln!("gradus-ptx: GRADUS_PTX_FAIL: `{part}` is not of the form FUNCTION:CALL=CODE");
        }
        let devices = (0..settings.devices).map(|_| Device::new(&settings)).collect();
        let default = |device| (DEFAULT_STREAM + device, Stream::new(device, true));
        let streams = (0..settings.devices).map(default).collect();
        Driver {
            settings,
            initialised: false,
            last_handle: FIRST_HANDLE,
            devices,
            streams,
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            pinned: Pinned::default(),
            blas: Blas::default(),
            nccl: Nccl::default(),
            calls,
            counts: Counts::default(),
        }
    }

    /// A handle that was never given away.
    pub(super) fn handle(&mut self) -> Handle {
        self.last_handle += 0x10;
        self.last_handle
    }

    /// The device whose context is current on this thread. An error if there is none, or if the context is lost.
    pub(super) fn current(&self) -> Result<usize, Code> {
        let device = current().ok_or(INVALID_CONTEXT)?;
        let found = self.devices.get(device).ok_or(INVALID_CONTEXT)?;
        if found.retained == 0 {
            return Err(INVALID_CONTEXT);
        }
        found.lost.map_or(Ok(device), Err)
    }
}

thread_local! {
    /// The contexts of this thread, the current one last. A context is the number of its device.
    pub(super) static CONTEXTS: RefCell<Vec<Option<usize>>> = const { RefCell::new(Vec::new()) };
}

/// The device whose context is current on this thread.
pub(super) fn current() -> Option<usize> {
    CONTEXTS.with_borrow(|all| all.last().copied().flatten())
}

impl Driver {
    /// The stream that a caller means. An error if there is none, or if its context is lost.
    pub(super) fn stream(&self, handle: Handle) -> Result<Handle, Code> {
        let handle = if handle <= 2 { DEFAULT_STREAM + self.current()? } else { handle };
        let stream = self.streams.get(&handle).ok_or(INVALID_HANDLE)?;
        self.devices[stream.device].lost.map_or(Ok(handle), Err)
    }

    pub(super) fn is_capturing(&self, stream: Handle) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.capture.is_some())
    }

    /// What waits for a device must not be called while one of its streams is captured; the capture is lost.
    pub(super) fn refuse_while_capturing(&mut self, device: usize) -> Result<(), Code> {
        let mut outcome = Ok(());
        for stream in self.streams.values_mut().filter(|stream| stream.device == device) {
            if let Some(capture) = &mut stream.capture {
                capture.invalid = true;
                outcome = Err(CAPTURE_UNSUPPORTED);
            }
        }
        outcome
    }

    /// Takes work for a stream: does it, keeps it for later, or records it.
    pub(super) fn give(&mut self, handle: Handle, work: Work) -> Result<(), Code> {
        let late = self.settings.late;
        let stream = self.streams.get_mut(&handle).ok_or(INVALID_HANDLE)?;
        if let Some(capture) = &mut stream.capture {
            if capture.invalid {
                return Err(CAPTURE_INVALIDATED);
            }
            capture.work.push(work);
            return Ok(());
        }
        let (device, blocking) = (stream.device, stream.blocking);
        if blocking && late {
            self.finish_others(device, handle);
        }
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.queue.push_back(work);
        }
        if !late {
            self.drain(handle);
        }
        Ok(())
    }

    /// The default stream waits for the blocking streams of its device, and each of them for it.
    fn finish_others(&mut self, device: usize, handle: Handle) {
        let default = DEFAULT_STREAM + device;
        let before: Vec<Handle> = if handle == default {
            let others = self.streams.iter().filter(|(_, stream)| stream.device == device && stream.blocking);
            others.map(|(other, _)| *other).filter(|other| *other != default).collect()
        } else {
            vec![default]
        };
        before.into_iter().for_each(|other| self.drain(other));
    }

    /// Does the work of a stream, and work of others that it waits for, up to what waits for other ranks.
    pub(super) fn drain(&mut self, handle: Handle) {
        while let Some(stream) = self.streams.get_mut(&handle)
            && let Some(work) = stream.queue.pop_front()
        {
            let device = stream.device;
            if self.is_held_up(&work) {
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.queue.push_front(work);
                }
                return;
            }
            self.perform(device, work);
        }
    }

    /// Whether work that is the next of its stream waits for other ranks.
    fn is_held_up(&mut self, work: &Work) -> bool {
        match work {
            Work::Collective(launch) => !self.advance(launch),
            Work::Wait { event, record } => {
                self.wait_for(*event, *record);
                self.events.get(event).is_some_and(|event| event.reached.0 < *record)
            }
            _ => false,
        }
    }

    /// Reports a caller who waits for other ranks, and may do so without end.
    pub(super) fn refuse_endless(&mut self, is_held_up: bool, call: &str) -> Result<(), Code> {
        if !is_held_up {
            return Ok(());
        }
        self.counts.report(&format!("{call} waits for other ranks without a deadline"));
        Err(LAUNCH_TIMEOUT)
    }

    /// Does the work of a stream for a caller who waits.
    pub(super) fn finish_stream(&mut self, handle: Handle) -> Result<(), Code> {
        self.drain(handle);
        let stream = self.streams.get(&handle).ok_or(INVALID_HANDLE)?;
        let (device, is_held_up) = (stream.device, !stream.queue.is_empty());
        self.refuse_endless(is_held_up, "cuStreamSynchronize")?;
        self.devices[device].surface()
    }

    pub(super) fn finish_device(&mut self, device: usize) -> Result<(), Code> {
        let streams = self.streams.iter().filter(|(_, stream)| stream.device == device);
        let streams: Vec<Handle> = streams.map(|(handle, _)| *handle).collect();
        streams.into_iter().for_each(|handle| self.drain(handle));
        self.devices[device].surface()
    }
}

impl Driver {
    /// An event was reached in the order of its stream.
    pub(super) fn reach(&mut self, event: Handle, record: u64) {
        if let Some(event) = self.events.get_mut(&event) {
            event.reached = (record, Instant::now());
        }
    }

    /// Does the work before a record of an event.
    pub(super) fn wait_for(&mut self, event: Handle, record: u64) {
        if let Some(found) = self.events.get(&event)
            && found.reached.0 < record
        {
            self.drain(found.given.1);
        }
    }
}

impl Driver {
    /// Does work of a device. Its errors are for the next call that waits. Nothing is done after an error, but memory is freed
    /// and events are reached.
    pub(super) fn perform(&mut self, device: usize, work: Work) {
        let failed = self.devices[device].pending.is_some() || self.devices[device].lost.is_some();
        let outcome = match work {
            Work::Record { event, record } => {
                self.reach(event, record);
                Ok(())
            }
            Work::Wait { .. } | Work::Collective(_) => Ok(()),
            Work::Free { address } => {
                let freed = self.devices[device].memory.free(address);
                freed.map_err(|_| {
                    (INVALID_VALUE, format!("cuMemFreeAsync: {address:#x} is not the start of an allocation"))
                })
            }
            _ if failed => Ok(()),
            Work::Launch { kernel, launch } => self.run(device, &kernel, &launch),
            Work::Product(product) => {
                self.counts.products += 1;
                if self.settings.null { Ok(()) } else { product.run(&self.devices[device].memory.memory) }
            }
            Work::CopyBytes { to, from } => {
                self.counts.bytes_in += from.len() as u64;
                self.devices[device].memory.memory.write(to, &from).map_err(copying("cuMemcpyHtoD"))
            }
            Work::CopyIn { to, from, bytes } => {
                self.counts.bytes_in += bytes as u64;
                // SAFETY: whoever asks for a copy has so many initialised bytes there until it is done.
                let from = unsafe { from.bytes(bytes) };
                self.devices[device].memory.memory.write(to, from).map_err(copying("cuMemcpyHtoD"))
            }
            Work::CopyOut { to, from, bytes } => self.copy_out(device, to, from, bytes),
            Work::Copy { to, from, bytes } => {
                self.devices[device].memory.memory.copy(from, to, bytes as u64).map_err(copying("cuMemcpyDtoD"))
            }
            Work::Fill { to, pattern, width, count } => {
                let pattern = &pattern.to_le_bytes()[..width];
                let bytes = (count * width) as u64;
                self.devices[device].memory.memory.fill(to, pattern, bytes).map_err(copying("cuMemset"))
            }
        };
        if let Err((code, text)) = outcome {
            self.counts.report(&text);
            self.devices[device].pending.get_or_insert(code);
        }
    }

    fn run(&mut self, device: usize, kernel: &Ready, launch: &Launch) -> Result<(), (Code, String)> {
        self.counts.launches += 1;
        if self.settings.null {
            return Ok(());
        }
        let memory = &self.devices[device].memory.memory;
        let done = crate::run(&kernel.module, &kernel.name, launch, memory, &Limits::default());
        let stats = done.map_err(|fault| (code_of(fault.kind), fault.to_string()))?;
        self.counts.instructions += stats.thread_instructions;
        self.counts.kernels.insert(kernel.name.clone());
        eprint!("{}", stats.output);
        Ok(())
    }

    fn copy_out(&mut self, device: usize, to: Host, from: u64, bytes: usize) -> Result<(), (Code, String)> {
        if bytes == 0 {
            return Ok(());
        }
        if to.0.is_null() {
            return Err((INVALID_VALUE, "cuMemcpyDtoH: to null".into()));
        }
        self.counts.bytes_out += bytes as u64;
        let memory = &self.devices[device].memory.memory;
        // SAFETY: whoever asks for a copy has room for so many bytes there until it is done.
        memory.read(from, unsafe { to.bytes_mut(bytes) }).map_err(copying("cuMemcpyDtoH"))?;
        if !self.settings.null && memory.is_written(from, bytes as u64) == Ok(false) {
            let text = format!("cuMemcpyDtoH: some of the {bytes} bytes at {from:#x} were never written");
            return Err((ILLEGAL_ADDRESS, text));
        }
        Ok(())
    }
}

/// Turns an error of memory into that of a call.
fn copying(call: &str) -> impl Fn(MemoryError) -> (Code, String) {
    move |error| (INVALID_VALUE, format!("{call}: {error}"))
}
