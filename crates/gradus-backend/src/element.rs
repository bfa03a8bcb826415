//! [`Element`]: the type of a tensor's elements at compile time.

use std::fmt;

use half::{bf16, f16};

use crate::{DType, Result, Scalar};

/// The nearest f16, with ties to even, rounded once. (The conversion in the `half` crate goes through f32 and rounds
/// twice.)
pub fn f16_from_f64(v: f64) -> f16 {
    f16::from_f32(f32_to_odd(v))
}

/// The nearest bf16, with ties to even, rounded once.
pub fn bf16_from_f64(v: f64) -> bf16 {
    bf16::from_f32(f32_to_odd(v))
}

/// Rounds to an odd f32: an inexact value becomes the neighbour whose last bit is 1. In a format with at least two
/// fewer bits, the result is never a tie, and it lies on the same side of every tie as `v`. Rounding it further
/// therefore gives the same result as rounding `v` directly.
fn f32_to_odd(v: f64) -> f32 {
    let nearest = v as f32;
    if v.is_nan() || f64::from(nearest) == v {
        return nearest;
    }
    // Step towards zero if `nearest` lies beyond `v`, even from infinity to the largest finite number. The subtraction
    // cannot reach the sign bit.
    let beyond = u32::from(f64::from(nearest).abs() > v.abs());
    f32::from_bits((nearest.to_bits() - beyond) | 1)
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a tensor can hold.
pub trait Element: Copy + Default + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed + 'static {
    /// The dtype of this type.
    const DTYPE: DType;

    /// The bytes of the elements, in native byte order.
    fn as_bytes(slice: &[Self]) -> &[u8];

    /// The writable bytes of the elements; `None` for `bool`, because most bytes are not valid booleans.
    fn as_bytes_mut(slice: &mut [Self]) -> Option<&mut [u8]>;

    /// Copies elements out of bytes in native byte order, with any alignment. A trailing partial element is ignored.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;

    /// Views bytes in native byte order as elements without a copy. Returns `None` if the bytes are not aligned for
    /// this type, end in the middle of an element, or are not valid values (booleans must be 0 or 1).
    fn slice(bytes: &[u8]) -> Option<&[Self]>;

    /// Like [`slice`](Element::slice), but writable.
    fn slice_mut(bytes: &mut [u8]) -> Option<&mut [Self]>;

    /// The nearest value of this type: an `as` conversion for numbers; for `bool`, whether `v` is not zero.
    fn from_f64(v: f64) -> Self;

    /// The value as f64; exact except for 64-bit integers beyond 2^53.
    fn to_f64(self) -> f64;

    /// The value as a [`Scalar`].
    fn to_scalar(self) -> Scalar;

    /// Converts a scalar. Returns an error if this type cannot represent it.
    fn from_scalar(s: Scalar) -> Result<Self>;
}

macro_rules! element {
    ($($t:ty, $dtype:ident, $scalar:expr, $from:expr, $to:expr;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            fn as_bytes(slice: &[Self]) -> &[u8] {
                bytemuck::cast_slice(slice)
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                bytes.chunks_exact(size_of::<Self>()).map(bytemuck::pod_read_unaligned).collect()
            }
            fn slice(bytes: &[u8]) -> Option<&[Self]> {
                bytemuck::try_cast_slice(bytes).ok()
            }
            fn slice_mut(bytes: &mut [u8]) -> Option<&mut [Self]> {
                bytemuck::try_cast_slice_mut(bytes).ok()
            }
            fn as_bytes_mut(slice: &mut [Self]) -> Option<&mut [u8]> {
                Some(bytemuck::cast_slice_mut(slice))
            }
            fn from_f64(v: f64) -> Self {
                ($from)(v)
            }
            fn to_f64(self) -> f64 {
                ($to)(self)
            }
            fn to_scalar(self) -> Scalar {
                ($scalar)(self)
            }
            fn from_scalar(s: Scalar) -> Result<Self> {
                s.check(Self::DTYPE)?;
                Ok(match s {
                    Scalar::Int(v) => <$t as FromI64>::from_i64(v),
                    Scalar::Bool(v) => <$t as FromI64>::from_i64(i64::from(v)),
                    Scalar::Float(v) => <Self as Element>::from_f64(v),
                })
            }
        }
    )*};
}

trait FromI64 {
    fn from_i64(v: i64) -> Self;
}
macro_rules! from_i64 {
    ($($t:ty)*) => {$(impl FromI64 for $t { fn from_i64(v: i64) -> Self { v as $t } })*};
}
from_i64!(f64 f32 i64 i32 i16 i8 u64 u32 u16 u8);
impl FromI64 for f16 {
    fn from_i64(v: i64) -> Self {
        f16_from_f64(v as f64)
    }
}
impl FromI64 for bf16 {
    fn from_i64(v: i64) -> Self {
        bf16_from_f64(v as f64)
    }
}

element! {
    f64, F64, Scalar::Float, |v| v, |v| v;
    f32, F32, |v| Scalar::Float(f64::from(v)), |v| v as f32, f64::from;
    f16, F16, |v: f16| Scalar::Float(v.to_f64()), f16_from_f64, f16::to_f64;
    bf16, BF16, |v: bf16| Scalar::Float(v.to_f64()), bf16_from_f64, bf16::to_f64;
    i64, I64, Scalar::Int, |v| v as i64, |v| v as f64;
    i32, I32, |v| Scalar::Int(i64::from(v)), |v| v as i32, f64::from;
    i16, I16, |v| Scalar::Int(i64::from(v)), |v| v as i16, f64::from;
    i8, I8, |v| Scalar::Int(i64::from(v)), |v| v as i8, f64::from;
    u64, U64, |v: u64| i64::try_from(v).map_or(Scalar::Float(v as f64), Scalar::Int), |v| v as u64, |v| v as f64;
    u32, U32, |v| Scalar::Int(i64::from(v)), |v| v as u32, f64::from;
    u16, U16, |v| Scalar::Int(i64::from(v)), |v| v as u16, f64::from;
    u8, U8, |v| Scalar::Int(i64::from(v)), |v| v as u8, f64::from;
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn as_bytes(slice: &[Self]) -> &[u8] {
        bytemuck::cast_slice(slice)
    }
    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&b| b != 0).collect()
    }
    fn slice(bytes: &[u8]) -> Option<&[Self]> {
        bytemuck::checked::try_cast_slice(bytes).ok()
    }
    fn slice_mut(bytes: &mut [u8]) -> Option<&mut [Self]> {
        bytemuck::checked::try_cast_slice_mut(bytes).ok()
    }
    fn as_bytes_mut(_: &mut [Self]) -> Option<&mut [u8]> {
        None
    }
    fn from_f64(v: f64) -> Self {
        v != 0.0
    }
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn to_scalar(self) -> Scalar {
        Scalar::Bool(self)
    }
    fn from_scalar(s: Scalar) -> Result<Self> {
        s.check(DType::Bool)?;
        Ok(s.to_f64() != 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_rounds_once() {
        let p = |e: i32| 2f64.powi(e);
        for (v, half, brain) in [
            (1.0 + p(-11) + p(-40), 1.0 + p(-10), 1.0),
            (1.0 + p(-11), 1.0, 1.0),
            (1.0 + p(-11) - p(-40), 1.0, 1.0),
            (1.0 + p(-8) + p(-40), 1.0 + p(-8), 1.0 + p(-7)),
            (p(-25) + p(-70), p(-24), p(-25)),
            (p(-25), 0.0, p(-25)),
            (65520.0 - p(-30), 65504.0, 65536.0),
            (65520.0, f64::INFINITY, 65536.0),
            (p(-134) + p(-180), 0.0, p(-133)),
            (1e300, f64::INFINITY, f64::INFINITY),
            (1e-300, 0.0, 0.0),
        ] {
            for sign in [1.0, -1.0] {
                let (h, b) = (f16_from_f64(sign * v).to_f64(), bf16_from_f64(sign * v).to_f64());
                assert_eq!(h.to_bits(), (sign * half).to_bits(), "{v:e}");
                assert_eq!(b.to_bits(), (sign * brain).to_bits(), "{v:e}");
            }
        }
        assert!(f16_from_f64(f64::NAN).is_nan() && bf16_from_f64(f64::NAN).is_nan());
    }

    #[test]
    fn bytes_round_trip_at_any_alignment() {
        let v = [1.5f32, -2.0, f32::INFINITY];
        let mut bytes = vec![0u8];
        bytes.extend_from_slice(f32::as_bytes(&v));
        assert_eq!(f32::from_bytes(&bytes[1..]), v);
        assert_eq!(f32::slice(f32::as_bytes(&v)), Some(&v[..]));
        assert_eq!(f32::slice(&bytes[1..6]), None);
        assert_eq!((bool::slice(&[1, 0]), bool::slice(&[2])), (Some(&[true, false][..]), None));
    }
}
