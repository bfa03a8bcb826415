//! [`DataParallel`]: gradients of a batch that all ranks share, with the same bits for any number of ranks.

use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{Buffer, Module, RandomState};
use gradus_tensor::{
    DType, Device, Error, ErrorKind, Generator, Gradients, Here, Result, Tensor, all_or_nothing, no_grad, ops,
};

use crate::buckets::{Buckets, Open, Sending, cut};
use crate::call::Collective;
use crate::communicator::Communicator;
use crate::fact::fact;
use crate::group::Line;
use crate::reduce::Reduce;
use crate::vectors::{Flats, Named, Reader, Tree, joined};

/// The number of virtual shards unless another is given.
const SHARDS: usize = 16;

/// The bytes of a bucket unless other are given.
const BUCKET: usize = 25 << 20;

/// Trains one model on all ranks: each computes the gradients of a part of the batch, and all make the same step.
///
/// A batch is cut into a fixed number of *virtual shards*, 16 unless [`with_shards`](DataParallel::with_shards) says
/// otherwise. Each rank computes the gradients of its shards one by one, and all are added in a binary tree over the
/// numbers of shards. So 1, 2, 4, 8 and 16 ranks compute the same bits on the CPU, and a run may go on with another
/// number of ranks after a checkpoint.
///
/// A layer sees one shard at a time. Batch normalisation takes its statistics from the shard, and its running statistics
/// become the mean of those that the shards give. The random numbers of a layer (dropout) depend on the shard.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{DataParallel, Options, threads};
/// use gradus_nn::{Forward, Init, Linear, Module, Optimizer, Sgd, SgdConfig};
///
/// let train = |ranks| {
///     threads(ranks, Options::default(), |comm| {
///         let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///         let mut generator = Generator::new(7);
///         let x = Tensor::randn([64, 3], DType::F32, &device, &mut generator)?;
///         let y = x.sum(&[1], true)?;
///         let model = Linear::new(3, 1, &mut Init::new(DType::F32, &device, &mut generator))?;
///         let parallel = DataParallel::new(comm.clone())?;
///         parallel.synchronize(&model)?;
///         let mut optimizer = Sgd::new(model.named_parameters(), SgdConfig::default())?;
///         for _ in 0..5 {
///             let (_loss, gradients) = parallel.backward(&model, 64, |rows| {
///                 let (x, y) = (x.narrow(0, rows.start, rows.len())?, y.narrow(0, rows.start, rows.len())?);
///                 model.forward(&x)?.mse_loss(&y, Reduction::Mean)
///             })?;
///             optimizer.step(&gradients)?;
///         }
///         model.weight.to_vec::<f32>()
///     })
/// };
/// assert_eq!(train(1)?[0], train(4)?[3]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DataParallel {
    comm: Arc<dyn Communicator>,
    shards: usize,
    bucket_bytes: usize,
    /// The same ranks, for the sums of gradients: a loss may make calls of its own meanwhile.
    beside: Arc<dyn Communicator>,
    /// The sums of the batch that is computed now.
    open: Open,
}

/// What the shards of a batch change in a model besides its gradients.
pub(crate) struct Extras {
    floats: Vec<(Buffer, Tensor)>,
    integers: Vec<(Buffer, Tensor)>,
    random: Vec<RandomState>,
}

impl Extras {
    pub(crate) fn of(model: &(impl Module + ?Sized)) -> Result<Extras> {
        let mut extras = Extras { floats: vec![], integers: vec![], random: vec![] };
        for (_, buffer) in model.named_buffers() {
            let before = buffer.tensor().copy()?;
            let list = if before.dtype().is_float() { &mut extras.floats } else { &mut extras.integers };
            list.push((buffer, before));
        }
        extras.random = model.named_random_states().into_iter().map(|(_, state)| state).collect();
        Ok(extras)
    }

    /// The state that every shard begins with; random numbers are those of the shard.
    pub(crate) fn begin(&self, shard: u64) -> Result<()> {
        for (buffer, before) in self.floats.iter().chain(&self.integers) {
            buffer.set(before)?;
        }
        self.random.iter().for_each(|state| state.begin_part(shard));
        Ok(())
    }

    /// The running statistics after a shard, times its share in the batch, as vectors. They are added in at least f32.
    pub(crate) fn weighted(&self, share: f64) -> Result<Flats> {
        let of = |(buffer, _): &(Buffer, Tensor)| {
            let now = buffer.tensor();
            let dtype = now.dtype().compute();
            let now = now.to_dtype(dtype)?.reshape([now.numel()])?;
            Ok((dtype, if share == 0.0 { now.zeros_like()? } else { now.mul(share)? }))
        };
        no_grad(|| self.floats.iter().map(of).collect())
    }

    /// The state with which the next step differs from this one.
    fn advance(&self) {
        self.random.iter().for_each(RandomState::end_parts);
    }
}

impl DataParallel {
    /// Over 16 virtual shards. All ranks call it.
    ///
    /// # Errors
    /// Those of [`with_shards`](DataParallel::with_shards).
    #[track_caller]
    pub fn new(comm: Arc<dyn Communicator>) -> Result<Self> {
        Self::with_shards(comm, SHARDS)
    }

    /// Over `shards` virtual shards. Runs with the same number of shards have the same bits. All ranks call it, as it makes a
    /// communicator for their gradients.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) unless the shards of a rank are a power
    /// of two: only then are they a branch of the tree; and those of a call, as `Communicator` lists them.
    #[track_caller]
    pub fn with_shards(comm: Arc<dyn Communicator>, shards: usize) -> Result<Self> {
        let ranks = comm.size();
        if shards == 0 || !shards.is_multiple_of(ranks) || !(shards / ranks).is_power_of_two() {
            let m =
                format!("{shards} shards on {ranks} ranks: each rank has the same number of shards, a power of two");
            let e = Error::argument("data_parallel", m);
            return Err(e.help(format!(
                "give {} shards, or another number of ranks",
                ranks * (shards / ranks.max(1)).max(1).next_power_of_two()
            )));
        }
        let beside = match ranks {
            1 => comm.clone(),
            _ => comm.split_by(0, comm.rank() as i64, Location::caller())?,
        };
        Ok(DataParallel { comm, shards, bucket_bytes: BUCKET, beside, open: Open::default() })
    }

    /// Sends gradients in buckets of at most so many bytes, 25 MiB by default; a larger parameter has a bucket of its own.
    /// All ranks give the same number. It changes no bit but in the rounding of the norm of
    /// [`ShardedOptimizer::clip_norm`](crate::ShardedOptimizer::clip_norm): small buckets are sent earlier in the backward
    /// pass, large ones need fewer calls.
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: usize) -> Self {
        self.bucket_bytes = bytes;
        self
    }

    /// With any number of shards, all of them of one rank.
    pub(crate) fn alone(comm: Arc<dyn Communicator>, shards: usize) -> Self {
        DataParallel { beside: comm.clone(), comm, shards, bucket_bytes: BUCKET, open: Open::default() }
    }

    /// The communicator.
    pub fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.comm
    }

    /// The number of the shards of all ranks.
    pub(crate) fn all_shards(&self) -> usize {
        self.shards
    }

    /// The numbers of this rank's shards.
    pub fn shards(&self) -> Range<usize> {
        let each = self.shards / self.comm.size();
        self.comm.rank() * each..(self.comm.rank() + 1) * each
    }

    /// The rows of a shard of a batch of `batch` rows.
    pub fn rows(&self, batch: usize, shard: usize) -> Range<usize> {
        batch * shard / self.shards..batch * (shard + 1) / self.shards
    }

    /// Gives all ranks the parameters, buffers and random states of rank 0. Ranks whose models differ in shape get an
    /// error that lists them.
    #[track_caller]
    pub fn synchronize(&self, model: &(impl Module + ?Sized)) -> Result<()> {
        let parameters = model.named_parameters();
        self.check_divisions(&parameters).here()?;
        for (_, parameter) in parameters {
            let values = self.comm.broadcast(&parameter.values().detach(), 0)?;
            parameter.set(&values).here()?;
        }
        for (_, buffer) in model.named_buffers() {
            buffer.set(&self.comm.broadcast(&buffer.tensor(), 0)?).here()?;
        }
        let Some(device) = model.named_parameters().first().map(|(_, p)| p.device().clone()) else { return Ok(()) };
        for (_, state) in model.named_random_states() {
            let generator = state.get();
            let words = Tensor::from_vec(vec![generator.seed(), generator.offset()], [2], &device)?;
            let words = self.comm.broadcast(&words, 0)?.to_vec::<u64>()?;
            state.set(Generator::at(words[0], words[1]));
        }
        Ok(())
    }

    /// The mean loss of a batch of `batch` rows and its gradients, the same on all ranks. `loss` computes the mean loss
    /// of some of these rows and is called for each shard of this rank that has rows.
    ///
    /// Gradients are added in at least f32. A parameter that no loss depends on has none. In the last shard of this rank,
    /// gradients are sent while the backward pass goes on: in [buckets](DataParallel::bucket_bytes), those of the last
    /// parameters first, each as soon as it is complete and the ones before it were sent. A bucket with a parameter that
    /// the shard does not reach is sent after the pass, and so are those behind it.
    ///
    /// # Errors
    /// Those of `loss` and of the communicator, and [`ErrorKind::Peer`] if ranks give different numbers of rows. If `loss`
    /// fails on one rank, the others get an error when that rank has dropped all that holds its communicator (this
    /// `DataParallel` and captured steps too), or at the deadline. An error leaves buffers and random states as they were.
    #[track_caller]
    pub fn backward(
        &self,
        model: &(impl Module + ?Sized),
        batch: usize,
        mut loss: impl FnMut(Range<usize>) -> Result<Tensor>,
    ) -> Result<(Tensor, Gradients)> {
        let mut pass = |rows, share, buckets: &Arc<Buckets>| {
            let loss = loss(rows)?.mul(share)?;
            Ok((loss.detach(), buckets.backward(&loss)?))
        };
        self.reduced(model, batch, &mut pass, Location::caller())
    }

    /// [`backward`](DataParallel::backward), where `pass` also computes the gradients of the shard.
    #[track_caller]
    pub(crate) fn reduced(
        &self,
        model: &(impl Module + ?Sized),
        batch: usize,
        pass: &mut BucketsPass<'_>,
        line: Line,
    ) -> Result<(Tensor, Gradients)> {
        let step = || {
            let parameters = trained(model);
            let cut = self.cut(&parameters);
            let buckets = self.buckets(parameters, cut, Collective::AllReduce(Reduce::Sum), line);
            let (value, there) = self.summed(model, batch, &buckets, pass, line)?;
            Ok((value, buckets.gradients(&there)?))
        };
        all_or_nothing(step).here()
    }

    /// The numbers of the parameters of each bucket.
    pub(crate) fn cut(&self, parameters: &[Named]) -> Vec<Vec<usize>> {
        cut(parameters, self.bucket_bytes)
    }

    /// The buckets of a batch. Those of a `ReduceScatter` have a length that is the same for any number of ranks.
    pub(crate) fn buckets(
        &self,
        parameters: Vec<Named>,
        cut: Vec<Vec<usize>>,
        collective: Collective,
        line: Line,
    ) -> Arc<Buckets> {
        let multiple = if matches!(collective, Collective::ReduceScatter(_)) { self.shards } else { 1 };
        let (comm, open, shards) = (self.beside.clone(), self.open.clone(), self.shards().len());
        let overlaps = self.comm.size() > 1 && !ops::is_captured();
        Buckets::new(parameters, cut, Sending { comm, line, collective, multiple, overlaps, shards, open })
    }

    /// Computes a batch and sums its gradients in `buckets`. Returns the loss, and whether each parameter has a gradient
    /// on some rank.
    pub(crate) fn summed(
        &self,
        model: &(impl Module + ?Sized),
        batch: usize,
        buckets: &Arc<Buckets>,
        pass: &mut BucketsPass<'_>,
        line: Line,
    ) -> Result<(Tensor, Vec<bool>)> {
        let mut of_shard = |rows: Range<usize>, share| {
            let (loss, there) = buckets.shard((!rows.is_empty()).then_some(|| pass(rows, share, buckets)))?;
            Ok(Shard { loss, there, vectors: vec![] })
        };
        let mut sums = self.sums(model, batch, Order::Own, &mut of_shard)?;
        for (_, head) in &sums.heads {
            self.comm.run_in_place(Collective::AllReduce(Reduce::Sum), head, line)?;
        }
        buckets.finish()?;
        sums.take_heads(&*self.comm, line)
    }

    /// The loss and the gradients of all ranks, from what the shards of each gave.
    pub(crate) fn of_all_ranks(&self, mut sums: Sums, line: Line) -> Result<(Tensor, Gradients)> {
        for (_, flat) in sums.heads.iter().chain(&sums.gradients) {
            self.comm.run_in_place(Collective::AllReduce(Reduce::Sum), flat, line)?;
        }
        let (value, there) = sums.take_heads(&*self.comm, line)?;
        let mut gradients = Gradients::default();
        let mut reader = Reader::new(&sums.gradients);
        for ((_, parameter), there) in sums.parameters.iter().zip(there) {
            let gradient = reader.take(parameter.dtype(), parameter.dtype(), parameter.shape())?;
            if there {
                gradients.insert(parameter.tensor(), gradient)?;
            }
        }
        Ok((value, gradients))
    }

    /// The number of rows that each rank gives for a batch, in its place among the ranks: this rank gives it in its first
    /// shard. So the sums over shards and ranks are the numbers of all ranks, exact up to 2^24.
    pub(crate) fn batches(&self, batch: usize, is_first: bool) -> Vec<f32> {
        let mut all = vec![0.0; self.comm.size()];
        if is_first && let Some(mine) = all.get_mut(self.comm.rank()) {
            *mine = batch as f32;
        }
        all
    }

    /// Fails if the parameters are divided among the ranks that share a batch, whose gradients are added.
    #[track_caller]
    fn check_divisions(&self, parameters: &[Named]) -> Result<()> {
        let own = Arc::as_ptr(&self.comm).addr();
        let is_own = |(_, p): &Named| p.division().is_some_and(|division| division.group() == own);
        if self.comm.size() == 1 || !parameters.iter().any(is_own) {
            return Ok(());
        }
        let m = "layers are divided among the ranks that share a batch";
        Err(Error::argument("data_parallel", m)
            .help("give each its own axis of a Mesh, such as \"data\" and \"tensor\""))
    }

    /// What the shards of this rank give, added in the tree. `of_shard` is called for each of them, also for those without
    /// rows.
    pub(crate) fn sums(
        &self,
        model: &(impl Module + ?Sized),
        batch: usize,
        order: Order,
        of_shard: &mut dyn FnMut(Range<usize>, f64) -> Result<Shard>,
    ) -> Result<Sums> {
        if batch == 0 {
            return Err(Error::argument("data_parallel", "a batch of 0 rows has no gradient"));
        }
        let parameters = trained(model);
        let Some(device) = parameters.first().map(|(_, p)| p.device().clone()) else {
            return Err(Error::argument("data_parallel", "the model has no parameter that is trained"));
        };
        self.check_divisions(&parameters)?;
        let extras = Extras::of(model)?;
        let mut tree = Tree::default();
        let mut heads = 0;
        for (i, shard) in self.shards_in(order).into_iter().enumerate() {
            let rows = self.rows(batch, shard);
            let weight = rows.len() as f64 / batch as f64;
            if !rows.is_empty() {
                extras.begin(shard as u64)?;
            }
            let Shard { loss, there, vectors } = of_shard(rows, weight)?;
            let mut flats = head(&device, &there, self.batches(batch, i == 0), loss, extras.weighted(weight)?)?;
            if let Order::Rounds(line) = order {
                for (_, flat) in &flats {
                    self.comm.run_in_place(Collective::AllReduce(Reduce::Sum), flat, line)?;
                }
            }
            heads = flats.len();
            flats.extend(vectors);
            tree.push(flats)?;
        }
        let mut heads_and_gradients = tree.all()?;
        let gradients = heads_and_gradients.split_off(heads);
        Ok(Sums { parameters, extras, heads: heads_and_gradients, gradients })
    }

    /// The numbers of the shards that this rank computes, in their order.
    pub(crate) fn shards_in(&self, order: Order) -> Vec<usize> {
        match order {
            Order::Own => self.shards().collect(),
            Order::Rounds(_) => (self.comm.rank()..self.shards).step_by(self.comm.size()).collect(),
        }
    }
}

/// Which shards a rank computes. The tree over all shards is the same.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// Neighbours, whose sum is added to those of the other ranks at the end.
    Own,
    /// One of as many neighbours as there are ranks, whose sum is made by the ranks before they go on to the next. What
    /// [`Shard`] holds is that sum already, but for the loss and the running statistics, which are added on this line.
    Rounds(Line),
}

/// What a shard gives.
pub(crate) struct Shard {
    /// Its mean loss times its share in the batch, if it has rows.
    pub(crate) loss: Option<Tensor>,
    /// Whether each parameter has a gradient.
    pub(crate) there: Vec<bool>,
    /// The gradients.
    pub(crate) vectors: Flats,
}

impl Shard {
    /// A shard with this loss and these gradients.
    pub(crate) fn with(parameters: &[Named], loss: Option<Tensor>, gradients: &Gradients) -> Result<Shard> {
        let there = parameters.iter().map(|(_, p)| gradients.get(p.tensor()).is_some()).collect();
        Ok(Shard { loss, there, vectors: no_grad(|| joined_gradients(parameters, gradients))? })
    }
}

/// Computes the rows of a shard: their mean loss times their share in the batch, and the gradients of that, unless
/// [`Buckets::backward`] took them.
pub(crate) type BucketsPass<'a> = dyn FnMut(Range<usize>, f64, &Arc<Buckets>) -> Result<(Tensor, Gradients)> + 'a;

/// The parameters of a model that are trained.
pub(crate) fn trained(model: &(impl Module + ?Sized)) -> Vec<Named> {
    model.named_parameters().into_iter().filter(|(_, p)| !p.is_frozen()).collect()
}

/// The sums of some shards.
pub(crate) struct Sums {
    pub(crate) parameters: Vec<Named>,
    pub(crate) extras: Extras,
    /// The loss, the number of shards in which each parameter has a gradient, the rows of the batch that each rank gives, and
    /// the running statistics, by the dtype in which they are added.
    pub(crate) heads: Flats,
    /// The gradients, by the dtype of their parameters.
    pub(crate) gradients: Flats,
}

impl Sums {
    /// Sets the running statistics and the random states from the sums of all ranks. Returns the loss, and whether each
    /// parameter has a gradient. Fails on all ranks alike if they gave different batches.
    pub(crate) fn take_heads(&mut self, comm: &dyn Communicator, line: Line) -> Result<(Tensor, Vec<bool>)> {
        let mut reader = Reader::new(&self.heads);
        let loss = reader.take(DType::F32, DType::F32, &[])?;
        let count = self.parameters.len();
        let there = reader.take(DType::F32, DType::F32, &[count + comm.size()])?;
        let there = fact::<f32>(&there, "the rows of the batch or the parameters that have a gradient", line)?;
        let (there, batches) = there.split_at(count.min(there.len()));
        if batches.iter().any(|rows| *rows != batches[0]) {
            let e = Error::new(ErrorKind::Peer, "data_parallel", "ranks give batches of different numbers of rows");
            let notes = batches.iter().enumerate();
            let e = notes.fold(e.at(line), |e, (rank, rows)| e.note(format!("rank {rank}: {rows} rows")));
            return Err(e.help("all ranks give the rows of the whole batch, and compute those of their shards"));
        }
        for (buffer, before) in &self.extras.floats {
            buffer.set(&reader.take(before.dtype().compute(), before.dtype(), before.shape())?)?;
        }
        let integers = self.extras.integers.iter().map(|(buffer, before)| {
            let now = buffer.tensor();
            Ok((before.dtype(), now.reshape([now.numel()])?))
        });
        let integers = joined(&integers.collect::<Result<Vec<_>>>()?)?;
        for (_, flat) in &integers {
            comm.run_in_place(Collective::AllReduce(Reduce::Max), flat, line)?;
        }
        let mut reader = Reader::new(&integers);
        for (buffer, before) in &self.extras.integers {
            buffer.set(&reader.take(before.dtype(), before.dtype(), before.shape())?)?;
        }
        self.extras.advance();
        Ok((loss, there.iter().map(|&shards| shards > 0.0).collect()))
    }
}

/// The loss of one shard, whether each parameter has a gradient, [`batches`](DataParallel::batches), and the running
/// statistics.
pub(crate) fn head(
    device: &Device,
    there: &[bool],
    batches: Vec<f32>,
    loss: Option<Tensor>,
    statistics: Flats,
) -> Result<Flats> {
    let mut there: Vec<f32> = there.iter().map(|&there| f32::from(u8::from(there))).collect();
    there.extend(batches);
    let count = there.len();
    no_grad(|| {
        let loss = match loss {
            Some(loss) => loss.to_dtype(DType::F32)?,
            None => Tensor::scalar(0.0f32, device)?,
        };
        let there = Tensor::from_vec(there, [count], device)?;
        let mut pieces = vec![(DType::F32, loss.reshape([1])?), (DType::F32, there)];
        pieces.extend(statistics);
        joined(&pieces)
    })
}

/// The gradients of one shard, in at least f32, with zeros where there is none.
fn joined_gradients(parameters: &[Named], gradients: &Gradients) -> Result<Flats> {
    let mut pieces = vec![];
    for (_, parameter) in parameters {
        let (dtype, n) = (parameter.dtype().compute(), parameter.numel());
        pieces.push((
            parameter.dtype(),
            match gradients.get(parameter.tensor()) {
                Some(gradient) => gradient.detach().to_dtype(dtype)?.reshape([n])?,
                None => Tensor::zeros([n], dtype, parameter.device())?,
            },
        ));
    }
    joined(&pieces)
}
