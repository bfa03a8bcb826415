//! [`DataLoader`]: shuffled batches of tensors from a dataset.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

use gradus_tensor::{Device, Error, ErrorKind, Generator, Here, Result};
use serde::{Deserialize, Serialize};

use crate::sampler::{Shard, draws, sharded};
use crate::workers::Workers;
use crate::{Dataset, Sample, Sampler};

/// Keys of the generators that a loader forks from its seed.
const SHUFFLE: u64 = 1;
const AUGMENT: u64 = 2;

/// The largest number of worker threads.
const MOST_WORKERS: usize = 256;

/// An augmentation of a sample, with its own random generator.
type Augment<T> = dyn Fn(T, &mut Generator) -> Result<T> + Send + Sync;

/// Batches of a dataset, epoch by epoch.
///
/// The dataset, the sampler, the seed and the epoch's number determine the batches; workers change only the speed.
///
/// To continue an epoch after a restart, save the [`position`](Batches::position) and pass it to
/// [`resume`](DataLoader::resume):
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::{Device, Error}; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_data::{DataLoader, digits};
/// let loader = DataLoader::new(digits::load()?, &device).batch_size(64).shuffle(7).build()?;
/// let mut batches = loader.epoch(3)?;
/// batches.next().unwrap()?;
/// let position = batches.position(); // can be serialised
/// let (_, second) = batches.next().unwrap()?;
/// let (_, resumed) = loader.resume(position)?.next().unwrap()?;
/// assert_eq!(resumed.to_vec::<i64>()?, second.to_vec::<i64>()?);
/// # Ok::<(), Error>(())
/// ```
pub struct DataLoader<D: Dataset> {
    plan: Arc<Plan<D>>,
    workers: usize,
    prefetch: usize,
    drop_last: bool,
    sampler: Sampler,
    shard: Shard,
}

/// A position within an epoch: the first batch that has not been returned yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The number of the epoch.
    pub epoch: u64,
    /// The number of batches of the epoch that come before.
    pub batch: usize,
}

/// Some of the samples of a batch, in parts; see [`DataLoader::epoch_in_parts`].
#[derive(Debug, Clone)]
pub struct Parts<B> {
    /// The number of samples of the whole batch.
    pub samples: usize,
    /// The parts that were asked for, each a batch.
    pub parts: Vec<B>,
}

/// The samples of an epoch: their order, and for a sampler that repeats samples, how often each was drawn before.
struct EpochOrder {
    epoch: u64,
    samples: Vec<usize>,
    draws: Vec<usize>,
}

/// Everything that a worker needs to make a batch.
pub(crate) struct Plan<D: Dataset> {
    dataset: D,
    device: Device,
    batch_size: usize,
    seed: u64,
    augment: Option<Box<Augment<D::Item>>>,
}

/// The settings of a [`DataLoader`], created by [`DataLoader::new`].
#[must_use = "a loader is made by `build`, and setting an option gives a new builder"]
pub struct DataLoaderBuilder<D: Dataset> {
    loader: DataLoader<D>,
}

impl<D> DataLoader<D>
where
    D: Dataset + 'static,
    D::Item: Sample,
{
    /// Starts a builder with the defaults: batches of 32 in the dataset's order, made on the calling thread. Finish
    /// with [`build`](DataLoaderBuilder::build).
    #[allow(clippy::new_ret_no_self)]
    pub fn new(dataset: D, device: &Device) -> DataLoaderBuilder<D> {
        let plan = Plan { dataset, device: device.clone(), batch_size: 32, seed: 0, augment: None };
        let (sampler, shard) = (Sampler::Sequential, Shard { rank: 0, world: 1 });
        let loader = DataLoader { plan: Arc::new(plan), workers: 0, prefetch: 2, drop_last: false, sampler, shard };
        DataLoaderBuilder { loader }
    }

    /// The dataset.
    pub fn dataset(&self) -> &D {
        &self.plan.dataset
    }

    /// The device of the batches.
    pub fn device(&self) -> &Device {
        &self.plan.device
    }

    /// The largest number of samples in a batch.
    pub fn batch_size(&self) -> usize {
        self.plan.batch_size
    }

    /// The sampler.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// The seed of the sampler and of augmentations.
    pub fn seed(&self) -> u64 {
        self.plan.seed
    }

    /// Whether a last batch that is not full is dropped.
    pub fn drop_last(&self) -> bool {
        self.drop_last
    }

    /// The number of batches in an epoch.
    pub fn len(&self) -> usize {
        let n = self.order_len();
        if self.drop_last { n / self.plan.batch_size } else { n.div_ceil(self.plan.batch_size) }
    }

    /// Whether an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of samples in an epoch.
    pub fn samples(&self) -> usize {
        self.order_len().min(self.len().saturating_mul(self.plan.batch_size))
    }

    /// The number of samples in this loader's shard, including those of an incomplete batch that is dropped later.
    fn order_len(&self) -> usize {
        self.shard.samples(self.sampler.samples(self.plan.dataset.len()), self.drop_last)
    }

    /// The batches of epoch `epoch`. The iterator ends after the first error. Dropping it stops its workers.
    #[track_caller]
    pub fn epoch(&self, epoch: u64) -> Result<Batches<<D::Item as Sample>::Batch>> {
        self.epoch_from(epoch, 0)
    }

    /// The batches from `position` on; see [`epoch_from`](DataLoader::epoch_from).
    #[track_caller]
    pub fn resume(&self, position: Position) -> Result<Batches<<D::Item as Sample>::Batch>> {
        self.epoch_from(position.epoch, position.batch)
    }

    /// The batches of epoch `epoch` without the first `skip`. The samples of the skipped batches are not read, and the
    /// remaining batches are the same as without skipping. Errors if the epoch has fewer batches.
    #[track_caller]
    pub fn epoch_from(&self, epoch: u64, skip: usize) -> Result<Batches<<D::Item as Sample>::Batch>> {
        self.batches(epoch, skip, |plan, order, batch, stopped| {
            plan.make(order, batch, plan.places(order, batch), stopped)
        })
    }

    /// Like [`epoch_from`](DataLoader::epoch_from), with each batch in parts: several processes share a batch, and each
    /// reads what it computes. `parts` is called with the number of the batch in the epoch and the number of its samples,
    /// and returns the ranges of samples that each become a part. Samples in no part are not read.
    ///
    /// # Errors
    /// Those of [`epoch_from`](DataLoader::epoch_from); the batches fail if a range is empty or reaches beyond the batch.
    #[track_caller]
    pub fn epoch_in_parts(
        &self,
        epoch: u64,
        skip: usize,
        parts: impl Fn(usize, usize) -> Vec<Range<usize>> + Send + Sync + 'static,
    ) -> Result<Batches<Parts<<D::Item as Sample>::Batch>>> {
        self.batches(epoch, skip, move |plan, order, batch, stopped| {
            let whole = plan.places(order, batch);
            let ranges = parts(batch, whole.len());
            let mut made = Vec::with_capacity(ranges.len());
            for range in ranges {
                if range.is_empty() || range.end > whole.len() {
                    let m = format!("samples {range:?} are no part of batch {batch}, which has {}", whole.len());
                    return Some(Err(Error::argument("data_loader", m)));
                }
                match plan.make(order, batch, whole.start + range.start..whole.start + range.end, stopped)? {
                    Ok(part) => made.push(part),
                    Err(e) => return Some(Err(e)),
                }
            }
            Some(Ok(Parts { samples: whole.len(), parts: made }))
        })
    }

    /// Batches that `make` makes from their number in the epoch, without the first `skip`.
    #[track_caller]
    fn batches<R: Send + 'static>(
        &self,
        epoch: u64,
        skip: usize,
        make: impl Fn(&Plan<D>, &EpochOrder, usize, &dyn Fn() -> bool) -> Option<Result<R>> + Send + Sync + 'static,
    ) -> Result<Batches<R>> {
        let (count, plan) = (self.len(), self.plan.clone());
        let Some(rest) = count.checked_sub(skip) else {
            let m = format!("{skip} batches of epoch {epoch} are to be skipped; it has {count}");
            return Err(Error::argument("data_loader", m)
                .help("resume with the dataset, batch size and sampler that the position was saved with"));
        };
        let generator = Generator::new(plan.seed).fork(SHUFFLE).fork(epoch);
        let together = plan.batch_size.saturating_mul(self.shard.world);
        let samples = self.sampler.order(plan.dataset.len(), together, epoch, generator)?;
        let draws = if self.sampler.repeats() { draws(&samples, plan.dataset.len())? } else { Vec::new() };
        let [samples, draws] = match self.shard {
            Shard { world: 1, .. } => [samples, draws],
            shard => [sharded(&samples, shard, self.drop_last)?, sharded(&draws, shard, self.drop_last)?],
        };
        let order = EpochOrder { epoch, samples, draws };
        let make = move |batch: usize, stopped: &dyn Fn() -> bool| make(&plan, &order, skip + batch, stopped);
        let source = if self.workers == 0 {
            Source::Inline(Box::new(make))
        } else {
            Source::Workers(Workers::start(self.workers.min(rest), self.prefetch, rest, make)?)
        };
        Ok(Batches { source, epoch, skipped: skip, next: 0, count: rest, failed: false, line: Location::caller() })
    }
}

impl<D> Plan<D>
where
    D: Dataset + 'static,
    D::Item: Sample,
{
    /// The places of the samples of a batch in the order of the epoch.
    fn places(&self, order: &EpochOrder, batch: usize) -> Range<usize> {
        let start = batch.saturating_mul(self.batch_size).min(order.samples.len());
        start..start.saturating_add(self.batch_size).min(order.samples.len())
    }

    /// Makes a batch of the samples at these places, which are of batch number `batch`. Returns `None` if `stopped`
    /// returns true before it is done.
    fn make(
        &self,
        order: &EpochOrder,
        batch: usize,
        places: Range<usize>,
        stopped: &dyn Fn() -> bool,
    ) -> Option<Result<<D::Item as Sample>::Batch>> {
        let indices = &order.samples[places.clone()];
        // The capacity is at most the length of the order.
        let mut samples = Vec::with_capacity(indices.len());
        for (place, &index) in places.zip(indices) {
            if stopped() {
                return None;
            }
            match guard(&format!("sample {index}"), || self.sample(order.epoch, index, order.draws.get(place))) {
                Ok(sample) => samples.push(sample),
                Err(e) => return Some(Err(e.note(format!("while reading sample {index} of the dataset")))),
            }
        }
        let collated = guard(&format!("batch {batch}"), || D::Item::collate(samples, &self.device));
        Some(collated.map_err(|e| e.note(format!("while joining samples {indices:?} of the dataset"))))
    }

    #[track_caller]
    fn sample(&self, epoch: u64, index: usize, draw: Option<&usize>) -> Result<D::Item> {
        let sample = self.dataset.get(index)?;
        match &self.augment {
            Some(augment) => {
                let mut generator = Generator::new(self.seed).fork(AUGMENT).fork(epoch).fork(index as u64);
                // A sample that is drawn again gets other random numbers.
                if let Some(&again) = draw.filter(|&&draw| draw > 0) {
                    generator = generator.fork(again as u64);
                }
                augment(sample, &mut generator)
            }
            None => Ok(sample),
        }
    }
}

/// The result of `f`, with a panic turned into an error.
#[track_caller]
fn guard<T>(what: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|s| s.to_string());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Error::argument("data_loader", format!("{what}: the dataset's code panicked: {said}")))
    })
}

impl<D> DataLoaderBuilder<D>
where
    D: Dataset + 'static,
    D::Item: Sample,
{
    fn plan(mut self, change: impl FnOnce(&mut Plan<D>)) -> Self {
        // The plan has one owner until the first epoch starts.
        if let Some(plan) = Arc::get_mut(&mut self.loader.plan) {
            change(plan);
        }
        self
    }

    /// Sets the largest number of samples in a batch.
    pub fn batch_size(self, samples: usize) -> Self {
        self.plan(|p| p.batch_size = samples)
    }

    /// Shuffles the samples in every epoch, as determined by `seed` and the epoch's number.
    pub fn shuffle(self, seed: u64) -> Self {
        self.sampler(Sampler::Shuffled, seed)
    }

    /// Lets a sampler choose the samples of every epoch. `seed` determines the random numbers of the sampler and of
    /// augmentations.
    pub fn sampler(mut self, sampler: Sampler, seed: u64) -> Self {
        self.loader.sampler = sampler;
        self.plan(|p| p.seed = seed)
    }

    /// Reads the part of every epoch that belongs to process `rank` of `world` processes: every `world`-th sample of
    /// the order, from `rank` on. All processes need the same sampler and seed. All get the same number of samples: if
    /// the samples do not divide evenly, a few are repeated or, with [`drop_last`](Self::drop_last), left out.
    pub fn shard(mut self, rank: usize, world: usize) -> Self {
        self.loader.shard = Shard { rank, world };
        self
    }

    /// Whether to drop the last batch of an epoch if it is not full.
    pub fn drop_last(mut self, drop: bool) -> Self {
        self.loader.drop_last = drop;
        self
    }

    /// The number of threads that make batches; with 0, the default, the calling thread makes them.
    pub fn workers(mut self, threads: usize) -> Self {
        self.loader.workers = threads;
        self
    }

    /// The number of finished batches that each worker may hold ready; 2 by default.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.loader.prefetch = batches;
        self
    }

    /// Applies `f` to every sample. Its random numbers depend only on the seed, the epoch and the sample, and on how many
    /// times a sampler has drawn the sample before in this epoch.
    pub fn augment(self, f: impl Fn(D::Item, &mut Generator) -> Result<D::Item> + Send + Sync + 'static) -> Self {
        self.plan(|p| p.augment = Some(Box::new(f)))
    }

    /// Builds the loader. Errors if the batch size or the prefetch is 0, if there are more than 256 workers, if the rank
    /// is not below the number of processes, or if the sampler does not fit the dataset.
    #[track_caller]
    pub fn build(self) -> Result<DataLoader<D>> {
        let loader = self.loader;
        let fail = |m: String| Err(Error::argument("data_loader", m));
        if loader.plan.batch_size == 0 {
            return fail("the batch size is 0; it is at least 1".into()).here();
        }
        if loader.prefetch == 0 {
            return fail("prefetch is 0; it is at least 1".into()).here();
        }
        if loader.workers > MOST_WORKERS {
            return fail(format!("{} workers; it takes 0 to {MOST_WORKERS}", loader.workers)).here();
        }
        let Shard { rank, world } = loader.shard;
        if rank >= world {
            return fail(format!("process {rank} of {world}; ranks go from 0 to the number of processes - 1")).here();
        }
        loader.sampler.check(loader.plan.dataset.len())?;
        Ok(loader)
    }
}

impl<D: Dataset> fmt::Debug for DataLoader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataLoader")
            .field("samples", &self.plan.dataset.len())
            .field("batch_size", &self.plan.batch_size)
            .field("sampler", &self.sampler)
            .field("seed", &self.plan.seed)
            .field("drop_last", &self.drop_last)
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}

impl<D: Dataset> fmt::Debug for DataLoaderBuilder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.loader.fmt(f)
    }
}

/// Makes batch `i`, or returns `None` once it is told to stop.
type Make<B> = dyn Fn(usize, &dyn Fn() -> bool) -> Option<Result<B>> + Send;

enum Source<B> {
    Inline(Box<Make<B>>),
    Workers(Workers<B>),
}

/// The batches of one epoch, in order.
pub struct Batches<B> {
    source: Source<B>,
    epoch: u64,
    /// The number of batches that were skipped. `next` and `count` do not include them.
    skipped: usize,
    next: usize,
    count: usize,
    failed: bool,
    /// The line that started the epoch. Errors report it, because `next` itself is called by `for` loops.
    line: &'static Location<'static>,
}

impl<B> Batches<B> {
    /// The position of the next batch. Pass it to [`resume`](DataLoader::resume) to get the remaining batches. After an
    /// error, this is the batch that failed.
    pub fn position(&self) -> Position {
        Position { epoch: self.epoch, batch: self.skipped + self.next }
    }
}

impl<B> Iterator for Batches<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        if self.failed || self.next >= self.count {
            return None;
        }
        let batch = match &self.source {
            Source::Inline(make) => make(self.next, &|| false)?,
            Source::Workers(workers) => workers.receive(self.next).unwrap_or_else(|| {
                let m = format!("the worker of batch {} is gone", self.skipped + self.next);
                Err(Error::new(ErrorKind::Backend, "data_loader", m))
            }),
        };
        match &batch {
            Ok(_) => self.next += 1,
            Err(_) => self.failed = true,
        }
        Some(batch.map_err(|e| e.at(self.line)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(if self.failed { 0 } else { self.count - self.next }))
    }
}

impl<B> fmt::Debug for Batches<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batches({} of {})", self.skipped + self.next, self.skipped + self.count)
    }
}
