//! [`ResNet`], with torchvision's names.

use gradus_nn::{
    BatchNorm2d, BatchNormConfig, Conv2d, Forward, Init, Linear, MaxPool2d, Module, Parameter, Sequential,
};
use gradus_tensor::{Error, Here, Result, Tensor};

use crate::checks;
use crate::conv_norm::{ConvNorm, pooled};

const OP: &str = "resnet";

/// A residual network (He et al., 2016): `[n, in_channels, h, w]` to `[n, num_classes]`, for images of any size.
///
/// Parameters have the names, shapes and initial distributions of torchvision's `resnet18` to `resnet152`: `conv1.weight`,
/// `bn1.running_mean`, `layer1.0.conv1.weight`, `layer2.0.downsample.0.weight`, `fc.weight`.
///
/// ```
/// # use gradus_models::{ResNet, ResNetConfig}; use gradus_nn::{Forward, Init}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// // For the images of Fashion-MNIST, a narrow one: the images of 28 x 28 pixels keep their size in the first layers.
/// let config = ResNetConfig { num_classes: 10, in_channels: 1, width: 8, small_images: true, ..ResNetConfig::resnet18() };
/// let model = ResNet::new(config, &mut init)?;
/// assert_eq!(model.forward(&Tensor::zeros([2, 1, 28, 28], DType::F32, &device)?)?.shape(), [2, 10]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Module)]
pub struct ResNet {
    in_channels: usize,
    /// The first convolution.
    pub conv1: Conv2d,
    /// Normalises its output.
    pub bn1: BatchNorm2d,
    maxpool: Option<MaxPool2d>,
    /// The blocks of the largest resolution.
    pub layer1: Vec<ResNetBlock>,
    /// The blocks of half of it.
    pub layer2: Vec<ResNetBlock>,
    /// The blocks of a quarter of it.
    pub layer3: Vec<ResNetBlock>,
    /// The blocks of an eighth of it.
    pub layer4: Vec<ResNetBlock>,
    /// The last layer, from the means of the channels to the classes.
    pub fc: Linear,
}

/// The numbers of a [`ResNet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResNetConfig {
    /// Whether a block is a bottleneck of three convolutions, with four times as many channels outside as inside, in
    /// place of two convolutions.
    pub bottleneck: bool,
    /// The number of blocks at each of the four resolutions.
    pub layers: [usize; 4],
    /// The number of classes. Default 1000.
    pub num_classes: usize,
    /// The channels of the images. Default 3.
    pub in_channels: usize,
    /// The channels of the first layer; the others have multiples. Default 64.
    pub width: usize,
    /// The groups of the middle convolution of a bottleneck (ResNeXt). Default 1.
    pub groups: usize,
    /// The channels of each group where the first blocks have 64 channels (ResNeXt, Wide ResNet). Default 64.
    pub width_per_group: usize,
    /// Whether the first layer keeps the size of the image, for images of about 32 x 32 pixels: a convolution of 3 x 3
    /// with stride 1, and no pooling, in place of 7 x 7 with stride 2 and a pooling with stride 2. Default false.
    pub small_images: bool,
    /// Whether the last normalisation of each block begins with a weight of 0, so that the block begins as the identity.
    /// Default false.
    pub zero_init_residual: bool,
}

impl ResNetConfig {
    fn of(bottleneck: bool, layers: [usize; 4]) -> Self {
        ResNetConfig {
            bottleneck,
            layers,
            num_classes: 1000,
            in_channels: 3,
            width: 64,
            groups: 1,
            width_per_group: 64,
            small_images: false,
            zero_init_residual: false,
        }
    }
}

macro_rules! depths {
    ($($name:ident $bottleneck:literal $layers:expr, $doc:literal;)*) => {
        impl ResNetConfig {
            $(
                #[doc = concat!("The config of ", $doc, ".")]
                pub fn $name() -> Self {
                    Self::of($bottleneck, $layers)
                }
            )*
        }

        impl ResNet {
            $(
                #[doc = concat!("Creates a ", $doc, " for images of `in_channels` channels, with new parameters.")]
                #[track_caller]
                pub fn $name(num_classes: usize, in_channels: usize, init: &mut Init<'_>) -> Result<Self> {
                    Self::new(ResNetConfig { num_classes, in_channels, ..ResNetConfig::$name() }, init)
                }
            )*
        }
    };
}

depths! {
    resnet18 false [2, 2, 2, 2], "ResNet-18";
    resnet34 false [3, 4, 6, 3], "ResNet-34";
    resnet50 true [3, 4, 6, 3], "ResNet-50";
    resnet101 true [3, 4, 23, 3], "ResNet-101";
    resnet152 true [3, 8, 36, 3], "ResNet-152";
}

impl ResNet {
    /// Creates a network with new parameters.
    ///
    /// # Errors
    /// Fails if a number of the config is 0 or too large, if the groups do not divide the channels, and if a network
    /// without bottlenecks has groups.
    #[track_caller]
    pub fn new(config: ResNetConfig, init: &mut Init<'_>) -> Result<Self> {
        let ResNetConfig { bottleneck, layers, num_classes, in_channels, width, groups, width_per_group, .. } = config;
        let numbers = [("num_classes", num_classes), ("in_channels", in_channels), ("width", width)];
        checks::sizes(OP, &numbers)?;
        checks::sizes(OP, &[("groups", groups), ("width_per_group", width_per_group)])?;
        checks::layers(OP, &layers.map(|count| ("a number of blocks", count)))?;
        if !bottleneck && (groups != 1 || width_per_group != 64) {
            let e = Error::argument(OP, "only bottlenecks have groups of their own width");
            return Err(e.help("set bottleneck, or groups: 1 and width_per_group: 64"));
        }
        let (kernel, stride) = if config.small_images { (3, 1) } else { (7, 2) };
        let stem = ConvNorm { kernel, stride, ..conv(in_channels, width, 3, 1) };
        let (conv1, bn1) = (stem.conv(init)?, stem.norm(init)?);
        let maxpool = if config.small_images { None } else { Some(MaxPool2d::new([3, 3], [2, 2], [1, 1])?) };
        let mut inputs = width;
        let mut stage = |i: usize, init: &mut Init<'_>| -> Result<Vec<ResNetBlock>> {
            let planes = width << i;
            let mut blocks = Vec::new();
            for block in 0..layers[i] {
                let stride = if i > 0 && block == 0 { 2 } else { 1 };
                blocks.push(ResNetBlock::new(inputs, planes, stride, &config, init).here()?);
                inputs = outputs(planes, bottleneck);
            }
            Ok(blocks)
        };
        let (layer1, layer2) = (stage(0, init).here()?, stage(1, init).here()?);
        let (layer3, layer4) = (stage(2, init).here()?, stage(3, init).here()?);
        let fc = Linear::new(inputs, num_classes, init)?;
        Ok(ResNet { in_channels, conv1, bn1, maxpool, layer1, layer2, layer3, layer4, fc })
    }
}

impl Forward for ResNet {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        checks::images(OP, input, self.in_channels)?;
        let mut x = self.bn1.forward(&self.conv1.forward(input)?)?.relu()?;
        if let Some(pool) = &self.maxpool {
            x = pool.forward(&x)?;
        }
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten() {
            x = block.forward(&x)?;
        }
        self.fc.forward(&pooled(&x)?)
    }
}

/// A residual block: `relu(f(x) + x)`, where `f` is two convolutions, or three in a bottleneck, each normalised. Where
/// the shapes differ, `x` goes through `downsample`.
#[derive(Debug, Module)]
pub struct ResNetBlock {
    /// The first convolution, 3 x 3, or 1 x 1 in a bottleneck.
    pub conv1: Conv2d,
    /// Normalises its output.
    pub bn1: BatchNorm2d,
    /// The second convolution, 3 x 3.
    pub conv2: Conv2d,
    /// Normalises its output.
    pub bn2: BatchNorm2d,
    /// The third convolution of a bottleneck, 1 x 1.
    pub conv3: Option<Conv2d>,
    /// Normalises its output.
    pub bn3: Option<BatchNorm2d>,
    /// A convolution of 1 x 1 and a normalisation, where the input has another shape than the output.
    pub downsample: Option<Sequential>,
}

/// A convolution without groups.
fn conv(inputs: usize, outputs: usize, kernel: usize, stride: usize) -> ConvNorm {
    ConvNorm { inputs, outputs, kernel, stride, groups: 1, norm: BatchNormConfig::default() }
}

/// The channels of the output of a block with this number inside.
fn outputs(planes: usize, bottleneck: bool) -> usize {
    if bottleneck { 4 * planes } else { planes }
}

impl ResNetBlock {
    #[track_caller]
    fn new(
        inputs: usize,
        planes: usize,
        stride: usize,
        config: &ResNetConfig,
        init: &mut Init<'_>,
    ) -> Result<ResNetBlock> {
        let ResNetConfig { bottleneck, groups, width_per_group, .. } = *config;
        let out = outputs(planes, bottleneck);
        let (first, second, third) = if bottleneck {
            let inside = planes * width_per_group / 64 * groups;
            checks::sizes(OP, &[("the number of channels of a bottleneck", inside)])?;
            let middle = ConvNorm { groups, ..conv(inside, inside, 3, stride) };
            (conv(inputs, inside, 1, 1), middle, Some(conv(inside, out, 1, 1)))
        } else {
            (conv(inputs, planes, 3, stride), conv(planes, planes, 3, 1), None)
        };
        let (conv1, bn1) = (first.conv(init)?, first.norm(init)?);
        let (conv2, mut bn2) = (second.conv(init)?, second.norm(init)?);
        let (mut conv3, mut bn3) = (None, None);
        if let Some(third) = third {
            (conv3, bn3) = (Some(third.conv(init)?), Some(third.norm(init)?));
        }
        if config.zero_init_residual {
            bn3.as_mut().unwrap_or(&mut bn2).weight = Some(Parameter::new(init.zeros([out])?)?);
        }
        let differs = stride != 1 || inputs != out;
        let downsample = if differs { Some(conv(inputs, out, 1, stride).layers(init)?) } else { None };
        Ok(ResNetBlock { conv1, bn1, conv2, bn2, conv3, bn3, downsample })
    }
}

impl Forward for ResNetBlock {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.bn1.forward(&self.conv1.forward(input)?)?.relu()?;
        let mut x = self.bn2.forward(&self.conv2.forward(&x)?)?;
        if let (Some(conv3), Some(bn3)) = (&self.conv3, &self.bn3) {
            x = bn3.forward(&conv3.forward(&x.relu()?)?)?;
        }
        match &self.downsample {
            Some(downsample) => x.add(&downsample.forward(input)?)?.relu(),
            None => x.add(input)?.relu(),
        }
    }
}
