//! The losses, grouped by what they compare: classes, binary labels, distances, likelihoods, embeddings, sequences.
//!
//! Losses do not broadcast: prediction and target must have the same shape. Mixed dtypes promote. The mean over no
//! elements is NaN. All losses are differentiable to any order, with respect to the prediction and to a float target.

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

/// How the losses of the elements or rows are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// The losses are not combined, but returned as they are.
    None,
    /// Their mean. In a classification loss, the mean is weighted and leaves out ignored rows. The mean over nothing is
    /// NaN.
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

/// Fails if two operands have different shapes. The error shows both by name.
#[track_caller]
fn same_shape(op: &str, (a, x): (&str, &Tensor), (b, y): (&str, &Tensor)) -> Result<()> {
    if x.shape() == y.shape() {
        return Ok(());
    }
    let e = y.describe(x.describe(Error::shape(op, "shapes differ"), a), b);
    Err(e.help("a loss broadcasts nothing; reshape or expand one"))
}

/// Fails if a weight does not broadcast to the shape of the input.
#[track_caller]
fn fits(op: &str, (name, weight): (&str, &Tensor), input: &Tensor) -> Result<()> {
    if weight.layout().expand(*input.layout().shape()).is_ok() {
        return Ok(());
    }
    let e = Error::shape(op, format!("{name} does not broadcast to the input"));
    Err(weight.describe(input.describe(e, "input"), name))
}

/// Fails unless `ok`, with an error that shows the parameter and the wanted values.
#[track_caller]
fn parameter(op: &str, name: &str, value: f64, ok: bool, wanted: &str) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::argument(op, format!("{name} is {value:?}; it must be {wanted}"))) }
}

/// An elementwise loss of two tensors of the same shape and some numbers, combined as `reduction` says.
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
