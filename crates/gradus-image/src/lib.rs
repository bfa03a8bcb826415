//! Image filters on tensors, and PNG and JPEG files.
//!
//! A part of [Gradus](https://docs.rs/gradus): depend on the crate `gradus`, which is what keeps its promises between releases.
//!
//! An image is a tensor `[.., c, h, w]` of 1 (grey), 3 (red, green, blue) or 4 (and alpha) channels: floats from 0 to 1, or
//! `u8` from 0 to 255. Axes in front are a batch. A filter gives the dtype that it got; `u8` is computed in f32, rounded
//! (halves to even) and saturated, f16 and bf16 are computed in f32 and rounded once. Alpha passes through filters that
//! change colours as it is, and moves with its pixel in those that move pixels.
//!
//! Every filter is made of tensor operations: it runs on every backend, and on floats is differentiable wherever its
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

mod blur;
mod colour;
mod convert;
mod edges;
mod file;
mod geometry;
mod neighbours;
mod picture;
mod rotate;

pub use blur::gaussian_blur;
pub use colour::{Range, brightness, contrast, contrast_about_mean, grayscale, invert, normalize, threshold};
pub use convert::{from_hwc, to_bytes, to_float, to_hwc};
pub use edges::{sharpen, sobel};
pub use file::{Format, LoadOptions, SaveOptions, decode, encode, load, save};
pub use geometry::{center_crop, crop, flip_horizontal, flip_vertical, resize, resize_with};
pub use neighbours::Border;
pub use rotate::{Rotate, rotate};
