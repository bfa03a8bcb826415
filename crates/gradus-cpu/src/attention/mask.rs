//! Masks of any shape that can be broadcast to the shape of the scores.

use gradus_backend::{DType, Layout, Result, Shape, View, bf16, f16};

use super::matrices::position;
use crate::CpuBackend;
use crate::access::{Float, Plain};
use crate::rows::Elementary;

/// A mask. A bool mask keeps the scores where it is true, and a float mask is added to the scores.
#[derive(Debug)]
pub(super) struct Mask<'a> {
    values: Values<'a>,
    layout: Layout,
}

#[derive(Debug)]
enum Values<'a> {
    Bool(&'a [u8]),
    F64(&'a [f64]),
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

impl<'a> Mask<'a> {
    /// Creates a bool or float mask, broadcast to `[b, h, lq, lk]`.
    pub(super) fn new(cpu: &CpuBackend, op: &str, x: View<'a>, scores: Shape) -> Result<Self> {
        let values = match x.dtype {
            DType::F64 => Values::F64(cpu.slice(op, x)?),
            DType::F32 => Values::F32(cpu.slice(op, x)?),
            DType::F16 => Values::F16(cpu.slice(op, x)?),
            DType::BF16 => Values::BF16(cpu.slice(op, x)?),
            _ => Values::Bool(cpu.slice(op, x)?),
        };
        Ok(Mask { values, layout: x.layout.expand(scores)? })
    }

    /// Masks the scores of a row from key `from` on. `row` holds the indices of the batch, the head and the query.
    pub(super) fn apply<T: Elementary>(&self, row: [usize; 3], from: usize, scores: &mut [T]) {
        let step = self.layout.strides()[3];
        let at = position(&self.layout, row).wrapping_add_signed(step * from as isize);
        match self.values {
            Values::Bool(x) => each(x, at, step, scores, |s, keep| if keep == 0 { T::NEG_INFINITY } else { s }),
            Values::F64(x) => each(x, at, step, scores, |s, m| s + T::from_f64(m)),
            Values::F32(x) => each(x, at, step, scores, add),
            Values::F16(x) => each(x, at, step, scores, add),
            Values::BF16(x) => each(x, at, step, scores, add),
        }
    }
}

#[inline(always)]
fn add<T: Elementary, M: Float<Compute = f32>>(score: T, m: M) -> T {
    score + T::from_f64(f64::from(m.widen()))
}

/// Sets `scores[i] = f(scores[i], x[at + i * step])`. Panics if a position lies outside `x`.
#[inline(always)]
fn each<T: Elementary, M: Plain>(x: &[M], at: usize, step: isize, scores: &mut [T], f: impl Fn(T, M) -> T) {
    if step == 1 {
        let x = &x[at..at + scores.len()];
        scores.iter_mut().zip(x).for_each(|(s, &m)| *s = f(*s, m));
    } else {
        let m = |i: usize| x[at.wrapping_add_signed(step * i as isize)];
        scores.iter_mut().enumerate().for_each(|(i, s)| *s = f(*s, m(i)));
    }
}
