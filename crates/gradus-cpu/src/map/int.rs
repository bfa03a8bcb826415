//! The integer and boolean instructions on blocks. Each type is computed in itself, with wrapping arithmetic.
//!
//! All code is portable. LLVM vectorises the cheap instructions for the compilation target, and the expensive ones
//! (division and powers) have no vector form. A zero divisor or a negative exponent ends the block and is reported as
//! `false`.

use gradus_backend::ScalarOp;

use super::float::{LANES, each, step, zip_lanes};
use crate::access::Plain;

/// An unsigned integer type, with the wrapping operations that are the same for signed integers.
pub(super) trait Bits: Plain {
    fn neg(x: &[Self], out: &mut [Self]);
    /// Runs `Add`, `Sub` or `Mul`.
    fn arithmetic(op: ScalarOp, a: &[Self], b: &[Self], out: &mut [Self]);
    /// Runs `Eq` or `Ne`.
    fn equal(op: ScalarOp, a: &[Self], b: &[Self], out: &mut [u8]);
}

macro_rules! bits {
    ($($t:ty)*) => {$(
        impl Bits for $t {
            fn neg(x: &[$t], out: &mut [$t]) {
                each(x, out, <$t>::wrapping_neg);
            }
            fn arithmetic(op: ScalarOp, a: &[$t], b: &[$t], out: &mut [$t]) {
                match op {
                    ScalarOp::Add => zip_lanes(a, b, out, <$t>::wrapping_add),
                    ScalarOp::Sub => zip_lanes(a, b, out, <$t>::wrapping_sub),
                    _ => zip_lanes(a, b, out, <$t>::wrapping_mul),
                }
            }
            fn equal(op: ScalarOp, a: &[$t], b: &[$t], out: &mut [u8]) {
                let different = op == ScalarOp::Ne;
                zip_lanes(a, b, out, |a, b| u8::from((a != b) == different));
            }
        }
    )*};
}
bits!(u64 u32 u16 u8);

/// An integer type that kernels compute in, with the operations that depend on its sign.
pub(super) trait Int: Plain + Ord {
    /// Runs `Abs`, `Sign`, or an instruction that leaves integers unchanged.
    fn unary(op: ScalarOp, x: &[Self], out: &mut [Self]);
    /// Runs an instruction with two operands that [`Bits`] does not have. Returns `false` if an element has no result.
    #[must_use]
    fn binary(op: ScalarOp, a: &[Self], b: &[Self], out: &mut [Self]) -> bool;
}

macro_rules! int {
    ($($t:ty, $abs:expr, $sign:expr;)*) => {$(
        impl Int for $t {
            fn unary(op: ScalarOp, x: &[$t], out: &mut [$t]) {
                match op {
                    ScalarOp::Abs => each(x, out, $abs),
                    ScalarOp::Sign => each(x, out, $sign),
                    // Rounding leaves integers unchanged.
                    _ => out.copy_from_slice(x),
                }
            }
            fn binary(op: ScalarOp, a: &[$t], b: &[$t], out: &mut [$t]) -> bool {
                match op {
                    ScalarOp::Max => zip_lanes(a, b, out, <$t>::max),
                    ScalarOp::Min => zip_lanes(a, b, out, <$t>::min),
                    ScalarOp::Div => return partial(a, b, out, |a, b| (b != 0).then(|| a.wrapping_div(b))),
                    ScalarOp::FloorDiv => return partial(a, b, out, |a, b| (b != 0).then(|| {
                        #[allow(unused_comparisons)]
                        let opposite = (a < 0) != (b < 0);
                        a.wrapping_div(b).wrapping_sub(<$t>::from(opposite && a.wrapping_rem(b) != 0))
                    })),
                    ScalarOp::Fmod => return partial(a, b, out, |a, b| (b != 0).then(|| a.wrapping_rem(b))),
                    ScalarOp::Remainder => return partial(a, b, out, |a, b| (b != 0).then(|| {
                        let r = a.wrapping_rem(b);
                        #[allow(unused_comparisons)]
                        let opposite = (r < 0) != (b < 0);
                        if r != 0 && opposite { r.wrapping_add(b) } else { r }
                    })),
                    _ => return partial(a, b, out, |a, b| {
                        #[allow(unused_comparisons)]
                        let negative = b < 0;
                        (!negative).then(|| power(a, b as u64, 1, <$t>::wrapping_mul))
                    }),
                }
                true
            }
        }
    )*};
}
int! {
    i64, i64::wrapping_abs, i64::signum;
    i32, i32::wrapping_abs, i32::signum;
    i16, i16::wrapping_abs, i16::signum;
    i8, i8::wrapping_abs, i8::signum;
    u64, |x| x, |x| x.min(1);
    u32, |x| x, |x| x.min(1);
    u16, |x| x, |x| x.min(1);
    u8, |x| x, |x| x.min(1);
}

/// Returns `base^e`, computed by squaring.
#[inline]
fn power<T: Copy>(mut base: T, mut e: u64, one: T, mul: impl Fn(T, T) -> T) -> T {
    let mut out = one;
    while e > 0 {
        if e & 1 == 1 {
            out = mul(out, base);
        }
        base = mul(base, base);
        e >>= 1;
    }
    out
}

/// Sets `out[i] = f(a[i], b[i])` up to the first element that has no result. Returns `false` if there is such an
/// element.
#[inline]
fn partial<T: Copy>(a: &[T], b: &[T], out: &mut [T], f: impl Fn(T, T) -> Option<T>) -> bool {
    let n = out.len();
    let (step_a, step_b) = (step(a, n), step(b, n));
    for (i, o) in out.chunks_mut(LANES).enumerate() {
        for ((o, &a), &b) in o.iter_mut().zip(&a[i * step_a..]).zip(&b[i * step_b..]) {
            match f(a, b) {
                Some(v) => *o = v,
                None => return false,
            }
        }
    }
    true
}

/// Runs `Lt`, `Le`, `Gt` or `Ge`.
pub(super) fn compare<T: Int>(op: ScalarOp, a: &[T], b: &[T], out: &mut [u8]) {
    let (a, b) = if matches!(op, ScalarOp::Gt | ScalarOp::Ge) { (b, a) } else { (a, b) };
    match op {
        ScalarOp::Lt | ScalarOp::Gt => zip_lanes(a, b, out, |a, b| u8::from(a < b)),
        _ => zip_lanes(a, b, out, |a, b| u8::from(a <= b)),
    }
}

/// Runs a comparison of booleans. Every byte other than 0 is true.
pub(super) fn compare_bool(op: ScalarOp, a: &[u8], b: &[u8], out: &mut [u8]) {
    let f: fn(bool, bool) -> bool = match op {
        ScalarOp::Eq => |a, b| a == b,
        ScalarOp::Ne => |a, b| a != b,
        ScalarOp::Lt => |a, b| !a & b,
        ScalarOp::Le => |a, b| !a | b,
        ScalarOp::Gt => |a, b| a & !b,
        _ => |a, b| a | !b,
    };
    zip_lanes(a, b, out, |a, b| u8::from(f(a != 0, b != 0)));
}

/// Runs `And`, `Or` or `Xor`.
pub(super) fn logic(op: ScalarOp, a: &[u8], b: &[u8], out: &mut [u8]) {
    match op {
        ScalarOp::And => zip_lanes(a, b, out, |a, b| u8::from((a != 0) & (b != 0))),
        ScalarOp::Or => zip_lanes(a, b, out, |a, b| u8::from((a | b) != 0)),
        _ => zip_lanes(a, b, out, |a, b| u8::from((a != 0) ^ (b != 0))),
    }
}

/// Runs `Not`.
pub(super) fn not(x: &[u8], out: &mut [u8]) {
    each(x, out, |x| u8::from(x == 0));
}
