//! A single instruction on a block of elements.

use gradus_backend::{DType, ScalarOp};

use super::convert::{cast, select_1, select_2, select_4, select_8, slice, slice_mut};
use super::float::{LANES, binary_f32, binary_f64, compare_f32, compare_f64, test_f32, test_f64, unary_f32, unary_f64};
use super::int::{self, Bits, Int};
use crate::access::{match_dtype, with_word};
use crate::isa::Isa;

/// Where a value is stored: an index into the pointer table of arguments, outputs, splats and registers.
pub(super) type Slot = u32;

/// An instruction with the slots of its result and operands.
#[derive(Debug, Clone, Copy)]
pub(super) struct One {
    pub(super) op: ScalarOp,
    /// The dtype of the first operand or, for `Select`, of the values to select from.
    pub(super) from: DType,
    pub(super) to: DType,
    pub(super) dst: Slot,
    pub(super) src: [Slot; 3],
    /// Bit `k` is set if operand `k` is a splat.
    pub(super) splat: u8,
}

impl One {
    /// Runs the step on `n` elements, with pointers from the table. If an integer instruction has no result, returns
    /// the instruction as the error.
    ///
    /// # Safety
    /// For each slot that the step names, the table points to `n` elements of its type, or to `LANES` elements if the
    /// slot is a splat. The memory of the result does not overlap that of the operands.
    #[inline]
    pub(super) unsafe fn run(&self, isa: Isa, table: &[*mut u8], n: usize) -> Result<(), ScalarOp> {
        let src = self.src.map(|s| table[s as usize].cast_const());
        // SAFETY: guaranteed by the caller.
        if unsafe { run(isa, self, src, table[self.dst as usize], n) } { Ok(()) } else { Err(self.op) }
    }
}

/// Runs one instruction on `n` elements. Returns `false` if an integer instruction has no result.
///
/// # Safety
/// `src` are readable for `n` elements of the operands' types, or for `LANES` elements if the step marks them as
/// splats. `dst` is writable for `n` elements. They do not overlap.
pub(super) unsafe fn run(isa: Isa, step: &One, src: [*const u8; 3], dst: *mut u8, n: usize) -> bool {
    use ScalarOp::*;
    let [a, b, c] = src;
    let len = |k: u8| if step.splat >> k & 1 == 1 { LANES } else { n };
    let (na, nb) = (len(0), len(1));
    // SAFETY: guaranteed by the caller. The verifier ensured that operands have the types that the arms read.
    unsafe {
        macro_rules! ints {
            ($t:ident => $body:expr) => {
                // The float types are never used here, because they have arms of their own.
                match_dtype!(
                    step.from, $t => $body;
                    I64: i64, I32: i32, I16: i16, I8: i8, U64: u64, U32: u32, U16: u16,
                    U8 | Bool | F64 | F32 | F16 | BF16: u8
                )
            };
        }
        match step.op {
            Arg(_) | Const(_) => {}
            Select => match step.to.size() {
                1 => select_1(isa, slice(a, na), slice(b, nb), slice(c, len(2)), slice_mut(dst, n)),
                2 => select_2(isa, slice(a, na), slice(b, nb), slice(c, len(2)), slice_mut(dst, n)),
                4 => select_4(isa, slice(a, na), slice(b, nb), slice(c, len(2)), slice_mut(dst, n)),
                _ => select_8(isa, slice(a, na), slice(b, nb), slice(c, len(2)), slice_mut(dst, n)),
            },
            Cast => cast(isa, step.from, step.to, a, dst, n),
            Not => int::not(slice(a, n), slice_mut(dst, n)),
            And | Or | Xor => int::logic(step.op, slice(a, na), slice(b, nb), slice_mut(dst, n)),
            IsNan | IsFinite => match step.from {
                DType::F64 => test_f64(isa, step.op, slice(a, n), slice_mut(dst, n)),
                DType::F32 => test_f32(isa, step.op, slice(a, n), slice_mut(dst, n)),
                _ => slice_mut::<u8>(dst, n).fill(u8::from(step.op == IsFinite)),
            },
            Eq | Ne | Lt | Le | Gt | Ge => match step.from {
                DType::F64 => compare_f64(isa, step.op, slice(a, na), slice(b, nb), slice_mut(dst, n)),
                DType::F32 => compare_f32(isa, step.op, slice(a, na), slice(b, nb), slice_mut(dst, n)),
                DType::Bool => int::compare_bool(step.op, slice(a, na), slice(b, nb), slice_mut(dst, n)),
                d if matches!(step.op, Eq | Ne) => {
                    with_word!(d.size(), W => W::equal(step.op, slice(a, na), slice(b, nb), slice_mut(dst, n)))
                }
                _ => ints!(T => int::compare::<T>(step.op, slice(a, na), slice(b, nb), slice_mut(dst, n))),
            },
            _ => match (step.from, step.op.arity()) {
                (DType::F32, 1) => unary_f32(isa, step.op, slice(a, n), slice_mut(dst, n)),
                (DType::F64, 1) => unary_f64(isa, step.op, slice(a, n), slice_mut(dst, n)),
                (DType::F32, _) => binary_f32(isa, step.op, slice(a, na), slice(b, nb), slice_mut(dst, n)),
                (DType::F64, _) => binary_f64(isa, step.op, slice(a, na), slice(b, nb), slice_mut(dst, n)),
                (d, _) if step.op == Neg => with_word!(d.size(), W => W::neg(slice(a, n), slice_mut(dst, n))),
                (d, _) if matches!(step.op, Add | Sub | Mul) => {
                    with_word!(d.size(), W => W::arithmetic(step.op, slice(a, na), slice(b, nb), slice_mut(dst, n)))
                }
                (_, 1) => ints!(T => <T as Int>::unary(step.op, slice(a, n), slice_mut(dst, n))),
                _ => return ints!(T => <T as Int>::binary(step.op, slice(a, na), slice(b, nb), slice_mut(dst, n))),
            },
        }
    }
    true
}
