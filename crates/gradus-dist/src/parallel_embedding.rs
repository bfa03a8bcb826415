//! [`ParallelEmbedding`]: a table whose rows are divided among the ranks.

use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{Embedding, Forward, Linear, Module, Parameter};
use gradus_tensor::{Error, Here, Result, Tensor};

use crate::communicator::Communicator;
use crate::division::{Divided, part_of, whole_of};
use crate::parallel_linear::ColumnLinear;
use crate::region::looked_up;

const OP: &str = "parallel_embedding";

/// An [`Embedding`] whose rows are divided (Shoeybi et al., 2019): indices `[..]`, the same on all ranks, to
/// `[.., embedding_dim]`, the same on all ranks. A rank has zeros for the rows of others, and what all have is summed. The
/// numbers of rows of two ranks differ by at most 1. Names in the state are those of the whole layer.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{Options, ParallelEmbedding, parallel_cross_entropy, threads};
/// use gradus_nn::{CrossEntropyLoss, Embedding, Forward, Init};
///
/// threads(2, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///     let mut generator = Generator::new(7);
///     let whole = Embedding::new(11, 4, None, &mut Init::new(DType::F32, &device, &mut generator))?;
///     let table = ParallelEmbedding::of(&whole, comm)?;
///     let tokens = Tensor::from_vec(vec![3i64, 10, 0], [3], &device)?;
///     let x = table.forward(&tokens)?;
///     assert_eq!(x.to_vec::<f32>()?, whole.forward(&tokens)?.to_vec::<f32>()?);
///
///     let logits = table.head()?.forward(&x)?; // 5 of 11 classes on rank 0, 6 on rank 1
///     let loss = parallel_cross_entropy(&logits, &tokens, 11, comm, &CrossEntropyLoss::default())?;
///     let theirs = x.linear(&whole.weight, None)?.cross_entropy(&tokens)?;
///     assert!((loss.item()? - theirs.item()?).abs() < 1e-6);
///     Ok(())
/// })?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct ParallelEmbedding {
    /// The rows of all ranks.
    num_embeddings: usize,
    embedding_dim: usize,
    padding_idx: Option<usize>,
    /// This rank's rows.
    pub weight: Parameter,
    #[module(skip)]
    sequence: Option<isize>,
    #[module(skip)]
    comm: Arc<dyn Communicator>,
}

impl ParallelEmbedding {
    /// This rank's part of a table that has the same rows on all ranks.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`](gradus_tensor::ErrorKind::ShapeMismatch) if there are fewer rows than ranks.
    #[track_caller]
    pub fn of(whole: &Embedding, comm: &Arc<dyn Communicator>) -> Result<Self> {
        let values = whole.weight.values();
        let [num_embeddings, embedding_dim] = [values.shape()[0], values.shape()[1]];
        if num_embeddings < comm.size() {
            let m = format!("{num_embeddings} rows do not divide among {} ranks", comm.size());
            return Err(Error::shape(OP, m).operand("weight", values.shape(), values.dtype(), values.device()));
        }
        let weight = part_of(&whole.weight, Divided::along(0, num_embeddings, comm))?;
        let (padding_idx, comm) = (whole.padding_idx(), comm.clone());
        Ok(ParallelEmbedding { num_embeddings, embedding_dim, padding_idx, weight, sequence: None, comm })
    }

    /// Gives this rank's part of the output along `axis` in place of the whole: tokens `[batch, length]` to
    /// `[batch, length / ranks, embedding_dim]` for axis 1.
    #[must_use]
    pub fn sequence(mut self, axis: isize) -> Self {
        self.sequence = Some(axis);
        self
    }

    /// A layer without bias that computes this rank's part of the logits of all rows, for
    /// [`parallel_cross_entropy`](crate::parallel_cross_entropy). Its weight is that of the table.
    #[track_caller]
    pub fn head(&self) -> Result<ColumnLinear> {
        Ok(ColumnLinear::from_part(Linear::from_parameters(self.weight.clone(), None)?, &self.comm))
    }

    /// The whole table, with copies of the rows, on all ranks. All ranks call it.
    #[track_caller]
    pub fn whole(&self) -> Result<Embedding> {
        Embedding::from_parameters(whole_of(&self.weight, Location::caller()).here()?, self.padding_idx)
    }
}

impl Forward for ParallelEmbedding {
    #[track_caller]
    fn compute(&self, ids: &Tensor) -> Result<Tensor> {
        let rows = (self.num_embeddings, self.padding_idx);
        looked_up(&self.weight, ids, rows, self.sequence, &self.comm, Location::caller()).here()
    }
}
