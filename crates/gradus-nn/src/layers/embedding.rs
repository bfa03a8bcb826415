//! The [`Embedding`] layer.

use std::panic::Location;

use gradus_tensor::{Error, Here, Result, Tensor, no_grad};

use super::weighted::Weighted;
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
        check_padding("embedding", padding_idx, num_embeddings)?;
        let weight = Parameter::new(table(num_embeddings, embedding_dim, padding_idx, init)?)?;
        Ok(Embedding { num_embeddings, embedding_dim, padding_idx, weight })
    }

    /// Creates a table from existing rows, `weight [num_embeddings, embedding_dim]`. Pass a clone of another layer's
    /// weight to tie the two. [`freeze`](Parameter::freeze) the weight to keep the rows as they are. Errors if the
    /// weight is not a matrix, or if the padding index is outside of it.
    #[track_caller]
    pub fn from_parameters(weight: Parameter, padding_idx: Option<usize>) -> Result<Self> {
        let &[num_embeddings, embedding_dim] = weight.shape() else {
            let e = Error::shape("embedding", "a weight is [num_embeddings, embedding_dim]");
            return Err(e.operand("weight", weight.shape(), weight.dtype(), weight.device()));
        };
        check_padding("embedding", padding_idx, num_embeddings)?;
        Ok(Embedding { num_embeddings, embedding_dim, padding_idx, weight })
    }

    /// The row that receives no gradient.
    pub fn padding_idx(&self) -> Option<usize> {
        self.padding_idx
    }
}

impl Forward for Embedding {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.compute_with(&self.weight, input)
    }
}

impl Weighted for Embedding {
    fn weight(&self) -> &Parameter {
        &self.weight
    }

    #[track_caller]
    fn compute_with(&self, weight: &Tensor, input: &Tensor) -> Result<Tensor> {
        match self.weight.division() {
            None => weight.embedding(input, self.padding_idx),
            Some(division) => division.embedding(weight, input, self.padding_idx, Location::caller()).here(),
        }
    }
}

/// Fails if the padding index is not a row of the table.
#[track_caller]
pub(super) fn check_padding(op: &str, padding_idx: Option<usize>, rows: usize) -> Result<()> {
    match padding_idx.filter(|&row| row >= rows) {
        Some(row) => Err(Error::argument(op, format!("padding index {row} is outside the table of {rows} rows"))),
        None => Ok(()),
    }
}

/// A new table of standard normal values, with zeros in the row `padding_idx`.
#[track_caller]
pub(super) fn table(rows: usize, dim: usize, padding_idx: Option<usize>, init: &mut Init<'_>) -> Result<Tensor> {
    let weight = init.normal([rows, dim], 0.0, 1.0)?;
    if let Some(row) = padding_idx {
        no_grad(|| weight.narrow(0, row, 1)?.fill_(0))?;
    }
    Ok(weight)
}
