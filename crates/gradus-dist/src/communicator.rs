//! [`Communicator`]: the calls that ranks make together.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use gradus_tensor::{DType, Device, Error, Result, Tensor};

use crate::call::Collective;
use crate::handle::Handle;
use crate::reduce::Reduce;
#[cfg(all(feature = "nccl", unix))]
use crate::reduce::Reduction;

/// Ranks that make calls together: every rank makes the same calls in the same order.
///
/// What calls there are is documented at the methods of `dyn Communicator`; those of the trait are what an engine
/// implements.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{Options, Reduce, threads};
///
/// let sums = threads(4, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///     let mine = Tensor::full([3], comm.rank() as f64, DType::F32, &device)?;
///     comm.all_reduce(&mine, Reduce::Sum)?.to_vec::<f32>()
/// })?;
/// assert_eq!(sums, vec![vec![6.0; 3]; 4]);
/// # Ok::<(), Error>(())
/// ```
pub trait Communicator: Send + Sync + fmt::Debug {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// The longest that a call waits for other ranks.
    fn deadline(&self) -> Duration;

    /// What carries the data: `threads`, or the name and version of the MPI; before it, those of NCCL if that carries what is
    /// on a GPU.
    fn engine(&self) -> String;

    /// Makes a call on `x`, a tensor without gradient, and waits for the result, which is empty for a `Send`. `line` is the line
    /// of the caller.
    fn run(&self, collective: Collective, x: &Tensor, line: &'static Location<'static>) -> Result<Tensor>;

    /// Makes a call that leaves shape and dtype as they are; the result replaces the elements of `x`, which is
    /// contiguous.
    fn run_in_place(&self, collective: Collective, x: &Tensor, line: &'static Location<'static>) -> Result<()>;

    /// Makes a call on words of the host, which are f64 or u64: an `AllReduce` or a `Broadcast`. Returns the result.
    fn run_on_host(
        &self,
        collective: Collective,
        dtype: DType,
        words: Vec<u64>,
        line: &'static Location<'static>,
    ) -> Result<Vec<u64>>;

    /// Starts a call on `x`, which nobody writes until the call has ended. The result of an `AllReduce` or a `Broadcast`
    /// may take the place of `x` in its memory.
    fn start(&self, collective: Collective, x: &Tensor, line: &'static Location<'static>) -> Result<Handle>;

    /// Makes the call `Split`.
    fn split_by(&self, color: u32, key: i64, line: &'static Location<'static>) -> Result<Arc<dyn Communicator>>;

    /// Makes every further call fail on all ranks, and those that wait: this rank cannot go on. `why` becomes a note of
    /// their errors.
    fn give_up(&self, why: &str);

    /// What [`nccl::over`](crate::nccl::over) returns.
    #[cfg(all(feature = "nccl", unix))]
    fn over_nccl(
        &self,
        device: &Device,
        reduction: Reduction,
        line: &'static Location<'static>,
    ) -> Result<Arc<dyn Communicator>>;

    /// The same communicator, to keep.
    fn share(&self) -> Arc<dyn Communicator>;
}

/// The calls. Each of them returns [`ErrorKind::Peer`](gradus_tensor::ErrorKind::Peer) if a rank died, stalled beyond
/// the deadline, left, or made another call: the error names the rank, the call and its line. After such an error every
/// further call fails at once, on all ranks. Tensors have the same shape and dtype on all ranks unless stated otherwise;
/// booleans move, but are not reduced. A tensor may be on any device: where the host cannot reach the memory, it is
/// copied there and back.
impl dyn Communicator + '_ {
    /// The reduction of the tensors of all ranks, element by element. The order depends on the number of ranks only:
    /// the tensors of neighbours first, then neighbours of the results, and so on.
    ///
    /// # Errors
    /// As above, and [`ErrorKind::UnsupportedDType`](gradus_tensor::ErrorKind::UnsupportedDType) for booleans.
    #[track_caller]
    pub fn all_reduce(&self, x: &Tensor, reduce: Reduce) -> Result<Tensor> {
        self.differentiable(Collective::AllReduce(reduce), x, Location::caller())
    }

    /// `all_reduce` into `x` itself, which must be contiguous. Nothing is recorded.
    #[track_caller]
    pub fn all_reduce_(&self, x: &Tensor, reduce: Reduce) -> Result<()> {
        check(Collective::AllReduce(reduce), x, self, Location::caller())?;
        self.run_in_place(Collective::AllReduce(reduce), x, Location::caller())
    }

    /// Rank `r` receives the `r`-th of `size` equal parts along axis 0 of what `all_reduce` gives:
    /// `[n * size, ...]` becomes `[n, ...]`.
    ///
    /// # Errors
    /// As above, and [`ErrorKind::ShapeMismatch`](gradus_tensor::ErrorKind::ShapeMismatch) if axis 0 does not divide.
    #[track_caller]
    pub fn reduce_scatter(&self, x: &Tensor, reduce: Reduce) -> Result<Tensor> {
        self.differentiable(Collective::ReduceScatter(reduce), x, Location::caller())
    }

    /// The tensors of all ranks, joined along axis 0 in the order of ranks: `[n, ...]` becomes `[n * size, ...]`.
    #[track_caller]
    pub fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        self.differentiable(Collective::AllGather, x, Location::caller())
    }

    /// The tensor of rank `root`. The other ranks give a tensor of the same shape and dtype, whose elements are not
    /// read.
    ///
    /// # Errors
    /// As above, and [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if there is no rank
    /// `root`.
    #[track_caller]
    pub fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        self.differentiable(Collective::Broadcast(root), x, Location::caller())
    }

    /// `broadcast` into `x` itself, which must be contiguous. Nothing is recorded.
    #[track_caller]
    pub fn broadcast_(&self, x: &Tensor, root: usize) -> Result<()> {
        check(Collective::Broadcast(root), x, self, Location::caller())?;
        self.run_in_place(Collective::Broadcast(root), x, Location::caller())
    }

    /// Cuts the tensor into `size` equal parts along axis 0 and gives rank `r` the `r`-th; returns the parts that the
    /// ranks gave to this one, joined in the order of ranks. The shape stays.
    ///
    /// # Errors
    /// As above, and [`ErrorKind::ShapeMismatch`](gradus_tensor::ErrorKind::ShapeMismatch) if axis 0 does not divide.
    #[track_caller]
    pub fn all_to_all(&self, x: &Tensor) -> Result<Tensor> {
        self.differentiable(Collective::AllToAll, x, Location::caller())
    }

    /// Gives `x` to rank `to`, which calls `receive`. Returns when that rank has begun to receive.
    /// Nothing is recorded.
    ///
    /// # Errors
    /// As above, and [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if `to` is this rank or
    /// none.
    #[track_caller]
    pub fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        check(Collective::Send(to), x, self, Location::caller())?;
        self.run(Collective::Send(to), &x.detach(), Location::caller()).map(drop)
    }

    /// A tensor of this shape and dtype that rank `from` sends.
    ///
    /// # Errors
    /// As above, and [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if `from` is this rank
    /// or none.
    #[track_caller]
    pub fn receive(&self, shape: impl AsRef<[usize]>, dtype: DType, device: &Device, from: usize) -> Result<Tensor> {
        let x = Tensor::zeros(shape, dtype, device)?;
        check(Collective::Receive(from), &x, self, Location::caller())?;
        self.run(Collective::Receive(from), &x, Location::caller())
    }

    /// Returns when all ranks have called it.
    #[track_caller]
    pub fn barrier(&self, device: &Device) -> Result<()> {
        let nothing = Tensor::zeros([0], DType::U8, device)?;
        self.run_in_place(Collective::Barrier, &nothing, Location::caller())
    }

    /// Starts a collective of `x`, which may be changed as soon as this returns, and waits for it at the handle. No
    /// gradient flows through it. In a captured step, a send goes on in the background of a replay, and the other calls are
    /// made at once.
    ///
    /// # Errors
    /// Those of the arguments; those of other ranks are returned by [`Handle::wait`].
    #[track_caller]
    pub fn begin(&self, collective: Collective, x: &Tensor) -> Result<Handle> {
        check(collective, x, self, Location::caller())?;
        self.start(collective, &x.detach().copy()?, Location::caller())
    }

    /// Whether all ranks give these words. Each gives as many.
    pub(crate) fn agrees(&self, words: &[u64], line: &'static Location<'static>) -> Result<bool> {
        // The largest of each word, and of its complement, which is that of the smallest.
        let both: Vec<u64> = words.iter().flat_map(|&word| [word, !word]).collect();
        Ok(self.run_on_host(Collective::AllReduce(Reduce::Max), DType::U64, both.clone(), line)? == both)
    }

    /// A communicator of the ranks that give the same `color`, numbered in the order of `key` and, where keys are
    /// equal, of their ranks here.
    #[track_caller]
    pub fn split(&self, color: u32, key: i64) -> Result<Arc<dyn Communicator>> {
        self.split_by(color, key, Location::caller())
    }
}

/// Checks the arguments of a call, before other ranks hear of it.
pub(crate) fn check(
    collective: Collective,
    x: &Tensor,
    comm: &dyn Communicator,
    line: &'static Location<'static>,
) -> Result<()> {
    let op = collective.name();
    let size = comm.size();
    let e = match collective {
        Collective::AllReduce(_) | Collective::ReduceScatter(_) if x.dtype() == DType::Bool => {
            Error::dtype(op, DType::Bool, "numbers")
                .help("convert it with to_dtype(DType::U8)?, and take Reduce::Max for any")
        }
        Collective::ReduceScatter(_) | Collective::AllToAll if x.shape().first().is_none_or(|n| n % size != 0) => {
            let m = format!("axis 0 is cut into {size} equal parts, one for each rank");
            x.describe_in(Error::shape(op, m)).help("pad it, or take another number of ranks")
        }
        Collective::AllGather if x.rank() == 0 => x
            .describe_in(Error::shape(op, "tensors are joined along axis 0; this one has no axis"))
            .help("x.reshape([1])?"),
        Collective::Broadcast(rank) | Collective::Send(rank) | Collective::Receive(rank) if rank >= size => {
            Error::argument(op, format!("there is no rank {rank}; there are {size}, from 0"))
        }
        Collective::Send(rank) | Collective::Receive(rank) if rank == comm.rank() => {
            Error::argument(op, format!("rank {rank} is this rank itself")).help("use the tensor as it is")
        }
        _ => return Ok(()),
    };
    Err(e.at(line))
}

/// Adds a tensor to an error.
trait Describe {
    fn describe_in(&self, e: Error) -> Error;
}

impl Describe for Tensor {
    fn describe_in(&self, e: Error) -> Error {
        e.operand("x", self.shape(), self.dtype(), self.device())
    }
}
