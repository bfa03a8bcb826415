//! The float instructions on blocks of f32 and f64, with an instance for each instruction set.
//!
//! Every function is one `match` over loops that LLVM vectorises. The slices are parameters, so LLVM knows that they do
//! not overlap. An operand that is shorter than the output is a *splat*: [`LANES`] equal elements that stand for all
//! elements.

use std::hint::select_unpredictable as select;

use gradus_backend::kernel::floor_div;
use gradus_backend::{ScalarOp, bf16_from_f64, f16_from_f64};

use crate::access::Plain;
use crate::extreme::Extreme;
use crate::half_float::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};
use crate::isa::per_isa;
use crate::math;

/// The number of elements that a loop body handles at once, and the length of a splat.
pub(crate) const LANES: usize = 32;

/// Sets `out[i] = f(a[i])`, for heavy functions: the body is instantiated only once. `a` may not be a splat.
#[inline(always)]
pub(super) fn lanes<A: Plain, O: Plain>(a: &[A], out: &mut [O], f: impl Fn(A) -> O) {
    let (mut last_a, mut last_o) = ([A::default(); LANES], [O::default(); LANES]);
    let (whole_a, rest_a) = a[..out.len()].as_chunks::<LANES>();
    let (whole_o, rest_o) = out.as_chunks_mut::<LANES>();
    last_a[..rest_a.len()].copy_from_slice(rest_a);
    let parts = whole_o.len() + usize::from(!rest_o.is_empty());
    for i in 0..parts {
        // An incomplete part is padded to a whole one.
        let (x, o) = if i < whole_o.len() { (&whole_a[i], &mut whole_o[i]) } else { (&last_a, &mut last_o) };
        for j in 0..LANES {
            o[j] = f(x[j]);
        }
    }
    rest_o.copy_from_slice(&last_o[..rest_o.len()]);
}

/// Sets `out[i] = f(a[i])`, for light functions. `a` may not be a splat.
#[inline(always)]
pub(super) fn each<A: Plain, O: Plain>(a: &[A], out: &mut [O], f: impl Fn(A) -> O) {
    for (o, &x) in out.iter_mut().zip(a) {
        *o = f(x);
    }
}

/// Sets `out[i] = f(a[i], b[i])`, for light functions. Either operand may be a splat.
#[inline(always)]
fn zip<A: Plain, B: Plain, O: Plain>(a: &[A], b: &[B], out: &mut [O], f: impl Fn(A, B) -> O) {
    let n = out.len();
    if a.len() < n {
        let (a, b) = (a[0], &b[..n]);
        for (o, &b) in out.iter_mut().zip(b) {
            *o = f(a, b);
        }
    } else if b.len() < n {
        let (a, b) = (&a[..n], b[0]);
        for (o, &a) in out.iter_mut().zip(a) {
            *o = f(a, b);
        }
    } else {
        let (a, b) = (&a[..n], &b[..n]);
        for i in 0..n {
            out[i] = f(a[i], b[i]);
        }
    }
}

/// Sets `out[i] = f(a[i], b[i])`, for heavy or rare functions: the body is instantiated only once. Either operand may
/// be a splat.
#[inline(always)]
pub(super) fn zip_lanes<A: Plain, B: Plain, O: Plain>(a: &[A], b: &[B], out: &mut [O], f: impl Fn(A, B) -> O) {
    let n = out.len();
    let (step_a, step_b) = (step(a, n), step(b, n));
    for (i, o) in out.chunks_mut(LANES).enumerate() {
        let (a, b) = (&a[i * step_a..][..o.len()], &b[i * step_b..][..o.len()]);
        for j in 0..o.len() {
            o[j] = f(a[j], b[j]);
        }
    }
}

/// Returns how far an operand advances with every [`LANES`] elements of the output.
#[inline(always)]
pub(super) fn step<T>(a: &[T], n: usize) -> usize {
    if a.len() >= n { LANES } else { 0 }
}

/// The instructions that compile to only one or two machine instructions for f32 and f64.
trait Basic: Plain + PartialOrd {
    fn unary(op: ScalarOp, x: &[Self], out: &mut [Self]) -> bool;
    fn binary(op: ScalarOp, a: &[Self], b: &[Self], out: &mut [Self]) -> bool;
    fn test(op: ScalarOp, x: &[Self], out: &mut [u8]);
}

macro_rules! basic {
    ($t:ty) => {
        impl Basic for $t {
            #[inline(always)]
            fn unary(op: ScalarOp, x: &[$t], out: &mut [$t]) -> bool {
                match op {
                    ScalarOp::Neg => each(x, out, |x| -x),
                    ScalarOp::Abs => each(x, out, <$t>::abs),
                    ScalarOp::Sign => each(x, out, |x| select((x == 0.0) | (x != x), x, (1.0 as $t).copysign(x))),
                    ScalarOp::Sqrt => each(x, out, <$t>::sqrt),
                    ScalarOp::Recip => each(x, out, |x| 1.0 / x),
                    ScalarOp::Floor => each(x, out, <$t>::floor),
                    ScalarOp::Ceil => each(x, out, <$t>::ceil),
                    ScalarOp::Round => each(x, out, <$t>::round_ties_even),
                    ScalarOp::Trunc => each(x, out, <$t>::trunc),
                    _ => return false,
                }
                true
            }
            #[inline(always)]
            fn binary(op: ScalarOp, a: &[$t], b: &[$t], out: &mut [$t]) -> bool {
                match op {
                    ScalarOp::Add => zip(a, b, out, |a, b| a + b),
                    ScalarOp::Sub => zip(a, b, out, |a, b| a - b),
                    ScalarOp::Mul => zip(a, b, out, |a, b| a * b),
                    ScalarOp::Div => zip(a, b, out, |a, b| a / b),
                    ScalarOp::Max => zip(a, b, out, <$t>::larger),
                    ScalarOp::Min => zip(a, b, out, <$t>::smaller),
                    _ => return false,
                }
                true
            }
            #[inline(always)]
            fn test(op: ScalarOp, x: &[$t], out: &mut [u8]) {
                match op {
                    ScalarOp::IsNan => each(x, out, |x| u8::from(x != x)),
                    _ => each(x, out, |x| u8::from(x.abs() < <$t>::INFINITY)),
                }
            }
        }
    };
}
basic!(f32);
basic!(f64);

#[inline(always)]
fn unary_f32_body(op: ScalarOp, x: &[f32], out: &mut [f32]) {
    use ScalarOp::*;
    if f32::unary(op, x, out) {
        return;
    }
    match op {
        RoundF16 => each(x, out, |x| f16_to_f32(f16_from_f32(x))),
        RoundBf16 => each(x, out, |x| bf16_to_f32(bf16_from_f32(x))),
        Rsqrt => lanes(x, out, math::rsqrt),
        Exp => lanes(x, out, math::exp),
        Exp2 => lanes(x, out, math::exp2),
        Expm1 => lanes(x, out, math::expm1),
        Log => lanes(x, out, math::log),
        Log2 => lanes(x, out, math::log2),
        Log10 => lanes(x, out, math::log10),
        Log1p => lanes(x, out, math::log1p),
        Sin => math::sin_slice(x, out),
        Cos => math::cos_slice(x, out),
        Tan => math::tan_slice(x, out),
        Asin => lanes(x, out, math::asin),
        Acos => lanes(x, out, math::acos),
        Atan => lanes(x, out, math::atan),
        Sinh => lanes(x, out, math::sinh),
        Cosh => lanes(x, out, math::cosh),
        Tanh => lanes(x, out, math::tanh),
        Asinh => lanes(x, out, math::asinh),
        Acosh => lanes(x, out, math::acosh),
        Atanh => lanes(x, out, math::atanh),
        Sigmoid => lanes(x, out, math::sigmoid),
        SigmoidNeg => lanes(x, out, math::sigmoid_neg),
        Softplus => lanes(x, out, math::softplus),
        Erf => lanes(x, out, math::erf),
        Erfc => lanes(x, out, math::erfc),
        _ => debug_assert!(false, "{op:?} is no float instruction of one operand"),
    }
}

#[inline(always)]
fn binary_f32_body(op: ScalarOp, a: &[f32], b: &[f32], out: &mut [f32]) {
    if f32::binary(op, a, b, out) {
        return;
    }
    match op {
        ScalarOp::Pow => zip_lanes(a, b, out, math::pow),
        ScalarOp::FloorDiv => zip_lanes(a, b, out, |a, b| floor_div(f64::from(a), f64::from(b)) as f32),
        ScalarOp::Fmod => modulo(a, b, out, |r, _| r as f32),
        ScalarOp::Remainder => modulo(a, b, out, |r, b| {
            let opposite = (r != 0.0) & ((r < 0.0) != (b < 0.0));
            select(opposite, r + b, r) as f32
        }),
        _ => debug_assert!(false, "{op:?} is no float instruction of two operands"),
    }
}

/// Computes `finish(fmod(a, b), b)` in f64. If every quotient in a group of elements is below 2^24, its truncation in
/// f64 is exact, and so is the remainder. Other groups are computed element by element.
#[inline(always)]
fn modulo(a: &[f32], b: &[f32], out: &mut [f32], finish: impl Fn(f64, f64) -> f32) {
    let n = out.len();
    let (step_a, step_b) = (step(a, n), step(b, n));
    for (i, o) in out.chunks_mut(LANES).enumerate() {
        let m = o.len();
        let (a, b) = (&a[i * step_a..][..m], &b[i * step_b..][..m]);
        let mut plain = true;
        for j in 0..m {
            let (x, y) = (f64::from(a[j]), f64::from(b[j]));
            let q = (x / y).trunc();
            plain &= (q.abs() < 16_777_216.0) & (y.abs() < f64::INFINITY);
            o[j] = finish((x - q * y).abs().copysign(x), y);
        }
        if !plain {
            for j in 0..m {
                let (x, y) = (f64::from(a[j]), f64::from(b[j]));
                o[j] = finish(libm::fmod(x, y), y);
            }
        }
    }
}

#[inline(always)]
fn unary_f64_body(op: ScalarOp, x: &[f64], out: &mut [f64]) {
    if !f64::unary(op, x, out) {
        transcendental_f64(op, x, out);
    }
}

#[inline(always)]
fn binary_f64_body(op: ScalarOp, a: &[f64], b: &[f64], out: &mut [f64]) {
    if f64::binary(op, a, b, out) {
        return;
    }
    match op {
        ScalarOp::FloorDiv => zip_lanes(a, b, out, floor_div),
        _ => scalar_f64(op, a, b, out),
    }
}

/// Computes the f64 functions that come from libm, one element at a time.
#[inline(never)]
fn transcendental_f64(op: ScalarOp, x: &[f64], out: &mut [f64]) {
    use ScalarOp::*;
    let f: fn(f64) -> f64 = match op {
        RoundF16 => |x| f64::from(f16_from_f64(x)),
        RoundBf16 => |x| f64::from(bf16_from_f64(x)),
        Rsqrt => |x| 1.0 / x.sqrt(),
        Exp => libm::exp,
        Exp2 => libm::exp2,
        Expm1 => libm::expm1,
        Log => libm::log,
        Log2 => libm::log2,
        Log10 => libm::log10,
        Log1p => libm::log1p,
        Sin => libm::sin,
        Cos => libm::cos,
        Tan => libm::tan,
        Asin => libm::asin,
        Acos => libm::acos,
        Atan => libm::atan,
        Sinh => libm::sinh,
        Cosh => libm::cosh,
        Tanh => libm::tanh,
        Asinh => libm::asinh,
        // libm relies on a logarithm to report the domain error, which cancellation can prevent.
        Acosh => |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) },
        Atanh => libm::atanh,
        Sigmoid => gradus_backend::kernel::sigmoid,
        SigmoidNeg => |x| gradus_backend::kernel::sigmoid(-x),
        Softplus => gradus_backend::kernel::softplus,
        Erf => libm::erf,
        Erfc => libm::erfc,
        _ => |x| x,
    };
    each(x, out, f);
}

/// Computes the f64 functions of two operands that come from libm, one element at a time.
#[inline(never)]
fn scalar_f64(op: ScalarOp, a: &[f64], b: &[f64], out: &mut [f64]) {
    let f: fn(f64, f64) -> f64 = match op {
        ScalarOp::Pow => libm::pow,
        ScalarOp::Fmod => libm::fmod,
        _ => |a, b| {
            let r = libm::fmod(a, b);
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        },
    };
    zip_lanes(a, b, out, f);
}

#[inline(always)]
fn compare_body<T: Plain + PartialOrd>(op: ScalarOp, a: &[T], b: &[T], out: &mut [u8]) {
    let (a, b) = if matches!(op, ScalarOp::Gt | ScalarOp::Ge) { (b, a) } else { (a, b) };
    match op {
        ScalarOp::Eq => zip(a, b, out, |a, b| u8::from(a == b)),
        ScalarOp::Ne => zip(a, b, out, |a, b| u8::from(a != b)),
        ScalarOp::Lt | ScalarOp::Gt => zip(a, b, out, |a, b| u8::from(a < b)),
        _ => zip(a, b, out, |a, b| u8::from(a <= b)),
    }
}

per_isa! {
    /// Runs a float instruction with one operand.
    pub(crate) fn unary_f32(op: ScalarOp, x: &[f32], out: &mut [f32]) = unary_f32_body;
    /// Runs a float instruction with one operand.
    pub(crate) fn unary_f64(op: ScalarOp, x: &[f64], out: &mut [f64]) = unary_f64_body;
    /// Runs a float instruction with two operands.
    pub(crate) fn binary_f32(op: ScalarOp, a: &[f32], b: &[f32], out: &mut [f32]) = binary_f32_body;
    /// Runs a float instruction with two operands.
    pub(crate) fn binary_f64(op: ScalarOp, a: &[f64], b: &[f64], out: &mut [f64]) = binary_f64_body;
    /// Runs a comparison.
    pub(crate) fn compare_f32(op: ScalarOp, a: &[f32], b: &[f32], out: &mut [u8]) = compare_body::<f32>;
    /// Runs a comparison.
    pub(crate) fn compare_f64(op: ScalarOp, a: &[f64], b: &[f64], out: &mut [u8]) = compare_body::<f64>;
    /// Runs `IsNan` or `IsFinite`.
    pub(crate) fn test_f32(op: ScalarOp, x: &[f32], out: &mut [u8]) = f32::test;
    /// Runs `IsNan` or `IsFinite`.
    pub(crate) fn test_f64(op: ScalarOp, x: &[f64], out: &mut [u8]) = f64::test;
}
