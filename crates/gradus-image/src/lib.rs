//! Image filters on tensors, and PNG and JPEG files.
//!
//! Part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
//!
//! An image is a tensor `[.., c, h, w]` with 1 channel (grey), 3 channels (red, green, blue) or 4 channels (red, green,
//! blue, alpha). Its values are floats from 0 to 1, or `u8` from 0 to 255. Leading axes are batch axes. A filter
//! returns the dtype of its input: `u8` images are computed in f32, rounded (halves to even) and saturated; f16 and
//! bf16 images are computed in f32 and rounded once. Filters that change colours leave alpha unchanged, and filters
//! that move pixels move alpha with them.
//!
//! Every filter consists of tensor operations. So it runs on every backend. On floats it is differentiable wherever its
//! formula is.
//!
//! ```
//! # use gradus_cpu::CpuBackend; use gradus_tensor::{DType, Device, Error, Tensor}; use std::sync::Arc;
//! use gradus_image::{Border, gaussian_blur, resize};
//! # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
//! let image = Tensor::ones([3, 20, 30], DType::F32, &device)?;
//! let small = resize(&gaussian_blur(&image, 1.5, None, Border::Replicate)?, 10, 15)?;
//! assert_eq!(small.shape(), [3, 10, 15]);
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod augment;
mod blur;
mod colour;
mod convert;
mod edges;
mod file;
mod geometry;
mod neighbours;
mod photo;
mod picture;
mod raster;
mod rotate;

pub use blur::gaussian_blur;
pub use colour::{
    Range, brightness, contrast, contrast_about_mean, grayscale, hue, invert, normalize, saturation, threshold,
};
pub use convert::{from_hwc, to_bytes, to_float, to_hwc};
pub use edges::{sharpen, sobel};
pub use file::{Format, LoadOptions, SaveOptions, decode, encode, load, save};
pub use geometry::{center_crop, crop, flip_horizontal, flip_vertical, resize, resize_with};
pub use neighbours::Border;
pub use photo::{Channels, Photo};
pub use rotate::{Rotate, rotate};
