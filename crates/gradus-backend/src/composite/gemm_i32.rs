//! Products of integers of 8 and 16 bits, summed in i32, as products of i32.

use super::read_as;
use crate::{Backend, DType, Error, ErrorKind, Result, Scalar, View, ViewMut};

/// See [`Backend::gemm_i32`].
pub fn gemm_i32<B: Backend + ?Sized>(backend: &B, a: View<'_>, b: View<'_>, c: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "gemm_i32";
    for x in [a, b] {
        if !matches!(x.dtype, DType::I8 | DType::U8 | DType::I16) {
            return Err(Error::dtype(OP, x.dtype, "i8, u8 and i16"));
        }
    }
    if c.dtype != DType::I32 {
        let e = Error::new(ErrorKind::DTypeMismatch, OP, "c must be i32");
        return Err(e.operand("c", c.layout.dims(), c.dtype, backend.name()));
    }
    let a = read_as(backend, a, DType::I32, *a.layout.shape())?;
    let b = read_as(backend, b, DType::I32, *b.layout.shape())?;
    backend.gemm(Scalar::Int(1), a.view(), b.view(), Scalar::Int(0), c)
}
