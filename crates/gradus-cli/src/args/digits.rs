//! The options of `gradus train digits`.

use std::path::PathBuf;

use super::common::TrainOptions;

pub(super) const HELP: &str = "\
Without --data it trains on 1,797 real handwritten digits of 8x8 pixels that come with the program (UCI Optical
Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, CC BY 4.0). 20 % of them are held out for the test, the
same share of every digit; which ones depends on --seed.

With --data DIR it trains on IDX files (MNIST, Fashion-MNIST and others of their form, plain or gzip):
train-images-idx3-ubyte and train-labels-idx1-ubyte, and for the test t10k-images-idx3-ubyte and
t10k-labels-idx1-ubyte; without the latter pair 20 % are held out. Any image size from 2x2 to 128x128.

Defaults: --epochs 20 (with --data 5), --batch-size 64, --lr 0.003.

The same seed gives the same bits, for any number of threads. Ctrl-C, or SIGTERM, ends the training and saves what was
learnt; a second one ends it at once. The room on the disk is taken at the start. What cannot be written at the end all the
same is put in the system's temporary folder, which the error names.";

#[derive(Debug, clap::Args)]
pub(crate) struct DigitsArgs {
    /// Folder of IDX files to train on, instead of the digits that come with the program
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) options: TrainOptions,
}
