//! [`Peers`]: a [`Communicator`] of a [`Group`], which brings the bytes of tensors to it.
//!
//! Where the host can reach a device's memory, a call runs as a compute module on the tensors themselves. Elsewhere the
//! bytes are copied to the host and back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Duration;

use gradus_tensor::backend::{ComputeModule, Element, NativeBinding, NativeCall};
use gradus_tensor::{Bound, DType, Device, Error, ErrorKind, Result, Tensor, bf16, f16, no_grad};

use crate::call::{Call, Collective};
use crate::communicator::Communicator;
use crate::engine::Engine;
use crate::group::{Group, Line, Options};
use crate::handle::Handle;
use crate::reduce::typed;

/// The name under which the calls are registered at devices.
const MODULE: &str = "gradus_dist";

/// Calls by number.
type Made = HashMap<u64, (Arc<Group>, Call)>;

/// The calls that are being made, by the number that the module receives.
static CALLS: LazyLock<Mutex<Made>> = LazyLock::new(Default::default);
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What is to be done on the thread of a communicator.
type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
struct Shared {
    group: Arc<Group>,
    /// The devices that run the calls as modules, and those that cannot.
    devices: Mutex<Vec<(Device, bool)>>,
    /// The thread that makes the calls that were started, once there is one.
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    /// The number of calls that were started and have not ended.
    started: AtomicUsize,
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
            jobs: Mutex::default(),
            started: AtomicUsize::new(0),
        }))
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
            || device.backend().check_compute(ComputeModule::Native(MODULE), 1, &[0; 8], [1; 3]).is_ok();
        devices.push((device.clone(), reached));
        reached
    }

    /// Makes a call with `input`, if any, into `output`.
    fn make(&self, call: &Call, input: Option<&Tensor>, output: &Tensor) -> Result<()> {
        let group = &self.group;
        if group.size() == 1 {
            return match input {
                Some(input) if output.numel() > 0 => no_grad(|| output.copy_(input)),
                _ => Ok(()),
            };
        }
        if output.numel() == 0 && input.is_none_or(|x| x.numel() == 0) {
            // SAFETY: there is no memory.
            return unsafe { group.transfer(call, &[], &mut []) };
        }
        let device = output.device();
        if !self.reaches(device) {
            let given = input.map_or_else(|| Ok(vec![]), Tensor::to_bytes)?;
            let mut bytes = aligned(&output.to_bytes()?);
            let room = u64::as_bytes_mut(&mut bytes).unwrap_or_default();
            let len = output.numel() * output.dtype().size();
            let given = aligned(&given);
            let length = input.map_or(0, |x| x.numel() * x.dtype().size());
            // SAFETY: what is forgotten is never freed.
            let made = unsafe { group.transfer(call, &u64::as_bytes(&given)[..length], &mut room[..len]) };
            if made.is_err() {
                std::mem::forget((given, bytes));
                return made;
            }
            let result = Tensor::from_bytes(&room[..len], output.shape(), output.dtype(), device)?;
            return no_grad(|| output.copy_(&result));
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let lock = || CALLS.lock().unwrap_or_else(|e| e.into_inner());
        lock().insert(number, (group.clone(), call.clone()));
        let mut bindings: Vec<Bound<'_>> = input.into_iter().map(Bound::Read).collect();
        bindings.push(Bound::Write(output));
        let module = ComputeModule::Native(MODULE);
        let made = no_grad(|| device.dispatch_compute(module, &bindings, &number.to_ne_bytes(), [1; 3]));
        lock().remove(&number);
        if let Err(e) = &made
            && *e.kind() == ErrorKind::Peer
        {
            // Another rank, or the engine, may still use the memory of a call that stopped half-way.
            std::mem::forget((input.cloned(), output.clone()));
        }
        made.map_err(|e| e.at(call.line))
    }

    /// The result of a call on `x`.
    fn result(&self, collective: Collective, x: &Tensor, line: Line) -> Result<Tensor> {
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
                self.make(&call, None, &output)?;
                return Ok(output);
            }
            Collective::Barrier | Collective::Split => {
                self.make(&call, None, x)?;
                return Ok(x.clone());
            }
            Collective::ReduceScatter(_) => made(x.shape()[0] / size)?,
            Collective::AllGather => made(x.shape()[0] * size)?,
            Collective::AllToAll => made(x.shape()[0])?,
            Collective::Send(_) => Tensor::zeros([1], DType::U8, x.device())?,
        };
        self.make(&call, Some(x), &output)?;
        Ok(output)
    }

    /// Makes a call that leaves the shape as it is, on words of the host.
    fn make_on_host(&self, call: &Call, mut words: Vec<u64>) -> Result<Vec<u64>> {
        if self.group.size() == 1 {
            return Ok(words);
        }
        let bytes = u64::as_bytes_mut(&mut words).unwrap_or_default();
        // SAFETY: what is forgotten is never freed.
        let made = unsafe { self.group.transfer(call, &[], bytes) };
        if let Err(e) = made {
            std::mem::forget(words);
            return Err(e);
        }
        Ok(words)
    }

    /// Runs `job` after all that were started, on the thread for them.
    fn enqueue(&self, job: Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(|e| e.into_inner());
        let sender = jobs.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel::<Job>();
            std::thread::spawn(move || receiver.into_iter().for_each(|job| job()));
            sender
        });
        // The thread ends only when the sender is dropped. If it has panicked, the waiting side finds its channel closed.
        let _ = sender.send(job);
    }
}

/// `x` as words, so that elements of any dtype are aligned.
fn aligned(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    if let Some(room) = u64::as_bytes_mut(&mut words) {
        room[..bytes.len()].copy_from_slice(bytes);
    }
    words
}

fn shape_of(x: &Tensor) -> Result<gradus_tensor::Shape> {
    gradus_tensor::Shape::new(x.shape())
}

/// The module: makes the call whose number is the constant, on the bound memory.
fn run_module(native: &mut NativeCall<'_>) -> Result<()> {
    fn bytes<'a, T: Element>(x: &'a NativeBinding<'_>) -> Result<&'a [u8]> {
        Ok(T::as_bytes(x.read::<T>()?))
    }
    fn bytes_mut<'a, T: Element>(x: &'a mut NativeBinding<'_>) -> Result<&'a mut [u8]> {
        T::as_bytes_mut(x.write::<T>()?).ok_or_else(|| Error::dtype(MODULE, T::DTYPE, "numbers"))
    }
    let [number] = native.constants::<u64, 1>()?;
    let call = CALLS.lock().unwrap_or_else(|e| e.into_inner()).get(&number).cloned();
    let Some((group, call)) = call else { return Err(Error::argument(MODULE, "there is no such call")) };
    let Some((output, inputs)) = native.bindings.split_last_mut() else {
        return Err(Error::argument(MODULE, "nothing is bound"));
    };
    let output = typed!(MODULE, output.dtype(), bytes_mut(output))?;
    let input = match inputs.first() {
        Some(x) => typed!(MODULE, x.dtype(), bytes(x))?,
        None => &[],
    };
    // SAFETY: this module is called by `Shared::make`, which forgets the tensors after an error of that kind.
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
        self.0.group.world.engine.name()
    }

    fn run(&self, collective: Collective, x: &Tensor, line: Line) -> Result<Tensor> {
        if self.0.started.load(Ordering::SeqCst) > 0 {
            return self.start(collective, x, line)?.wait();
        }
        self.0.result(collective, &x.detach(), line)
    }

    fn run_in_place(&self, collective: Collective, x: &Tensor, line: Line) -> Result<()> {
        if self.0.started.load(Ordering::SeqCst) > 0 || x.dtype() == DType::Bool {
            let result = self.run(collective, x, line)?;
            return no_grad(|| x.copy_(&result)).map_err(|e| e.at(line));
        }
        let call = Call { collective, dtype: x.dtype(), shape: shape_of(x)?, line };
        self.0.make(&call, None, x)
    }

    fn run_on_host(&self, collective: Collective, dtype: DType, words: Vec<u64>, line: Line) -> Result<Vec<u64>> {
        let call = Call { collective, dtype, shape: gradus_tensor::Shape::new(&[words.len()])?, line };
        if self.0.started.load(Ordering::SeqCst) == 0 {
            return self.0.make_on_host(&call, words);
        }
        let (sender, receiver) = mpsc::channel();
        let this = self.clone();
        self.0.enqueue(Box::new(move || {
            // Nobody waits if the caller has panicked.
            let _ = sender.send(this.0.make_on_host(&call, words));
        }));
        let gone =
            || Error::new(ErrorKind::Peer, collective.name(), "the thread that makes the calls has ended").at(line);
        receiver.recv().unwrap_or_else(|_| Err(gone()))
    }

    fn start(&self, collective: Collective, x: &Tensor, line: Line) -> Result<Handle> {
        let (sender, receiver) = mpsc::channel();
        let (this, x) = (self.clone(), x.detach().copy()?);
        self.0.started.fetch_add(1, Ordering::SeqCst);
        self.0.enqueue(Box::new(move || {
            let result = this.0.result(collective, &x, line);
            this.0.started.fetch_sub(1, Ordering::SeqCst);
            // Nobody waits for a result whose handle was dropped.
            let _ = sender.send(result);
        }));
        Ok(Handle::new(receiver, collective.name(), line))
    }

    fn split_by(&self, color: u32, key: i64, line: Line) -> Result<Arc<dyn Communicator>> {
        let group = &self.0.group;
        let call =
            Call { collective: Collective::Split, dtype: DType::I64, shape: gradus_tensor::Shape::new(&[3])?, line };
        let gathered = group.gather(&call, [i64::from(color), key, group.next_context()])?;
        Ok(Arc::new(Peers::of(group.part(&gathered))))
    }

    fn give_up(&self, why: &str) {
        self.0.group.give_up(why);
    }

    fn share(&self) -> Arc<dyn Communicator> {
        Arc::new(self.clone())
    }
}
