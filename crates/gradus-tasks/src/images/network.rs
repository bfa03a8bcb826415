//! The networks that `gradus train images` can train.

use std::fmt;

use gradus_models::{ConvNeXt, ConvNeXtConfig, MobileNetV3, MobileNetV3Config, ResNet, ResNetConfig, ViT, ViTConfig};
use gradus_nn::layers::*;
use gradus_nn::{Forward, Init, Module, Visitor, VisitorMut};
use gradus_tensor::{Result, Tensor};
use serde::{Deserialize, Serialize};

/// The longest side of pictures for which networks are changed so that they keep more of the resolution.
pub const SMALL_SIDE: usize = 96;

/// The kind of a network. Its name is that of the option `--model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Architecture {
    /// [`SmallCnn`].
    Small,
    /// [`ResNet`] with 18 layers.
    Resnet18,
    /// [`ResNet`] with 34 layers.
    Resnet34,
    /// [`ResNet`] with 50 layers.
    Resnet50,
    /// The smaller [`MobileNetV3`].
    MobilenetV3Small,
    /// The larger [`MobileNetV3`].
    MobilenetV3Large,
    /// The smallest [`ConvNeXt`].
    ConvnextTiny,
    /// The smallest [`ViT`].
    VitTiny,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Architecture; 8] = [
        Architecture::Small,
        Architecture::Resnet18,
        Architecture::Resnet34,
        Architecture::Resnet50,
        Architecture::MobilenetV3Small,
        Architecture::MobilenetV3Large,
        Architecture::ConvnextTiny,
        Architecture::VitTiny,
    ];

    /// The name, such as `resnet18`.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Small => "small",
            Architecture::Resnet18 => "resnet18",
            Architecture::Resnet34 => "resnet34",
            Architecture::Resnet50 => "resnet50",
            Architecture::MobilenetV3Small => "mobilenet_v3_small",
            Architecture::MobilenetV3Large => "mobilenet_v3_large",
            Architecture::ConvnextTiny => "convnext_tiny",
            Architecture::VitTiny => "vit_tiny",
        }
    }

    /// Creates a network for images `[n, channels, height, width]`. For images of at most [`SMALL_SIDE`] pixels, the
    /// first layers keep more of the resolution than in the original; the names of parameters are the same.
    #[track_caller]
    pub(crate) fn build(
        self,
        [in_channels, height, width]: [usize; 3],
        num_classes: usize,
        init: &mut Init<'_>,
    ) -> Result<Network> {
        let is_small = height.max(width) <= SMALL_SIDE;
        let resnet = |config: ResNetConfig, init: &mut Init<'_>| {
            let config = ResNetConfig { in_channels, num_classes, small_images: is_small, ..config };
            Ok(Network(Box::new(ResNet::new(config, init)?)))
        };
        let mobilenet = |config: MobileNetV3Config, init: &mut Init<'_>| {
            let stem_stride = if is_small { 1 } else { 2 };
            let config = MobileNetV3Config { in_channels, num_classes, stem_stride, ..config };
            Ok(Network(Box::new(MobileNetV3::new(config, init)?)))
        };
        match self {
            Architecture::Small => {
                Ok(Network(Box::new(SmallCnn::new([in_channels, height, width], num_classes, init)?)))
            }
            Architecture::Resnet18 => resnet(ResNetConfig::resnet18(), init),
            Architecture::Resnet34 => resnet(ResNetConfig::resnet34(), init),
            Architecture::Resnet50 => resnet(ResNetConfig::resnet50(), init),
            Architecture::MobilenetV3Small => mobilenet(MobileNetV3Config::small(), init),
            Architecture::MobilenetV3Large => mobilenet(MobileNetV3Config::large(), init),
            Architecture::ConvnextTiny => {
                // Three further layers halve the resolution.
                let patch_size = if is_small { (height.min(width) / 16).clamp(1, 4) } else { 4 };
                let config = ConvNeXtConfig { in_channels, num_classes, patch_size, ..ConvNeXtConfig::tiny() };
                Ok(Network(Box::new(ConvNeXt::new(config, init)?)))
            }
            Architecture::VitTiny => {
                let fits = |patch: &usize| height.is_multiple_of(*patch) && width.is_multiple_of(*patch);
                let wanted = if is_small { (height.max(width) / 8).max(1) } else { 16 };
                let patch_size = (1..=wanted).rev().find(fits).unwrap_or(1);
                let image_size = [height, width];
                let config = ViTConfig { image_size, patch_size, in_channels, num_classes, ..ViTConfig::tiny() };
                Ok(Network(Box::new(ViT::new(config, init)?)))
            }
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A network for images. Its parameters have the names of the network that it holds.
pub struct Network(Box<dyn Forward>);

impl Module for Network {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        self.0.visit(visitor);
    }

    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        self.0.visit_mut(visitor);
    }
}

impl Forward for Network {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.0.compute(x)
    }
}

/// A plain network for small pictures: at each resolution, from that of the picture down to about 7 x 7, a convolution of
/// 3 x 3 (at the third and further ones two) with normalisation and ReLU; in between, a maximum over 2 x 2; then the mean
/// over the places and a linear layer.
#[derive(Module)]
pub struct SmallCnn {
    features: Sequential,
    dropout: Dropout,
    classifier: Linear,
}

/// The channels at the first resolution. Each further one has twice as many, up to the largest number.
const WIDTH: usize = 32;
const MOST_WIDTH: usize = 256;

impl SmallCnn {
    #[track_caller]
    fn new([channels, height, width]: [usize; 3], classes: usize, init: &mut Init<'_>) -> Result<SmallCnn> {
        let mut features = Sequential::new();
        let (mut side, mut from, mut to, mut level) = (height.min(width), channels, WIDTH, 0);
        loop {
            for _ in 0..if level < 2 { 1 } else { 2 } {
                let config = Conv2dConfig { padding: [1, 1], bias: false, ..Default::default() };
                features = features
                    .add(Conv2d::new(from, to, [3, 3], config, init)?)
                    .add(BatchNorm2d::new(to, BatchNormConfig::default(), init)?)
                    .add(Relu);
                from = to;
            }
            if side < 12 {
                break;
            }
            features = features.add(MaxPool2d::new([2, 2], [2, 2], [0, 0])?);
            (side, to, level) = (side / 2, (2 * to).min(MOST_WIDTH), level + 1);
        }
        let dropout = Dropout::new(0.2, init.generator)?;
        Ok(SmallCnn { features, dropout, classifier: Linear::new(from, classes, init)? })
    }
}

impl Forward for SmallCnn {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.features.forward(x)?.mean(&[2, 3], false)?;
        self.classifier.forward(&self.dropout.forward(&x)?)
    }
}
