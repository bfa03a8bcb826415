//! [`MobileNetV3`], with torchvision's names.

use gradus_nn::{BatchNormConfig, Conv2d, Conv2dConfig, Dropout, Forward, Hardswish, Init, Module, Relu, Sequential};
use gradus_tensor::{Result, Tensor};

use crate::checks;
use crate::conv_norm::{ConvNorm, kaiming_conv, make_divisible, pooled};
use crate::mobilenet_v2::check_width;
use crate::new_layers::normal_linear;

const OP: &str = "mobilenet_v3";

/// A small convolutional network of inverted residuals with squeeze and excitation (Howard et al., 2019):
/// `[n, in_channels, h, w]` to `[n, num_classes]`, for images of any size.
///
/// Parameters have the names, shapes and initial distributions of torchvision's `mobilenet_v3_small` and
/// `mobilenet_v3_large`: `features.0.0.weight`, `features.1.block.1.fc1.weight`, `classifier.3.weight`.
///
/// ```
/// # use gradus_models::{MobileNetV3, MobileNetV3Config}; use gradus_nn::{Forward, Init}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// // For images of 32 x 32 pixels: the first layer keeps the size.
/// let config = MobileNetV3Config { num_classes: 10, width_mult: 0.25, stem_stride: 1, ..MobileNetV3Config::small() };
/// let model = MobileNetV3::new(config, &mut init)?;
/// assert_eq!(model.forward(&Tensor::zeros([2, 3, 32, 32], DType::F32, &device)?)?.shape(), [2, 10]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Module)]
pub struct MobileNetV3 {
    in_channels: usize,
    /// The convolutions: the first layer, the blocks, and a last layer.
    pub features: Sequential,
    /// Two layers, from the means of the channels to the classes, with dropout in between.
    pub classifier: Sequential,
}

/// The numbers of a [`MobileNetV3`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MobileNetV3Config {
    /// Whether it is the larger one of the two networks of the paper.
    pub large: bool,
    /// The number of classes. Default 1000.
    pub num_classes: usize,
    /// The channels of the images. Default 3.
    pub in_channels: usize,
    /// The factor of the numbers of channels. Default 1.
    pub width_mult: f64,
    /// The stride of the first layer, 1 for images of about 32 x 32 pixels. Default 2.
    pub stem_stride: usize,
    /// The probability of dropout before the last layer. Default 0.2.
    pub dropout: f64,
}

impl MobileNetV3Config {
    /// The config of the smaller network.
    pub fn small() -> Self {
        let (width_mult, dropout) = (1.0, 0.2);
        MobileNetV3Config { large: false, num_classes: 1000, in_channels: 3, width_mult, stem_stride: 2, dropout }
    }

    /// The config of the larger network.
    pub fn large() -> Self {
        MobileNetV3Config { large: true, ..Self::small() }
    }
}

/// The row of a block in the tables of the paper.
#[derive(Clone, Copy)]
struct Row {
    kernel: usize,
    inside: usize,
    outputs: usize,
    squeezes: bool,
    hardswish: bool,
    stride: usize,
}

const fn row(kernel: usize, inside: usize, outputs: usize, squeezes: bool, hardswish: bool, stride: usize) -> Row {
    Row { kernel, inside, outputs, squeezes, hardswish, stride }
}

/// Table 1 of the paper.
const LARGE: [Row; 15] = [
    row(3, 16, 16, false, false, 1),
    row(3, 64, 24, false, false, 2),
    row(3, 72, 24, false, false, 1),
    row(5, 72, 40, true, false, 2),
    row(5, 120, 40, true, false, 1),
    row(5, 120, 40, true, false, 1),
    row(3, 240, 80, false, true, 2),
    row(3, 200, 80, false, true, 1),
    row(3, 184, 80, false, true, 1),
    row(3, 184, 80, false, true, 1),
    row(3, 480, 112, true, true, 1),
    row(3, 672, 112, true, true, 1),
    row(5, 672, 160, true, true, 2),
    row(5, 960, 160, true, true, 1),
    row(5, 960, 160, true, true, 1),
];

/// Table 2 of the paper.
const SMALL: [Row; 11] = [
    row(3, 16, 16, true, false, 2),
    row(3, 72, 24, false, false, 2),
    row(3, 88, 24, false, false, 1),
    row(5, 96, 40, true, true, 2),
    row(5, 240, 40, true, true, 1),
    row(5, 240, 40, true, true, 1),
    row(5, 120, 48, true, true, 1),
    row(5, 144, 48, true, true, 1),
    row(5, 288, 96, true, true, 2),
    row(5, 576, 96, true, true, 1),
    row(5, 576, 96, true, true, 1),
];

impl MobileNetV3 {
    /// Creates the smaller network for images of `in_channels` channels, with new parameters.
    #[track_caller]
    pub fn small(num_classes: usize, in_channels: usize, init: &mut Init<'_>) -> Result<Self> {
        Self::new(MobileNetV3Config { num_classes, in_channels, ..MobileNetV3Config::small() }, init)
    }

    /// Creates the larger network for images of `in_channels` channels, with new parameters.
    #[track_caller]
    pub fn large(num_classes: usize, in_channels: usize, init: &mut Init<'_>) -> Result<Self> {
        Self::new(MobileNetV3Config { num_classes, in_channels, ..MobileNetV3Config::large() }, init)
    }

    /// Creates a network with new parameters.
    ///
    /// # Errors
    /// Fails if a number of the config is 0 or too large, or if the dropout is no probability.
    #[track_caller]
    pub fn new(config: MobileNetV3Config, init: &mut Init<'_>) -> Result<Self> {
        let MobileNetV3Config { large, num_classes, in_channels, width_mult, stem_stride, dropout } = config;
        let numbers = [("num_classes", num_classes), ("in_channels", in_channels), ("stem_stride", stem_stride)];
        checks::sizes(OP, &numbers)?;
        check_width(OP, width_mult)?;
        let channels = |count: usize| make_divisible(count as f64 * width_mult);
        let mut inputs = channels(16);
        let mut features = Sequential::new();
        features.push(conv(in_channels, inputs, 3, stem_stride, 1).layers(init)?.add(Hardswish));
        let rows: &[Row] = if large { &LARGE } else { &SMALL };
        for row in rows {
            let row = Row { inside: channels(row.inside), outputs: channels(row.outputs), ..*row };
            features.push(MobileNetV3Block::new(inputs, row, init)?);
            inputs = row.outputs;
        }
        let last = 6 * inputs;
        features.push(conv(inputs, last, 1, 1, 1).layers(init)?.add(Hardswish));
        let hidden = channels(if large { 1280 } else { 1024 });
        let classifier = Sequential::new()
            .add(normal_linear(last, hidden, 0.01, init)?)
            .add(Hardswish)
            .add(Dropout::new(dropout, init.generator)?)
            .add(normal_linear(hidden, num_classes, 0.01, init)?);
        Ok(MobileNetV3 { in_channels, features, classifier })
    }
}

impl Forward for MobileNetV3 {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        checks::images(OP, input, self.in_channels)?;
        self.classifier.forward(&pooled(&self.features.forward(input)?)?)
    }
}

fn conv(inputs: usize, outputs: usize, kernel: usize, stride: usize, groups: usize) -> ConvNorm {
    let norm = BatchNormConfig { eps: 0.001, momentum: Some(0.01), ..BatchNormConfig::default() };
    ConvNorm { inputs, outputs, kernel, stride, groups, norm }
}

/// An inverted residual: to more channels, a convolution of each channel for itself, squeeze and excitation in some
/// blocks, and to fewer channels again. The input is added where it has the shape of the output.
#[derive(Debug, Module)]
pub struct MobileNetV3Block {
    is_residual: bool,
    /// The layers.
    pub block: Sequential,
}

impl MobileNetV3Block {
    #[track_caller]
    fn new(inputs: usize, row: Row, init: &mut Init<'_>) -> Result<Self> {
        let Row { kernel, inside, outputs, squeezes, hardswish, stride } = row;
        let activated = |layers: Sequential| if hardswish { layers.add(Hardswish) } else { layers.add(Relu) };
        let mut block = Sequential::new();
        if inside != inputs {
            block.push(activated(conv(inputs, inside, 1, 1, 1).layers(init)?));
        }
        block.push(activated(conv(inside, inside, kernel, stride, inside).layers(init)?));
        if squeezes {
            block.push(SqueezeExcitation::new(inside, make_divisible((inside / 4) as f64), init)?);
        }
        block.push(conv(inside, outputs, 1, 1, 1).layers(init)?);
        Ok(MobileNetV3Block { is_residual: stride == 1 && inputs == outputs, block })
    }
}

impl Forward for MobileNetV3Block {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.block.forward(input)?;
        if self.is_residual { x.add(input) } else { Ok(x) }
    }
}

/// Squeeze and excitation (Hu et al., 2018): multiplies each channel of `[n, c, h, w]` by a factor from 0 to 1, which two
/// layers compute from the means of all channels.
#[derive(Debug, Module)]
pub struct SqueezeExcitation {
    /// From all channels to fewer.
    pub fc1: Conv2d,
    /// From these to the factors.
    pub fc2: Conv2d,
}

impl SqueezeExcitation {
    #[track_caller]
    fn new(channels: usize, squeezed: usize, init: &mut Init<'_>) -> Result<Self> {
        let fc1 = kaiming_conv(channels, squeezed, 1, Conv2dConfig::default(), init)?;
        Ok(SqueezeExcitation { fc1, fc2: kaiming_conv(squeezed, channels, 1, Conv2dConfig::default(), init)? })
    }
}

impl Forward for SqueezeExcitation {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.fc1.forward(&input.mean(&[2, 3], true)?)?.relu()?;
        self.fc2.forward(&x)?.hardsigmoid()?.mul(input)
    }
}
