//! [`Call`]: what one call of a backend computed on, and how long it took.

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
    /// Bytes of memory that hold the elements: those of a stretched axis count once.
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
    /// The method of [`Backend`](crate::Backend); for [`map`](crate::Backend::map) the kernel's name.
    pub name: &'a str,
    /// What was read, in the order of the method.
    pub inputs: &'a [CallOperand],
    /// What was written.
    pub outputs: &'a [CallOperand],
    /// Additions, multiplications and functions that the definition of the method takes; 0 for methods that mostly move
    /// data. For causal attention only the scores that are not masked count.
    pub operations: u64,
    /// When the call began.
    pub began: Instant,
    /// How long it took, until an asynchronous backend had finished the work.
    pub took: Duration,
    /// Whether it succeeded.
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

/// A function that calls are reported to.
pub type Tell = dyn Fn(&Call<'_>) + Send + Sync;
