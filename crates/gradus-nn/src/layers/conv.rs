//! [`Conv2d`].

use gradus_tensor::{Error, Result, Tensor};

use super::linear;
use crate::{Forward, Init, Module, Parameter};

/// Convolution of images: `[n, in_channels, h, w]` to `[n, out_channels, oh, ow]` with
/// `oh = (h + 2 padding - dilation (kernel - 1) - 1) / stride + 1`, rounded down.
///
/// `weight [out_channels, in_channels / groups, kh, kw]` and `bias [out_channels]` start uniform in `±1 / sqrt(fan_in)`,
/// `fan_in = in_channels / groups * kh * kw`, as in PyTorch.
///
/// ```
/// # use gradus_nn::{Conv2d, Conv2dConfig, Forward, Init}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = Conv2dConfig { stride: [2, 2], padding: [1, 1], ..Default::default() };
/// let conv = Conv2d::new(3, 8, [3, 3], config, &mut init)?;
/// assert_eq!(conv.forward(&Tensor::ones([1, 3, 8, 8], DType::F32, &device)?)?.shape(), [1, 8, 4, 4]);
/// assert!(Conv2d::new(3, 8, [3, 3], Conv2dConfig { groups: 2, ..config }, &mut init).is_err());
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Conv2d {
    in_channels: usize,
    out_channels: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
    /// `[out_channels, in_channels / groups, kh, kw]`
    pub weight: Parameter,
    /// `[out_channels]`
    pub bias: Option<Parameter>,
}

/// What a [`Conv2d`] has besides channels and kernel; the default is stride 1, no padding, one group, with a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2dConfig {
    /// Step between windows, `[vertical, horizontal]`, at least 1.
    pub stride: [usize; 2],
    /// Zeros around the image, on both sides.
    pub padding: [usize; 2],
    /// Step between the elements of a window, at least 1.
    pub dilation: [usize; 2],
    /// Groups of channels, which do not see each other; divides both numbers of channels.
    pub groups: usize,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Default for Conv2dConfig {
    fn default() -> Self {
        Conv2dConfig { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1, bias: true }
    }
}

impl Conv2d {
    /// A layer with new parameters. Errors for an empty kernel, a stride or dilation of 0, and groups that do not divide
    /// the channels.
    pub fn new(
        in_channels: usize,
        out_channels: usize,
        kernel: [usize; 2],
        config: Conv2dConfig,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        let Conv2dConfig { stride, padding, dilation, groups, bias } = config;
        for (name, values) in [("kernel", kernel), ("stride", stride), ("dilation", dilation)] {
            if values.contains(&0) {
                return Err(Error::argument("conv2d", format!("{name} {values:?} has a 0; each is at least 1")));
            }
        }
        if groups == 0 || !in_channels.is_multiple_of(groups) || !out_channels.is_multiple_of(groups) {
            let m = format!("{groups} groups do not divide {in_channels} input and {out_channels} output channels");
            return Err(Error::argument("conv2d", m));
        }
        let channels = in_channels / groups;
        let weight = linear::default_weight(&[out_channels, channels, kernel[0], kernel[1]], init)?;
        let fan_in = channels * kernel[0] * kernel[1];
        let bias = if bias { Some(linear::bias(out_channels, fan_in, init)?) } else { None };
        Ok(Conv2d { in_channels, out_channels, kernel, stride, padding, dilation, groups, weight, bias })
    }
}

impl Forward for Conv2d {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.conv2d(&self.weight, self.bias.as_deref(), self.stride, self.padding, self.dilation, self.groups)
    }
}
