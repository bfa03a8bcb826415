//! [`ConvNeXt`], with torchvision's names.

use gradus_nn::{
    Conv2d, Conv2dConfig, Flatten, Forward, Gelu, Init, LayerNorm, LayerNormConfig, Module, Parameter, Sequential,
    StochasticDepth,
};
use gradus_tensor::{Error, Result, Tensor};

use crate::checks;
use crate::new_layers::normal_linear;

const OP: &str = "convnext";

/// The standard deviation of new weights.
const STD: f64 = 0.02;

/// A convolutional network with the shape of a transformer (Liu et al., 2022): `[n, in_channels, h, w]` to
/// `[n, num_classes]`. An image is at least as large as the patches of the last stage: 32 x 32 pixels by default, and
/// eight times `patch_size` in general.
///
/// Parameters have the names, shapes and initial distributions of torchvision's `convnext_tiny` to `convnext_large`:
/// `features.0.0.weight`, `features.1.0.block.0.weight`, `features.1.0.layer_scale`, `classifier.2.weight`.
///
/// ```
/// # use gradus_models::{ConvNeXt, ConvNeXtConfig}; use gradus_nn::{Forward, Init}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// // For images of 28 x 28 pixels: patches of 2 x 2 in place of 4 x 4.
/// let config = ConvNeXtConfig {
///     num_classes: 10,
///     in_channels: 1,
///     patch_size: 2,
///     channels: [8, 16, 24, 32],
///     layers: [1, 1, 2, 1],
///     ..ConvNeXtConfig::tiny()
/// };
/// let model = ConvNeXt::new(config, &mut init)?;
/// assert_eq!(model.forward(&Tensor::zeros([2, 1, 28, 28], DType::F32, &device)?)?.shape(), [2, 10]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Module)]
pub struct ConvNeXt {
    in_channels: usize,
    /// The first layer, the four stages, and the layers between them.
    pub features: Sequential,
    /// A normalisation and the last layer, from the means of the channels to the classes.
    pub classifier: Sequential,
}

/// The numbers of a [`ConvNeXt`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvNeXtConfig {
    /// The channels of each of the four stages.
    pub channels: [usize; 4],
    /// The number of blocks in each stage.
    pub layers: [usize; 4],
    /// The number of classes. Default 1000.
    pub num_classes: usize,
    /// The channels of the images. Default 3.
    pub in_channels: usize,
    /// The width and height of the patches that the first layer sees, 1 or 2 for images of about 32 x 32 pixels.
    /// Default 4.
    pub patch_size: usize,
    /// The initial factor of what each block adds. Default 1e-6.
    pub layer_scale: f64,
    /// The probability with which a sample skips the last block in training. It grows linearly from 0 in the first block.
    pub stochastic_depth: f64,
}

macro_rules! sizes {
    ($($name:ident $torchvision:literal $channels:expr, $layers:expr, $depth:expr;)*) => {
        impl ConvNeXtConfig {
            $(
                #[doc = concat!("The config of torchvision's `", $torchvision, "`, with a `stochastic_depth` of ", stringify!($depth), ".")]
                pub fn $name() -> Self {
                    ConvNeXtConfig {
                        channels: $channels,
                        layers: $layers,
                        num_classes: 1000,
                        in_channels: 3,
                        patch_size: 4,
                        layer_scale: 1e-6,
                        stochastic_depth: $depth,
                    }
                }
            )*
        }

        impl ConvNeXt {
            $(
                #[doc = concat!("Creates a `", $torchvision, "` for images of `in_channels` channels, with new parameters.")]
                #[track_caller]
                pub fn $name(num_classes: usize, in_channels: usize, init: &mut Init<'_>) -> Result<Self> {
                    Self::new(ConvNeXtConfig { num_classes, in_channels, ..ConvNeXtConfig::$name() }, init)
                }
            )*
        }
    };
}

sizes! {
    tiny "convnext_tiny" [96, 192, 384, 768], [3, 3, 9, 3], 0.1;
    small "convnext_small" [96, 192, 384, 768], [3, 3, 27, 3], 0.4;
    base "convnext_base" [128, 256, 512, 1024], [3, 3, 27, 3], 0.5;
    large "convnext_large" [192, 384, 768, 1536], [3, 3, 27, 3], 0.5;
}

impl ConvNeXt {
    /// Creates a network with new parameters.
    ///
    /// # Errors
    /// Fails if a number of the config is 0 or too large, or if the stochastic depth is no probability.
    #[track_caller]
    pub fn new(config: ConvNeXtConfig, init: &mut Init<'_>) -> Result<Self> {
        let ConvNeXtConfig { channels, layers, num_classes, in_channels, patch_size, layer_scale, stochastic_depth } =
            config;
        checks::sizes(OP, &channels.map(|count| ("a number of channels", count)))?;
        checks::sizes(OP, &[("num_classes", num_classes), ("in_channels", in_channels), ("patch_size", patch_size)])?;
        checks::layers(OP, &layers.map(|count| ("a number of blocks", count)))?;
        if !(0.0..=1.0).contains(&stochastic_depth) {
            let m = format!("stochastic_depth is {stochastic_depth}; it is a probability, 0 to 1");
            return Err(Error::argument(OP, m));
        }
        let stem = patches(in_channels, channels[0], patch_size, init)?;
        let mut features = Sequential::new().add(Sequential::new().add(stem).add(ChannelNorm::new(channels[0], init)?));
        let (mut number, last) = (0, layers.iter().sum::<usize>() - 1);
        for (i, (&count, &blocks)) in channels.iter().zip(&layers).enumerate() {
            if i > 0 {
                let before = channels[i - 1];
                let shrink = patches(before, count, 2, init)?;
                features.push(Sequential::new().add(ChannelNorm::new(before, init)?).add(shrink));
            }
            let mut stage = Sequential::new();
            for _ in 0..blocks {
                let depth = stochastic_depth * number as f64 / last as f64;
                stage.push(ConvNeXtBlock::new(count, layer_scale, depth, init)?);
                number += 1;
            }
            features.push(stage);
        }
        let classifier = Sequential::new()
            .add(ChannelNorm::new(channels[3], init)?)
            .add(Flatten::default())
            .add(normal_linear(channels[3], num_classes, STD, init)?);
        Ok(ConvNeXt { in_channels, features, classifier })
    }
}

impl Forward for ConvNeXt {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        checks::images(OP, input, self.in_channels)?;
        self.classifier.forward(&self.features.forward(input)?.mean(&[2, 3], true)?)
    }
}

/// A convolution with new weights and a bias of zeros.
#[track_caller]
fn conv(inputs: usize, outputs: usize, kernel: usize, config: Conv2dConfig, init: &mut Init<'_>) -> Result<Conv2d> {
    let mut conv = Conv2d::new(inputs, outputs, [kernel; 2], config, init)?;
    conv.weight = Parameter::new(init.normal(conv.weight.values().shape(), 0.0, STD)?)?;
    conv.bias = Some(Parameter::new(init.zeros([outputs])?)?);
    Ok(conv)
}

/// A convolution over patches that do not overlap.
#[track_caller]
fn patches(inputs: usize, outputs: usize, size: usize, init: &mut Init<'_>) -> Result<Conv2d> {
    conv(inputs, outputs, size, Conv2dConfig { stride: [size; 2], ..Conv2dConfig::default() }, init)
}

/// Swaps the places of the channels: `[n, c, h, w]` to `[n, h, w, c]`, and back.
#[track_caller]
fn channels_last(x: &Tensor) -> Result<Tensor> {
    x.permute(&[0, 2, 3, 1])
}

#[track_caller]
fn channels_first(x: &Tensor) -> Result<Tensor> {
    x.permute(&[0, 3, 1, 2])
}

/// [`channels_last`] or [`channels_first`] as a layer.
#[derive(Debug, Module)]
struct Permute {
    channels_last: bool,
}

impl Forward for Permute {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        if self.channels_last { channels_last(input) } else { channels_first(input) }
    }
}

/// Normalises the channels of each pixel of `[n, c, h, w]`.
#[derive(Debug, Module)]
struct ChannelNorm(LayerNorm);

impl ChannelNorm {
    #[track_caller]
    fn new(channels: usize, init: &mut Init<'_>) -> Result<Self> {
        Ok(ChannelNorm(norm(channels, init)?))
    }
}

impl Forward for ChannelNorm {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        channels_first(&self.0.forward(&channels_last(input)?)?)
    }
}

#[track_caller]
fn norm(channels: usize, init: &mut Init<'_>) -> Result<LayerNorm> {
    LayerNorm::new([channels], LayerNormConfig { eps: 1e-6, ..LayerNormConfig::default() }, init)
}

/// A convolution of 7 x 7 of each channel for itself, and two layers for each pixel. The result, times `layer_scale`, is
/// added to the input, which has the same shape.
#[derive(Debug, Module)]
pub struct ConvNeXtBlock {
    /// `[c, 1, 1]`
    pub layer_scale: Parameter,
    /// The layers.
    pub block: Sequential,
    stochastic_depth: StochasticDepth,
}

impl ConvNeXtBlock {
    #[track_caller]
    fn new(channels: usize, layer_scale: f64, stochastic_depth: f64, init: &mut Init<'_>) -> Result<Self> {
        let config = Conv2dConfig { padding: [3, 3], groups: channels, ..Conv2dConfig::default() };
        let block = Sequential::new()
            .add(conv(channels, channels, 7, config, init)?)
            .add(Permute { channels_last: true })
            .add(norm(channels, init)?)
            .add(normal_linear(channels, 4 * channels, STD, init)?)
            .add(Gelu)
            .add(normal_linear(4 * channels, channels, STD, init)?)
            .add(Permute { channels_last: false });
        let layer_scale = Parameter::new(init.constant([channels, 1, 1], layer_scale)?)?;
        Ok(ConvNeXtBlock {
            layer_scale,
            block,
            stochastic_depth: StochasticDepth::new(stochastic_depth, init.generator)?,
        })
    }
}

impl Forward for ConvNeXtBlock {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.block.forward(input)?.mul(&self.layer_scale)?;
        self.stochastic_depth.forward(&x)?.add(input)
    }
}
