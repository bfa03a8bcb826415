//! [`UNet`], with the names of the usual PyTorch implementation.

use gradus_nn::{
    BatchNorm2d, BatchNormConfig, Conv2d, Conv2dConfig, ConvTranspose2d, ConvTransposeConfig, Forward, Init, MaxPool2d,
    Module, Relu, Sequential, Upsample,
};
use gradus_tensor::{Interpolation, PadMode, Result, Tensor};

use crate::checks;

const OP: &str = "unet";

/// A network for the segmentation of images (Ronneberger et al., 2015), with padding and batch normalisation:
/// `[n, in_channels, h, w]` to the logits of a class for each pixel, `[n, num_classes, h, w]`. Height and width are at
/// least 16.
///
/// Parameters have the names and shapes of the PyTorch implementation that is used most, `milesial/Pytorch-UNet`:
/// `inc.double_conv.0.weight`, `down1.maxpool_conv.1.double_conv.0.weight`, `up1.up.weight`, `outc.conv.weight`.
///
/// ```
/// # use gradus_models::{UNet, UNetConfig}; use gradus_nn::{Forward, Init}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let model = UNet::new(UNetConfig { in_channels: 1, num_classes: 2, width: 4, bilinear: false }, &mut init)?;
/// assert_eq!(model.forward(&Tensor::zeros([1, 1, 33, 50], DType::F32, &device)?)?.shape(), [1, 2, 33, 50]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Module)]
pub struct UNet {
    in_channels: usize,
    /// The convolutions at full resolution, on the way down.
    pub inc: UNetConvs,
    /// The convolutions at half of it.
    pub down1: UNetDown,
    /// At a quarter.
    pub down2: UNetDown,
    /// At an eighth.
    pub down3: UNetDown,
    /// At a sixteenth.
    pub down4: UNetDown,
    /// At an eighth, on the way up.
    pub up1: UNetUp,
    /// At a quarter.
    pub up2: UNetUp,
    /// At half of it.
    pub up3: UNetUp,
    /// At full resolution.
    pub up4: UNetUp,
    /// The last layer.
    pub outc: UNetOut,
}

/// The numbers of a [`UNet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UNetConfig {
    /// The channels of the images. Default 3.
    pub in_channels: usize,
    /// The number of classes. Default 2.
    pub num_classes: usize,
    /// The channels at full resolution; the others have multiples. An even number. Default 64.
    pub width: usize,
    /// Whether the way up is by bilinear interpolation in place of transposed convolutions. Default false.
    pub bilinear: bool,
}

impl Default for UNetConfig {
    fn default() -> Self {
        UNetConfig { in_channels: 3, num_classes: 2, width: 64, bilinear: false }
    }
}

impl UNet {
    /// Creates a network with new parameters. Errors if a number of the config is 0 or too large, or if the width is odd.
    #[track_caller]
    pub fn new(config: UNetConfig, init: &mut Init<'_>) -> Result<Self> {
        let UNetConfig { in_channels, num_classes, width, bilinear } = config;
        checks::sizes(OP, &[("in_channels", in_channels), ("num_classes", num_classes), ("width", width)])?;
        checks::divides(OP, ("the number", 2), ("width", width))?;
        // Interpolation keeps the number of channels, so the layers below have half as many.
        let factor = if bilinear { 2 } else { 1 };
        Ok(UNet {
            in_channels,
            inc: UNetConvs::new([in_channels, width, width], init)?,
            down1: UNetDown::new(width, 2 * width, init)?,
            down2: UNetDown::new(2 * width, 4 * width, init)?,
            down3: UNetDown::new(4 * width, 8 * width, init)?,
            down4: UNetDown::new(8 * width, 16 * width / factor, init)?,
            up1: UNetUp::new(16 * width, 8 * width / factor, bilinear, init)?,
            up2: UNetUp::new(8 * width, 4 * width / factor, bilinear, init)?,
            up3: UNetUp::new(4 * width, 2 * width / factor, bilinear, init)?,
            up4: UNetUp::new(2 * width, width, bilinear, init)?,
            outc: UNetOut { conv: Conv2d::new(width, num_classes, [1, 1], Conv2dConfig::default(), init)? },
        })
    }
}

impl Forward for UNet {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        checks::images(OP, input, self.in_channels)?;
        let x1 = self.inc.forward(input)?;
        let x2 = self.down1.forward(&x1)?;
        let x3 = self.down2.forward(&x2)?;
        let x4 = self.down3.forward(&x3)?;
        let x = self.up1.join(&self.down4.forward(&x4)?, &x4)?;
        let x = self.up2.join(&x, &x3)?;
        let x = self.up3.join(&x, &x2)?;
        self.outc.forward(&self.up4.join(&x, &x1)?)
    }
}

/// Two convolutions of 3 x 3, each with batch normalisation and a ReLU.
#[derive(Debug, Module)]
pub struct UNetConvs {
    /// The layers.
    pub double_conv: Sequential,
}

impl UNetConvs {
    #[track_caller]
    fn new(channels: [usize; 3], init: &mut Init<'_>) -> Result<Self> {
        let config = Conv2dConfig { padding: [1, 1], bias: false, ..Conv2dConfig::default() };
        let mut double_conv = Sequential::new();
        for pair in channels.windows(2) {
            double_conv.push(Conv2d::new(pair[0], pair[1], [3, 3], config, init)?);
            double_conv.push(BatchNorm2d::new(pair[1], BatchNormConfig::default(), init)?);
            double_conv.push(Relu);
        }
        Ok(UNetConvs { double_conv })
    }
}

impl Forward for UNetConvs {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.double_conv.forward(input)
    }
}

/// Half of the resolution, and convolutions.
#[derive(Debug, Module)]
pub struct UNetDown {
    /// The layers.
    pub maxpool_conv: Sequential,
}

impl UNetDown {
    #[track_caller]
    fn new(inputs: usize, outputs: usize, init: &mut Init<'_>) -> Result<Self> {
        let pool = MaxPool2d::new([2, 2], [2, 2], [0, 0])?;
        let convs = UNetConvs::new([inputs, outputs, outputs], init)?;
        Ok(UNetDown { maxpool_conv: Sequential::new().add(pool).add(convs) })
    }
}

impl Forward for UNetDown {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.maxpool_conv.forward(input)
    }
}

/// Twice the resolution, and convolutions over what comes from below and from the way down.
#[derive(Debug, Module)]
pub struct UNetUp {
    /// To twice the resolution.
    pub up: Box<dyn Forward>,
    /// The convolutions.
    pub conv: UNetConvs,
}

impl UNetUp {
    #[track_caller]
    fn new(inputs: usize, outputs: usize, bilinear: bool, init: &mut Init<'_>) -> Result<Self> {
        let (up, inside): (Box<dyn Forward>, usize) = if bilinear {
            let up = Upsample::by([2.0, 2.0], Interpolation::Bilinear).align_corners();
            (Box::new(up), inputs / 2)
        } else {
            let config = ConvTransposeConfig { stride: [2, 2], ..ConvTransposeConfig::default() };
            (Box::new(ConvTranspose2d::new(inputs, inputs / 2, [2, 2], config, init)?), outputs)
        };
        Ok(UNetUp { up, conv: UNetConvs::new([inputs, inside, outputs], init)? })
    }

    /// Joins the channels of the way down, `skip`, with those from below, which are padded to its size.
    #[track_caller]
    fn join(&self, below: &Tensor, skip: &Tensor) -> Result<Tensor> {
        let x = self.up.forward(below)?;
        let mut sides = [(0, 0); 2];
        for (axis, side) in sides.iter_mut().enumerate() {
            let missing = skip.shape()[axis + 2] as isize - x.shape()[axis + 2] as isize;
            *side = (missing / 2, missing - missing / 2);
        }
        let x = x.pad(&sides, PadMode::Constant(0.into()))?;
        self.conv.forward(&Tensor::cat(&[skip, &x], 1)?)
    }
}

/// A convolution of 1 x 1.
#[derive(Debug, Module)]
pub struct UNetOut {
    /// The convolution.
    pub conv: Conv2d,
}

impl Forward for UNetOut {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.conv.forward(input)
    }
}
