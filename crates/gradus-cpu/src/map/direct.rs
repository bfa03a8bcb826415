//! A short path for the most common kernels: one f32 or f64 instruction on contiguous memory, scalars and constants.
//!
//! No program is built: the instruction's loop runs directly on the operands' memory, which keeps a small operation
//! under a hundred nanoseconds.

use std::mem::MaybeUninit;
use std::ops::Range;

use gradus_backend::{DType, Kernel, MapArg, ScalarOp, View, ViewMut};

use super::convert::scalar_to;
use super::convert::{CastTarget, slice, slice_mut};
use super::float::{LANES, binary_f32, binary_f64, unary_f32, unary_f64};
use super::program::cost;
use super::run::{grain, is_uniform};
use crate::CpuBackend;
use crate::access::{Float, Plain};
use crate::isa::Isa;

/// The number of elements that are saved at a time when an argument is updated in place.
const BLOCK: usize = 512;
/// Up to this many elements, the work is not split.
const SMALL: usize = 1024;
/// Up to this many elements, [`small`] updates an argument in place.
const FEW: usize = 64;

/// The types that this module handles: f32 and f64.
trait Direct: Plain + Float + CastTarget {
    fn unary(isa: Isa, op: ScalarOp, x: &[Self], out: &mut [Self]);
    fn binary(isa: Isa, op: ScalarOp, a: &[Self], b: &[Self], out: &mut [Self]);
}
impl Direct for f32 {
    fn unary(isa: Isa, op: ScalarOp, x: &[f32], out: &mut [f32]) {
        unary_f32(isa, op, x, out);
    }
    fn binary(isa: Isa, op: ScalarOp, a: &[f32], b: &[f32], out: &mut [f32]) {
        binary_f32(isa, op, a, b, out);
    }
}
impl Direct for f64 {
    fn unary(isa: Isa, op: ScalarOp, x: &[f64], out: &mut [f64]) {
        unary_f64(isa, op, x, out);
    }
    fn binary(isa: Isa, op: ScalarOp, a: &[f64], b: &[f64], out: &mut [f64]) {
        binary_f64(isa, op, a, b, out);
    }
}

/// An operand of the instruction.
#[derive(Clone, Copy)]
enum Source<T> {
    /// Contiguous elements from this address on.
    Memory(*const T),
    /// The previous contents of the output.
    Output,
    /// The same number for all elements.
    Splat(T),
}

// SAFETY: the memory is only read, under the borrow of the view that it comes from.
unsafe impl<T: Sync> Sync for Source<T> {}

struct Target<T>(*mut T);
// SAFETY: tasks write ranges that do not overlap.
unsafe impl<T: Send> Sync for Target<T> {}

/// Like [`run`], but for few elements, and checks the operands itself. Returns `false` for anything but the most common
/// case. The general path then takes over or reports what is wrong.
#[inline]
pub(super) fn small(cpu: &CpuBackend, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> bool {
    let ([out], [(value, dtype)], Some(last)) = (&mut *outs, kernel.outputs(), kernel.insts().last()) else {
        return false;
    };
    if usize::from(*value) + 1 != kernel.insts().len() || last.dtype != *dtype || out.dtype != *dtype {
        return false;
    }
    match dtype {
        DType::F32 => small_typed::<f32>(cpu, kernel, args, out),
        DType::F64 => small_typed::<f64>(cpu, kernel, args, out),
        _ => false,
    }
}

#[inline(always)]
fn small_typed<T: Direct>(cpu: &CpuBackend, kernel: &Kernel, args: &[MapArg<'_>], out: &mut ViewMut<'_>) -> bool {
    let Some(n) = cpu.dense(out.buffer, out.dtype, out.layout).filter(|&n| n <= SMALL) else { return false };
    let insts = kernel.insts();
    let last = insts[insts.len() - 1];
    use ScalarOp::{Arg, Cast, Const};
    let target = out.buffer.as_ptr().as_ptr().cast::<T>().wrapping_add(out.layout.offset());
    let mut old = [const { MaybeUninit::<T>::uninit() }; FEW];
    let mut operand = |value: u16| -> Option<*const u8> {
        let Arg(k) = insts[usize::from(value)].op else { return None };
        let k = usize::from(k);
        let v = match args.get(k)? {
            MapArg::View(v) => v,
            MapArg::Output(0) if n <= FEW && kernel.args()[k] == out.dtype => {
                // SAFETY: the output has `n` elements, and `old` has room for them.
                unsafe { old.as_mut_ptr().cast::<T>().copy_from_nonoverlapping(target, n) };
                return Some(old.as_ptr().cast());
            }
            _ => return None,
        };
        let same = v.dtype == out.dtype && kernel.args()[k] == v.dtype && v.layout.shape() == out.layout.shape();
        if !same || cpu.dense(v.buffer, v.dtype, v.layout).is_none() {
            return None;
        }
        Some(v.buffer.as_ptr().as_ptr().cast::<T>().wrapping_add(v.layout.offset()).cast_const().cast())
    };
    let inputs = last.inputs();
    if args.len() != inputs.len() || args.len() != kernel.args().len() || matches!(last.op, Arg(_) | Const(_) | Cast) {
        return false;
    }
    let target = target.cast();
    // SAFETY: operands and output are contiguous with `n` elements of `T`, checked to lie in buffers of this backend or
    // copied aside, and the output is borrowed mutably, so no operand shares its memory.
    unsafe {
        match *inputs {
            [a] => {
                let Some(a) = operand(a) else { return false };
                T::unary(cpu.isa(), last.op, slice(a, n), slice_mut(target, n));
            }
            [a, b] if a != b => {
                let (Some(a), Some(b)) = (operand(a), operand(b)) else { return false };
                T::binary(cpu.isa(), last.op, slice(a, n), slice(b, n), slice_mut(target, n));
            }
            _ => return false,
        }
    }
    true
}

/// Runs the kernel if this module handles its form, and otherwise returns `false`. The operands have been checked and
/// are not empty. The output is contiguous, and so are the arguments whose bits are set in `contiguous`.
pub(super) fn run(
    cpu: &CpuBackend,
    kernel: &Kernel,
    args: &[MapArg<'_>],
    contiguous: u32,
    outs: &mut [ViewMut<'_>],
) -> bool {
    let insts = kernel.insts();
    let ([out], [(value, dtype)], Some(last)) = (&mut *outs, kernel.outputs(), insts.last()) else { return false };
    if insts.len() > 3 || usize::from(*value) + 1 != insts.len() || last.dtype != *dtype {
        return false;
    }
    use ScalarOp::{Arg, Cast, Const, Select};
    if matches!(last.op, Arg(_) | Const(_) | Select | Cast) {
        return false;
    }
    match dtype {
        DType::F32 => typed::<f32>(cpu, kernel, last.op, last.inputs(), args, contiguous, out),
        DType::F64 => typed::<f64>(cpu, kernel, last.op, last.inputs(), args, contiguous, out),
        _ => false,
    }
}

#[inline(always)]
fn source<T: Direct>(kernel: &Kernel, value: u16, args: &[MapArg<'_>], contiguous: u32) -> Option<Source<T>> {
    match kernel.insts()[usize::from(value)].op {
        ScalarOp::Const(c) => Some(Source::Splat(scalar_to(c))),
        ScalarOp::Arg(k) => match &args[usize::from(k)] {
            MapArg::View(v) if T::holds(v.dtype) => memory(v, contiguous >> k & 1 == 1),
            MapArg::Output(_) => Some(Source::Output),
            MapArg::Scalar(s) if T::holds(kernel.args()[usize::from(k)]) => Some(Source::Splat(scalar_to(*s))),
            _ => None,
        },
        _ => None,
    }
}

#[inline(always)]
fn memory<T: Direct>(v: &View<'_>, contiguous: bool) -> Option<Source<T>> {
    let first = v.buffer.as_ptr().as_ptr().cast::<T>().wrapping_add(v.layout.offset()).cast_const();
    if contiguous {
        return Some(Source::Memory(first));
    }
    // SAFETY: the view has elements, and its positions were checked to lie in the buffer.
    is_uniform(v.layout).then(|| Source::Splat(unsafe { *first }))
}

fn typed<T: Direct>(
    cpu: &CpuBackend,
    kernel: &Kernel,
    op: ScalarOp,
    inputs: &[u16],
    args: &[MapArg<'_>],
    contiguous: u32,
    out: &mut ViewMut<'_>,
) -> bool {
    let n = out.layout.numel();
    let target = Target(out.buffer.as_ptr().as_ptr().cast::<T>().wrapping_add(out.layout.offset()));
    let isa = cpu.isa();
    let Some(a) = source::<T>(kernel, inputs[0], args, contiguous) else { return false };
    // For a unary instruction, `b` is the same operand as `a`.
    let second = inputs[inputs.len() - 1];
    let Some(b) = source::<T>(kernel, second, args, contiguous) else { return false };
    if matches!(a, Source::Splat(_)) && (inputs.len() == 1 || matches!(b, Source::Splat(_))) {
        return false;
    }
    let apply = |a: &[T], b: &[T], out: &mut [T]| match inputs.len() {
        1 => T::unary(isa, op, a, out),
        _ => T::binary(isa, op, a, b, out),
    };
    let in_place = matches!(a, Source::Output) || matches!(b, Source::Output);
    let splat = |s: &Source<T>| if let Source::Splat(v) = s { [*v; LANES] } else { [T::default(); LANES] };
    let (splat_a, splat_b) = (splat(&a), splat(&b));
    let (a, b, target) = (&a, &b, &target);
    let body = |range: Range<usize>| {
        // SAFETY: operands and output are contiguous with `n` elements, checked to lie in their buffers; ranges do not
        // overlap, and an operand that is the output is copied before the output is written.
        unsafe {
            let part = |s: &Source<T>, splat: &[T; LANES], old: *const T, start: usize, n: usize| match s {
                Source::Memory(p) => slice::<T>(p.add(start).cast(), n),
                Source::Output => slice(old.cast(), n),
                Source::Splat(_) => slice(splat.as_ptr().cast(), LANES),
            };
            if !in_place {
                let (start, n) = (range.start, range.len());
                let (a, b) = (part(a, &splat_a, target.0, start, n), part(b, &splat_b, target.0, start, n));
                return apply(a, b, slice_mut(target.0.add(start).cast(), n));
            }
            let mut old = [T::default(); BLOCK];
            for start in range.clone().step_by(BLOCK) {
                let n = BLOCK.min(range.end - start);
                let out = slice_mut(target.0.add(start).cast(), n);
                old[..n].copy_from_slice(out);
                let (a, b) = (part(a, &splat_a, old.as_ptr(), start, n), part(b, &splat_b, old.as_ptr(), start, n));
                apply(a, b, out);
            }
        }
    };
    if n <= SMALL {
        body(0..n);
    } else {
        let bytes = (inputs.len() + 1) * size_of::<T>() / 4;
        cpu.parallel_for(n, grain(cost(op, kernel.outputs()[0].1) + bytes), body);
    }
    true
}
