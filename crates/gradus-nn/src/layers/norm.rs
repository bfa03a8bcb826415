//! [`RmsNorm`], [`GroupNorm`] and [`InstanceNorm`].

use gradus_tensor::{Error, Result, Tensor};

use crate::{Forward, Init, Module, Parameter};

#[track_caller]
fn check_eps(op: &str, eps: f64) -> Result<()> {
    if eps > 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(Error::argument(op, format!("eps is {eps}; it is above 0")))
}

/// Weight 1 and bias 0, if there are any.
#[track_caller]
fn affine(size: usize, affine: bool, init: &Init<'_>) -> Result<(Option<Parameter>, Option<Parameter>)> {
    if !affine {
        return Ok((None, None));
    }
    Ok((Some(Parameter::new(init.ones([size])?)?), Some(Parameter::new(init.zeros([size])?)?)))
}

/// Division by the root of the mean square over the trailing axes of each sample, then `* weight` (Zhang and Sennrich,
/// 2019): `[.., normalized_shape]` to the same shape.
#[derive(Clone, Module)]
pub struct RmsNorm {
    normalized_shape: Vec<usize>,
    eps: f64,
    /// Of the normalised shape, 1 at first.
    pub weight: Option<Parameter>,
}

/// Options of [`RmsNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsNormConfig {
    /// Added to the mean square; above 0. The default is the machine epsilon of f32, as in PyTorch for
    /// f32 and half precision; for f64 PyTorch takes that of f64.
    pub eps: f64,
    /// Whether there is a weight. Default true.
    pub weight: bool,
}

impl Default for RmsNormConfig {
    fn default() -> Self {
        RmsNormConfig { eps: f64::from(f32::EPSILON), weight: true }
    }
}

impl RmsNorm {
    /// A layer that normalises the trailing axes of these sizes, at least one.
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

/// Normalisation of each group of channels of each sample to mean 0 and variance 1 (biased), then `* weight + bias` (Wu and
/// He, 2018): `[n, c, ..]` to the same shape.
#[derive(Clone, Module)]
pub struct GroupNorm {
    num_groups: usize,
    num_channels: usize,
    eps: f64,
    /// Scale of each channel, `[c]`, 1 at first.
    pub weight: Option<Parameter>,
    /// Shift of each channel, `[c]`, 0 at first.
    pub bias: Option<Parameter>,
}

/// Options of [`GroupNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNormConfig {
    /// Added to the variance; above 0. Default 1e-5.
    pub eps: f64,
    /// Whether there are weight and bias. Default true.
    pub affine: bool,
}

impl Default for GroupNormConfig {
    fn default() -> Self {
        GroupNormConfig { eps: 1e-5, affine: true }
    }
}

impl GroupNorm {
    /// A layer for `num_channels` channels in `num_groups` groups, which divide them.
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

/// Normalisation of each channel of each sample to mean 0 and variance 1 (biased), in training and in evaluation (Ulyanov
/// et al., 2016): `[n, c, spatial..]` to the same shape.
#[derive(Clone, Module)]
pub struct InstanceNorm {
    num_features: usize,
    eps: f64,
    /// Scale of each channel, `[c]`, 1 at first.
    pub weight: Option<Parameter>,
    /// Shift of each channel, `[c]`, 0 at first.
    pub bias: Option<Parameter>,
}

/// Options of [`InstanceNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InstanceNormConfig {
    /// Added to the variance; above 0. Default 1e-5.
    pub eps: f64,
    /// Whether there are weight and bias. Default false, as in PyTorch.
    pub affine: bool,
}

impl Default for InstanceNormConfig {
    fn default() -> Self {
        InstanceNormConfig { eps: 1e-5, affine: false }
    }
}

impl InstanceNorm {
    /// A layer for `num_features` channels.
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
