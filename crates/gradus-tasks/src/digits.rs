//! Small grey pictures of one symbol each, such as digits.

mod network;
mod picture;
mod resize;

use std::path::Path;

use gradus_data::{Dataset, Image, ImageSet, Sample};
use gradus_nn::{Forward, Module, StateDict, Strict};
use gradus_tensor::{Device, Error, Here, Result, no_grad};

use crate::{Answer, Measured};

pub use network::{Cnn, Spec};
pub use picture::{PictureOptions, has_bright_border, to_png};

/// The number of images that the network is given at once.
const BATCH: usize = 256;

/// A trained network for small grey pictures.
pub struct Digits {
    spec: Spec,
    network: Cnn,
    device: Device,
    names: Vec<String>,
}

impl Digits {
    /// The network with the weights of `state`, ready to predict.
    #[track_caller]
    pub(crate) fn from_state(spec: Spec, state: &StateDict, device: &Device) -> Result<Digits> {
        let mut network = Cnn::new(spec, device, 0)?;
        network.load_state_dict(state, Strict::Yes).map_err(|e| {
            e.help(
                "the file was changed, or made by another version; give a model.safetensors of `gradus train digits`",
            )
        })?;
        network.eval();
        let names = (0..spec.classes).map(|class| class.to_string()).collect();
        Ok(Digits { spec, network, device: device.clone(), names })
    }

    /// The inputs and outputs of the network.
    pub fn spec(&self) -> Spec {
        self.spec
    }

    /// The network: pictures `[n, channels, height, width]` with values 0 to 1, to logits `[n, classes]`.
    pub fn network(&self) -> &Cnn {
        &self.network
    }

    /// The names of the classes: their numbers.
    pub fn classes(&self) -> &[String] {
        &self.names
    }

    /// Reads a PNG or JPEG file as an input of the network: colours become luminance (Rec. 709), transparent parts
    /// become background, background is added up to the input's ratio of width to height, and the picture is resized
    /// bilinearly.
    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>, options: PictureOptions) -> Result<Image> {
        let [_, height, width] = self.spec.input;
        picture::read(path.as_ref(), options, [height, width], &self.device)
    }

    /// The answer to each picture. Errors if one does not have the shape of the network's input, or if a probability is
    /// not finite.
    #[track_caller]
    pub fn predict(&self, images: Vec<Image>) -> Result<Vec<Answer>> {
        if let Some(wrong) = images.iter().find(|image| image.shape() != self.spec.input) {
            let m = format!("a picture of {:?}, and the network takes {:?}", wrong.shape(), self.spec.input);
            return Err(Error::shape("predict", m).help("[channels, height, width]; `read` fits a file to them"));
        }
        if images.is_empty() {
            return Ok(Vec::new());
        }
        let images = Image::collate(images, &self.device)?;
        let logits = no_grad(|| self.network.forward(&images)).here()?;
        Answer::of_logits(&logits, &self.names)
    }

    /// Compares the answers with the labels of images. Errors if an image does not have the shape of the network's input,
    /// or if a label is no class of the network.
    #[track_caller]
    pub fn evaluate(&self, images: &ImageSet) -> Result<Measured> {
        if images.image_shape() != self.spec.input || images.classes() > self.spec.classes {
            let (shape, classes) = (images.image_shape(), images.classes());
            let m = format!(
                "images of {shape:?} with labels up to {}, and the network takes {:?} and knows {} classes",
                classes.saturating_sub(1),
                self.spec.input,
                self.spec.classes
            );
            return Err(Error::shape("evaluate", m).help("give images like those of the training"));
        }
        // At most one part for each `BATCH` images.
        let (mut logits, mut labels) = (Vec::new(), Vec::new());
        for start in (0..images.len()).step_by(BATCH) {
            let batch = (start..images.len().min(start + BATCH)).map(|at| images.get(at)).collect::<Result<_>>()?;
            let (inputs, truth) = Sample::collate(batch, &self.device)?;
            logits.push(no_grad(|| self.network.forward(&inputs)).here()?);
            labels.push(truth);
        }
        Measured::of_batches(&logits, &labels)
    }
}
