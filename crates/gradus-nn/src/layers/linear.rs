//! The [`Linear`] layer.

use std::panic::Location;

use gradus_tensor::{Here, Result, Tensor};

use super::weighted::Weighted;
use crate::init::{Fan, Gain};
use crate::{Forward, Init, Module, Parameter};

/// A fully connected layer, `y = x W^T + b`: `[.., in_features]` to `[.., out_features]`.
///
/// `weight [out_features, in_features]` and `bias [out_features]` are initialised uniformly in
/// `±1 / sqrt(in_features)`, as in PyTorch.
///
/// ```
/// # use gradus_nn::{Forward, Init, Linear}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// let layer = Linear::new(20, 30, &mut Init::new(DType::F32, &device, &mut generator))?;
/// let x = Tensor::ones([128, 20], DType::F32, &device)?;
/// assert_eq!(layer.forward(&x)?.shape(), [128, 30]);
/// assert_eq!(layer.to_string(), "Linear(in_features=20, out_features=30)");
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Linear {
    in_features: usize,
    out_features: usize,
    /// `[out_features, in_features]`
    pub weight: Parameter,
    /// `[out_features]`
    pub bias: Option<Parameter>,
}

impl Linear {
    /// Creates a layer with a bias.
    #[track_caller]
    pub fn new(in_features: usize, out_features: usize, init: &mut Init<'_>) -> Result<Self> {
        let mut layer = Self::without_bias(in_features, out_features, init)?;
        layer.bias = Some(bias(out_features, in_features, init)?);
        Ok(layer)
    }

    /// Creates a layer without a bias.
    #[track_caller]
    pub fn without_bias(in_features: usize, out_features: usize, init: &mut Init<'_>) -> Result<Self> {
        let weight = default_weight(&[out_features, in_features], init)?;
        Ok(Linear { in_features, out_features, weight, bias: None })
    }

    /// Creates a layer from existing parameters, `weight [out, in]` and `bias [out]`. Pass a clone of another layer's
    /// weight to tie the two. Errors if the weight is not a matrix; a bias that does not fit is reported by
    /// [`forward`](Forward::forward).
    #[track_caller]
    pub fn from_parameters(weight: Parameter, bias: Option<Parameter>) -> Result<Self> {
        let &[out_features, in_features] = weight.shape() else {
            let e = gradus_tensor::Error::shape("linear", "a weight is [out_features, in_features]");
            return Err(e.operand("weight", weight.shape(), weight.dtype(), weight.device()));
        };
        Ok(Linear { in_features, out_features, weight, bias })
    }
}

impl Forward for Linear {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.compute_with(&self.weight, input)
    }
}

impl Weighted for Linear {
    fn weight(&self) -> &Parameter {
        &self.weight
    }

    #[track_caller]
    fn compute_with(&self, weight: &Tensor, input: &Tensor) -> Result<Tensor> {
        match self.weight.division() {
            None => input.linear(weight, self.bias.as_deref()),
            Some(division) => division.linear(input, weight, self.bias.as_ref(), 0, Location::caller()).here(),
        }
    }
}

/// PyTorch's default for weights: `kaiming_uniform` with the gain of a leaky ReLU of slope `sqrt(5)`, which amounts to
/// uniform in `±1 / sqrt(fan_in)`.
#[track_caller]
pub(super) fn default_weight(shape: &[usize], init: &mut Init<'_>) -> Result<Parameter> {
    Parameter::new(init.kaiming_uniform(shape, Fan::In, Gain::LeakyRelu(5f64.sqrt()))?)
}

/// PyTorch's default for biases: uniform in `±1 / sqrt(fan_in)`.
#[track_caller]
pub(super) fn bias(size: usize, fan_in: usize, init: &mut Init<'_>) -> Result<Parameter> {
    let bound = if fan_in > 0 { 1.0 / (fan_in as f64).sqrt() } else { 0.0 };
    Parameter::new(init.uniform([size], -bound, bound)?)
}
