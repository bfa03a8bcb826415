//! Evenly spaced integers, computed on the host.

use super::Temp;
use crate::{Backend, Buffer, DType, Element, Result, Scalar, Shape, ViewMut, bf16, f16};

/// The largest number of elements that are uploaded at a time.
const PIECE: usize = 1 << 16;

/// See [`Backend::arange`].
pub fn arange<B: Backend + ?Sized>(b: &B, start: i64, step: i64, out: &mut ViewMut<'_>) -> Result<()> {
    let (dtype, n) = (out.dtype, out.layout.numel());
    if n == 0 {
        return Ok(());
    }
    if out.layout.is_contiguous() {
        return upload(b, start, step, dtype, n, (out.buffer, out.layout.offset()));
    }
    let mut all = Temp::new(b, dtype, Shape::new(&[n])?)?;
    upload(b, start, step, dtype, n, (&mut all.buffer, 0))?;
    b.copy_strided(all.shaped(*out.layout.shape()).view(), out)
}

/// Writes `n` elements to a buffer, starting at element `offset`.
fn upload<B: Backend + ?Sized>(
    b: &B,
    start: i64,
    step: i64,
    dtype: DType,
    n: usize,
    (buffer, offset): (&mut Buffer, usize),
) -> Result<()> {
    macro_rules! by_dtype {
        ($($d:ident $t:ty),*) => {
            match dtype {
                $(DType::$d => pieces::<B, $t>(b, start, step, n, (buffer, offset)),)*
            }
        };
    }
    by_dtype!(F64 f64, F32 f32, F16 f16, BF16 bf16, I64 i64, I32 i32, I16 i16, I8 i8, U64 u64, U32 u32, U16 u16, U8 u8,
        Bool bool)
}

fn pieces<B: Backend + ?Sized, T: Element>(
    b: &B,
    start: i64,
    step: i64,
    n: usize,
    (buffer, offset): (&mut Buffer, usize),
) -> Result<()> {
    // The list has at most `PIECE` elements.
    let mut piece = Vec::with_capacity(n.min(PIECE));
    for first in (0..n).step_by(PIECE) {
        piece.clear();
        for i in first..n.min(first + PIECE) {
            piece.push(T::from_scalar(Scalar::Int(start.wrapping_add((i as i64).wrapping_mul(step))))?);
        }
        b.upload(buffer, (offset + first) * size_of::<T>(), T::as_bytes(&piece))?;
    }
    Ok(())
}
