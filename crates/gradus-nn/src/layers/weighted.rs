//! [`Weighted`]: a layer that can compute with another weight than its own.

use gradus_tensor::{Result, Tensor};

use crate::{Forward, Parameter};

/// A layer with a parameter called `weight` that can compute with other values in its place, as
/// [`WeightNorm`](crate::WeightNorm) and [`SpectralNorm`](crate::SpectralNorm) do: [`Linear`](crate::Linear),
/// [`Embedding`](crate::Embedding) and the convolutions.
pub trait Weighted: Forward {
    /// The parameter, a field called `weight`.
    fn weight(&self) -> &Parameter;

    /// The axis of the weight that belongs to the outputs: 0, or 1 for transposed convolutions.
    fn output_axis(&self) -> usize {
        0
    }

    /// Computes the output with the values `weight` in place of the parameter.
    fn compute_with(&self, weight: &Tensor, input: &Tensor) -> Result<Tensor>;
}
