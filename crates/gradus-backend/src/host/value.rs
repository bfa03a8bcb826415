//! Conversion of one element between bytes and a [`Scalar`].
//!
//! In this module a u64 is a [`Scalar::Int`] with the same bits, as in [`Kernel::eval`](crate::Kernel::eval), so that
//! different values of a dtype always have different scalars.

use crate::{DType, Scalar, bf16, bf16_from_f64, f16, f16_from_f64};

/// Loads element `position` from memory that holds elements of `dtype`. The element must lie within `bytes`.
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

/// Stores element `position`, which must lie within `bytes`. Floats are rounded once and integers wrap. An integer that
/// is stored as f32 or f64 is rounded once; one that is stored as f16 or bf16 is converted to f64 first.
pub fn store(bytes: &mut [u8], dtype: DType, position: usize, value: Scalar) {
    let mut put = |part: &[u8]| bytes[position * part.len()..][..part.len()].copy_from_slice(part);
    let int = || match value {
        Scalar::Int(v) => v,
        other => other.to_f64() as i64,
    };
    match dtype {
        DType::F64 => put(&value.to_f64().to_ne_bytes()),
        DType::F32 => {
            let v = match value {
                Scalar::Int(v) => v as f32,
                other => other.to_f64() as f32,
            };
            put(&v.to_ne_bytes());
        }
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

/// Converts a scalar that `dtype` can represent into the scalar that [`load`] returns for that dtype.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_type() {
        let mut bytes = [0xaa; 16];
        store(&mut bytes, DType::F32, 1, Scalar::Float(-0.1));
        assert_eq!(bytes[4..8], (-0.1f32).to_ne_bytes());
        store(&mut bytes, DType::U16, 7, Scalar::Int(0x1_0203));
        assert_eq!(bytes[14..16], 0x0203u16.to_ne_bytes());
        store(&mut bytes, DType::F16, 0, Scalar::Float(1.5));
        assert_eq!(bytes[..2], 0x3e00u16.to_ne_bytes());
        store(&mut bytes, DType::BF16, 1, Scalar::Float(-2.0));
        assert_eq!(bytes[2..4], 0xc000u16.to_ne_bytes());
        assert_eq!(bytes[8..14], [0xaa; 6], "nothing else is written");
        assert_eq!(load(&bytes, DType::F16, 0), Scalar::Float(1.5));
        assert_eq!(load(&bytes, DType::BF16, 1), Scalar::Float(-2.0));
        assert_eq!(load(&bytes, DType::F32, 1), Scalar::Float(f64::from(-0.1f32)));
        assert_eq!(load(&bytes, DType::I8, 9), Scalar::Int(-86));
        assert_eq!(load(&bytes, DType::U8, 9), Scalar::Int(170));
        assert_eq!(load(&bytes, DType::Bool, 9), Scalar::Bool(true));
    }

    #[test]
    fn integers_wrap_and_floats_round_once() {
        let kept = |value, dtype| converted(value, dtype);
        for (dtype, want) in [
            (DType::I8, -2),
            (DType::U8, 254),
            (DType::I16, -2),
            (DType::U16, 65_534),
            (DType::I32, -2),
            (DType::U32, 4_294_967_294),
            (DType::I64, -2),
            (DType::U64, -2),
        ] {
            assert_eq!(kept(Scalar::Int(-2), dtype), Scalar::Int(want), "{dtype}");
        }
        // Just above the midpoint of two f32 values; rounded to f64 first, it would lie exactly on the midpoint.
        assert_eq!(kept(Scalar::Int(9_007_199_791_611_905), DType::F32), Scalar::Float(9_007_200_328_482_816.0));
        // Ties go to the even value.
        assert_eq!(kept(Scalar::Int(16_777_217), DType::F32), Scalar::Float(16_777_216.0));
        assert_eq!(kept(Scalar::Float(2049.0), DType::F16), Scalar::Float(2048.0));
        assert_eq!(kept(Scalar::Float(2051.0), DType::F16), Scalar::Float(2052.0));
        assert_eq!(kept(Scalar::Float(257.0), DType::BF16), Scalar::Float(256.0));
        assert_eq!(kept(Scalar::Float(1e6), DType::F16), Scalar::Float(f64::INFINITY));
        assert_eq!(kept(Scalar::Bool(true), DType::I32), Scalar::Int(1));
        assert_eq!(kept(Scalar::Float(-0.5), DType::Bool), Scalar::Bool(true));
        assert_eq!(kept(Scalar::Float(2f64.powi(63)), DType::U64), Scalar::Int(i64::MIN));
    }

    #[test]
    fn wide_values_are_exact() {
        assert_eq!(wide(Scalar::Int(-1), DType::U64), i128::from(u64::MAX));
        assert_eq!(wide(Scalar::Int(-1), DType::I64), -1);
        assert_eq!(wide(Scalar::Bool(true), DType::Bool), 1);
        assert_eq!(wide(Scalar::Float(-7.0), DType::F64), -7);
    }
}
