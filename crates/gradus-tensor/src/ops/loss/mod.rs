//! The losses, by what they compare: classes, yes or no, distances, likelihoods, embeddings, sequences.
//!
//! They broadcast nothing: prediction and target have one shape. Mixed dtypes promote. The mean of nothing is NaN. All
//! are differentiable to any order, for the prediction and for a float target alike.

mod binary;
mod class;
mod ctc;
mod distance;
mod likelihood;
mod margin;

use gradus_backend::{Error, Result};

use super::{Elementwise, Operand};
use crate::Tensor;

pub use class::Target;

/// How the losses of the elements or rows combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// The losses as they are.
    None,
    /// Their mean (over the rows that are not ignored, by their weights; NaN if there are none).
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

impl Reduction {
    /// Combines losses.
    #[track_caller]
    pub fn apply(self, losses: &Tensor) -> Result<Tensor> {
        match self {
            Reduction::None => Ok(losses.clone()),
            Reduction::Mean => losses.mean_all(),
            Reduction::Sum => losses.sum_all(),
        }
    }
}

/// Refuses operands of different shapes, named in the error.
#[track_caller]
fn same_shape(op: &str, (a, x): (&str, &Tensor), (b, y): (&str, &Tensor)) -> Result<()> {
    if x.shape() == y.shape() {
        return Ok(());
    }
    let e = y.describe(x.describe(Error::shape(op, "shapes differ"), a), b);
    Err(e.help("a loss broadcasts nothing; reshape or expand one"))
}

/// Refuses a weight that does not broadcast to the shape of the losses.
#[track_caller]
fn fits(op: &str, (name, weight): (&str, &Tensor), input: &Tensor) -> Result<()> {
    if weight.layout().expand(*input.layout().shape()).is_ok() {
        return Ok(());
    }
    let e = Error::shape(op, format!("{name} does not broadcast to the input"));
    Err(weight.describe(input.describe(e, "input"), name))
}

/// Refuses a parameter, unless `ok`.
#[track_caller]
fn parameter(op: &str, name: &str, value: f64, ok: bool, wanted: &str) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::argument(op, format!("{name} is {value:?}; it must be {wanted}"))) }
}

/// An elementwise loss of two tensors of one shape and numbers, combined.
#[track_caller]
fn pointwise(
    op: &'static Elementwise,
    input: &Tensor,
    target: &Tensor,
    numbers: &[f64],
    reduction: Reduction,
) -> Result<Tensor> {
    same_shape(op.name(), ("input", input), ("target", target))?;
    let mut operands = vec![Operand::Tensor(input), Operand::Tensor(target)];
    operands.extend(numbers.iter().map(|&v| Operand::from(v)));
    reduction.apply(&op.apply(&operands)?)
}
