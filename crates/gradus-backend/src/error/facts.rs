//! What an [`Error`](super::Error) carries as data.

use std::fmt;
use std::panic::Location;

use crate::DType;

/// An operand of the call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedOperand {
    /// What the operation calls it: `lhs`, `weight`, `input 0`.
    pub name: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: DType,
    /// Where it lives.
    pub device: String,
}

impl FailedOperand {
    /// The columns in which it is shown.
    pub(super) fn columns(&self) -> [String; 4] {
        [self.name.clone(), format!("{:?}", self.shape), self.dtype.to_string(), self.device.clone()]
    }
}

/// The layer whose forward pass failed. It is shown as `layers.3.conv1 (Conv2d)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedLayer {
    /// Where it is in the model whose forward pass was called, as in the names of parameters: `layers.3.conv1`. Empty for that
    /// model itself.
    pub path: String,
    /// Its type, without the path of the type and what it is generic over: `Conv2d`.
    pub kind: String,
}

impl fmt::Display for FailedLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.kind) } else { write!(f, "{} ({})", self.path, self.kind) }
    }
}

/// A value that a gradient needs, and that was written over since it was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionMismatch {
    /// The operation whose gradient needs the value.
    pub needed_by: String,
    /// Which value of it: `input 0`, `output 0`.
    pub value: String,
    /// The operation that wrote.
    pub written_by: String,
    /// The version that the storage had when the value was kept.
    pub expected: u64,
    /// The version that it had after the write.
    pub found: u64,
    /// Where both were called.
    pub lines: MismatchLines,
}

/// The lines of the user's code of a [`VersionMismatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MismatchLines {
    /// Where the operation that needs the value was recorded.
    pub needed: &'static Location<'static>,
    /// Where the value was written over.
    pub written: &'static Location<'static>,
}
