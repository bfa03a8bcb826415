//! [`Call`]: the operands and the duration of one call of a backend.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::{DType, Layout, Shape};

/// An operand of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallOperand {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the axes.
    pub shape: Shape,
    /// Bytes of memory that hold the elements; a broadcast axis counts once.
    pub bytes: u64,
}

impl CallOperand {
    pub(crate) fn new(dtype: DType, layout: &Layout) -> Self {
        let places = layout.dims().iter().zip(layout.strides()).filter(|(_, s)| **s != 0).map(|(&d, _)| d as u64);
        let bytes = if layout.numel() == 0 { 0 } else { places.product::<u64>() * dtype.size() as u64 };
        CallOperand { dtype, shape: *layout.shape(), bytes }
    }

    pub(crate) fn of_bytes(bytes: usize) -> Self {
        CallOperand { dtype: DType::U8, shape: Shape::new(&[bytes]).unwrap_or(Shape::SCALAR), bytes: bytes as u64 }
    }

    /// Number of elements.
    pub fn numel(&self) -> u64 {
        self.shape.dims().iter().map(|&d| d as u64).product()
    }
}

/// One call of a backend.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// The [`Backend`](crate::Backend) method, or the kernel's name for [`map`](crate::Backend::map).
    pub name: &'a str,
    /// The operands that were read, in the order of the method's parameters.
    pub inputs: &'a [CallOperand],
    /// The operands that were written.
    pub outputs: &'a [CallOperand],
    /// Number of additions, multiplications and function evaluations in the definition of the method; 0 for methods
    /// that mostly move data. Causal attention counts only the scores that are not masked.
    pub operations: u64,
    /// When the call began.
    pub began: Instant,
    /// How long the call took; for an asynchronous backend, until it had finished the work.
    pub took: Duration,
    /// Whether the call succeeded.
    pub succeeded: bool,
}

impl Call<'_> {
    /// Bytes of all operands.
    pub fn bytes(&self) -> u64 {
        self.inputs.iter().chain(self.outputs).map(|o| o.bytes).sum()
    }
}

/// The operands of a call.
pub(crate) type Operands = SmallVec<[CallOperand; 4]>;

/// A function to which calls are reported.
pub type Tell = dyn Fn(&Call<'_>) + Send + Sync;
