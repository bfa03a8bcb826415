//! Datasets, loaders and readers.
//!
//! Part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
//!
//! A [`Dataset`] returns samples by index. A [`DataLoader`] shuffles them and stacks them into batches of tensors,
//! optionally on worker threads. The batches depend only on the dataset, the seed and the epoch, never on the number of
//! workers.
//!
//! ```
//! # use gradus_cpu::CpuBackend; use gradus_tensor::{Device, Error}; use std::sync::Arc;
//! # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
//! use gradus_data::{DataLoader, Dataset, digits, split};
//!
//! let digits = Arc::new(digits::load()?);
//! let split = split::stratified(digits.labels(), 0.2, 7)?;
//! assert_eq!((split.train.len(), split.test.len()), (1438, 359));
//!
//! let loader = DataLoader::new(digits.subset(split.train)?, &device).batch_size(64).shuffle(7).workers(2).build()?;
//! for batch in loader.epoch(0)? {
//!     let (images, labels) = batch?;
//!     assert_eq!(images.shape()[1..], [1, 8, 8]);
//!     assert_eq!(images.shape()[0], labels.shape()[0]);
//! }
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod collate;
mod csv;
mod dataset;
pub mod digits;
pub mod folds;
pub mod idx;
mod image_folder;
mod image_set;
mod loader;
mod memory;
pub mod npy;
mod preprocess;
pub mod pt;
mod sampler;
mod sequence;
pub mod split;
mod table;
pub mod text;
mod workers;
mod zip;

pub use collate::Sample;
pub use csv::CsvOptions;
pub use dataset::{Dataset, Map, Subset, TensorDataset};
pub use gradus_nn_derive::Sample;
pub use image_folder::{Channels, ImageFolder};
pub use image_set::{Image, ImageSet};
pub use loader::{Batches, DataLoader, DataLoaderBuilder, Position};
pub use preprocess::{Impute, MissingCategory, PreprocessOptions, Preprocessor, UnknownCategory};
pub use sampler::{Order, Sampler};
pub use sequence::{Padded, Sequence};
pub use table::{Column, Kind, Table};

/// What the code that `#[derive(Sample)]` generates refers to.
#[doc(hidden)]
pub mod derive {
    pub use gradus_tensor::{Device, Error};
}
