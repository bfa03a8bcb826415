//! The [`Embedding`] layer.

use gradus_tensor::{Error, Result, Tensor, no_grad};

use crate::{Forward, Init, Module, Parameter};

/// A table of vectors: looks up indices `[..]` (i64, i32 or u32) and returns `[.., embedding_dim]`.
///
/// The rows are initialised from a normal distribution with mean 0 and standard deviation 1. The row `padding_idx` is
/// initialised to 0 and receives no gradient. An index outside the table is an error.
#[derive(Clone, Module)]
pub struct Embedding {
    num_embeddings: usize,
    embedding_dim: usize,
    padding_idx: Option<usize>,
    /// `[num_embeddings, embedding_dim]`
    pub weight: Parameter,
}

impl Embedding {
    /// Creates a table with new rows.
    #[track_caller]
    pub fn new(
        num_embeddings: usize,
        embedding_dim: usize,
        padding_idx: Option<usize>,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        if let Some(row) = padding_idx.filter(|&row| row >= num_embeddings) {
            let m = format!("padding index {row} is outside the table of {num_embeddings} rows");
            return Err(Error::argument("embedding", m));
        }
        let weight = init.normal([num_embeddings, embedding_dim], 0.0, 1.0)?;
        if let Some(row) = padding_idx {
            no_grad(|| weight.narrow(0, row, 1)?.fill_(0))?;
        }
        Ok(Embedding { num_embeddings, embedding_dim, padding_idx, weight: Parameter::new(weight)? })
    }
}

impl Forward for Embedding {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.weight.embedding(input, self.padding_idx)
    }
}
