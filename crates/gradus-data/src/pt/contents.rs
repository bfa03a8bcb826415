//! [`TorchFile`] and [`Plain`]: the contents of a PyTorch file.

use std::collections::BTreeMap;
use std::fmt;

use gradus_tensor::Tensor;

/// The contents of a file. Names of nested dicts are joined by dots, and those of lists and tuples are numbers:
/// `{"model": {"fc.weight": t}, "epoch": 3}` holds the tensor `model.fc.weight` and the value `epoch`. If a file holds
/// a single tensor or value, its name is empty.
#[derive(Clone, Default)]
pub struct TorchFile {
    /// All tensors, including parameters. Tensors that shared memory when they were saved share it again.
    pub tensors: BTreeMap<String, Tensor>,
    /// All numbers, texts, booleans and `None`s.
    pub values: BTreeMap<String, Plain>,
}

impl fmt::Debug for TorchFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes: BTreeMap<_, _> = self.tensors.iter().map(|(name, t)| (name, (t.dtype(), t.shape()))).collect();
        f.debug_struct("TorchFile").field("tensors", &shapes).field("values", &self.values).finish()
    }
}

/// A number, a text, or another value without parts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Plain {
    /// Python's `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// A whole number of up to 64 bits.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text; also the name of a device, or of a dtype such as `torch.float32`.
    Text(String),
}

/// Prints the value as Python does, but texts without quotes, and exponents without leading zeros, as in `1e-8`.
impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plain::None => f.write_str("None"),
            Plain::Bool(true) => f.write_str("True"),
            Plain::Bool(false) => f.write_str("False"),
            Plain::Int(n) => n.fmt(f),
            Plain::Float(x) => write!(f, "{x:?}"),
            Plain::Text(text) => f.write_str(text),
        }
    }
}
