//! [`Peers`]: a [`Communicator`] of a [`Group`], which brings the bytes of tensors to it.
//!
//! A call is a [`HostCall`], so that captured steps make it too. Where the host can reach a device's memory, it runs as a
//! compute module on the tensors themselves. Elsewhere the bytes are copied to the host and back, unless NCCL moves
//! them.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gradus_tensor::backend::{Backend, Binding, ComputeModule, Element, NativeBinding, NativeCall, View};
use gradus_tensor::ops::{self, HostCall};
use gradus_tensor::{Bound, DType, Device, Error, ErrorKind, Layout, Result, Tensor, bf16, f16, no_grad};

use crate::call::{Call, Collective};
use crate::communicator::Communicator;
use crate::engine::Engine;
use crate::group::{Group, Line, Options};
use crate::handle::Handle;
use crate::reduce::typed;
use crate::started::{End, Started, Wait};

/// The name under which the calls are registered at devices.
const MODULE: &str = "gradus_dist";

thread_local! {
    /// The call that the module makes when this thread runs it. Anyone may name the module, and finds nothing here.
    static CALL: RefCell<Option<(Arc<Group>, Call)>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Shared {
    group: Arc<Group>,
    /// The devices that run the calls as modules, and those that cannot.
    devices: Mutex<Vec<(Device, bool)>>,
    started: Arc<Started>,
    /// What moves tensors on its device.
    #[cfg(all(feature = "nccl", unix))]
    nccl: Option<Arc<crate::nccl::Nccl>>,
}

/// A communicator over an engine of this crate.
#[derive(Debug, Clone)]
pub(crate) struct Peers(Arc<Shared>);

impl Peers {
    pub(crate) fn new(engine: Box<dyn Engine>, options: Options) -> Peers {
        Peers::of(Group::whole(engine, options))
    }

    fn of(group: Group) -> Peers {
        Peers(Arc::new(Shared {
            group: Arc::new(group),
            devices: Mutex::default(),
            started: Arc::default(),
            #[cfg(all(feature = "nccl", unix))]
            nccl: None,
        }))
    }

    /// Peers of a group, of which NCCL moves the tensors on a device.
    #[cfg(all(feature = "nccl", unix))]
    fn over(group: Group, device: &Device, reduction: crate::reduce::Reduction, line: Line) -> Result<Peers> {
        let group = Arc::new(group);
        let nccl = Some(crate::nccl::Nccl::connect(&group, device, reduction, line)?);
        Ok(Peers(Arc::new(Shared { group, devices: Mutex::default(), started: Arc::default(), nccl })))
    }

    /// The ranks of this group that give the same colour.
    fn split_group(&self, color: u32, key: i64, line: Line) -> Result<Group> {
        refuse("a communicator is made inside a captured step", line)?;
        let group = &self.0.group;
        self.0.started.settle();
        let call =
            Call { collective: Collective::Split, dtype: DType::I64, shape: gradus_tensor::Shape::new(&[3])?, line };
        let gathered = group.gather(&call, [i64::from(color), key, group.next_context()])?;
        Ok(group.part(&gathered))
    }
}

impl Shared {
    /// Whether the device runs the calls as modules.
    fn reaches(&self, device: &Device) -> bool {
        let mut devices = self.devices.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, reached)) = devices.iter().find(|(known, _)| known == device) {
            return *reached;
        }
        // The name may have been registered by another communicator.
        let reached = device.register_native(MODULE, run_module).is_ok()
            || device.backend().check_compute(ComputeModule::Native(MODULE), 1, &[], [1; 3]).is_ok();
        devices.push((device.clone(), reached));
        reached
    }

    /// Makes a call with `input`, if any, into `output`, if any.
    fn make(self: &Arc<Self>, call: &Call, input: Option<&Tensor>, output: Option<&Tensor>, on: &Device) -> Result<()> {
        self.dispatch(call, input, output, on, None)
    }

    /// [`make`](Shared::make), in the background if a captured step starts it.
    fn dispatch(
        self: &Arc<Self>,
        call: &Call,
        input: Option<&Tensor>,
        output: Option<&Tensor>,
        on: &Device,
        end: Option<Arc<End>>,
    ) -> Result<()> {
        #[cfg(all(feature = "nccl", unix))]
        let by_nccl = self.nccl.as_ref().is_some_and(|nccl| nccl.device() == on);
        #[cfg(not(all(feature = "nccl", unix)))]
        let by_nccl = false;
        if self.group.size() == 1 && !by_nccl {
            return match (input, output) {
                (Some(input), Some(output)) if output.numel() > 0 => no_grad(|| output.copy_(input)),
                _ => Ok(()),
            };
        }
        let mut bindings: Vec<Bound<'_>> = vec![];
        bindings.extend(input.filter(|x| x.numel() > 0).map(Bound::Read));
        bindings.extend(output.filter(|y| y.numel() > 0).map(Bound::Write));
        let reaches = !by_nccl && self.reaches(on);
        let exchange = Exchange { shared: self.clone(), call: call.clone(), device: on.clone(), reaches, by_nccl, end };
        no_grad(|| on.dispatch_host(Arc::new(exchange), &bindings, call.line))
    }

    /// The result of a call on `x`.
    fn result(self: &Arc<Self>, collective: Collective, x: &Tensor, line: Line) -> Result<Tensor> {
        if x.dtype() == DType::Bool {
            return self.result(collective, &x.to_dtype(DType::U8)?, line)?.to_dtype(DType::Bool);
        }
        let call = Call { collective, dtype: x.dtype(), shape: shape_of(x)?, line };
        let made = |axis0: usize| {
            let mut shape = x.shape().to_vec();
            shape[0] = axis0;
            Tensor::zeros(shape, x.dtype(), x.device())
        };
        let size = self.group.size();
        let output = match collective {
            Collective::AllReduce(_) | Collective::Broadcast(_) | Collective::Receive(_) => {
                let output = x.copy()?;
                self.make(&call, None, Some(&output), x.device())?;
                return Ok(output);
            }
            Collective::Barrier | Collective::Split => {
                self.make(&call, None, None, x.device())?;
                return Ok(x.clone());
            }
            Collective::Send(_) => {
                self.make(&call, Some(x), None, x.device())?;
                // Not `x`, whose memory a handle would hold until it is waited for.
                return Tensor::zeros([0], x.dtype(), x.device());
            }
            Collective::ReduceScatter(_) => made(x.shape()[0] / size)?,
            Collective::AllGather => made(x.shape()[0] * size)?,
            Collective::AllToAll => made(x.shape()[0])?,
        };
        self.make(&call, Some(x), Some(&output), x.device())?;
        Ok(output)
    }

    /// The result of a call on `x`, whose memory it may use.
    fn result_over(self: &Arc<Self>, collective: Collective, x: Tensor, line: Line) -> Result<Tensor> {
        let in_place = matches!(collective, Collective::AllReduce(_) | Collective::Broadcast(_));
        if !in_place || x.dtype() == DType::Bool || !x.is_contiguous() {
            return self.result(collective, &x, line);
        }
        let call = Call { collective, dtype: x.dtype(), shape: shape_of(&x)?, line };
        self.make(&call, None, Some(&x), x.device())?;
        Ok(x)
    }

    /// Starts to send `x` in a captured step. A replay goes on meanwhile.
    fn send_in_step(self: &Arc<Self>, collective: Collective, x: &Tensor, line: Line) -> Result<Wait> {
        let x = if x.dtype() == DType::Bool { x.to_dtype(DType::U8)? } else { x.detach() };
        let call = Call { collective, dtype: x.dtype(), shape: shape_of(&x)?, line };
        let end = Arc::<End>::default();
        self.dispatch(&call, Some(&x), None, x.device(), Some(end.clone())).map(|()| Wait(end))
    }

    /// The result of a call that was started. If it failed on this rank alone, the others are told: no call can follow.
    fn told<R>(&self, made: Result<R>) -> Result<R> {
        made.inspect_err(|e| {
            if *e.kind() != ErrorKind::Peer {
                self.group.give_up(&format!("a call that was started failed: {}", e.message()));
            }
        })
    }

    /// Makes a call that leaves the shape as it is, on words of the host.
    fn make_on_host(&self, call: &Call, mut words: Vec<u64>) -> Result<Vec<u64>> {
        if self.group.size() == 1 {
            return Ok(words);
        }
        self.group.check(call)?;
        let bytes = u64::as_bytes_mut(&mut words).unwrap_or_default();
        // SAFETY: what is forgotten is never freed.
        let made = unsafe { self.group.transfer(call, &[], bytes) };
        if let Err(e) = made {
            std::mem::forget(words);
            return Err(e);
        }
        Ok(words)
    }
}

/// A call of a communicator on the memory of tensors.
#[derive(Clone)]
struct Exchange {
    shared: Arc<Shared>,
    call: Call,
    device: Device,
    /// Whether the device runs it as a module.
    reaches: bool,
    /// Whether NCCL moves the data.
    by_nccl: bool,
    /// Where the result of the call is put, if a captured step starts the call and continues without waiting for it.
    end: Option<Arc<End>>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { collective, dtype, shape, .. } = &self.call;
        write!(f, "{collective} of {shape} {dtype} over {} ranks", self.shared.group.size())
    }
}

impl HostCall for Exchange {
    fn name(&self) -> &str {
        self.call.collective.name()
    }

    fn is_same(&self, other: &dyn HostCall) -> bool {
        let other: Option<&Exchange> = (other as &dyn Any).downcast_ref();
        other.is_some_and(|other| {
            let is_started = self.end.is_some() == other.end.is_some();
            Arc::ptr_eq(&self.shared, &other.shared) && self.call == other.call && is_started
        })
    }

    fn check(&self) -> Result<()> {
        if self.end.is_none() {
            // Those that were started before may need the tensors that a replay locks.
            self.shared.started.settle();
        }
        self.shared.group.check(&self.call)
    }

    fn abandoned(&self, why: &Error) {
        self.shared.group.give_up(&format!("a replay failed: {}", why.message()));
    }

    fn call(&self, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()> {
        if let Some(end) = &self.end {
            return self.start(backend, operands, end);
        }
        // Sends that this replay has started on the same communicator come first.
        self.shared.started.settle();
        self.now(backend, operands)
    }
}

impl Exchange {
    /// Makes the call in the background, with copies of what it reads: a replay uses that memory again.
    fn start(&self, backend: &dyn Backend, operands: &[Binding<'_>], end: &End) -> Result<()> {
        let mut copies = vec![];
        for operand in operands {
            let Binding::Read(x) = operand else {
                return Err(Error::argument(self.name(), "a captured step starts only calls that write nothing"));
            };
            let (size, bytes) = (x.dtype.size(), x.layout.numel() * x.dtype.size());
            let mut copy = backend.alloc(bytes)?;
            backend.copy_buffer(x.buffer, x.layout.offset() * size, &mut copy, 0, bytes)?;
            copies.push((copy, x.dtype, Layout::contiguous(*x.layout.shape())));
        }
        let this = Exchange { end: None, ..self.clone() };
        let call = move || {
            let views = copies.iter().map(|(buffer, dtype, layout)| View { buffer, dtype: *dtype, layout });
            let made = this.now(this.device.backend(), &mut views.map(Binding::Read).collect::<Vec<_>>());
            if made.is_err() {
                std::mem::forget(copies);
            }
            this.shared.told(made)
        };
        end.begin(self.shared.started.start(call).map_err(|e| Error::io(self.name(), "a thread", e))?);
        Ok(())
    }

    /// Makes the call.
    fn now(&self, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()> {
        #[cfg(all(feature = "nccl", unix))]
        if let Some(nccl) = self.shared.nccl.as_ref().filter(|_| self.by_nccl) {
            return nccl.call(backend, &self.call, operands);
        }
        debug_assert!(!self.by_nccl);
        if self.reaches && !operands.is_empty() {
            return self.on_device(backend, operands);
        }
        self.over_host(backend, operands)
    }

    /// Makes the call on the memory itself.
    fn on_device(&self, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()> {
        CALL.set(Some((self.shared.group.clone(), self.call.clone())));
        let made = backend.dispatch_compute(ComputeModule::Native(MODULE), operands, &[], [1; 3]);
        // A backend that refuses the module has not taken it.
        CALL.set(None);
        made
    }

    /// Makes the call on copies in memory of the host.
    fn over_host(&self, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()> {
        let mut rooms = [Room::default(), Room::default()];
        let [given, taken] = &mut rooms;
        for operand in operands.iter() {
            match operand {
                Binding::Read(x) => given.download(backend, x)?,
                Binding::Write(y) => taken.download(backend, &y.as_view())?,
            }
        }
        // SAFETY: what is forgotten is never freed.
        let made = unsafe { self.shared.group.transfer(&self.call, given.bytes(), taken.bytes()) };
        if made.is_err() {
            std::mem::forget(rooms);
            return made;
        }
        operands.iter_mut().try_for_each(|operand| match operand {
            Binding::Read(_) => Ok(()),
            Binding::Write(y) => {
                let at = y.layout.offset() * y.dtype.size();
                backend.upload(y.buffer, at, taken.bytes())
            }
        })
    }
}

/// Memory of the host for the elements of a tensor, in words, so that those of any dtype are aligned.
#[derive(Default)]
struct Room {
    words: Vec<u64>,
    length: usize,
}

impl Room {
    fn download(&mut self, backend: &dyn Backend, x: &View<'_>) -> Result<()> {
        self.length = x.layout.numel() * x.dtype.size();
        self.words = vec![0; self.length.div_ceil(8)];
        backend.download(x.buffer, x.layout.offset() * x.dtype.size(), self.bytes())
    }

    fn bytes(&mut self) -> &mut [u8] {
        let length = self.length;
        u64::as_bytes_mut(&mut self.words).and_then(|bytes| bytes.get_mut(..length)).unwrap_or_default()
    }
}

/// Refuses what a replay of a captured step would not do.
fn refuse(what: &str, line: Line) -> Result<()> {
    let refused = ops::refuse(|| {
        let e = Error::argument("capture", what).at(line).note("a replay makes the collectives of tensors only");
        e.help("do it before the step, or exchange a tensor")
    });
    refused.map_err(|e| e.at(line))
}

fn shape_of(x: &Tensor) -> Result<gradus_tensor::Shape> {
    gradus_tensor::Shape::new(x.shape())
}

/// The module: makes the call that this thread has prepared, on the bound memory.
fn run_module(native: &mut NativeCall<'_>) -> Result<()> {
    fn bytes<'a, T: Element>(x: &'a NativeBinding<'_>) -> Result<&'a [u8]> {
        Ok(T::as_bytes(x.read::<T>()?))
    }
    fn bytes_mut<'a, T: Element>(x: &'a mut NativeBinding<'_>) -> Result<&'a mut [u8]> {
        T::as_bytes_mut(x.write::<T>()?).ok_or_else(|| Error::dtype(MODULE, T::DTYPE, "numbers"))
    }
    let Some((group, call)) = CALL.take() else {
        let e = Error::argument(MODULE, "this module makes the calls of communicators only");
        return Err(e.help("call a method of the communicator"));
    };
    let (input, output) = match (&mut native.bindings[..], call.collective) {
        ([input], Collective::Send(_)) => (Some(input), None),
        ([output], _) => (None, Some(output)),
        ([input, output], _) => (Some(input), Some(output)),
        _ => return Err(Error::argument(MODULE, "too many tensors are bound")),
    };
    let input = match input {
        Some(x) => typed!(MODULE, x.dtype(), bytes(x))?,
        None => &[],
    };
    let output = match output {
        Some(y) => typed!(MODULE, y.dtype(), bytes_mut(y))?,
        None => &mut [],
    };
    // SAFETY: only `Exchange::on_device` prepares a call, which this run has taken. It runs the module on its own operands
    // at once, and its callers never free their memory after an error of that kind.
    unsafe { group.transfer(&call, input, output) }
}

impl Communicator for Peers {
    fn rank(&self) -> usize {
        self.0.group.rank
    }

    fn size(&self) -> usize {
        self.0.group.size()
    }

    fn deadline(&self) -> Duration {
        self.0.group.world.options.deadline
    }

    fn engine(&self) -> String {
        let host = self.0.group.world.engine.name();
        #[cfg(all(feature = "nccl", unix))]
        if let Some(nccl) = &self.0.nccl {
            return format!("{}, {host}", nccl.name());
        }
        host
    }

    fn run(&self, collective: Collective, x: &Tensor, line: Line) -> Result<Tensor> {
        self.0.result(collective, &x.detach(), line)
    }

    fn run_in_place(&self, collective: Collective, x: &Tensor, line: Line) -> Result<()> {
        if x.dtype() == DType::Bool {
            let result = self.run(collective, x, line)?;
            return no_grad(|| x.copy_(&result)).map_err(|e| e.at(line));
        }
        let call = Call { collective, dtype: x.dtype(), shape: shape_of(x)?, line };
        self.0.make(&call, None, Some(x), x.device())
    }

    fn run_on_host(&self, collective: Collective, dtype: DType, words: Vec<u64>, line: Line) -> Result<Vec<u64>> {
        refuse("numbers of the host are exchanged between ranks inside a captured step", line)?;
        let call = Call { collective, dtype, shape: gradus_tensor::Shape::new(&[words.len()])?, line };
        self.0.started.settle();
        self.0.make_on_host(&call, words)
    }

    fn start(&self, collective: Collective, x: &Tensor, line: Line) -> Result<Handle> {
        let op = collective.name();
        if !ops::is_captured() {
            let (this, x) = (self.clone(), x.detach());
            // The thread drops its handle of the communicator before who waits drops the last one.
            let result = self.0.started.start(move || this.0.told(this.0.result_over(collective, x, line)));
            return Ok(Handle::new(result.map_err(|e| Error::io(op, "a thread", e).at(line))?, op, line));
        }
        // A trace sees the operations of its own thread.
        if !matches!(collective, Collective::Send(_)) {
            return Ok(Handle::of_result(self.run(collective, x, line), op, line));
        }
        let wait = Arc::new(self.0.send_in_step(collective, x, line)?);
        Ok(Handle::of_step(Tensor::zeros([0], x.dtype(), x.device())?, wait, op, line))
    }

    fn split_by(&self, color: u32, key: i64, line: Line) -> Result<Arc<dyn Communicator>> {
        let group = self.split_group(color, key, line)?;
        #[cfg(all(feature = "nccl", unix))]
        if let Some(nccl) = &self.0.nccl {
            return Ok(Arc::new(Peers::over(group, nccl.device(), nccl.reduction(), line)?));
        }
        Ok(Arc::new(Peers::of(group)))
    }

    #[cfg(all(feature = "nccl", unix))]
    fn over_nccl(
        &self,
        device: &Device,
        reduction: crate::reduce::Reduction,
        line: Line,
    ) -> Result<Arc<dyn Communicator>> {
        let group = self.split_group(0, self.rank() as i64, line)?;
        Ok(Arc::new(Peers::over(group, device, reduction, line)?))
    }

    fn give_up(&self, why: &str) {
        self.0.group.give_up(why);
    }

    fn share(&self) -> Arc<dyn Communicator> {
        Arc::new(self.clone())
    }
}
