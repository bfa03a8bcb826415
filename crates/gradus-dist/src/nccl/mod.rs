//! Ranks that are GPUs: NCCL moves their tensors from GPU to GPU.
//!
//! The ranks are those of another communicator, of processes (`mpi`) or threads, one GPU each. That one still compares the
//! calls, and moves what is on the host. NCCL is loaded when [`over`] is called. Its communicators are non-blocking, and
//! every wait looks at the deadline and at the other ranks, so that nothing waits for ever.
//!
//! A call returns when its result is there. It runs beside the GPU's other work, after what was queued before it; so a
//! call that was started with `begin` goes on while the GPU computes.

mod agreed;
mod tree;

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use gradus_cuda::CudaDevice;
use gradus_cuda::nccl::{self, Transfer, UniqueId};
use gradus_tensor::backend::compute::DeviceMemory;
use gradus_tensor::backend::{
    Backend, Binding, ComputeModule, NativeBinding, NativeCall, NativeFunction, View, ViewMut,
};
use gradus_tensor::{DType, Device, Error, ErrorKind, Result, Shape};

use self::agreed::Agreed;
use self::tree::{Room, tree};
use crate::call::{Call, Collective};
use crate::collectives::part;
use crate::communicator::Communicator;
use crate::group::{Group, Line};
use crate::reduce::Reduce;

pub use crate::reduce::Reduction;

/// A communicator of the same ranks, in which NCCL moves the tensors that are on `device`. This is a CUDA device, and each
/// rank has its own. Tensors on the host or on another device are moved as before. All ranks call it.
///
/// # Errors
/// [`ErrorKind::Unsupported`] on all ranks if one of them has no NCCL, or one that cannot be used, or another version, if
/// `device` is not a CUDA device, or if two ranks have the same GPU; calls of `comm` go on to work then.
/// [`ErrorKind::Peer`] if NCCL cannot connect the ranks within the deadline.
///
/// ```no_run
/// # use gradus_tensor::{Device, Result};
/// use std::sync::Arc;
///
/// use gradus_cuda::CudaBackend;
/// use gradus_dist::{Options, Reduce, nccl, threads};
///
/// // Two GPUs of one machine.
/// threads(2, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CudaBackend::open(comm.rank())?));
///     let comm = nccl::over(comm, &device, nccl::Reduction::Tree)?;
///     let x = gradus_tensor::Tensor::ones([1 << 20], gradus_tensor::DType::F32, &device)?;
///     comm.all_reduce(&x, Reduce::Sum)
/// })?;
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[track_caller]
pub fn over(comm: &Arc<dyn Communicator>, device: &Device, reduction: Reduction) -> Result<Arc<dyn Communicator>> {
    comm.over_nccl(device, reduction, Location::caller())
}

/// The name under which calls are registered at devices.
const MODULE: &str = "gradus_dist.nccl";
/// Tensors of at most this many bytes are gathered on all ranks and reduced by each, rather than by parts.
const SMALL: usize = 64 << 10;
/// How long the end of a communicator waits for the other ranks to end theirs.
const CLOSE: Duration = Duration::from_secs(1);

/// What is done on the device, inside of the module.
type Work = Box<dyn FnOnce(&NativeCall<'_>) -> Result<()> + Send>;

/// Says what is moved, given where the operands are.
type Plan = Box<dyn FnOnce(&[DeviceMemory]) -> Vec<Transfer> + Send>;

thread_local! {
    /// What the module does when this thread runs it. Anyone may name the module, and finds nothing here.
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The module.
fn run_module(native: &mut NativeCall<'_>) -> Result<()> {
    let Some(work) = WORK.take() else {
        let e = Error::argument(MODULE, "this module makes the calls of communicators only");
        return Err(e.help("call a method of the communicator"));
    };
    work(native)
}

/// Does some work with the addresses of tensors, in the order of the device.
fn on_device(backend: &dyn Backend, operands: &mut [Binding<'_>], work: Work) -> Result<()> {
    WORK.set(Some(work));
    let made = backend.dispatch_compute(ComputeModule::Native(MODULE), operands, &[], [1; 3]);
    // A backend that refuses the module has not taken it.
    WORK.set(None);
    made
}

/// Does some work on the device that has no operands.
fn on_it(backend: &dyn Backend, work: Work) -> Result<()> {
    let mut one = Room::new(backend, DType::U8, 1, 1)?;
    on_device(backend, &mut [Binding::Write(one.view_mut())], work)
}

/// What moves the tensors on one device.
pub(crate) struct Nccl {
    group: Arc<Group>,
    device: Device,
    reduction: Reduction,
    version: String,
    /// One call at a time moves data.
    turn: Mutex<()>,
    /// `None` before the ranks are connected, and after a failure.
    comm: Mutex<Option<nccl::Communicator>>,
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nccl({}, {})", self.version, self.device)
    }
}

/// The version of NCCL, as text and as a number, and the identity of the GPU, if NCCL can move what is on this device.
fn available(device: &Device) -> Result<(String, i32, u128)> {
    let function = NativeFunction::on_device(run_module);
    let registered = device.backend().register_native(MODULE, function);
    // Another communicator may have registered it.
    let is_known = || device.backend().check_compute(ComputeModule::Native(MODULE), 1, &[], [1; 3]).is_ok();
    if registered.is_err() && !is_known() {
        let m = format!("NCCL moves what is on CUDA devices, and {device} is none");
        return Err(Error::new(ErrorKind::Unsupported, "nccl", m).help("give the device of this rank's GPU"));
    }
    let (text, version) = nccl::installed_version()?;
    let found = Arc::new(Mutex::new(0));
    let to = found.clone();
    let work: Work = Box::new(move |native| {
        *lock(&to) = u128::from_le_bytes(native.device::<CudaDevice>()?.uuid()?);
        Ok(())
    });
    on_it(device.backend(), work)?;
    let gpu = *lock(&found);
    Ok((text, version, gpu))
}

impl Nccl {
    /// Connects the ranks of a group. It is [`ErrorKind::Unsupported`] on all ranks or on none.
    pub(crate) fn connect(group: &Arc<Group>, device: &Device, reduction: Reduction, line: Line) -> Result<Arc<Nccl>> {
        let own = available(device);
        let id = match (&own, group.rank) {
            (Ok(_), 0) => nccl::unique_id().map(|id| id.0),
            _ => Ok([0; 128]),
        };
        let call = Call { collective: Collective::Split, dtype: DType::I64, shape: Shape::new(&[3])?, line };
        // A rank without NCCL says so with the version 0.
        let mine = match (&own, &id) {
            (Ok((_, version, gpu)), Ok(_)) => [i64::from(*version), *gpu as i64, (*gpu >> 64) as i64],
            _ => [0; 3],
        };
        let all = group.gather(&call, mine)?;
        let ((version, ..), id) = (own.map_err(|e| e.at(line))?, id.map_err(|e| e.at(line))?);
        let unsupported =
            |m: String, help: &str| Err(Error::new(ErrorKind::Unsupported, "nccl", m).help(help).at(line));
        if let Some(rank) = all.iter().position(|of| of[0] == 0) {
            return unsupported(format!("rank {rank} has no NCCL that it can use"), "the error of that rank says why");
        }
        if let Some(rank) = all.iter().position(|of| of[0] != all[0][0]) {
            let [first, other] = [0, rank].map(|rank| nccl::version_text(all[rank][0] as i32));
            return unsupported(
                format!("ranks have different versions of NCCL: {first} on rank 0, {other} on rank {rank}"),
                "install the same version of NCCL on all machines, or set GRADUS_NCCL on each",
            );
        }
        let same = |rank: usize| all[..rank].iter().position(|of| of[1..] == all[rank][1..]).map(|first| (first, rank));
        if let Some((first, rank)) = (1..all.len()).find_map(same) {
            return unsupported(
                format!("ranks {first} and {rank} have the same GPU, and NCCL needs one for each rank"),
                "give each rank a GPU of its own",
            );
        }
        let id = shared(group, id, line)?;
        let nccl = Arc::new(Nccl {
            group: group.clone(),
            device: device.clone(),
            reduction,
            version,
            turn: Mutex::default(),
            comm: Mutex::default(),
        });
        let agreed = Agreed::new(group, &call)?;
        let (this, of) = (nccl.clone(), agreed.clone());
        let work: Work = Box::new(move |native| {
            let group = &of.group;
            let begun = nccl::Communicator::begin(native.device::<CudaDevice>()?, &id, group.rank, group.size());
            let comm = begun.map_err(|e| of.failed(&e))?;
            let connected = of.wait(|| comm.is_ready());
            match connected {
                Ok(()) => *lock(&this.comm) = Some(comm),
                Err(_) => abort(comm),
            }
            connected
        });
        on_it(device.backend(), work).map_err(|e| told(&agreed, e))?;
        // NCCL may have connected some ranks and not others.
        group.agree(&call)?;
        Ok(nccl)
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn reduction(&self) -> Reduction {
        self.reduction
    }

    pub(crate) fn name(&self) -> String {
        format!("NCCL {}", self.version)
    }

    /// Makes a call on what it reads, if anything, and then on what it writes, if anything.
    pub(crate) fn call(
        self: &Arc<Self>,
        backend: &dyn Backend,
        call: &Call,
        operands: &mut [Binding<'_>],
    ) -> Result<()> {
        let _turn = lock(&self.turn);
        let agreed = Agreed::new(&self.group, call)?;
        if operands.is_empty() {
            return Ok(());
        }
        self.moved(&agreed, backend, operands).map_err(|e| told(&agreed, e))
    }

    fn moved(self: &Arc<Self>, of: &Arc<Agreed>, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()> {
        let n = self.group.size();
        let (dtype, count) = match operands.first() {
            Some(Binding::Read(x)) => (x.dtype, x.layout.numel()),
            Some(Binding::Write(y)) => (y.dtype, y.layout.numel()),
            None => return Ok(()),
        };
        let bytes = count * dtype.size();
        let by_nccl = self.reduction == Reduction::Nccl && nccl::can_reduce(dtype);
        let mut transfer = |plan: Plan| self.transfer(of, backend, operands, plan);
        match of.call.collective {
            Collective::Barrier | Collective::Split => Ok(()),
            Collective::AllReduce(reduce) if by_nccl => {
                let reduction = reduction_of(reduce);
                transfer(Box::new(move |m| {
                    let at = m[0].address;
                    vec![Transfer::AllReduce { from: at, to: at, bytes, dtype, reduction }]
                }))
            }
            Collective::ReduceScatter(reduce) if by_nccl => {
                let reduction = reduction_of(reduce);
                transfer(Box::new(move |m| {
                    let (from, to) = (m[0].address, m[1].address);
                    vec![Transfer::ReduceScatter { from, to, bytes: bytes / n, dtype, reduction }]
                }))
            }
            Collective::AllReduce(reduce) => match operands {
                [Binding::Write(y)] => self.all_reduce(of, backend, reduce, y),
                _ => Err(Error::argument(MODULE, "all_reduce writes one tensor")),
            },
            Collective::ReduceScatter(reduce) => match operands {
                [Binding::Read(x), Binding::Write(y)] => {
                    let parts: Vec<_> = (0..n).map(|rank| rank * (bytes / n)..(rank + 1) * (bytes / n)).collect();
                    let sum = self.part_sum(of, backend, reduce, *x, &parts)?;
                    sum.copy_to(backend, y)
                }
                _ => Err(Error::argument(MODULE, "reduce_scatter reads one tensor, and writes one")),
            },
            Collective::AllGather => {
                transfer(Box::new(move |m| vec![Transfer::AllGather { from: m[0].address, to: m[1].address, bytes }]))
            }
            Collective::Broadcast(root) => {
                transfer(Box::new(move |m| vec![Transfer::Broadcast { at: m[0].address, bytes, root }]))
            }
            Collective::AllToAll => transfer(Box::new(move |m| {
                let each = bytes / n;
                exchange((0..n).map(|rank| {
                    let range = (rank * each) as u64;
                    [(m[0].address + range, each), (m[1].address + range, each)]
                }))
            })),
            Collective::Send(to) => transfer(Box::new(move |m| vec![Transfer::Send { from: m[0].address, bytes, to }])),
            Collective::Receive(from) => {
                transfer(Box::new(move |m| vec![Transfer::Receive { to: m[0].address, bytes, from }]))
            }
        }
    }

    /// Moves data: `plan` says what, given where the operands are.
    fn transfer(
        self: &Arc<Self>,
        of: &Arc<Agreed>,
        backend: &dyn Backend,
        operands: &mut [Binding<'_>],
        plan: Plan,
    ) -> Result<()> {
        let (this, of) = (self.clone(), of.clone());
        let work: Work = Box::new(move |native| {
            let places = native.bindings.iter().map(NativeBinding::memory).collect::<Result<Vec<_>>>()?;
            let transfers = plan(&places);
            let mut comm = lock(&this.comm);
            let Some(connected) = &*comm else {
                return Err(of.talk().error("an earlier call of NCCL has failed, and no call can follow it"));
            };
            // SAFETY: nobody else uses the operands until this returns, and those who call never free them after an error.
            let made = match unsafe { connected.start(&transfers) } {
                Ok(mut moving) => of.wait(|| moving.is_done()),
                Err(e) => Err(of.failed(&e)),
            };
            if made.is_err()
                && let Some(comm) = comm.take()
            {
                abort(comm);
            }
            made
        });
        on_device(backend, operands, work)
    }

    /// Reduces the tensors of all ranks into `y`.
    fn all_reduce(
        self: &Arc<Self>,
        of: &Arc<Agreed>,
        backend: &dyn Backend,
        reduce: Reduce,
        y: &mut ViewMut<'_>,
    ) -> Result<()> {
        let (n, dtype, count) = (self.group.size(), y.dtype, y.layout.numel());
        let bytes = count * dtype.size();
        if bytes <= SMALL {
            let mut all = Room::new(backend, dtype, n, count)?;
            let mut operands = [Binding::Read(y.as_view()), Binding::Write(all.view_mut())];
            let plan: Plan =
                Box::new(move |m| vec![Transfer::AllGather { from: m[0].address, to: m[1].address, bytes }]);
            let gathered = self.transfer(of, backend, &mut operands, plan);
            return tree(backend, reduce, all.after(gathered)?)?.copy_to(backend, y);
        }
        let parts: Vec<Range<usize>> = (0..n).map(|rank| part(bytes, dtype, rank, n)).collect();
        let sum = self.part_sum(of, backend, reduce, y.as_view(), &parts)?;
        // Each rank gives its part to all.
        let own = parts[self.group.rank].len();
        let to = ViewMut { buffer: &mut *y.buffer, dtype, layout: y.layout };
        let plan: Plan = Box::new(move |m| {
            exchange(parts.iter().map(|part| [(m[0].address, own), (m[1].address + part.start as u64, part.len())]))
        });
        let moved = self.transfer(of, backend, &mut [Binding::Read(sum.view()), Binding::Write(to)], plan);
        sum.after(moved).map(drop)
    }

    /// The reduction of this rank's part of the tensors of all ranks. `parts` are those of the ranks, in bytes.
    fn part_sum(
        self: &Arc<Self>,
        of: &Arc<Agreed>,
        backend: &dyn Backend,
        reduce: Reduce,
        x: View<'_>,
        parts: &[Range<usize>],
    ) -> Result<Room> {
        let (n, own) = (parts.len(), parts[self.group.rank].len());
        let mut all = Room::new(backend, x.dtype, n, own / x.dtype.size())?;
        let parts = parts.to_vec();
        let plan: Plan = Box::new(move |m| {
            let (from, to) = (m[0].address, m[1].address);
            let each = parts.iter().enumerate();
            exchange(each.map(|(rank, part)| [(from + part.start as u64, part.len()), (to + (rank * own) as u64, own)]))
        });
        let moved = self.transfer(of, backend, &mut [Binding::Read(x), Binding::Write(all.view_mut())], plan);
        tree(backend, reduce, all.after(moved)?)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let comm = self.comm.get_mut().unwrap_or_else(|e| e.into_inner()).take();
        let Some(comm) = comm else { return };
        if self.group.has_failed() {
            return abort(comm);
        }
        let until = Instant::now() + CLOSE;
        comm.close(|| {
            std::thread::sleep(Duration::from_micros(200));
            Instant::now() < until
        });
    }
}

/// Ends what a communicator does. It may wait for the GPU, so this rank does not wait for it, unless there are no more
/// threads: then it is ended here, where it is dropped.
fn abort(comm: nccl::Communicator) {
    let _ = std::thread::Builder::new().name("gradus-nccl".into()).spawn(move || comm.abort());
}

/// An error of a call, of which the other ranks know afterwards.
fn told(of: &Agreed, e: Error) -> Error {
    if *e.kind() != ErrorKind::Peer {
        of.talk().give_up(&e);
    }
    e.at(of.call.line)
}

/// To each rank, and from each rank, so many bytes at an address.
fn exchange(ranks: impl Iterator<Item = [(u64, usize); 2]>) -> Vec<Transfer> {
    let each = ranks.enumerate().flat_map(|(rank, [(from, sent), (to, received)])| {
        [
            (sent, Transfer::Send { from, bytes: sent, to: rank }),
            (received, Transfer::Receive { to, bytes: received, from: rank }),
        ]
    });
    each.filter(|(bytes, _)| *bytes > 0).map(|(_, transfer)| transfer).collect()
}

fn reduction_of(reduce: Reduce) -> nccl::Reduction {
    match reduce {
        Reduce::Sum => nccl::Reduction::Sum,
        Reduce::Prod => nccl::Reduction::Prod,
        Reduce::Max => nccl::Reduction::Max,
        Reduce::Min => nccl::Reduction::Min,
    }
}

/// Gives all ranks the identity that rank 0 has made.
fn shared(group: &Group, id: [u8; 128], line: Line) -> Result<UniqueId> {
    let call = Call { collective: Collective::Broadcast(0), dtype: DType::U8, shape: Shape::new(&[128])?, line };
    let mut id = id.to_vec();
    // SAFETY: what is forgotten is never freed.
    if let Err(e) = unsafe { group.transfer(&call, &[], &mut id) } {
        std::mem::forget(id);
        return Err(e);
    }
    id.try_into().map(UniqueId).map_err(|_| Error::argument("nccl", "an identity has 128 bytes"))
}
