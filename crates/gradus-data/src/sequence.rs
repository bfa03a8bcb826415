//! [`Sequence`]: samples of different lengths, which are padded to the longest of their batch.

use gradus_tensor::backend::{Element, HostVec};
use gradus_tensor::{Device, Error, Result, Tensor};

use crate::Sample;

/// A list of values whose length differs from sample to sample, such as the tokens of a text. A batch is [`Padded`].
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::{Device, Error}; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_data::{Sample, Sequence};
/// let sequences = vec![Sequence::new(vec![5i64, 6, 7]), Sequence::new(vec![8])];
/// let batch = Sequence::collate(sequences, &device)?;
/// assert_eq!(batch.values.to_vec::<i64>()?, [5, 6, 7, 8, 0, 0]);
/// assert_eq!(batch.lengths.to_vec::<i64>()?, [3, 1]);
/// assert_eq!(batch.mask.to_vec::<bool>()?, [true, true, true, true, false, false]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence<T> {
    /// The values.
    pub values: Vec<T>,
    /// The value of the padding, which must be the same for all sequences of a batch.
    pub padding: T,
}

impl<T: Default> Sequence<T> {
    /// A sequence that is padded with zeros.
    pub fn new(values: Vec<T>) -> Self {
        Sequence { values, padding: T::default() }
    }
}

/// A batch of sequences, each padded at its end to the length of the longest.
#[derive(Debug, Clone)]
pub struct Padded {
    /// The values with the padding, `[n, longest]`.
    pub values: Tensor,
    /// The length of each sequence, i64 `[n]`.
    pub lengths: Tensor,
    /// Whether an element is a value rather than padding, bool `[n, longest]`. Attention accepts it as its key mask.
    pub mask: Tensor,
}

impl<T: Element + PartialEq> Sample for Sequence<T> {
    type Batch = Padded;

    #[track_caller]
    fn collate(samples: Vec<Self>, device: &Device) -> Result<Padded> {
        let (n, longest) = (samples.len(), samples.iter().map(|s| s.values.len()).max().unwrap_or(0));
        let differs = |s: &&Self| samples.first().is_some_and(|first| s.padding != first.padding);
        if samples.iter().any(|s| differs(&s)) {
            return Err(Error::argument("collate", "the sequences of a batch have different paddings")
                .help("give all sequences of a dataset the same padding"));
        }
        let (backend, count) = (device.backend(), n.saturating_mul(longest));
        let mut values = HostVec::with_capacity(backend, "collate", count)?;
        let mut mask = HostVec::with_capacity(backend, "collate", count)?;
        for Sequence { values: own, padding } in &samples {
            let place = |i: usize| own.get(i).copied().unwrap_or(*padding);
            values.extend("collate", (0..longest).map(place))?;
            mask.extend("collate", (0..longest).map(|i| i < own.len()))?;
        }
        let lengths: Vec<i64> = samples.iter().map(|s| s.values.len() as i64).collect();
        Ok(Padded {
            values: Tensor::from_vec(values, [n, longest], device)?,
            lengths: Tensor::from_vec(lengths, [n], device)?,
            mask: Tensor::from_vec(mask, [n, longest], device)?,
        })
    }

    fn tensors(batch: &Padded) -> Option<Vec<&Tensor>> {
        Some(vec![&batch.values, &batch.lengths, &batch.mask])
    }
}
