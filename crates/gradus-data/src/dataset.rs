//! [`Dataset`], and datasets that wrap others.

use std::sync::Arc;

use gradus_tensor::{Error, ErrorKind, Result, Tensor};

/// A collection of samples with random access. Several threads may read it at once.
pub trait Dataset: Send + Sync {
    /// The type of a sample.
    type Item;

    /// The number of samples.
    fn len(&self) -> usize;

    /// Returns sample `index`. Errors unless `index` is below [`len`](Dataset::len).
    fn get(&self, index: usize) -> Result<Self::Item>;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A dataset of the samples at `indices`, in that order; an index may repeat. Errors if one is out of range.
    #[track_caller]
    fn subset(self, indices: Vec<usize>) -> Result<Subset<Self>>
    where
        Self: Sized,
    {
        Subset::new(self, indices)
    }

    /// A dataset that applies `f` to each sample when it is read.
    ///
    /// ```
    /// use gradus_data::{Dataset, digits};
    /// let labels = digits::load()?.map(|(_image, label)| Ok(label));
    /// assert_eq!((labels.len(), labels.get(1)?), (1797, 1));
    /// # Ok::<(), gradus_tensor::Error>(())
    /// ```
    fn map<F, T>(self, f: F) -> Map<Self, F>
    where
        Self: Sized,
        F: Fn(Self::Item) -> Result<T> + Send + Sync,
    {
        Map { dataset: self, f }
    }
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        (**self).len()
    }

    #[track_caller]
    fn get(&self, index: usize) -> Result<D::Item> {
        (**self).get(index)
    }
}

/// Returns an error if an index is not within a dataset.
#[track_caller]
pub(crate) fn check_index(op: &str, index: usize, len: usize) -> Result<()> {
    if index < len {
        return Ok(());
    }
    let kind = ErrorKind::IndexOutOfBounds { pos: 0, index: i64::try_from(index).unwrap_or(i64::MAX), size: len };
    Err(Error::new(kind, op, format!("sample {index} asked for; there are {len}")))
}

/// A selection of a dataset's samples: see [`Dataset::subset`].
#[derive(Debug, Clone)]
pub struct Subset<D> {
    dataset: D,
    indices: Vec<usize>,
}

impl<D: Dataset> Subset<D> {
    #[track_caller]
    fn new(dataset: D, indices: Vec<usize>) -> Result<Self> {
        for &index in &indices {
            check_index("subset", index, dataset.len())?;
        }
        Ok(Subset { dataset, indices })
    }

    /// The underlying dataset.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// The indices into the underlying dataset.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.indices.len()
    }

    #[track_caller]
    fn get(&self, index: usize) -> Result<D::Item> {
        check_index("subset", index, self.indices.len())?;
        self.dataset.get(self.indices[index])
    }
}

/// A dataset with a function applied to its samples: see [`Dataset::map`].
#[derive(Debug, Clone)]
pub struct Map<D, F> {
    dataset: D,
    f: F,
}

impl<D, F, T> Dataset for Map<D, F>
where
    D: Dataset,
    F: Fn(D::Item) -> Result<T> + Send + Sync,
{
    type Item = T;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    #[track_caller]
    fn get(&self, index: usize) -> Result<T> {
        (self.f)(self.dataset.get(index)?)
    }
}

/// Inputs and targets in memory: two tensors whose first axis runs over the samples.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_data::{Dataset, TensorDataset};
/// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
/// let y = Tensor::from_vec(vec![0i64, 1], [2], &device)?;
/// let data = TensorDataset::new(x, y)?;
/// assert_eq!(data.get(1)?.0.to_vec::<f32>()?, [3.0, 4.0]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TensorDataset {
    inputs: Tensor,
    targets: Tensor,
}

impl TensorDataset {
    /// A dataset of `inputs [n, ..]` and `targets [n, ..]`. Errors if either has no axes, or if their first axes
    /// differ.
    #[track_caller]
    pub fn new(inputs: Tensor, targets: Tensor) -> Result<Self> {
        let (n, m) = (inputs.shape().first(), targets.shape().first());
        if n.is_none() || n != m {
            return Err(Error::shape("tensor_dataset", "inputs and targets need the same number of rows")
                .operand("inputs", inputs.shape(), inputs.dtype(), inputs.device())
                .operand("targets", targets.shape(), targets.dtype(), targets.device()));
        }
        Ok(TensorDataset { inputs: inputs.detach(), targets: targets.detach() })
    }
}

impl Dataset for TensorDataset {
    type Item = (Tensor, Tensor);

    fn len(&self) -> usize {
        self.inputs.shape().first().copied().unwrap_or(0)
    }

    #[track_caller]
    fn get(&self, index: usize) -> Result<(Tensor, Tensor)> {
        check_index("tensor_dataset", index, self.len())?;
        let at = index as isize;
        Ok((self.inputs.select(0, at)?, self.targets.select(0, at)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Numbers(usize);
    impl Dataset for Numbers {
        type Item = usize;
        fn len(&self) -> usize {
            self.0
        }
        fn get(&self, index: usize) -> Result<usize> {
            check_index("numbers", index, self.0)?;
            Ok(index * 10)
        }
    }

    #[test]
    fn a_subset_keeps_its_order_and_checks_its_indices() {
        let subset = Numbers(5).subset(vec![4, 0, 4]).unwrap();
        let all: Vec<usize> = (0..3).map(|i| subset.get(i).unwrap()).collect();
        assert_eq!(all, [40, 0, 40]);
        assert!(subset.get(3).is_err());
        let e = Numbers(5).subset(vec![1, 5]).unwrap_err();
        assert!(e.to_string().contains("sample 5 asked for; there are 5"), "{e}");
    }

    #[test]
    fn a_map_passes_errors_on() {
        let mapped = Numbers(2).map(|n| if n == 0 { Ok(n) } else { Err(Error::argument("f", "no tens")) });
        assert_eq!(mapped.get(0).unwrap(), 0);
        assert!(mapped.get(1).is_err());
        assert!(!mapped.is_empty() && Numbers(0).is_empty());
    }
}
