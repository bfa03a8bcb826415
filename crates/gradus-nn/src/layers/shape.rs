//! The [`Flatten`] and [`Identity`] layers.

use gradus_tensor::{Result, Tensor};

use crate::{Forward, Module};

/// Merges the axes `start` to `end`, both included. Negative axes count from the end. The default keeps the batch axis:
/// `[n, c, h, w]` to `[n, c * h * w]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct Flatten {
    /// The first axis to merge.
    pub start: isize,
    /// The last axis to merge.
    pub end: isize,
}

impl Default for Flatten {
    fn default() -> Self {
        Flatten { start: 1, end: -1 }
    }
}

impl Forward for Flatten {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.flatten(self.start, self.end)
    }
}

/// Returns its input. A placeholder where a layer is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Module)]
pub struct Identity;

impl Forward for Identity {
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.clone())
    }
}
