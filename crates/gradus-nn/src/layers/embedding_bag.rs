//! The [`EmbeddingBag`] layer.

use gradus_tensor::{DType, Error, Here, Result, ScatterReduction, Tensor};

use super::embedding::{check_padding, table};
use crate::module::out_of_forward;
use crate::{Forward, Init, Module, Parameter};

/// How [`EmbeddingBag`] combines the rows of a bag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BagMode {
    /// Their sum.
    Sum,
    /// Their mean.
    #[default]
    Mean,
    /// Their largest element along each axis.
    Max,
}

/// Options of [`EmbeddingBag`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmbeddingBagConfig {
    /// How rows are combined. Default mean.
    pub mode: BagMode,
    /// Whether the offsets end with the number of indices, after the start of the last bag. Default false.
    pub include_last_offset: bool,
    /// An index that is left out of its bag. Its row is initialised to 0 and gets no gradient. Default none.
    pub padding_idx: Option<usize>,
}

/// Looks up bags of indices in a table, and combines the rows of each bag. A bag without indices gives zeros.
///
/// The rows are initialised from a normal distribution with mean 0 and standard deviation 1. PyTorch's `max_norm`,
/// `scale_grad_by_freq` and `sparse` are not there.
///
/// ```
/// # use gradus_nn::{BagMode, EmbeddingBag, EmbeddingBagConfig, Forward, Init}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = EmbeddingBagConfig { mode: BagMode::Sum, ..Default::default() };
/// let bags = EmbeddingBag::new(10, 4, config, &mut init)?;
/// let indices = Tensor::from_vec([1i64, 2, 4, 5, 4], [5], &device)?;
/// let offsets = Tensor::from_vec([0i64, 3], [2], &device)?; // the bags 1, 2, 4 and 5, 4
/// assert_eq!(bags.forward_bags(&indices, &offsets, None)?.shape(), [2, 4]);
/// let equal = indices.narrow(0, 0, 4)?.reshape([2, 2])?; // the bags 1, 2 and 4, 5
/// assert_eq!(bags.forward(&equal)?.shape(), [2, 4]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct EmbeddingBag {
    num_embeddings: usize,
    embedding_dim: usize,
    mode: BagMode,
    include_last_offset: bool,
    padding_idx: Option<usize>,
    /// `[num_embeddings, embedding_dim]`
    pub weight: Parameter,
}

const OP: &str = "embedding_bag";

impl EmbeddingBag {
    /// Creates a table with new rows.
    #[track_caller]
    pub fn new(
        num_embeddings: usize,
        embedding_dim: usize,
        config: EmbeddingBagConfig,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        let EmbeddingBagConfig { mode, include_last_offset, padding_idx } = config;
        check_padding(OP, padding_idx, num_embeddings)?;
        let weight = Parameter::new(table(num_embeddings, embedding_dim, padding_idx, init)?)?;
        Ok(EmbeddingBag { num_embeddings, embedding_dim, mode, include_last_offset, padding_idx, weight })
    }

    /// Combines bags of any lengths: `input [l]` holds the indices (integers) of all bags one after the other, and
    /// `offsets [bags]` where each begins. The result is `[bags, embedding_dim]`. With `per_sample_weights [l]`, each
    /// row is multiplied by its weight first; for the mode sum only. The offsets are read on the host.
    ///
    /// # Errors
    /// Fails if the offsets do not begin with 0, fall, or exceed the number of indices, if an index is outside the
    /// table, or if the weights have another shape or the mode is not sum.
    #[track_caller]
    pub fn forward_bags(
        &self,
        input: &Tensor,
        offsets: &Tensor,
        per_sample_weights: Option<&Tensor>,
    ) -> Result<Tensor> {
        let bags = self.bags(input, offsets);
        let done = bags.and_then(|(ids, count)| self.combine(input, &ids, count, per_sample_weights));
        done.map_err(|e| out_of_forward(self, e)).here()
    }

    /// Combines bags of one length: `input [bags, l]` holds the indices of one bag in each row. The result is
    /// `[bags, embedding_dim]`. With `per_sample_weights [bags, l]`, each row is multiplied by its weight first; for the
    /// mode sum only.
    ///
    /// # Errors
    /// Fails if an index is outside the table, or if the weights have another shape or the mode is not sum.
    #[track_caller]
    pub fn forward_weighted(&self, input: &Tensor, per_sample_weights: Option<&Tensor>) -> Result<Tensor> {
        self.equal(input, per_sample_weights).map_err(|e| out_of_forward(self, e)).here()
    }

    #[track_caller]
    fn equal(&self, input: &Tensor, weights: Option<&Tensor>) -> Result<Tensor> {
        let &[count, length] = input.shape() else {
            let e = wrong("the input is [bags, l]; bags of different lengths need offsets", "input", input);
            return Err(e.help("call forward_bags with offsets"));
        };
        let ids = Tensor::arange(0, count as i64, 1, DType::I64, input.device())?;
        let ids = ids.unsqueeze(1)?.expand([count, length])?.reshape([count * length])?;
        if let Some(weights) = weights.filter(|w| w.shape() != input.shape()) {
            let e = wrong("the weights have the shape of the input", "per_sample_weights", weights);
            return Err(e.operand("input", input.shape(), input.dtype(), input.device()));
        }
        let weights = match weights {
            Some(weights) => Some(weights.reshape([count * length])?),
            None => None,
        };
        self.combine(&input.reshape([count * length])?, &ids, count, weights.as_ref())
    }

    /// The bag of each index, and the number of bags.
    #[track_caller]
    fn bags(&self, input: &Tensor, offsets: &Tensor) -> Result<(Tensor, usize)> {
        let &[length] = input.shape() else {
            return Err(wrong("with offsets, the input is [l]", "input", input));
        };
        if offsets.rank() != 1 || !offsets.dtype().is_int() {
            return Err(wrong("the offsets are integers [bags]", "offsets", offsets));
        }
        let starts = offsets.detach().to_dtype(DType::I64)?.to_vec::<i64>()?;
        let bad = |m: String| Err(wrong(&m, "offsets", offsets));
        let mut ends = starts.iter().copied();
        if starts.first().is_some_and(|&first| first != 0) {
            return bad(format!("the first offset is {}; it is 0", starts[0])).here();
        }
        if let Some(pair) = starts.windows(2).find(|pair| pair[0] > pair[1]) {
            return bad(format!("offset {} follows {}; offsets do not fall", pair[1], pair[0])).here();
        }
        if ends.next_back().is_some_and(|last| last > length as i64) {
            return bad(format!("offset {} is beyond {length} indices", starts[starts.len() - 1])).here();
        }
        let count = match (self.include_last_offset, starts.last()) {
            (true, Some(&last)) if last != length as i64 => {
                return bad(format!("the last offset is {last}; it is the number of indices, {length}")).here();
            }
            (true, None) => return bad("there are no offsets; the last is the number of indices".into()).here(),
            (true, Some(_)) => starts.len() - 1,
            (false, _) => starts.len(),
        };
        if count == 0 && length > 0 {
            return bad(format!("{length} indices are in no bag")).here();
        }
        let starts = offsets.detach().to_dtype(DType::I64)?.narrow(0, 0, count)?;
        let places = Tensor::arange(0, length as i64, 1, DType::I64, offsets.device())?;
        Ok((starts.searchsorted(&places, true)?.sub(1)?, count))
    }

    /// Combines the rows `input [l]`, of which each belongs to the bag `ids [l]`.
    #[track_caller]
    fn combine(&self, input: &Tensor, ids: &Tensor, count: usize, weights: Option<&Tensor>) -> Result<Tensor> {
        if let Some(weights) = weights {
            if self.mode != BagMode::Sum {
                let e = Error::argument(OP, format!("weights with the mode {:?}; they belong to the sum", self.mode));
                return Err(e.help("set the mode to BagMode::Sum"));
            }
            if weights.shape() != input.shape() {
                let e = wrong("the weights have the shape of the input", "per_sample_weights", weights);
                return Err(e.operand("input", input.shape(), input.dtype(), input.device()));
            }
        }
        let rows = self.weight.embedding(input, self.padding_idx)?;
        let (mut rows, mut ids, mut weights) = (rows, ids.clone(), weights.cloned());
        if let Some(padding) = self.padding_idx {
            let counted = input.ne(padding as i64)?.nonzero()?.squeeze(1)?;
            (rows, ids) = (rows.index_select(0, &counted)?, ids.index_select(0, &counted)?);
            if let Some(all) = weights {
                weights = Some(all.index_select(0, &counted)?);
            }
        }
        if let Some(weights) = weights {
            rows = rows.mul(&weights.unsqueeze(1)?)?;
        }
        let empty = Tensor::zeros([count, self.embedding_dim], rows.dtype(), rows.device())?;
        let index = ids.unsqueeze(1)?.expand(rows.shape())?;
        match self.mode {
            BagMode::Sum => empty.index_add(0, &ids, &rows),
            BagMode::Mean => empty.scatter_reduce(0, &index, &rows, ScatterReduction::Mean, false),
            BagMode::Max => empty.scatter_reduce(0, &index, &rows, ScatterReduction::Amax, false),
        }
    }
}

#[track_caller]
fn wrong(message: &str, name: &str, t: &Tensor) -> Error {
    Error::shape(OP, message).operand(name, t.shape(), t.dtype(), t.device())
}

impl Forward for EmbeddingBag {
    /// Combines bags of one length, `[bags, l]`, without weights.
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.equal(input, None)
    }
}
