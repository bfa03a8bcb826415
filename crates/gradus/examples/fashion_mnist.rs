//! A small convolutional network, trained on the IDX files of Fashion-MNIST and saved as safetensors.
//!
//! ```sh
//! cargo run --release -p gradus --example fashion_mnist -- /usr/share/datasets/fashion-mnist
//! ```
//! On Debian and Ubuntu, `apt-get install dataset-fashion-mnist` installs that folder. Elsewhere, download the four
//! files from <https://github.com/zalandoresearch/fashion-mnist>. A folder with the four files of MNIST works too.
#![allow(clippy::print_stdout)]

use std::path::Path;

use gradus::data::idx::{Part, read_folder};
use gradus::prelude::*;
use gradus::train::{Evaluation, Event};

/// The file in the current folder to which the model is saved.
const MODEL: &str = "fashion_mnist.safetensors";

/// Two convolutions, each followed by max-pooling, and two linear layers.
#[derive(Module)]
struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    dropout: Dropout,
    fc1: Linear,
    fc2: Linear,
}

impl Cnn {
    /// A network for images of `height` x `width` pixels with one channel.
    fn new([height, width]: [usize; 2], classes: usize, device: &Device, rng: &mut Generator) -> Result<Cnn> {
        let dropout = Dropout::new(0.25, rng)?;
        let init = &mut Init::new(DType::F32, device, rng);
        let same = Conv2dConfig { padding: [1, 1], ..Default::default() };
        Ok(Cnn {
            conv1: Conv2d::new(1, 16, [3, 3], same, init)?,
            conv2: Conv2d::new(16, 32, [3, 3], same, init)?,
            pool: MaxPool2d::new([2, 2], [2, 2], [0, 0])?,
            dropout,
            fc1: Linear::new(32 * (height / 4) * (width / 4), 128, init)?,
            fc2: Linear::new(128, classes, init)?,
        })
    }
}

impl Forward for Cnn {
    /// Maps images `[n, 1, height, width]` to logits `[n, classes]`.
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.pool.forward(&self.conv1.forward(x)?.relu()?)?;
        let x = self.pool.forward(&self.conv2.forward(&x)?.relu()?)?;
        let x = self.fc1.forward(&x.flatten(1, -1)?)?.relu()?;
        self.fc2.forward(&self.dropout.forward(&x)?)
    }
}

/// Trains on the files in `folder`, prints a line per epoch, saves the model to `out`, and returns the result on the
/// test set.
pub(crate) fn run(folder: &Path, epochs: usize, out: &Path) -> Result<Evaluation> {
    let (device, mut rng) = (Device::cpu()?, Generator::new(0));
    let read = |part| {
        read_folder(folder, part).map_err(|e| {
            e.help(
                "install the Debian package dataset-fashion-mnist, which fills /usr/share/datasets/fashion-mnist,\n\
                 or download the four files from https://github.com/zalandoresearch/fashion-mnist",
            )
        })
    };
    let (train, test) = (read(Part::Train)?, read(Part::Test)?);
    let [_, height, width] = train.image_shape();
    let mut model = Cnn::new([height, width], train.classes(), &device, &mut rng)?;
    println!("{} images to train on, {} parameters", train.len(), model.num_parameters());

    let train = DataLoader::new(train, &device).batch_size(64).shuffle(0).build()?;
    let test = DataLoader::new(test, &device).batch_size(256).build()?;
    let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 2e-3, ..Default::default() })?;
    let schedule = Schedule::cosine((epochs * train.len()) as u64, 0.05)?;
    let task = Classification::default();
    let percent = |share: Option<f64>| 100.0 * share.unwrap_or(f64::NAN);
    let mut print = |event: Event<'_>| {
        if let Event::EpochEnd(e) = event {
            let test = e.validation.and_then(|v| v.accuracy);
            println!(
                "epoch {} of {epochs}: loss {:.4}, accuracy {:.2} %, test accuracy {:.2} %, {:.1} s",
                e.epoch,
                e.loss,
                percent(e.accuracy),
                percent(test),
                e.seconds,
            );
        }
        Ok(())
    };
    let trainer = Trainer::new(epochs)?.schedule(schedule);
    trainer.fit(&mut model, &mut optimizer, &train, Some(&test), &task, &mut [&mut print])?;
    model.save_safetensors(out)?;
    evaluate(&mut model, &test, &task)
}

fn main() -> Result<()> {
    let Some(folder) = std::env::args().nth(1) else {
        let usage = "cargo run --release -p gradus --example fashion_mnist -- FOLDER";
        return Err(Error::argument("fashion_mnist", "no folder given").help(usage));
    };
    let result = run(Path::new(&folder), 5, Path::new(MODEL))?;
    println!("accuracy on {} test images: {:.2} %", result.samples, 100.0 * result.accuracy.unwrap_or(f64::NAN));
    println!("saved {MODEL}");
    Ok(())
}
