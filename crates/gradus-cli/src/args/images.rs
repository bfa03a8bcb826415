//! The options of `gradus train images`.

use std::path::PathBuf;

use gradus::tasks::images::Architecture;

use super::common::TrainOptions;
use crate::numbers::{memory, number};

pub(super) const HELP: &str = "\
DIR has a folder for each class, whose name is that of the class, with PNG and JPEG pictures of any size and mode; a fifth of
each class is held out for the test. Or it has the folders train and val (or valid, validation, test), each with a folder
for each class. Or it has the IDX files of MNIST or Fashion-MNIST, plain or gzip.

Every picture is read once before the training. If all are grey, the network takes grey pictures, else colours; the mean and the
deviation of the values are kept with the model, and so are the names of the classes.

Networks (--model): small, a plain network for pictures of up to 96 pixels; resnet18, resnet34, resnet50, mobilenet_v3_small,
mobilenet_v3_large, convnext_tiny and vit_tiny. All begin with random weights. The default is small for pictures of up to 96
pixels, which keep their size, and resnet18 for others, which are resized to 224 (--size).

In the training a picture is shifted by up to a sixteenth if it has the size of the input, else a random section is resized to it
(--no-crop); half of the pictures are mirrored (--flip 0.5).

Defaults: --epochs 8, --batch-size 128, --lr 0.004 for small; 30, 32 and 0.001 for the others.

The state is saved after each epoch: a run that was stopped goes on with --resume.";

#[derive(Debug, clap::Args)]
pub(crate) struct ImagesArgs {
    /// Folder with a folder of pictures for each class, or with IDX files
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,

    /// The network
    #[arg(long, value_name = "NAME", value_parser = model)]
    pub(crate) model: Option<Architecture>,

    /// Height and width of the network's input
    #[arg(long, value_name = "N", value_parser = size)]
    pub(crate) size: Option<usize>,

    /// Share of the pictures that are mirrored left to right in the training
    #[arg(long, value_name = "P", default_value = "0.5", value_parser = share)]
    pub(crate) flip: f64,

    /// Share of the pictures of which a rectangle is filled with grey in the training
    #[arg(long, value_name = "P", default_value = "0", value_parser = share)]
    pub(crate) erase: f64,

    /// Train on whole pictures instead of random sections
    #[arg(long)]
    pub(crate) no_crop: bool,

    /// Threads that read pictures [default: 2 for files, 1 for IDX files]
    #[arg(long, value_name = "N", value_parser = workers)]
    pub(crate) workers: Option<usize>,

    /// The most memory to use for reading a picture, such as 512MiB [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) max_memory: Option<usize>,

    #[command(flatten)]
    pub(crate) options: TrainOptions,
}

fn model(text: &str) -> Result<Architecture, String> {
    let names: Vec<&str> = Architecture::ALL.iter().map(|a| a.name()).collect();
    let found = Architecture::ALL.into_iter().find(|a| a.name() == text);
    found.ok_or_else(|| format!("give one of {}", names.join(", ")))
}

fn size(text: &str) -> Result<usize, String> {
    number(text, 8, 1024)
}

fn workers(text: &str) -> Result<usize, String> {
    number(text, 0, 256)
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "give a number from 0 to 1".into())
}
