//! `to_dtype(x)`: conversion to another dtype. The gradient is cast back. A conversion to or from integers has no
//! gradient.
//!
//! A float becomes an integer by truncation and saturation, with 0 for NaN. Conversions between floats round to
//! nearest, ties to even. Integers wrap. A conversion to bool yields `x != 0`.

use std::sync::{Arc, OnceLock};

use gradus_backend::{DType, Expr, Kernel, KernelBuilder, Result};
use smallvec::smallvec;

use super::apply_one;
use super::map::{Arg, Map};
use crate::Tensor;

/// The kernel for each pair of dtypes.
static KERNELS: [[OnceLock<Arc<Kernel>>; 13]; 13] = [const { [const { OnceLock::new() }; 13] }; 13];

/// Converts an integer to f32 such that rounding the result to half precision equals rounding the integer once. An
/// integer that f32 may not hold is first rounded to odd: its low bits are dropped, and if they were not all 0, the
/// lowest remaining bit is set. At least 16 bits remain, which is more than half precision has. The odd number is
/// therefore never halfway between two numbers of half precision, and lies on the same side of every such midpoint as
/// the integer.
fn to_odd(x: Expr<'_>) -> Expr<'_> {
    let (mut x, mut by) = (x, x.cast(DType::F32).constant(1));
    let steps = [(48, 32), (32, 16), (24, 8)];
    for (most, places) in &steps[if x.dtype().size() == 8 { 0 } else { 2 }..] {
        let (most, step) = (1i64 << most, 1i64 << places);
        let wide = if x.dtype().is_signed() { x.ge(most).or(x.lt(-most)) } else { x.ge(most) };
        let whole = x.floor_div(step);
        let odd = whole + x.remainder(step).ne(0).and(whole.remainder(2).eq(0)).cast(x.dtype());
        (x, by) = (wide.select(odd, x), wide.select(by * step, by));
    }
    x.cast(DType::F32) * by
}

impl Tensor {
    /// The values in another dtype; the tensor itself if it has that dtype already.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        let slot = &KERNELS[self.dtype() as usize][dtype as usize];
        let kernel = match slot.get() {
            Some(k) => k.clone(),
            None => {
                let builder = KernelBuilder::new(&[self.dtype()]);
                let x = builder.args()[0];
                // Rounds to half precision once, without rounding to f32 first.
                let y = match self.dtype() {
                    _ if dtype.compute() == dtype => x.cast(dtype),
                    DType::F64 => x,
                    DType::I64 | DType::I32 | DType::U64 | DType::U32 => to_odd(x),
                    _ => x.cast(dtype),
                };
                let kernel = Arc::new(builder.finish("to_dtype", &[(y, dtype)])?);
                slot.get_or_init(|| kernel).clone()
            }
        };
        apply_one(Map { kernel, args: smallvec![Arg::Tensor(0)] }, &[self])
    }
}
