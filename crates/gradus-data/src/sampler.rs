//! [`Sampler`]: which samples an epoch reads, and in which order.

use std::fmt;
use std::sync::Arc;

use gradus_tensor::backend::host_vec::{collect, vec_of};
use gradus_tensor::{Error, Generator, Here, Result};

/// A function that returns the order of an epoch: see [`Sampler::Custom`].
pub type Order = dyn Fn(u64, &mut Generator) -> Result<Vec<usize>> + Send + Sync;

/// Decides which samples an epoch reads, and in which order. Consecutive samples of the order form a batch.
///
/// The order depends on the sampler, the loader's seed and the epoch's number. It is therefore the same after a
/// restart.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::{Device, Error}; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_data::{DataLoader, Dataset, Sampler, digits};
/// // Fives are drawn as often as all other digits together.
/// let digits = digits::load()?;
/// let fives = digits.labels().iter().filter(|&&l| l == 5).count() as f64;
/// let weight = |&l: &i64| if l == 5 { 1.0 / fives } else { 1.0 / (1797.0 - fives) };
/// let weights = digits.labels().iter().map(weight).collect();
/// let sampler = Sampler::Weighted { weights, samples: 1000 };
/// let loader = DataLoader::new(digits, &device).sampler(sampler, 7).batch_size(1000).build()?;
/// let (_, labels) = loader.epoch(0)?.next().unwrap()?;
/// let drawn = labels.to_vec::<i64>()?.iter().filter(|&&l| l == 5).count();
/// assert!((450..550).contains(&drawn));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub enum Sampler {
    /// All samples in the order of the dataset.
    Sequential,
    /// All samples in an order that is drawn for each epoch.
    Shuffled,
    /// `samples` samples per epoch, each drawn with a probability proportional to its weight. A sample may be drawn
    /// more than once. Weights are finite and at least 0, one for each sample, and not all of them are 0.
    Weighted {
        /// The weight of each sample.
        weights: Vec<f64>,
        /// The number of samples in an epoch.
        samples: usize,
    },
    /// All samples, batched with samples of similar length, so that little padding is needed. The samples are shuffled
    /// and divided into pools of `pool` batches. Each pool is sorted by length, and the batches of all pools are
    /// shuffled. A batch that is not full comes last.
    Bucketed {
        /// The length of each sample.
        lengths: Vec<usize>,
        /// The number of batches that are sorted together, at least 1. With a larger pool, the lengths in a batch are
        /// more equal, but the batches of different epochs are more alike. 100 is usual.
        pool: usize,
    },
    /// The order that a function returns. Its arguments are the number of the epoch and a generator for the epoch.
    Custom {
        /// The number of samples in an epoch. The function returns that many indices.
        samples: usize,
        /// The function.
        order: Arc<Order>,
    },
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sampler::Sequential => write!(f, "Sequential"),
            Sampler::Shuffled => write!(f, "Shuffled"),
            Sampler::Weighted { samples, .. } => write!(f, "Weighted({samples} samples)"),
            Sampler::Bucketed { pool, .. } => write!(f, "Bucketed(pools of {pool} batches)"),
            Sampler::Custom { samples, .. } => write!(f, "Custom({samples} samples)"),
        }
    }
}

/// The part of an epoch that one of several processes reads: see [`shard`](crate::DataLoaderBuilder::shard).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shard {
    pub(crate) rank: usize,
    pub(crate) world: usize,
}

impl Shard {
    /// The number of samples of this process, out of `n` in total. It is the same for all processes.
    pub(crate) fn samples(self, n: usize, drop_last: bool) -> usize {
        if drop_last { n / self.world } else { n.div_ceil(self.world) }
    }
}

impl Sampler {
    /// The number of samples in an epoch of a dataset of `n` samples.
    pub(crate) fn samples(&self, n: usize) -> usize {
        match self {
            Sampler::Sequential | Sampler::Shuffled | Sampler::Bucketed { .. } => n,
            Sampler::Weighted { samples, .. } | Sampler::Custom { samples, .. } => *samples,
        }
    }

    /// Whether it may draw a sample more than once in an epoch.
    pub(crate) fn repeats(&self) -> bool {
        matches!(self, Sampler::Weighted { .. } | Sampler::Custom { .. })
    }

    /// Errors if the settings do not fit a dataset of `n` samples.
    #[track_caller]
    pub(crate) fn check(&self, n: usize) -> Result<()> {
        let one_each = |what: &str, given: usize| {
            let m = format!("{given} {what} for {n} samples");
            Error::argument("sampler", m).help(format!("give one of the {what} for each sample"))
        };
        match self {
            Sampler::Weighted { weights, .. } if weights.len() != n => Err(one_each("weights", weights.len())),
            Sampler::Weighted { weights, samples } => {
                if let Some(at) = weights.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
                    let m = format!("the weight of sample {at} is {}", weights[at]);
                    return Err(Error::argument("sampler", m).help("weights are finite, and 0 or more"));
                }
                let sum: f64 = weights.iter().sum();
                if *samples > 0 && !(sum > 0.0 && sum.is_finite()) {
                    return Err(Error::argument("sampler", format!("the weights sum to {sum}"))
                        .help("give a weight above 0 to at least one sample, and weights with a finite sum"));
                }
                Ok(())
            }
            Sampler::Bucketed { lengths, .. } if lengths.len() != n => Err(one_each("lengths", lengths.len())),
            Sampler::Bucketed { pool: 0, .. } => {
                Err(Error::argument("sampler", "a pool of 0 batches").help("a pool has at least 1 batch"))
            }
            _ => Ok(()),
        }
    }

    /// The order of epoch `epoch` over a dataset of `n` samples, of which `batch_size` are read together.
    #[track_caller]
    pub(crate) fn order(&self, n: usize, batch_size: usize, epoch: u64, mut g: Generator) -> Result<Vec<usize>> {
        match self {
            Sampler::Sequential => collect("epoch", 0..n),
            Sampler::Shuffled => g.permutation(n),
            Sampler::Weighted { weights, samples } => weighted(weights, *samples, &mut g),
            Sampler::Bucketed { lengths, pool } => {
                bucketed(lengths, pool.saturating_mul(batch_size), batch_size, &mut g)
            }
            Sampler::Custom { samples, order } => {
                let order = order(epoch, &mut g)?;
                if order.len() != *samples {
                    let m = format!("the order of epoch {epoch} has {} indices, not {samples}", order.len());
                    return Err(Error::argument("sampler", m).help("return as many indices as `samples` says"));
                }
                order.iter().try_for_each(|&index| crate::dataset::check_index("sampler", index, n)).here()?;
                Ok(order)
            }
        }
    }
}

/// For each position of an order over `n` samples, how many times its sample occurs before it.
#[track_caller]
pub(crate) fn draws(order: &[usize], n: usize) -> Result<Vec<usize>> {
    let mut counts: Vec<usize> = collect("epoch", std::iter::repeat_n(0, n))?;
    let next = |&index: &usize| counts.get_mut(index).map_or(0, |count| std::mem::replace(count, *count + 1));
    collect("epoch", order.iter().map(next))
}

/// The part of `order` that a shard reads: every `world`-th index, from `rank` on. If the indices do not divide evenly,
/// the first ones are repeated, or with `drop_last` the last ones are left out.
#[track_caller]
pub(crate) fn sharded(order: &[usize], shard: Shard, drop_last: bool) -> Result<Vec<usize>> {
    let each = shard.samples(order.len(), drop_last);
    let place = |i: usize| order[(shard.rank + i * shard.world) % order.len()];
    collect("epoch", (0..each).map(place))
}

/// Draws indices by inverting the cumulative sum of their weights.
#[track_caller]
fn weighted(weights: &[f64], samples: usize, g: &mut Generator) -> Result<Vec<usize>> {
    let mut sum = 0.0;
    let sums: Vec<f64> = collect(
        "epoch",
        weights.iter().map(|w| {
            sum += w;
            sum
        }),
    )?;
    let last = weights.iter().rposition(|&w| w > 0.0).unwrap_or(0);
    let draw = |_| {
        // 53 random bits fill the fraction of an f64.
        let at = (g.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * sum;
        // Rounding may reach the sum itself, which lies beyond the last sample.
        sums.partition_point(|&s| s <= at).min(last)
    };
    collect("epoch", (0..samples).map(draw))
}

#[track_caller]
fn bucketed(lengths: &[usize], pool: usize, batch_size: usize, g: &mut Generator) -> Result<Vec<usize>> {
    let mut order = g.permutation(lengths.len())?;
    for pool in order.chunks_mut(pool.max(1)) {
        pool.sort_by_key(|&index| lengths[index]);
    }
    let full = order.len() / batch_size;
    let mut batched = vec_of("epoch", order.len())?;
    for batch in g.permutation(full)? {
        batched.extend_from_slice(&order[batch * batch_size..(batch + 1) * batch_size]);
    }
    batched.extend_from_slice(&order[full * batch_size..]);
    Ok(batched)
}
