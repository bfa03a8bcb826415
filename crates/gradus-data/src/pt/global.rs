//! [`Global`]: the Python names that a PyTorch file may use.

use gradus_tensor::DType;

/// A Python function or class by name, and what it is used for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Global {
    /// Makes a dict.
    Dict,
    /// Makes a tuple of sizes.
    Size,
    /// The name of a device.
    Device,
    /// Makes a tensor from a storage, an offset, a shape and strides.
    Tensor,
    /// The same, with a dtype.
    Tensor3,
    /// Makes a parameter from a tensor.
    Parameter,
    /// The class of storages of this dtype; without a dtype, of bytes.
    Storage(&'static str, Option<DType>),
    DType(&'static str, DType),
}

/// A block of memory of which tensors are views.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Storage {
    /// The name of its file.
    pub(super) key: String,
    /// The dtype of its elements; `None` for a storage of bytes.
    pub(super) dtype: Option<DType>,
    /// The number of its elements.
    pub(super) size: usize,
}

impl Storage {
    /// The same bytes, interpreted as elements of `dtype`.
    pub(super) fn seen_as(&self, dtype: DType) -> Result<Storage, String> {
        match self.dtype {
            None if self.size.is_multiple_of(dtype.size()) => {
                Ok(Storage { key: self.key.clone(), dtype: Some(dtype), size: self.size / dtype.size() })
            }
            None => Err(format!("a storage of {} bytes for elements of {dtype}", self.size)),
            Some(own) if own == dtype => Ok(self.clone()),
            Some(own) => Err(format!("a storage of {own} for a tensor of {dtype}")),
        }
    }
}

const STORAGES: [(&str, DType); 10] = [
    ("DoubleStorage", DType::F64),
    ("FloatStorage", DType::F32),
    ("HalfStorage", DType::F16),
    ("BFloat16Storage", DType::BF16),
    ("LongStorage", DType::I64),
    ("IntStorage", DType::I32),
    ("ShortStorage", DType::I16),
    ("CharStorage", DType::I8),
    ("ByteStorage", DType::U8),
    ("BoolStorage", DType::Bool),
];

const DTYPES: [(&str, DType); 13] = [
    ("float64", DType::F64),
    ("float32", DType::F32),
    ("float16", DType::F16),
    ("bfloat16", DType::BF16),
    ("int64", DType::I64),
    ("int32", DType::I32),
    ("int16", DType::I16),
    ("int8", DType::I8),
    ("uint64", DType::U64),
    ("uint32", DType::U32),
    ("uint16", DType::U16),
    ("uint8", DType::U8),
    ("bool", DType::Bool),
];

impl Global {
    pub(super) fn find(module: &str, name: &str) -> Option<Global> {
        Some(match (module, name) {
            ("collections", "OrderedDict" | "Counter") => Global::Dict,
            ("torch", "Size") => Global::Size,
            ("torch", "device") => Global::Device,
            ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => Global::Tensor,
            ("torch._utils", "_rebuild_tensor_v3") => Global::Tensor3,
            ("torch._utils", "_rebuild_parameter") => Global::Parameter,
            ("torch.storage", "UntypedStorage") => Global::Storage("UntypedStorage", None),
            ("torch", "UntypedStorage") => Global::Storage("UntypedStorage", None),
            ("torch", _) => {
                let storage = STORAGES.iter().find(|(known, _)| *known == name);
                let dtype = || DTYPES.iter().find(|(known, _)| *known == name);
                match storage {
                    Some(&(name, dtype)) => Global::Storage(name, Some(dtype)),
                    None => dtype().map(|&(name, dtype)| Global::DType(name, dtype))?,
                }
            }
            _ => return None,
        })
    }

    /// The last part of the name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Global::Dict => "OrderedDict",
            Global::Size => "Size",
            Global::Device => "device",
            Global::Tensor => "_rebuild_tensor_v2",
            Global::Tensor3 => "_rebuild_tensor_v3",
            Global::Parameter => "_rebuild_parameter",
            Global::Storage(name, _) | Global::DType(name, _) => name,
        }
    }
}
