//! The network that `train digits` trains, and its file.

use std::io::Write;
use std::path::Path;

use gradus::prelude::*;

/// The value of `gradus.network` in the metadata of a model file.
const NAME: &str = "cnn-1";

/// The sides of images that the network accepts.
const SIDES: std::ops::RangeInclusive<usize> = 2..=128;

/// The side to which pooling reduces larger images.
const POOLED_SIDE: usize = 14;

/// The inputs and outputs of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Channels, height and width of the images.
    pub(crate) input: [usize; 3],
    /// Number of classes.
    pub(crate) classes: usize,
}

impl Spec {
    /// Returns an error if no network can be built for this specification.
    pub(crate) fn check(&self) -> Result<()> {
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
pub(crate) struct Cnn {
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
    /// A network with new random weights, determined by `seed`.
    pub(crate) fn new(spec: Spec, device: &Device, seed: u64) -> Result<Cnn> {
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

    /// Whether all weights and running statistics are finite.
    pub(crate) fn is_finite(&self) -> Result<bool> {
        for (_, tensor) in self.state_dict()?.iter() {
            if tensor.dtype() == DType::F32 && tensor.to_vec::<f32>()?.iter().any(|x| !x.is_finite()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the weights and the description of the network as a safetensors file. [`load`] needs nothing else.
    pub(crate) fn write(&self, spec: Spec, out: &mut dyn Write) -> Result<()> {
        let mut state = self.state_dict()?;
        state.set_metadata("gradus.network", NAME);
        state.set_metadata("gradus.input", spec.input.map(|n| n.to_string()).join("x"));
        state.set_metadata("gradus.classes", spec.classes.to_string());
        state.write_safetensors(out)
    }
}

impl Forward for Cnn {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm1.forward(&self.conv1.forward(x)?)?.relu()?;
        let x = self.norm2.forward(&self.conv2.forward(&x)?)?.relu()?;
        let x = self.dropout1.forward(&self.pool.forward(&x)?)?.flatten(1, -1)?;
        let x = self.dropout2.forward(&self.fc1.forward(&x)?.relu()?)?;
        self.fc2.forward(&x)
    }
}

/// Reads a network from a file that [`Cnn::write`] wrote. The network is ready to predict.
pub(crate) fn load(path: &Path, device: &Device) -> Result<(Cnn, Spec)> {
    let state = StateDict::load_safetensors(path, device)?;
    let foreign = |what: String| {
        Error::new(ErrorKind::Format, "predict", format!("{}: {what}", path.display()))
            .help("give the model.safetensors that `gradus train digits` saved")
    };
    let text = |key: &str| state.metadata(key).ok_or_else(|| foreign(format!("its metadata has no `{key}`")));
    let name = text("gradus.network")?;
    if name != NAME {
        return Err(foreign(format!("it holds a network of the kind {name:?}; this program knows {NAME:?}")));
    }
    let input = text("gradus.input")?;
    let sizes: Option<Vec<usize>> = input.split('x').map(|n| n.parse().ok()).collect();
    let sizes = sizes.and_then(|s| <[usize; 3]>::try_from(s).ok());
    let sizes = sizes.ok_or_else(|| foreign(format!("its `gradus.input` is {input:?}, not three sizes")))?;
    let classes = text("gradus.classes")?;
    let count = classes.parse().map_err(|_| foreign(format!("its `gradus.classes` is {classes:?}, not a number")))?;
    let spec = Spec { input: sizes, classes: count };
    let at = |e: Error| e.note(format!("in the file {}", path.display()));
    let mut model = Cnn::new(spec, device, 0).map_err(at)?;
    model.load_state_dict(&state, Strict::Yes).map_err(|e| {
        at(e)
            .help("the file was changed, or made by another version; give a model.safetensors of `gradus train digits`")
    })?;
    model.eval();
    Ok((model, spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_are_not_finite_are_noticed() {
        let device = Device::cpu().unwrap();
        let mut model = Cnn::new(Spec { input: [1, 4, 4], classes: 2 }, &device, 0).unwrap();
        assert!(model.is_finite().unwrap());
        let mut state = model.state_dict().unwrap();
        state.insert("fc2.bias", Tensor::full([2], f64::INFINITY, DType::F32, &device).unwrap());
        model.load_state_dict(&state, Strict::Yes).unwrap();
        assert!(!model.is_finite().unwrap());
    }
}
