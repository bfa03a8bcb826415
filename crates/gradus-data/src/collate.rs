//! [`Sample`]: stacks samples into a batch of tensors.

use gradus_tensor::backend::HostVec;
use gradus_tensor::{Device, Error, Here, Result, Tensor};

use crate::Image;

/// A type that a [`DataLoader`](crate::DataLoader) can stack into batches.
pub trait Sample: Send + Sized + 'static {
    /// The type of a batch: tensors whose first axis counts the samples.
    type Batch: Send + 'static;

    /// Stacks `samples`, of which there is at least one, into a batch on `device`. Errors if their shapes differ.
    fn collate(samples: Vec<Self>, device: &Device) -> Result<Self::Batch>;
}

/// The samples are stacked along a new first axis.
impl Sample for Tensor {
    type Batch = Tensor;

    #[track_caller]
    fn collate(samples: Vec<Self>, _: &Device) -> Result<Tensor> {
        Tensor::stack(&samples.iter().collect::<Vec<_>>(), 0)
    }
}

/// A batch is f32, `[n, channels, height, width]`.
impl Sample for Image {
    type Batch = Tensor;

    #[track_caller]
    fn collate(samples: Vec<Self>, device: &Device) -> Result<Tensor> {
        let first = samples.first().map_or([0; 3], Image::shape);
        if let Some(at) = samples.iter().position(|s| s.shape() != first) {
            let m = format!("image 0 of the batch is {first:?} and image {at} is {:?}", samples[at].shape());
            return Err(Error::shape("collate", m).help("images of a batch have one size; resize them first"));
        }
        let count = samples.len().saturating_mul(first.iter().product::<usize>());
        let mut pixels = HostVec::with_capacity(device.backend(), "collate", count)?;
        samples.iter().try_for_each(|s| pixels.extend("collate", s.pixels().iter().copied())).here()?;
        Tensor::from_vec(pixels, [samples.len(), first[0], first[1], first[2]], device)
    }
}

/// A batch is `[n, len]`.
impl Sample for Vec<f32> {
    type Batch = Tensor;

    #[track_caller]
    fn collate(samples: Vec<Self>, device: &Device) -> Result<Tensor> {
        let len = samples.first().map_or(0, Vec::len);
        if let Some(at) = samples.iter().position(|s| s.len() != len) {
            let m = format!("sample 0 of the batch has {len} values and sample {at} has {}", samples[at].len());
            return Err(Error::shape("collate", m).help("pad or cut them to one length"));
        }
        Tensor::from_vec(samples.concat(), [samples.len(), len], device)
    }
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
        }
    )* };
}
numbers!(f32, f64, i64, i32, u8);

/// The two parts are batched separately.
impl<A: Sample, B: Sample> Sample for (A, B) {
    type Batch = (A::Batch, B::Batch);

    #[track_caller]
    fn collate(samples: Vec<Self>, device: &Device) -> Result<Self::Batch> {
        let (a, b) = samples.into_iter().unzip();
        Ok((A::collate(a, device)?, B::collate(b, device)?))
    }
}
