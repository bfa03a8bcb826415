//! [`Elem`]: the element types of ONNX. Gradus cannot compute with all of them.

use gradus_tensor::{DType, Error, ErrorKind, Result};

/// The element type of an ONNX tensor.
///
/// Gradus computes with the types that have a [`dtype`](Elem::dtype). Elements of the other types are stored in a dtype
/// of 8 bits, as their bits (fp8, fp4) or their values (4-bit and 2-bit integers). Operators that only move elements
/// accept them, and `Cast`, `QuantizeLinear` and `DequantizeLinear` convert them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Elem {
    F32,
    U8,
    I8,
    U16,
    I16,
    I32,
    I64,
    Bool,
    F16,
    F64,
    U32,
    U64,
    BF16,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0,
    F4E2M1,
    U4,
    I4,
    U2,
    I2,
}

/// Each type with its number in `TensorProto.DataType`, its dtype in memory, and its bits in a file.
const TABLE: [(Elem, i64, DType, usize, &str); 23] = [
    (Elem::F32, 1, DType::F32, 32, "float32"),
    (Elem::U8, 2, DType::U8, 8, "uint8"),
    (Elem::I8, 3, DType::I8, 8, "int8"),
    (Elem::U16, 4, DType::U16, 16, "uint16"),
    (Elem::I16, 5, DType::I16, 16, "int16"),
    (Elem::I32, 6, DType::I32, 32, "int32"),
    (Elem::I64, 7, DType::I64, 64, "int64"),
    (Elem::Bool, 9, DType::Bool, 8, "bool"),
    (Elem::F16, 10, DType::F16, 16, "float16"),
    (Elem::F64, 11, DType::F64, 64, "float64"),
    (Elem::U32, 12, DType::U32, 32, "uint32"),
    (Elem::U64, 13, DType::U64, 64, "uint64"),
    (Elem::BF16, 16, DType::BF16, 16, "bfloat16"),
    (Elem::F8E4M3FN, 17, DType::U8, 8, "float8e4m3fn"),
    (Elem::F8E4M3FNUZ, 18, DType::U8, 8, "float8e4m3fnuz"),
    (Elem::F8E5M2, 19, DType::U8, 8, "float8e5m2"),
    (Elem::F8E5M2FNUZ, 20, DType::U8, 8, "float8e5m2fnuz"),
    (Elem::U4, 21, DType::U8, 4, "uint4"),
    (Elem::I4, 22, DType::I8, 4, "int4"),
    (Elem::F4E2M1, 23, DType::U8, 4, "float4e2m1"),
    (Elem::F8E8M0, 24, DType::U8, 8, "float8e8m0"),
    (Elem::U2, 25, DType::U8, 2, "uint2"),
    (Elem::I2, 26, DType::I8, 2, "int2"),
];

/// `TensorProto.DataType.STRING`
pub(crate) const STRING: i64 = 8;

impl Elem {
    fn row(self) -> (DType, usize, &'static str) {
        let row = TABLE.iter().find(|row| row.0 == self).map(|row| (row.2, row.3, row.4));
        row.unwrap_or((DType::U8, 8, "unknown"))
    }

    /// The type with this number in `TensorProto.DataType`.
    pub(crate) fn of_number(number: i64) -> Result<Elem> {
        match TABLE.iter().find(|row| row.1 == number) {
            Some(row) => Ok(row.0),
            None => {
                let name = match number {
                    STRING => "string".to_owned(),
                    14 => "complex64".to_owned(),
                    15 => "complex128".to_owned(),
                    _ => format!("number {number}"),
                };
                let m = format!("tensors of the element type {name} are not supported here");
                Err(Error::new(ErrorKind::Unsupported, "onnx", m))
            }
        }
    }

    /// The number in `TensorProto.DataType`.
    pub(crate) fn number(self) -> i64 {
        TABLE.iter().find(|row| row.0 == self).map_or(0, |row| row.1)
    }

    /// The type of a tensor of this dtype.
    pub(crate) fn of_dtype(dtype: DType) -> Elem {
        TABLE.iter().find(|row| row.2 == dtype && row.0.is_native()).map_or(Elem::F32, |row| row.0)
    }

    /// The dtype that holds the elements in memory.
    pub(crate) fn stored(self) -> DType {
        self.row().0
    }

    /// The bits of an element in a file.
    pub(crate) fn bits(self) -> usize {
        self.row().1
    }

    /// The name, as in ONNX.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Whether Gradus computes with this type.
    pub(crate) fn is_native(self) -> bool {
        self.dtype().is_some()
    }

    /// Whether this is fp8 or fp4, stored as bits.
    pub(crate) fn is_small_float(self) -> bool {
        !self.is_native() && !self.is_small_int()
    }

    /// Whether this is an integer of 4 or 2 bits.
    pub(crate) fn is_small_int(self) -> bool {
        matches!(self, Elem::U4 | Elem::I4 | Elem::U2 | Elem::I2)
    }

    /// The dtype with the same values, if Gradus has one.
    pub fn dtype(self) -> Option<DType> {
        let small = matches!(
            self,
            Elem::F8E4M3FN | Elem::F8E4M3FNUZ | Elem::F8E5M2 | Elem::F8E5M2FNUZ | Elem::F8E8M0 | Elem::F4E2M1
        );
        if small || self.is_small_int() { None } else { Some(self.stored()) }
    }

    /// The smallest and largest values of an integer type.
    pub(crate) fn range(self) -> Option<(i64, i64)> {
        Some(match self {
            Elem::U2 => (0, 3),
            Elem::I2 => (-2, 1),
            Elem::U4 => (0, 15),
            Elem::I4 => (-8, 7),
            Elem::U8 => (0, 255),
            Elem::I8 => (-128, 127),
            Elem::U16 => (0, 65_535),
            Elem::I16 => (-32_768, 32_767),
            Elem::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            Elem::U32 => (0, i64::from(u32::MAX)),
            Elem::I64 => (i64::MIN, i64::MAX),
            Elem::U64 => (0, i64::MAX),
            _ => return None,
        })
    }
}
