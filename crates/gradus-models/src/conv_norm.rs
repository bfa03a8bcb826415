//! What the convolutional networks of torchvision are made of: convolutions with their initial weights, each followed by
//! batch normalisation.

use gradus_nn::init::{Fan, Gain};
use gradus_nn::{BatchNorm2d, BatchNormConfig, Conv2d, Conv2dConfig, Init, Parameter, Sequential};
use gradus_tensor::{Result, Tensor};

/// A convolution without a bias whose output is normalised. The padding keeps the size at stride 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConvNorm {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) groups: usize,
    pub(crate) norm: BatchNormConfig,
}

impl ConvNorm {
    /// The convolution. Its weights are drawn from a normal distribution with variance `2 / fan_out` (He et al., 2015).
    #[track_caller]
    pub(crate) fn conv(&self, init: &mut Init<'_>) -> Result<Conv2d> {
        let config = Conv2dConfig {
            stride: [self.stride; 2],
            padding: [(self.kernel - 1) / 2; 2],
            groups: self.groups,
            bias: false,
            ..Conv2dConfig::default()
        };
        kaiming_conv(self.inputs, self.outputs, self.kernel, config, init)
    }

    /// The normalisation.
    #[track_caller]
    pub(crate) fn norm(&self, init: &mut Init<'_>) -> Result<BatchNorm2d> {
        BatchNorm2d::new(self.outputs, self.norm, init)
    }

    /// Both, called `0` and `1`, as in torchvision's `Conv2dNormActivation`. The activation is to be added.
    #[track_caller]
    pub(crate) fn layers(&self, init: &mut Init<'_>) -> Result<Sequential> {
        Ok(Sequential::new().add(self.conv(init)?).add(self.norm(init)?))
    }
}

/// A convolution whose weights are drawn from a normal distribution with variance `2 / fan_out`, with a bias of zeros.
#[track_caller]
pub(crate) fn kaiming_conv(
    inputs: usize,
    outputs: usize,
    kernel: usize,
    config: Conv2dConfig,
    init: &mut Init<'_>,
) -> Result<Conv2d> {
    let mut conv = Conv2d::new(inputs, outputs, [kernel; 2], config, init)?;
    conv.weight = Parameter::new(init.kaiming_normal(conv.weight.values().shape(), Fan::Out, Gain::Relu)?)?;
    if conv.bias.is_some() {
        conv.bias = Some(Parameter::new(init.zeros([outputs])?)?);
    }
    Ok(conv)
}

/// `channels * factor` as torchvision rounds it: to the nearest multiple of 8, and up if that is less than 90 %.
pub(crate) fn make_divisible(channels: f64) -> usize {
    let rounded = (((channels + 4.0) / 8.0).floor() * 8.0).max(8.0);
    let rounded = if rounded < 0.9 * channels { rounded + 8.0 } else { rounded };
    rounded as usize
}

/// The mean over the pixels: `[n, c, h, w]` to `[n, c]`.
#[track_caller]
pub(crate) fn pooled(x: &Tensor) -> Result<Tensor> {
    x.mean(&[2, 3], false)
}
