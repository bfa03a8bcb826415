//! [`Sample`]: stacks samples into a batch of tensors.

use gradus_image::Photo;
use gradus_tensor::backend::HostVec;
use gradus_tensor::{Device, Error, Here, Result, Tensor};

use crate::Image;

/// A type that a [`DataLoader`](crate::DataLoader) can stack into batches.
///
/// Tensors, images, numbers, lists of numbers, texts and [sequences](crate::Sequence) are samples, and so are tuples of
/// up to four samples. A struct of samples can derive the trait; its batch is then a struct with the same fields:
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::{Device, Error}; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_data::Sample;
///
/// #[derive(Sample)]
/// struct Flower {
///     petals: Vec<f32>,
///     species: i64,
/// }
///
/// let flowers = vec![Flower { petals: vec![1.4, 0.2], species: 0 }, Flower { petals: vec![4.7, 1.4], species: 1 }];
/// let batch: FlowerBatch = Flower::collate(flowers, &device)?;
/// assert_eq!(batch.petals.shape(), [2, 2]);
/// assert_eq!(batch.species.to_vec::<i64>()?, [0, 1]);
/// # Ok::<(), Error>(())
/// ```
pub trait Sample: Send + Sized + 'static {
    /// The type of a batch: tensors whose first axis runs over the samples.
    type Batch: Send + 'static;

    /// Stacks at least one sample into a batch on `device`. Errors if their shapes differ.
    fn collate(samples: Vec<Self>, device: &Device) -> Result<Self::Batch>;

    /// All tensors of a batch, in a fixed order; `None` if a batch also holds other values, such as texts. A training
    /// step can be captured only if its batches consist of tensors.
    fn tensors(_batch: &Self::Batch) -> Option<Vec<&Tensor>> {
        None
    }
}

/// The samples are stacked along a new first axis.
impl Sample for Tensor {
    type Batch = Tensor;

    #[track_caller]
    fn collate(samples: Vec<Self>, _: &Device) -> Result<Tensor> {
        Tensor::stack(&samples.iter().collect::<Vec<_>>(), 0)
    }

    fn tensors(batch: &Tensor) -> Option<Vec<&Tensor>> {
        Some(vec![batch])
    }
}

/// A batch is f32, `[n, channels, height, width]`.
impl Sample for Image {
    type Batch = Tensor;

    #[track_caller]
    fn collate(samples: Vec<Self>, device: &Device) -> Result<Tensor> {
        let shapes: Vec<_> = samples.iter().map(Image::shape).collect();
        let first = one_shape(&shapes)?;
        let count = samples.len().saturating_mul(first.iter().product::<usize>());
        let mut pixels = HostVec::with_capacity(device.backend(), "collate", count)?;
        samples.iter().try_for_each(|s| pixels.extend("collate", s.pixels().iter().copied())).here()?;
        Tensor::from_vec(pixels, [samples.len(), first[0], first[1], first[2]], device)
    }

    fn tensors(batch: &Tensor) -> Option<Vec<&Tensor>> {
        Some(vec![batch])
    }
}

/// A batch is f32, `[n, channels, height, width]`.
impl Sample for Photo {
    type Batch = Tensor;

    #[track_caller]
    fn collate(samples: Vec<Self>, device: &Device) -> Result<Tensor> {
        let shapes: Vec<_> = samples.iter().map(Photo::shape).collect();
        let [channels, height, width] = one_shape(&shapes)?;
        let size = channels * height * width;
        let count = samples.len().saturating_mul(size);
        let mut values = HostVec::filled(device.backend(), "collate", 0.0f32, count)?;
        for (photo, out) in samples.iter().zip(values.chunks_exact_mut(size)) {
            photo.fill(out)?;
        }
        Tensor::from_vec(values, [samples.len(), channels, height, width], device)
    }

    fn tensors(batch: &Tensor) -> Option<Vec<&Tensor>> {
        Some(vec![batch])
    }
}

/// The shape of all images of a batch.
#[track_caller]
fn one_shape(shapes: &[[usize; 3]]) -> Result<[usize; 3]> {
    let first = shapes.first().copied().unwrap_or([0; 3]);
    if let Some(at) = shapes.iter().position(|&shape| shape != first) {
        let m = format!("image 0 of the batch is {first:?} and image {at} is {:?}", shapes[at]);
        return Err(Error::shape("collate", m).help("images of a batch have one size; resize them first"));
    }
    Ok(first)
}

macro_rules! numbers {
    ($($t:ty),*) => { $(
        /// A batch is `[n]`.
        impl Sample for $t {
            type Batch = Tensor;

            #[track_caller]
            fn collate(samples: Vec<Self>, device: &Device) -> Result<Tensor> {
                let n = samples.len();
                Tensor::from_vec(samples, [n], device)
            }

            fn tensors(batch: &Tensor) -> Option<Vec<&Tensor>> {
                Some(vec![batch])
            }
        }

        /// A batch is `[n, len]`. For samples of different lengths, use [`Sequence`](crate::Sequence).
        impl Sample for Vec<$t> {
            type Batch = Tensor;

            #[track_caller]
            fn collate(samples: Vec<Self>, device: &Device) -> Result<Tensor> {
                let len = samples.first().map_or(0, Vec::len);
                if let Some(at) = samples.iter().position(|s| s.len() != len) {
                    let m = format!("sample 0 of the batch has {len} values and sample {at} has {}", samples[at].len());
                    return Err(Error::shape("collate", m)
                        .help("pad or cut them to one length, or make each a `Sequence`, which is padded"));
                }
                Tensor::from_vec(samples.concat(), [samples.len(), len], device)
            }

            fn tensors(batch: &Tensor) -> Option<Vec<&Tensor>> {
                Some(vec![batch])
            }
        }
    )* };
}
numbers!(f32, f64, i64, i32, i16, i8, u8, bool);

/// A batch is the list of the texts.
impl Sample for String {
    type Batch = Vec<String>;

    fn collate(samples: Vec<Self>, _: &Device) -> Result<Vec<String>> {
        Ok(samples)
    }
}

macro_rules! tuples {
    ($(($($t:ident $part:ident $list:ident),*))*) => { $(
        /// The parts are batched separately.
        impl<$($t: Sample),*> Sample for ($($t,)*) {
            type Batch = ($($t::Batch,)*);

            #[track_caller]
            fn collate(samples: Vec<Self>, device: &Device) -> Result<Self::Batch> {
                $(let mut $list = Vec::with_capacity(samples.len());)*
                for ($($part,)*) in samples {
                    $($list.push($part);)*
                }
                Ok(($($t::collate($list, device)?,)*))
            }

            fn tensors(($($part,)*): &Self::Batch) -> Option<Vec<&Tensor>> {
                let mut all = vec![];
                $(all.extend($t::tensors($part)?);)*
                Some(all)
            }
        }
    )* };
}
tuples! {
    (A a a_list, B b b_list)
    (A a a_list, B b b_list, C c c_list)
    (A a a_list, B b b_list, C c c_list, D d d_list)
}
