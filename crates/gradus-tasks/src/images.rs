//! Pictures of classes: photographs, drawings, scans, in a folder for each class.

mod data;
mod network;

use std::path::{Path, PathBuf};

use gradus_data::{Channels, DataLoader, Dataset, Image, Photo, Sample};
use gradus_image::augment::{RandomErasing, ResizedCrop};
use gradus_image::{Format, SaveOptions, encode};
use gradus_nn::{Forward, Init, Module, StateDict, Strict};
use gradus_tensor::{DType, Device, Error, Generator, Here, Result, Tensor, no_grad};
use serde::{Deserialize, Serialize};

use crate::{Answer, Measured};

pub use data::{Part, Pictures, Split, Survey, open, survey};
pub use network::{Architecture, Network, SMALL_SIDE, SmallCnn};

/// The largest height and width of the input of a network.
const MOST_SIDE: usize = 1024;

/// The number of pictures that a network is given at once, and of the threads that read them.
const BATCH: usize = 32;
const WORKERS: usize = 2;

/// The most classes.
const MOST_CLASSES: usize = 100_000;

/// What a network is, how pictures become its input, and what it tells apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The kind of the network.
    pub network: Architecture,
    /// Channels, height and width of its input. 1 channel is grey, 3 are colours.
    pub input: [usize; 3],
    /// What is subtracted from the values (0 to 1) of each channel.
    pub mean: Vec<f64>,
    /// By what the difference is divided.
    pub std: Vec<f64>,
    /// The names of the classes.
    pub classes: Vec<String>,
}

/// How pictures are changed at random for the training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Augmentation {
    /// Whether a random section is taken: of a picture that has the size of the input, one that is shifted by up to a
    /// sixteenth of it; of others, one of a quarter to all of the area.
    pub crop: bool,
    /// How likely a picture is mirrored left to right.
    pub flip: f64,
    /// How likely a rectangle is filled with grey.
    pub erase: f64,
}

impl Default for Augmentation {
    fn default() -> Self {
        Augmentation { crop: true, flip: 0.5, erase: 0.0 }
    }
}

impl Spec {
    /// Returns an error if no network can be built for this specification.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let Spec { input: [channels, height, width], mean, std, classes, .. } = self;
        let fail = |m: String| Err(Error::argument("network", m));
        if !matches!(channels, 1 | 3) {
            return fail(format!("{channels} channels; the network takes grey pictures (1) and colours (3)"));
        }
        if !(8..=MOST_SIDE).contains(height) || !(8..=MOST_SIDE).contains(width) {
            return fail(format!("an input of {height} x {width} pixels; sides go from 8 to {MOST_SIDE}"));
        }
        if mean.len() != *channels || std.len() != *channels {
            return fail(format!("{} means and {} deviations for {channels} channels", mean.len(), std.len()));
        }
        if mean.iter().chain(std).any(|v| !v.is_finite()) || std.iter().any(|&v| v <= 0.0) {
            return fail(format!("means {mean:?} and deviations {std:?}; they are finite, deviations above 0"));
        }
        if !(2..=MOST_CLASSES).contains(&classes.len()) {
            return fail(format!("{} classes; the network takes 2 to {MOST_CLASSES}", classes.len()));
        }
        Ok(())
    }

    /// A network with new random weights, determined by `seed`.
    ///
    /// # Errors
    /// Those of [`check`](Spec::check), and those of the network.
    #[track_caller]
    pub fn build(&self, device: &Device, seed: u64) -> Result<Network> {
        self.check()?;
        let mut generator = Generator::new(seed).fork(1);
        self.network.build(self.input, self.classes.len(), &mut Init::new(DType::F32, device, &mut generator))
    }

    /// A network whose weights are loaded next.
    #[track_caller]
    fn empty(&self, device: &Device) -> Result<Network> {
        self.check()?;
        let mut generator = Generator::new(0);
        self.network.build(self.input, self.classes.len(), &mut Init::new(DType::F32, device, &mut generator).skip())
    }

    fn channels(&self) -> Channels {
        if self.input[0] == 1 { Channels::Grey } else { Channels::Rgb }
    }

    /// A picture as an input of the network. One of another size is resized so that it covers the input (with a margin of
    /// a seventh if the input is larger than [`SMALL_SIDE`]), and the middle is cut out.
    ///
    /// # Errors
    /// The file is damaged.
    #[track_caller]
    pub fn prepared(&self, photo: Photo) -> Result<Photo> {
        let [_, height, width] = self.input;
        let photo = photo.channels(self.channels())?;
        let photo = if photo.size() == (height, width) {
            photo
        } else {
            let (h, w) = photo.size();
            let margin = if height.max(width) > SMALL_SIDE { 8.0 / 7.0 } else { 1.0 };
            let scale = (height as f64 * margin / h as f64).max(width as f64 * margin / w as f64);
            let scaled = |size: usize, least: usize| ((size as f64 * scale).round() as usize).max(least);
            photo.resize(scaled(h, height), scaled(w, width))?.center_crop(height, width)?
        };
        photo.normalize(&self.mean, &self.std)
    }

    #[track_caller]
    fn read(&self, path: &Path, max_memory: Option<usize>) -> Result<Photo> {
        let photo = match max_memory {
            Some(bytes) => Photo::open_within(path, self.channels(), bytes),
            None => Photo::open(path, self.channels()),
        };
        self.prepared(photo?)
    }

    /// A picture as an input of the network, changed at random.
    ///
    /// # Errors
    /// The file is damaged, or a probability is not within 0 to 1.
    #[track_caller]
    pub fn augmented(&self, photo: Photo, how: Augmentation, g: &mut Generator) -> Result<Photo> {
        let [_, height, width] = self.input;
        let photo = match how.crop {
            false => self.prepared(photo)?,
            true => {
                let photo = photo.channels(self.channels())?;
                let photo = if photo.size() == (height, width) {
                    photo.random_crop(height, width, height.min(width).div_ceil(16), g)?
                } else {
                    photo.random_resized_crop(
                        height,
                        width,
                        ResizedCrop { scale: (0.25, 1.0), ..Default::default() },
                        g,
                    )?
                };
                photo.normalize(&self.mean, &self.std)?
            }
        };
        let photo = photo.random_flip_horizontal(how.flip, g)?;
        photo.random_erasing(RandomErasing { p: how.erase, ..Default::default() }, g)
    }
}

/// A trained network for pictures.
pub struct Images {
    spec: Spec,
    network: Network,
    device: Device,
}

impl Images {
    /// The network with the weights of `state`, ready to predict.
    #[track_caller]
    pub(crate) fn from_state(spec: Spec, state: &StateDict, device: &Device) -> Result<Images> {
        let mut network = spec.empty(device)?;
        network.load_state_dict(state, Strict::Yes).map_err(|e| {
            e.help(
                "the file was changed, or made by another version; give a model.safetensors of `gradus train images`",
            )
        })?;
        network.eval();
        Ok(Images { spec, network, device: device.clone() })
    }

    /// What the network is.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The network: normalised pictures `[n, channels, height, width]` to logits `[n, classes]`.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Reads a PNG or JPEG file as an input of the network, as [`Spec::prepared`] does. `max_memory` is the most bytes
    /// to use; `None` for 1 GiB.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is no picture or is damaged; the error names it.
    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>, max_memory: Option<usize>) -> Result<Photo> {
        self.spec.read(path.as_ref(), max_memory)
    }

    /// A picture in memory, of any size, with 1, 3 or 4 channels of values from 0 to 1, as an input of the network. The
    /// values are rounded to bytes, as those of a file are.
    ///
    /// # Errors
    /// Fails if the picture has no pixels or another number of channels, and if a value is outside 0 to 1.
    #[track_caller]
    pub fn prepare(&self, image: &Image) -> Result<Photo> {
        self.spec.prepared(data::photo_of(image, "in memory")?)
    }

    /// The answer to each picture that [`read`](Images::read) or [`prepare`](Images::prepare) returned.
    ///
    /// # Errors
    /// Fails if a picture does not have the shape of the network's input, or if a probability is not finite.
    #[track_caller]
    pub fn predict(&self, photos: Vec<Photo>) -> Result<Vec<Answer>> {
        if let Some(wrong) = photos.iter().find(|photo| photo.shape() != self.spec.input) {
            let (name, shape) = (wrong.name(), wrong.shape());
            let m = format!("the picture {name} is {shape:?}, and the network takes {:?}", self.spec.input);
            return Err(Error::shape("predict", m).help("[channels, height, width]; `read` fits a file to them"));
        }
        if photos.is_empty() {
            return Ok(Vec::new());
        }
        let batch = Photo::collate(photos, &self.device)?;
        self.answers(&batch)
    }

    #[track_caller]
    fn answers(&self, batch: &Tensor) -> Result<Vec<Answer>> {
        Answer::of_logits(&no_grad(|| self.network.forward(batch)).here()?, &self.spec.classes)
    }

    /// The answers to the pictures in PNG and JPEG files, in their order. They are read beside the computation.
    /// `max_memory` is the most bytes to use for a picture; `None` for 1 GiB.
    ///
    /// # Errors
    /// Fails if a file cannot be read, is no picture or is damaged, and if a probability is not finite.
    #[track_caller]
    pub fn predict_files(&self, paths: Vec<PathBuf>, max_memory: Option<usize>) -> Result<Vec<Answer>> {
        let files = Files { paths, spec: self.spec.clone(), max_memory };
        let mut answers = Vec::new();
        for batch in DataLoader::new(files, &self.device).batch_size(BATCH).workers(WORKERS).build()?.epoch(0)? {
            answers.extend(self.answers(&batch?)?);
        }
        Ok(answers)
    }

    /// Compares the answers with the labels of the pictures in a folder, which has one of the forms that [`open`] takes.
    /// If it has pictures for the training and others, these are taken.
    ///
    /// # Errors
    /// Fails if the folder has none of these forms, if it has a class that the model does not know, and if a picture
    /// cannot be read.
    #[track_caller]
    pub fn evaluate(&self, folder: impl AsRef<Path>, max_memory: Option<usize>) -> Result<Measured> {
        let spec = self.spec.clone();
        let pictures = data::labelled(folder.as_ref(), &self.spec.classes, max_memory, &self.device)?;
        let prepared = pictures.map(move |(photo, label)| Ok((spec.prepared(photo)?, label)));
        let (mut logits, mut labels) = (Vec::new(), Vec::new()); // at most one part for each batch
        for batch in DataLoader::new(prepared, &self.device).batch_size(BATCH).workers(WORKERS).build()?.epoch(0)? {
            let (x, truth) = batch?;
            logits.push(no_grad(|| self.network.forward(&x)).here()?);
            labels.push(truth);
        }
        Measured::of_batches(&logits, &labels)
    }
}

/// Pictures that a model is asked about.
struct Files {
    paths: Vec<PathBuf>,
    spec: Spec,
    max_memory: Option<usize>,
}

impl Dataset for Files {
    type Item = Photo;

    fn len(&self) -> usize {
        self.paths.len()
    }

    #[track_caller]
    fn get(&self, index: usize) -> Result<Photo> {
        let path = self.paths.get(index).ok_or_else(|| Error::argument("predict", format!("no picture {index}")))?;
        self.spec.read(path, self.max_memory)
    }
}

/// A picture as a PNG file whose longer side has at most `side` pixels.
///
/// # Errors
/// The file is damaged.
#[track_caller]
pub fn thumbnail(photo: Photo, side: usize, device: &Device) -> Result<Vec<u8>> {
    let (h, w) = photo.size();
    let longer = h.max(w);
    let photo =
        if longer > side { photo.resize((h * side / longer).max(1), (w * side / longer).max(1))? } else { photo };
    let channels = photo.shape()[0];
    let plain = photo.normalize(&vec![0.0; channels], &vec![1.0; channels])?; // at most 4
    encode(&plain.to_tensor(device)?, Format::Png, SaveOptions::default().quality)
}
