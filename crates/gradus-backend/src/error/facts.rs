//! The parts of an [`Error`](super::Error) that are available as data.

use std::fmt;
use std::panic::Location;

use crate::DType;

/// An operand of the call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedOperand {
    /// The operation's name for the operand: `lhs`, `weight`, `input 0`.
    pub name: String,
    /// The sizes of its axes.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: DType,
    /// The device on which it lives.
    pub device: String,
}

impl FailedOperand {
    /// The columns of the operand's line in the message.
    pub(super) fn columns(&self) -> [String; 4] {
        [self.name.clone(), format!("{:?}", self.shape), self.dtype.to_string(), self.device.clone()]
    }
}

/// The layer whose forward pass failed. It is shown as `layers.3.conv1 (Conv2d)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedLayer {
    /// The layer's path within the model whose forward pass was called, as in parameter names: `layers.3.conv1`. Empty
    /// for that model itself.
    pub path: String,
    /// The layer's type, without its module path and generic arguments: `Conv2d`.
    pub kind: String,
}

impl fmt::Display for FailedLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.kind) } else { write!(f, "{} ({})", self.path, self.kind) }
    }
}

/// A value that a gradient needs but that was overwritten after it was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionMismatch {
    /// The operation whose gradient needs the value.
    pub needed_by: String,
    /// Which of the operation's values it is: `input 0`, `output 0`.
    pub value: String,
    /// The operation that overwrote the value.
    pub written_by: String,
    /// The version of the storage when the value was saved.
    pub expected: u64,
    /// The version of the storage after the write.
    pub found: u64,
    /// The lines of both calls.
    pub lines: MismatchLines,
}

/// The lines of user code that belong to a [`VersionMismatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MismatchLines {
    /// The line at which the operation that needs the value was recorded.
    pub needed: &'static Location<'static>,
    /// The line at which the value was overwritten.
    pub written: &'static Location<'static>,
}
