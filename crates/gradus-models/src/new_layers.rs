//! Layers with normally distributed weights and biases of 0.

use gradus_nn::{Embedding, Init, Linear, Parameter};
use gradus_tensor::{Result, no_grad};

/// A fully connected layer with weights of this standard deviation and a bias of zeros.
#[track_caller]
pub(crate) fn normal_linear(inputs: usize, outputs: usize, std: f64, init: &mut Init<'_>) -> Result<Linear> {
    let mut layer = normal_linear_without_bias(inputs, outputs, std, init)?;
    layer.bias = Some(Parameter::new(init.zeros([outputs])?)?);
    Ok(layer)
}

/// A fully connected layer without a bias.
#[track_caller]
pub(crate) fn normal_linear_without_bias(
    inputs: usize,
    outputs: usize,
    std: f64,
    init: &mut Init<'_>,
) -> Result<Linear> {
    Linear::from_parameters(Parameter::new(init.normal([outputs, inputs], 0.0, std)?)?, None)
}

/// A table whose rows have this standard deviation. The row `padding` is zeros.
#[track_caller]
pub(crate) fn normal_embedding(
    rows: usize,
    dim: usize,
    padding: Option<usize>,
    std: f64,
    init: &mut Init<'_>,
) -> Result<Embedding> {
    let table = init.normal([rows, dim], 0.0, std)?;
    if let Some(row) = padding.filter(|&row| row < rows) {
        no_grad(|| table.narrow(0, row, 1)?.fill_(0))?;
    }
    Embedding::from_parameters(Parameter::new(table)?, padding)
}
