//! The [`LayerNorm`] layer.

use gradus_tensor::{Error, Result, Tensor};

use super::norm::check_eps;
use crate::{Forward, Init, Module, Parameter};

/// Layer normalisation (Ba et al., 2016): normalises the trailing axes of each sample to mean 0 and (biased) variance
/// 1, then computes `* weight + bias`. The input is `[.., normalized_shape]`; the output has the same shape.
#[derive(Clone, Module)]
pub struct LayerNorm {
    normalized_shape: Vec<usize>,
    eps: f64,
    /// Scale, of shape `normalized_shape`, initially 1.
    pub weight: Option<Parameter>,
    /// Shift, of shape `normalized_shape`, initially 0.
    pub bias: Option<Parameter>,
}

/// Options of [`LayerNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNormConfig {
    /// Added to the variance; above 0. Default 1e-5.
    pub eps: f64,
    /// Whether the layer has a weight. Default true.
    pub weight: bool,
    /// Whether the layer has a bias. Default true.
    pub bias: bool,
}

impl Default for LayerNormConfig {
    fn default() -> Self {
        LayerNormConfig { eps: 1e-5, weight: true, bias: true }
    }
}

impl LayerNorm {
    /// Creates a layer that normalises the trailing axes. `normalized_shape` holds their sizes and must not be empty.
    #[track_caller]
    pub fn new(normalized_shape: impl AsRef<[usize]>, config: LayerNormConfig, init: &mut Init<'_>) -> Result<Self> {
        let shape = normalized_shape.as_ref();
        if shape.is_empty() {
            return Err(Error::argument("layer_norm", "the normalised shape has no axes"));
        }
        check_eps("layer_norm", config.eps)?;
        let weight = if config.weight { Some(Parameter::new(init.ones(shape)?)?) } else { None };
        let bias = if config.bias { Some(Parameter::new(init.zeros(shape)?)?) } else { None };
        Ok(LayerNorm { normalized_shape: shape.to_vec(), eps: config.eps, weight, bias })
    }
}

impl Forward for LayerNorm {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.layer_norm(&self.normalized_shape, self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }
}
