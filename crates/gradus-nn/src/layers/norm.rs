//! The normalisation layers [`RmsNorm`], [`GroupNorm`] and [`InstanceNorm`].

use gradus_tensor::{Error, Result, Tensor};

use crate::{Forward, Init, Module, Parameter};

#[track_caller]
fn check_eps(op: &str, eps: f64) -> Result<()> {
    if eps > 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(Error::argument(op, format!("eps is {eps}; it is above 0")))
}

/// A weight of ones and a bias of zeros, if `affine` is set.
#[track_caller]
fn affine(size: usize, affine: bool, init: &Init<'_>) -> Result<(Option<Parameter>, Option<Parameter>)> {
    if !affine {
        return Ok((None, None));
    }
    Ok((Some(Parameter::new(init.ones([size])?)?), Some(Parameter::new(init.zeros([size])?)?)))
}

/// RMS normalisation (Zhang and Sennrich, 2019): divides the trailing axes of each sample by the root of their mean
/// square, then multiplies by `weight`. The input is `[.., normalized_shape]`; the output has the same shape.
#[derive(Clone, Module)]
pub struct RmsNorm {
    normalized_shape: Vec<usize>,
    eps: f64,
    /// Scale, of shape `normalized_shape`, initially 1.
    pub weight: Option<Parameter>,
}

/// Options of [`RmsNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsNormConfig {
    /// Added to the mean square; above 0. The default is the machine epsilon of f32. PyTorch has the same default for
    /// f32 and half precision, but uses the epsilon of f64 for f64.
    pub eps: f64,
    /// Whether the layer has a weight. Default true.
    pub weight: bool,
}

impl Default for RmsNormConfig {
    fn default() -> Self {
        RmsNormConfig { eps: f64::from(f32::EPSILON), weight: true }
    }
}

impl RmsNorm {
    /// Creates a layer that normalises the trailing axes. `normalized_shape` holds their sizes and must not be empty.
    #[track_caller]
    pub fn new(normalized_shape: impl AsRef<[usize]>, config: RmsNormConfig, init: &mut Init<'_>) -> Result<Self> {
        let shape = normalized_shape.as_ref();
        if shape.is_empty() {
            return Err(Error::argument("rms_norm", "the normalised shape has no axes"));
        }
        check_eps("rms_norm", config.eps)?;
        let weight = if config.weight { Some(Parameter::new(init.ones(shape)?)?) } else { None };
        Ok(RmsNorm { normalized_shape: shape.to_vec(), eps: config.eps, weight })
    }
}

impl Forward for RmsNorm {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.rms_norm(&self.normalized_shape, self.weight.as_deref(), self.eps)
    }
}

/// Group normalisation (Wu and He, 2018): normalises each group of channels of each sample to mean 0 and (biased)
/// variance 1, then computes `* weight + bias`. The input is `[n, c, ..]`; the output has the same shape.
#[derive(Clone, Module)]
pub struct GroupNorm {
    num_groups: usize,
    num_channels: usize,
    eps: f64,
    /// Scale of each channel, `[c]`, initially 1.
    pub weight: Option<Parameter>,
    /// Shift of each channel, `[c]`, initially 0.
    pub bias: Option<Parameter>,
}

/// Options of [`GroupNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNormConfig {
    /// Added to the variance; above 0. Default 1e-5.
    pub eps: f64,
    /// Whether the layer has a weight and a bias. Default true.
    pub affine: bool,
}

impl Default for GroupNormConfig {
    fn default() -> Self {
        GroupNormConfig { eps: 1e-5, affine: true }
    }
}

impl GroupNorm {
    /// Creates a layer for `num_channels` channels in `num_groups` groups. `num_groups` must divide `num_channels`.
    #[track_caller]
    pub fn new(num_groups: usize, num_channels: usize, config: GroupNormConfig, init: &mut Init<'_>) -> Result<Self> {
        check_eps("group_norm", config.eps)?;
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            let m = format!("{num_groups} groups do not divide {num_channels} channels");
            return Err(Error::argument("group_norm", m));
        }
        let (weight, bias) = affine(num_channels, config.affine, init)?;
        Ok(GroupNorm { num_groups, num_channels, eps: config.eps, weight, bias })
    }
}

impl Forward for GroupNorm {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        check_channels("group_norm", input, self.num_channels)?;
        input.group_norm(self.num_groups, self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }
}

/// Instance normalisation (Ulyanov et al., 2016): normalises each channel of each sample to mean 0 and (biased)
/// variance 1, both in training and in evaluation. The input is `[n, c, spatial..]`; the output has the same shape.
#[derive(Clone, Module)]
pub struct InstanceNorm {
    num_features: usize,
    eps: f64,
    /// Scale of each channel, `[c]`, initially 1.
    pub weight: Option<Parameter>,
    /// Shift of each channel, `[c]`, initially 0.
    pub bias: Option<Parameter>,
}

/// Options of [`InstanceNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InstanceNormConfig {
    /// Added to the variance; above 0. Default 1e-5.
    pub eps: f64,
    /// Whether the layer has a weight and a bias. Default false, as in PyTorch.
    pub affine: bool,
}

impl Default for InstanceNormConfig {
    fn default() -> Self {
        InstanceNormConfig { eps: 1e-5, affine: false }
    }
}

impl InstanceNorm {
    /// Creates a layer for `num_features` channels.
    #[track_caller]
    pub fn new(num_features: usize, config: InstanceNormConfig, init: &mut Init<'_>) -> Result<Self> {
        check_eps("instance_norm", config.eps)?;
        let (weight, bias) = affine(num_features, config.affine, init)?;
        Ok(InstanceNorm { num_features, eps: config.eps, weight, bias })
    }
}

impl Forward for InstanceNorm {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        check_channels("instance_norm", input, self.num_features)?;
        input.instance_norm(self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }
}

#[track_caller]
fn check_channels(op: &str, input: &Tensor, channels: usize) -> Result<()> {
    if input.rank() >= 2 && input.shape()[1] == channels {
        return Ok(());
    }
    let e = Error::shape(op, format!("the input is [n, {channels}, ..]"));
    Err(e.operand("input", input.shape(), input.dtype(), input.device()))
}
