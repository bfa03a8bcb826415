//! [`Scalar`]: one number of any kind, held on the host.

use std::fmt;

use crate::{DType, Error, Result};

/// A boolean, an integer or a float: the type of scalar arguments.
///
/// In an operation with a tensor, a scalar is *weak*: it takes the tensor's dtype unless its kind is higher (bool, then
/// integer, then float). Adding 0.5 to an integer tensor yields a float tensor; adding 2 to an f16 tensor yields an f16
/// tensor.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
}

impl Scalar {
    /// The value as f64.
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::Bool(v) => f64::from(u8::from(v)),
            Scalar::Int(v) => v as f64,
            Scalar::Float(v) => v,
        }
    }

    /// The value as i64, truncating and saturating a float.
    pub fn to_i64(self) -> i64 {
        match self {
            Scalar::Bool(v) => i64::from(v),
            Scalar::Int(v) => v,
            Scalar::Float(v) => v as i64,
        }
    }

    /// Checks that `dtype` can represent this value; otherwise the error names both.
    ///
    /// Every value fits a float dtype (it is rounded, and large values overflow to infinity). An integer dtype accepts
    /// integral values within its range; `bool` accepts 0 and 1.
    #[track_caller]
    pub fn check(self, dtype: DType) -> Result<()> {
        if dtype.is_float() {
            return Ok(());
        }
        let (lo, hi): (i128, i128) = match dtype {
            DType::I64 => (i64::MIN.into(), i64::MAX.into()),
            DType::I32 => (i32::MIN.into(), i32::MAX.into()),
            DType::I16 => (i16::MIN.into(), i16::MAX.into()),
            DType::I8 => (i8::MIN.into(), i8::MAX.into()),
            DType::U64 => (0, u64::MAX.into()),
            DType::U32 => (0, u32::MAX.into()),
            DType::U16 => (0, u16::MAX.into()),
            DType::U8 => (0, u8::MAX.into()),
            _ => (0, 1),
        };
        let fits = match self {
            Scalar::Bool(_) => true,
            Scalar::Int(v) => (lo..=hi).contains(&i128::from(v)),
            // Floats beyond i128 saturate in the conversion and so lie outside every dtype's range.
            Scalar::Float(v) => v.is_finite() && v.trunc() == v && (lo..=hi).contains(&(v as i128)),
        };
        if fits { Ok(()) } else { Err(Error::argument("scalar", format!("{self} cannot be represented as {dtype}"))) }
    }

    /// A stable bit pattern, equal for identical values of the same kind, NaN included.
    pub fn bits(self) -> (u8, u64) {
        match self {
            Scalar::Bool(v) => (0, u64::from(v)),
            Scalar::Int(v) => (1, v as u64),
            Scalar::Float(v) => (2, v.to_bits()),
        }
    }
}

impl Scalar {
    /// The scalar with these [`bits`](Scalar::bits); `None` if the kind is unknown.
    pub fn from_bits(kind: u8, bits: u64) -> Option<Self> {
        Some(match kind {
            0 => Scalar::Bool(bits != 0),
            1 => Scalar::Int(bits as i64),
            2 => Scalar::Float(f64::from_bits(bits)),
            _ => return None,
        })
    }
}

/// Bitwise equality of kind and value: the identity that caches need, not a numeric comparison.
impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}
impl Eq for Scalar {}
impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(v) => write!(f, "{v}"),
            Scalar::Int(v) => write!(f, "{v}"),
            Scalar::Float(v) => write!(f, "{v:?}"),
        }
    }
}

macro_rules! from {
    ($($t:ty => |$v:ident| $e:expr;)*) => {$(impl From<$t> for Scalar { fn from($v: $t) -> Self { $e } })*};
}
from! {
    bool => |v| Scalar::Bool(v);
    i64 => |v| Scalar::Int(v);
    i32 => |v| Scalar::Int(i64::from(v));
    u32 => |v| Scalar::Int(i64::from(v));
    u8 => |v| Scalar::Int(i64::from(v));
    f64 => |v| Scalar::Float(v);
    f32 => |v| Scalar::Float(f64::from(v));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_tell_every_scalar() {
        for s in [Scalar::Bool(true), Scalar::Int(-3), Scalar::Float(-0.0), Scalar::Float(f64::NAN)] {
            let (kind, bits) = s.bits();
            assert_eq!(Scalar::from_bits(kind, bits), Some(s));
        }
        assert_eq!(Scalar::from_bits(3, 0), None);
    }

    #[test]
    fn only_representable_values_pass() {
        assert!(Scalar::Int(255).check(DType::U8).is_ok());
        assert!(Scalar::Int(300).check(DType::U8).is_err());
        assert!(Scalar::Float(f64::NAN).check(DType::I32).is_err());
        assert!(Scalar::Float(1.5).check(DType::I64).is_err());
        assert!(Scalar::Float(2f64.powi(63)).check(DType::I64).is_err());
        assert!(Scalar::Float(2f64.powi(63)).check(DType::U64).is_ok());
        assert!(Scalar::Float(2f64.powi(64)).check(DType::U64).is_err());
        assert!(Scalar::Float(f64::INFINITY).check(DType::F16).is_ok());
    }
}
