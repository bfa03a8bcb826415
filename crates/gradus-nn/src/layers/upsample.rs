//! The [`Upsample`] layer.

use gradus_tensor::{Interpolate, Interpolation, Resized, Result, Tensor};

use crate::{Forward, Module};

/// Resizes the axes after the first two of `[n, c, ..]`, see [`Tensor::interpolate`].
///
/// ```
/// # use gradus_nn::{Forward, Upsample}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let x = Tensor::ones([1, 3, 8, 8], DType::F32, &device)?;
/// let twice = Upsample::by([2.0, 2.0], Interpolation::Nearest);
/// assert_eq!(twice.forward(&x)?.shape(), [1, 3, 16, 16]);
/// let fixed = Upsample::to([5, 7], Interpolation::Bilinear).align_corners();
/// assert_eq!(fixed.forward(&x)?.shape(), [1, 3, 5, 7]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Module)]
pub struct Upsample {
    sizes: Option<Vec<usize>>,
    factors: Vec<f64>,
    mode: Interpolation,
    align_corners: bool,
}

impl Upsample {
    /// Creates a layer whose output has these sizes, one for each axis.
    pub fn to(sizes: impl Into<Vec<usize>>, mode: Interpolation) -> Self {
        Upsample { sizes: Some(sizes.into()), factors: vec![], mode, align_corners: false }
    }

    /// Creates a layer that multiplies the sizes by these factors, one for each axis.
    pub fn by(factors: impl Into<Vec<f64>>, mode: Interpolation) -> Self {
        Upsample { sizes: None, factors: factors.into(), mode, align_corners: false }
    }

    /// Aligns the centres of the first and last elements instead of their outer edges. For the linear and cubic modes.
    #[must_use]
    pub fn align_corners(mut self) -> Self {
        self.align_corners = true;
        self
    }
}

impl Forward for Upsample {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let how = Interpolate::from(self.mode);
        let how = if self.align_corners { how.align_corners() } else { how };
        match &self.sizes {
            Some(sizes) => input.interpolate(Resized::To(sizes), how),
            None => input.interpolate(Resized::By(&self.factors), how),
        }
    }
}
