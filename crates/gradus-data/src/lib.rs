//! Datasets, loaders and readers.
//!
//! A part of [Gradus](https://docs.rs/gradus): depend on the crate `gradus`, which is what keeps its promises between releases.
//!
//! A [`Dataset`] gives sample `i`; a [`DataLoader`] makes shuffled batches of tensors out of it, on worker threads if
//! asked to. The order and the contents of the batches depend on the seed and the epoch only, never on the number of
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
pub mod csv;
mod dataset;
pub mod digits;
pub mod idx;
mod image_set;
mod loader;
mod memory;
pub mod split;
mod workers;

pub use collate::Sample;
pub use dataset::{Dataset, Map, Subset, TensorDataset};
pub use image_set::{Image, ImageSet};
pub use loader::{Batches, DataLoader, DataLoaderBuilder};
