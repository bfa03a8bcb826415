//! [`MobileNetV2`], with torchvision's names.

use gradus_nn::{BatchNormConfig, Dropout, Forward, Init, Module, Relu6, Sequential};
use gradus_tensor::{Error, Result, Tensor};

use crate::checks;
use crate::conv_norm::{ConvNorm, make_divisible, pooled};
use crate::new_layers::normal_linear;

const OP: &str = "mobilenet_v2";

/// A small convolutional network of inverted residuals (Sandler et al., 2018): `[n, in_channels, h, w]` to
/// `[n, num_classes]`, for images of any size.
///
/// Parameters have the names, shapes and initial distributions of torchvision's `mobilenet_v2`: `features.0.0.weight`,
/// `features.1.conv.0.0.weight`, `classifier.1.weight`.
///
/// ```
/// # use gradus_models::{MobileNetV2, MobileNetV2Config}; use gradus_nn::{Forward, Init}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = MobileNetV2Config { num_classes: 10, width_mult: 0.25, ..MobileNetV2Config::default() };
/// let model = MobileNetV2::new(config, &mut init)?;
/// assert_eq!(model.forward(&Tensor::zeros([2, 3, 64, 64], DType::F32, &device)?)?.shape(), [2, 10]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Module)]
pub struct MobileNetV2 {
    in_channels: usize,
    /// The convolutions: the first layer, the blocks, and a last layer.
    pub features: Sequential,
    /// Dropout and the last layer, from the means of the channels to the classes.
    pub classifier: Sequential,
}

/// The numbers of a [`MobileNetV2`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MobileNetV2Config {
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
    /// Whether the layers of a block are numbered in one row, `features.2.conv.3.weight`, as in files of the first
    /// implementations in PyTorch, in place of `features.2.conv.1.0.weight`. Default false.
    pub flat_blocks: bool,
}

impl Default for MobileNetV2Config {
    fn default() -> Self {
        let (width_mult, flat_blocks) = (1.0, false);
        MobileNetV2Config { num_classes: 1000, in_channels: 3, width_mult, stem_stride: 2, dropout: 0.2, flat_blocks }
    }
}

/// How many times more channels are inside of a block, its channels, the number of such blocks, and the stride of the
/// first of them.
const STAGES: [(usize, usize, usize, usize); 7] =
    [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];

impl MobileNetV2 {
    /// Creates a network with new parameters.
    ///
    /// # Errors
    /// Fails if a number of the config is 0 or too large, or if the dropout is no probability.
    #[track_caller]
    pub fn new(config: MobileNetV2Config, init: &mut Init<'_>) -> Result<Self> {
        let MobileNetV2Config { num_classes, in_channels, width_mult, stem_stride, dropout, flat_blocks } = config;
        let numbers = [("num_classes", num_classes), ("in_channels", in_channels), ("stem_stride", stem_stride)];
        checks::sizes(OP, &numbers)?;
        check_width(OP, width_mult)?;
        let channels = |count: usize| make_divisible(count as f64 * width_mult);
        let mut inputs = channels(32);
        let mut features = Sequential::new();
        features.push(conv(in_channels, inputs, 3, stem_stride, 1).layers(init)?.add(Relu6));
        for (expand, count, blocks, stride) in STAGES {
            for block in 0..blocks {
                let (outputs, stride) = (channels(count), if block == 0 { stride } else { 1 });
                features.push(MobileNetV2Block::new([inputs, outputs], stride, expand, flat_blocks, init)?);
                inputs = outputs;
            }
        }
        let last = make_divisible(1280.0 * width_mult.max(1.0));
        features.push(conv(inputs, last, 1, 1, 1).layers(init)?.add(Relu6));
        let classifier = Sequential::new().add(Dropout::new(dropout, init.generator)?).add(normal_linear(
            last,
            num_classes,
            0.01,
            init,
        )?);
        Ok(MobileNetV2 { in_channels, features, classifier })
    }
}

impl Forward for MobileNetV2 {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        checks::images(OP, input, self.in_channels)?;
        self.classifier.forward(&pooled(&self.features.forward(input)?)?)
    }
}

/// Refuses a factor of the numbers of channels that makes them too many.
#[track_caller]
pub(crate) fn check_width(op: &str, width_mult: f64) -> Result<()> {
    if width_mult > 0.0 && width_mult <= 64.0 {
        return Ok(());
    }
    Err(Error::argument(op, format!("width_mult is {width_mult}; it is above 0 and at most 64")))
}

fn conv(inputs: usize, outputs: usize, kernel: usize, stride: usize, groups: usize) -> ConvNorm {
    ConvNorm { inputs, outputs, kernel, stride, groups, norm: BatchNormConfig::default() }
}

/// An inverted residual: to more channels, a convolution of each channel for itself, and to fewer channels again. The
/// input is added where it has the shape of the output.
#[derive(Debug, Module)]
pub struct MobileNetV2Block {
    is_residual: bool,
    /// The layers.
    pub conv: Sequential,
}

impl MobileNetV2Block {
    #[track_caller]
    fn new(
        [inputs, outputs]: [usize; 2],
        stride: usize,
        expand: usize,
        flat: bool,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        let inside = inputs * expand;
        let (first, middle) = (conv(inputs, inside, 1, 1, 1), conv(inside, inside, 3, stride, inside));
        let mut layers = Sequential::new();
        for part in [(expand != 1).then_some(first), Some(middle)].into_iter().flatten() {
            if flat {
                layers = layers.add(part.conv(init)?).add(part.norm(init)?).add(Relu6);
            } else {
                layers.push(part.layers(init)?.add(Relu6));
            }
        }
        let last = conv(inside, outputs, 1, 1, 1);
        let layers = layers.add(last.conv(init)?).add(last.norm(init)?);
        Ok(MobileNetV2Block { is_residual: stride == 1 && inputs == outputs, conv: layers })
    }
}

impl Forward for MobileNetV2Block {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.conv.forward(input)?;
        if self.is_residual { x.add(input) } else { Ok(x) }
    }
}
