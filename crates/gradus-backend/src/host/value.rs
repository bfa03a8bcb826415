//! One element as bytes and as a [`Scalar`].
//!
//! In here an u64 is a [`Scalar::Int`] with its bits, as in [`Kernel::eval`](crate::Kernel::eval), so that every value of
//! every dtype has its own scalar.

use crate::{DType, Scalar, bf16, bf16_from_f64, f16, f16_from_f64};

/// Element `position` of memory that holds `dtype`. It must lie within `bytes`.
pub fn load(bytes: &[u8], dtype: DType, position: usize) -> Scalar {
    fn part<const N: usize>(bytes: &[u8], position: usize) -> [u8; N] {
        let mut part = [0; N];
        part.copy_from_slice(&bytes[position * N..][..N]);
        part
    }
    match dtype {
        DType::F64 => Scalar::Float(f64::from_ne_bytes(part(bytes, position))),
        DType::F32 => Scalar::Float(f32::from_ne_bytes(part(bytes, position)).into()),
        DType::F16 => Scalar::Float(f16::from_ne_bytes(part(bytes, position)).to_f64()),
        DType::BF16 => Scalar::Float(bf16::from_ne_bytes(part(bytes, position)).to_f64()),
        DType::I64 | DType::U64 => Scalar::Int(i64::from_ne_bytes(part(bytes, position))),
        DType::I32 => Scalar::Int(i32::from_ne_bytes(part(bytes, position)).into()),
        DType::I16 => Scalar::Int(i16::from_ne_bytes(part(bytes, position)).into()),
        DType::I8 => Scalar::Int(i8::from_ne_bytes(part(bytes, position)).into()),
        DType::U32 => Scalar::Int(u32::from_ne_bytes(part(bytes, position)).into()),
        DType::U16 => Scalar::Int(u16::from_ne_bytes(part(bytes, position)).into()),
        DType::U8 => Scalar::Int(bytes[position].into()),
        DType::Bool => Scalar::Bool(bytes[position] != 0),
    }
}

/// Sets element `position`, which must lie within `bytes`: a float rounded once, an integer wrapped.
pub fn store(bytes: &mut [u8], dtype: DType, position: usize, value: Scalar) {
    let mut put = |part: &[u8]| bytes[position * part.len()..][..part.len()].copy_from_slice(part);
    let int = || match value {
        Scalar::Int(v) => v,
        other => other.to_f64() as i64,
    };
    match dtype {
        DType::F64 => put(&value.to_f64().to_ne_bytes()),
        DType::F32 => put(&(value.to_f64() as f32).to_ne_bytes()),
        DType::F16 => put(&f16_from_f64(value.to_f64()).to_ne_bytes()),
        DType::BF16 => put(&bf16_from_f64(value.to_f64()).to_ne_bytes()),
        DType::I64 | DType::U64 => put(&int().to_ne_bytes()),
        DType::I32 => put(&(int() as i32).to_ne_bytes()),
        DType::I16 => put(&(int() as i16).to_ne_bytes()),
        DType::I8 => put(&(int() as i8).to_ne_bytes()),
        DType::U32 => put(&(int() as u32).to_ne_bytes()),
        DType::U16 => put(&(int() as u16).to_ne_bytes()),
        DType::U8 => put(&(int() as u8).to_ne_bytes()),
        DType::Bool => put(&[u8::from(value.to_f64() != 0.0)]),
    }
}

/// A representable scalar of any kind as the scalar that [`load`] gives for `dtype`.
pub fn converted(value: Scalar, dtype: DType) -> Scalar {
    match (value, dtype) {
        (Scalar::Float(v), DType::U64) => Scalar::Int(v as u64 as i64),
        _ => {
            let mut bytes = [0; 8];
            store(&mut bytes, dtype, 0, value);
            load(&bytes, dtype, 0)
        }
    }
}

/// The exact value of an integer or bool.
pub fn wide(value: Scalar, dtype: DType) -> i128 {
    match value {
        Scalar::Int(v) if dtype == DType::U64 => i128::from(v as u64),
        Scalar::Int(v) => i128::from(v),
        Scalar::Bool(v) => i128::from(v),
        Scalar::Float(v) => v as i128,
    }
}
