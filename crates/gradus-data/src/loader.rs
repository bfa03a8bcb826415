//! [`DataLoader`]: shuffled batches of tensors from a dataset.

use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

use gradus_tensor::backend::host_vec::collect;
use gradus_tensor::{Device, Error, ErrorKind, Generator, Here, Result};

use crate::workers::Workers;
use crate::{Dataset, Sample};

/// Keys of the generators that a loader forks from its seed.
const SHUFFLE: u64 = 1;
const AUGMENT: u64 = 2;

/// The largest number of worker threads.
const MOST_WORKERS: usize = 256;

/// An augmentation of a sample, with its own random generator.
type Augment<T> = dyn Fn(T, &mut Generator) -> Result<T> + Send + Sync;

/// Batches of a dataset, epoch by epoch.
///
/// The dataset, the seed and the epoch's number determine the batches; workers change only the speed.
pub struct DataLoader<D: Dataset> {
    plan: Arc<Plan<D>>,
    workers: usize,
    prefetch: usize,
    drop_last: bool,
    shuffle: bool,
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
        let loader = DataLoader { plan: Arc::new(plan), workers: 0, prefetch: 2, drop_last: false, shuffle: false };
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

    /// The number of batches in an epoch.
    pub fn len(&self) -> usize {
        let n = self.plan.dataset.len();
        if self.drop_last { n / self.plan.batch_size } else { n.div_ceil(self.plan.batch_size) }
    }

    /// Whether an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of samples in an epoch.
    pub fn samples(&self) -> usize {
        self.plan.dataset.len().min(self.len().saturating_mul(self.plan.batch_size))
    }

    /// The batches of epoch `epoch`. The iterator ends after the first error. Dropping it stops its workers.
    #[track_caller]
    pub fn epoch(&self, epoch: u64) -> Result<Batches<<D::Item as Sample>::Batch>> {
        let n = self.plan.dataset.len();
        let order = if self.shuffle {
            Generator::new(self.plan.seed).fork(SHUFFLE).fork(epoch).permutation(n)?
        } else {
            collect("epoch", 0..n)?
        };
        let (count, plan) = (self.len(), self.plan.clone());
        let make = move |batch: usize, stopped: &dyn Fn() -> bool| plan.make(epoch, &order, batch, stopped);
        let source = if self.workers == 0 {
            Source::Inline(Box::new(make))
        } else {
            Source::Workers(Workers::start(self.workers.min(count), self.prefetch, count, make)?)
        };
        Ok(Batches { source, next: 0, count, line: Location::caller() })
    }
}

impl<D> Plan<D>
where
    D: Dataset + 'static,
    D::Item: Sample,
{
    /// Makes batch number `batch` of the epoch whose samples are in this order. Returns `None` if `stopped` returns
    /// true before the batch is done.
    fn make(
        &self,
        epoch: u64,
        order: &[usize],
        batch: usize,
        stopped: &dyn Fn() -> bool,
    ) -> Option<Result<<D::Item as Sample>::Batch>> {
        let start = batch.saturating_mul(self.batch_size).min(order.len());
        let end = start.saturating_add(self.batch_size).min(order.len());
        // The capacity is at most the length of `order`.
        let mut samples = Vec::with_capacity(end - start);
        for &index in &order[start..end] {
            if stopped() {
                return None;
            }
            match guard(&format!("sample {index}"), || self.sample(epoch, index)) {
                Ok(sample) => samples.push(sample),
                Err(e) => return Some(Err(e.note(format!("while reading sample {index} of the dataset")))),
            }
        }
        let collated = guard(&format!("batch {batch}"), || D::Item::collate(samples, &self.device));
        Some(collated.map_err(|e| e.note(format!("while joining samples {:?} of the dataset", &order[start..end]))))
    }

    #[track_caller]
    fn sample(&self, epoch: u64, index: usize) -> Result<D::Item> {
        let sample = self.dataset.get(index)?;
        match &self.augment {
            Some(augment) => {
                let mut generator = Generator::new(self.seed).fork(AUGMENT).fork(epoch).fork(index as u64);
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
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.loader.shuffle = true;
        self.plan(|p| p.seed = seed)
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

    /// How many finished batches each worker may hold ready; 2 by default.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.loader.prefetch = batches;
        self
    }

    /// Applies `f` to every sample. Its random numbers depend only on the seed, the epoch and the sample.
    pub fn augment(self, f: impl Fn(D::Item, &mut Generator) -> Result<D::Item> + Send + Sync + 'static) -> Self {
        self.plan(|p| p.augment = Some(Box::new(f)))
    }

    /// Builds the loader. Errors if the batch size or the prefetch is 0, or if there are more than 256 workers.
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
        Ok(loader)
    }
}

impl<D: Dataset> fmt::Debug for DataLoader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataLoader")
            .field("samples", &self.plan.dataset.len())
            .field("batch_size", &self.plan.batch_size)
            .field("shuffle", &self.shuffle.then_some(self.plan.seed))
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
    next: usize,
    count: usize,
    /// The line that started the epoch. Errors report it, because `next` itself is called by `for` loops.
    line: &'static Location<'static>,
}

impl<B> Iterator for Batches<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        if self.next >= self.count {
            return None;
        }
        let batch = match &self.source {
            Source::Inline(make) => make(self.next, &|| false)?,
            Source::Workers(workers) => workers.receive(self.next).unwrap_or_else(|| {
                Err(Error::new(ErrorKind::Backend, "data_loader", format!("the worker of batch {} is gone", self.next)))
            }),
        };
        self.next = if batch.is_ok() { self.next + 1 } else { self.count };
        Some(batch.map_err(|e| e.at(self.line)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.count - self.next))
    }
}

impl<B> fmt::Debug for Batches<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batches({} of {})", self.next, self.count)
    }
}
