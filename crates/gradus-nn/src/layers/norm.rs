//! The normalisation layers [`RmsNorm`], [`GroupNorm`], [`InstanceNorm`] and [`LocalResponseNorm`].

use gradus_tensor::{Error, Result, Tensor, autograd, no_grad_guard};

use super::running::{Buffers, shift};
use crate::{Buffer, Forward, Init, Mode, Module, Parameter};

/// Refuses an `eps` that is not above 0 and finite.
#[track_caller]
pub(super) fn check_eps(op: &str, eps: f64) -> Result<()> {
    if eps > 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(Error::argument(op, format!("eps is {eps}; it is above 0")))
}

#[track_caller]
pub(super) fn check_momentum(op: &str, momentum: f64) -> Result<()> {
    if (0.0..=1.0).contains(&momentum) {
        return Ok(());
    }
    Err(Error::argument(op, format!("momentum is {momentum}; it is 0 to 1")))
}

/// Creates the parameters of an affine norm: a weight of ones if `weight` is set, and a bias of zeros if `bias` is set
/// as well.
#[track_caller]
pub(super) fn affine(
    size: usize,
    weight: bool,
    bias: bool,
    init: &Init<'_>,
) -> Result<(Option<Parameter>, Option<Parameter>)> {
    let ones = if weight { Some(Parameter::new(init.ones([size])?)?) } else { None };
    let zeros = if weight && bias { Some(Parameter::new(init.zeros([size])?)?) } else { None };
    Ok((ones, zeros))
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
    /// Whether the layer has a weight, and a bias unless that is left out. Default true.
    pub affine: bool,
    /// Whether the layer has a bias, if it is affine. Default true.
    pub bias: bool,
}

impl Default for GroupNormConfig {
    fn default() -> Self {
        GroupNormConfig { eps: 1e-5, affine: true, bias: true }
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
        let (weight, bias) = affine(num_channels, config.affine, config.bias, init)?;
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
///
/// A layer that tracks running statistics updates them in training, `running = (1 - momentum) * running + momentum *
/// batch`, where the statistics of a batch are the means over its samples (the variances unbiased). In evaluation it
/// normalises with the running statistics instead.
#[derive(Clone, Module)]
pub struct InstanceNorm {
    num_features: usize,
    eps: f64,
    momentum: f64,
    /// Scale of each channel, `[c]`, initially 1.
    pub weight: Option<Parameter>,
    /// Shift of each channel, `[c]`, initially 0.
    pub bias: Option<Parameter>,
    /// Running mean of each channel, `[c]`, initially 0.
    pub running_mean: Option<Buffer>,
    /// Running variance of each channel, `[c]`, initially 1.
    pub running_var: Option<Buffer>,
    /// Stays 0, as in PyTorch; i64.
    pub num_batches_tracked: Option<Buffer>,
    mode: Mode,
}

/// Options of [`InstanceNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InstanceNormConfig {
    /// Added to the variance; above 0. Default 1e-5.
    pub eps: f64,
    /// Weight of the new batch in the running statistics, 0 to 1. Default 0.1.
    pub momentum: f64,
    /// Whether the layer has a weight, and a bias unless that is left out. Default false, as in PyTorch.
    pub affine: bool,
    /// Whether the layer has a bias, if it is affine. Default true.
    pub bias: bool,
    /// Whether the layer has running statistics. Default false, as in PyTorch.
    pub track_running_stats: bool,
}

impl Default for InstanceNormConfig {
    fn default() -> Self {
        InstanceNormConfig { eps: 1e-5, momentum: 0.1, affine: false, bias: true, track_running_stats: false }
    }
}

impl InstanceNorm {
    /// Creates a layer for `num_features` channels.
    #[track_caller]
    pub fn new(num_features: usize, config: InstanceNormConfig, init: &mut Init<'_>) -> Result<Self> {
        let InstanceNormConfig { eps, momentum, affine: has_weight, bias: has_bias, track_running_stats } = config;
        check_eps("instance_norm", eps)?;
        check_momentum("instance_norm", momentum)?;
        let (weight, bias) = affine(num_features, has_weight, has_bias, init)?;
        let Buffers { mean, var, count } = Buffers::new(num_features, track_running_stats, init)?;
        Ok(InstanceNorm {
            num_features,
            eps,
            momentum,
            weight,
            bias,
            running_mean: mean,
            running_var: var,
            num_batches_tracked: count,
            mode: Mode::Train,
        })
    }

    /// Updates the running statistics with those of a batch.
    #[track_caller]
    fn update(&self, input: &Tensor, mean: &Buffer, var: &Buffer) -> Result<()> {
        let _guard = no_grad_guard();
        let spatial: Vec<isize> = (2..input.rank() as isize).collect();
        let wide = input.to_dtype(input.dtype().compute())?;
        let (batch_var, batch_mean) = wide.var_mean(&spatial, 1, false)?;
        shift(mean, &batch_mean.mean(&[0], false)?, self.momentum.into())?;
        shift(var, &batch_var.mean(&[0], false)?, self.momentum.into())
    }
}

impl Forward for InstanceNorm {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        check_channels("instance_norm", input, self.num_features)?;
        let (weight, bias) = (self.weight.as_deref(), self.bias.as_deref());
        let running = self.running_mean.as_ref().zip(self.running_var.as_ref());
        if let Some((mean, var)) = running.filter(|_| !self.mode.is_training()) {
            return input.batch_norm_eval(&mean.tensor(), &var.tensor(), weight, bias, self.eps);
        }
        let y = input.instance_norm(weight, bias, self.eps)?;
        if let Some((mean, var)) = running {
            autograd::once(|| self.update(input, mean, var))?;
        }
        Ok(y)
    }
}

/// Local response normalisation (Krizhevsky et al., 2012): divides each element of `[n, c, spatial..]` by
/// `(k + alpha * mean(x^2))^beta`, where the mean runs over `size` neighbouring channels. See
/// [`Tensor::local_response_norm`].
#[derive(Debug, Clone, Copy, PartialEq, Module)]
pub struct LocalResponseNorm {
    /// The number of channels in a mean, at least 1.
    pub size: usize,
    /// The factor of the mean. PyTorch's default is 1e-4.
    pub alpha: f64,
    /// The exponent. PyTorch's default is 0.75.
    pub beta: f64,
    /// Added to the mean. PyTorch's default is 1.
    pub k: f64,
}

impl LocalResponseNorm {
    /// Creates a layer over `size` channels with PyTorch's defaults.
    pub fn new(size: usize) -> Self {
        LocalResponseNorm { size, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }
}

impl Forward for LocalResponseNorm {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.local_response_norm(self.size, self.alpha, self.beta, self.k)
    }
}

#[track_caller]
pub(super) fn check_channels(op: &str, input: &Tensor, channels: usize) -> Result<()> {
    if input.rank() >= 2 && input.shape()[1] == channels {
        return Ok(());
    }
    let e = Error::shape(op, format!("the input is [n, {channels}, ..]"));
    Err(e.operand("input", input.shape(), input.dtype(), input.device()))
}
