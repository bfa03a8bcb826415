//! The network that `gradus train digits` trains.

use gradus_nn::layers::*;
use gradus_nn::{Forward, Init, Module};
use gradus_tensor::{DType, Device, Error, Generator, Result, Tensor};
use serde::{Deserialize, Serialize};

/// The sides of images that the network accepts.
const SIDES: std::ops::RangeInclusive<usize> = 2..=128;

/// The side to which pooling reduces larger images.
const POOLED_SIDE: usize = 14;

/// The inputs and outputs of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Channels, height and width of the images.
    pub input: [usize; 3],
    /// Number of classes.
    pub classes: usize,
}

impl Spec {
    /// Returns an error if no network can be built for this specification.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let [channels, height, width] = self.input;
        if channels != 1 || !SIDES.contains(&height) || !SIDES.contains(&width) {
            let m = format!("images of {channels} x {height} x {width} (channels x height x width)");
            return Err(Error::argument("network", m)
                .help("the network takes grey images from 2 x 2 to 128 x 128; resize or crop them first"));
        }
        if !(2..=256).contains(&self.classes) {
            let m = format!("{} classes; the network takes 2 to 256", self.classes);
            return Err(Error::argument("network", m).help("labels count from 0, and at least two of them differ"));
        }
        Ok(())
    }

    /// The size of the pooling window along each axis: 2, or more for large images.
    fn pool(&self) -> [usize; 2] {
        [self.input[1], self.input[2]].map(|side| side.div_ceil(POOLED_SIDE).max(2))
    }
}

/// Two convolutions, pooling, and two linear layers.
#[derive(Module)]
pub struct Cnn {
    conv1: Conv2d,
    norm1: BatchNorm2d,
    conv2: Conv2d,
    norm2: BatchNorm2d,
    pool: MaxPool2d,
    dropout1: Dropout,
    fc1: Linear,
    dropout2: Dropout,
    fc2: Linear,
}

impl Cnn {
    /// A network with new random weights, determined by `seed`. Errors if none can be built for `spec`.
    #[track_caller]
    pub fn new(spec: Spec, device: &Device, seed: u64) -> Result<Cnn> {
        spec.check()?;
        let base = Generator::new(seed);
        let (mut weights, mut masks) = (base.fork(1), base.fork(2));
        let init = &mut Init::new(DType::F32, device, &mut weights);
        let conv = Conv2dConfig { padding: [1, 1], bias: false, ..Default::default() };
        let [channels, height, width] = spec.input;
        let pool = spec.pool();
        let features = 64 * (height / pool[0]) * (width / pool[1]);
        Ok(Cnn {
            conv1: Conv2d::new(channels, 32, [3, 3], conv, init)?,
            norm1: BatchNorm2d::new(32, BatchNormConfig::default(), init)?,
            conv2: Conv2d::new(32, 64, [3, 3], conv, init)?,
            norm2: BatchNorm2d::new(64, BatchNormConfig::default(), init)?,
            pool: MaxPool2d::new(pool, pool, [0, 0])?,
            dropout1: Dropout::new(0.25, &mut masks)?,
            fc1: Linear::new(features, 128, init)?,
            dropout2: Dropout::new(0.5, &mut masks)?,
            fc2: Linear::new(128, spec.classes, init)?,
        })
    }
}

impl Forward for Cnn {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm1.forward(&self.conv1.forward(x)?)?.relu()?;
        let x = self.norm2.forward(&self.conv2.forward(&x)?)?.relu()?;
        let x = self.dropout1.forward(&self.pool.forward(&x)?)?.flatten(1, -1)?;
        let x = self.dropout2.forward(&self.fc1.forward(&x)?.relu()?)?;
        self.fc2.forward(&x)
    }
}
