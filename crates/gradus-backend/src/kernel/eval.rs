//! An interpreter that evaluates a kernel for one element; it is the reference for the meaning of the IR.
//!
//! Every instruction is computed in f64 (integers in i128) and then rounded to its dtype. The interpreter is
//! deliberately slow and simple: backends are tested against it.

use super::{Kernel, ScalarOp};
use crate::{DType, Error, Result, Scalar};

impl Kernel {
    /// Evaluates the outputs for one value of each argument.
    ///
    /// Returns an error if the number of values is wrong, or if an integer is divided by zero or raised to a negative
    /// power.
    #[track_caller]
    pub fn eval(&self, args: &[Scalar]) -> Result<Vec<Scalar>> {
        if args.len() != self.args().len() {
            let m = format!("{} takes {} values, not {}", self.name(), self.args().len(), args.len());
            return Err(Error::argument("eval", m));
        }
        let mut values: Vec<Scalar> = Vec::with_capacity(self.insts().len());
        for inst in self.insts() {
            let operand = |k: usize| values[usize::from(inst.operands[k])];
            let from = |k: usize| self.insts()[usize::from(inst.operands[k])].dtype;
            let v = match inst.op {
                ScalarOp::Arg(i) => round(args[usize::from(i)], self.args()[usize::from(i)]),
                ScalarOp::Const(c) => cast(c, inst.dtype, inst.dtype),
                ScalarOp::Select => operand(if operand(0).to_f64() != 0.0 { 1 } else { 2 }),
                ScalarOp::Cast => cast(operand(0), from(0), inst.dtype),
                ScalarOp::Not => Scalar::Bool(operand(0).to_f64() == 0.0),
                op if op.arity() == 1 => match operand(0) {
                    Scalar::Float(x) => unary_float(op, x),
                    x => unary_int(op, wide(x, from(0))),
                },
                op => match (operand(0), operand(1)) {
                    (Scalar::Float(a), Scalar::Float(b)) => binary_float(op, a, b),
                    (a, b) => binary_int(op, wide(a, from(0)), wide(b, from(1)))
                        .ok_or_else(|| Error::argument(self.name(), integer_failure(op)))?,
                },
            };
            values.push(round(v, inst.dtype));
        }
        Ok(self.outputs().iter().map(|&(v, d)| round(values[usize::from(v)], d)).collect())
    }
}

/// Explains why an integer instruction has no result.
pub fn integer_failure(op: ScalarOp) -> &'static str {
    match op {
        ScalarOp::Pow => "an integer was raised to a negative power; cast to a float dtype first",
        _ => "an integer was divided by zero",
    }
}

fn int(s: Scalar) -> i128 {
    match s {
        Scalar::Bool(b) => i128::from(b),
        Scalar::Int(v) => i128::from(v),
        Scalar::Float(v) => v as i128,
    }
}

/// The exact value of an integer or bool. A u64 above `i64::MAX` is stored in `Scalar::Int` with the same bits.
fn wide(s: Scalar, dtype: DType) -> i128 {
    match (s, dtype) {
        (Scalar::Int(v), DType::U64) => i128::from(v as u64),
        _ => int(s),
    }
}

/// A value as `dtype` stores it: floats are rounded and integers wrap.
fn round(s: Scalar, dtype: DType) -> Scalar {
    match dtype {
        DType::F64 => Scalar::Float(s.to_f64()),
        DType::F32 => Scalar::Float(f64::from(s.to_f64() as f32)),
        DType::F16 => Scalar::Float(crate::f16_from_f64(s.to_f64()).to_f64()),
        DType::BF16 => Scalar::Float(crate::bf16_from_f64(s.to_f64()).to_f64()),
        DType::Bool => Scalar::Bool(s.to_f64() != 0.0),
        DType::I64 | DType::U64 => Scalar::Int(int(s) as i64),
        DType::I32 => Scalar::Int(i64::from(int(s) as i32)),
        DType::I16 => Scalar::Int(i64::from(int(s) as i16)),
        DType::I8 => Scalar::Int(i64::from(int(s) as i8)),
        DType::U32 => Scalar::Int(i64::from(int(s) as u32)),
        DType::U16 => Scalar::Int(i64::from(int(s) as u16)),
        DType::U8 => Scalar::Int(i64::from(int(s) as u8)),
    }
}

/// Converts between two compute dtypes.
fn cast(s: Scalar, from: DType, to: DType) -> Scalar {
    match (s, to) {
        (_, DType::Bool) => round(s, to),
        (Scalar::Float(_), to) if to.is_float() => round(s, to),
        (Scalar::Float(v), to) => Scalar::Int(match to {
            DType::I32 => i64::from(v as i32),
            DType::I16 => i64::from(v as i16),
            DType::I8 => i64::from(v as i8),
            DType::U64 => v as u64 as i64,
            DType::U32 => i64::from(v as u32),
            DType::U16 => i64::from(v as u16),
            DType::U8 => i64::from(v as u8),
            _ => v as i64,
        }),
        // Convert straight to f32: going through f64 would round a large integer twice.
        (_, DType::F32) => Scalar::Float(f64::from(wide(s, from) as f32)),
        (_, to) if to.is_float() => Scalar::Float(wide(s, from) as f64),
        _ => round(s, to),
    }
}

fn unary_float(op: ScalarOp, x: f64) -> Scalar {
    use ScalarOp::*;
    let y = match op {
        Neg => -x,
        Abs => x.abs(),
        Sign => {
            if x == 0.0 || x.is_nan() {
                x
            } else {
                x.signum()
            }
        }
        Sqrt => libm::sqrt(x),
        Rsqrt => 1.0 / libm::sqrt(x),
        Recip => 1.0 / x,
        Exp => libm::exp(x),
        Exp2 => libm::exp2(x),
        Expm1 => libm::expm1(x),
        Log => libm::log(x),
        Log2 => libm::log2(x),
        Log10 => libm::log10(x),
        Log1p => libm::log1p(x),
        Sin => libm::sin(x),
        Cos => libm::cos(x),
        Tan => libm::tan(x),
        Asin => libm::asin(x),
        Acos => libm::acos(x),
        Atan => libm::atan(x),
        Sinh => libm::sinh(x),
        Cosh => libm::cosh(x),
        Tanh => libm::tanh(x),
        Asinh => libm::asinh(x),
        // libm relies on a logarithm to return NaN outside the domain, but cancellation in its argument can prevent
        // that.
        Acosh => {
            if x < 1.0 {
                f64::NAN
            } else {
                libm::acosh(x)
            }
        }
        Atanh => libm::atanh(x),
        Sigmoid => sigmoid(x),
        SigmoidNeg => sigmoid(-x),
        Softplus => softplus(x),
        Erf => libm::erf(x),
        Erfc => libm::erfc(x),
        RoundF16 => crate::f16_from_f64(x).to_f64(),
        RoundBf16 => crate::bf16_from_f64(x).to_f64(),
        Floor => x.floor(),
        Ceil => x.ceil(),
        Round => x.round_ties_even(),
        Trunc => x.trunc(),
        IsNan => return Scalar::Bool(x.is_nan()),
        IsFinite => return Scalar::Bool(x.is_finite()),
        _ => unreachable!("{op:?} is no float instruction of one operand; the verifier refuses it"),
    };
    Scalar::Float(y)
}

/// `1 / (1 + e^-x)` without overflow or cancellation.
pub fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + libm::exp(-x))
    } else {
        let e = libm::exp(x);
        e / (1.0 + e)
    }
}

/// The largest integer that does not exceed the exact quotient `a / b`, as far as floats can represent it. For example,
/// `1 // 0.1` is 9, although the rounded quotient is 10, because 0.1 is stored as slightly more than a tenth. If the
/// divisor is zero, returns `a / b`; otherwise, if the dividend is infinite, returns NaN.
pub fn floor_div(a: f64, b: f64) -> f64 {
    if a.is_infinite() && b != 0.0 {
        return f64::NAN;
    }
    if b.is_infinite() {
        return if a < 0.0 && b > 0.0 || a > 0.0 && b < 0.0 { -1.0 } else { a / b };
    }
    let q = (a / b).floor();
    // Rounding can carry the quotient past its floor only by turning it into an integer. The exact remainder, whose
    // sign the fused multiply-add yields, then has the opposite sign to `b`. Above 2^53 there is nothing to correct,
    // because every float is an integer.
    let rest = (-q).mul_add(b, a);
    if rest * b.signum() < 0.0 && q.abs() <= 9_007_199_254_740_992.0 { q - 1.0 } else { q }
}

/// `ln(1 + e^x)` without overflow: `max(x, 0) + ln(1 + e^-|x|)`.
pub fn softplus(x: f64) -> f64 {
    let tail = libm::log1p(libm::exp(-x.abs()));
    if x > 0.0 {
        x + tail
    } else if x.is_nan() {
        x
    } else {
        tail
    }
}

fn unary_int(op: ScalarOp, x: i128) -> Scalar {
    use ScalarOp::*;
    match op {
        Neg => Scalar::Int((-x) as i64),
        Abs => Scalar::Int(x.abs() as i64),
        Sign => Scalar::Int(x.signum() as i64),
        Floor | Ceil | Round | Trunc => Scalar::Int(x as i64),
        IsNan => Scalar::Bool(false),
        IsFinite => Scalar::Bool(true),
        _ => unreachable!("{op:?} is no integer instruction of one operand; the verifier refuses it"),
    }
}

fn binary_float(op: ScalarOp, a: f64, b: f64) -> Scalar {
    use ScalarOp::*;
    let nan = a.is_nan() || b.is_nan();
    Scalar::Float(match op {
        Add => a + b,
        Sub => a - b,
        Mul => a * b,
        Div => a / b,
        FloorDiv => floor_div(a, b),
        Fmod => libm::fmod(a, b),
        Remainder => {
            let r = libm::fmod(a, b);
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        }
        Pow => libm::pow(a, b),
        Max if nan => f64::NAN,
        Min if nan => f64::NAN,
        // -0 counts as smaller than +0.
        Max => {
            if a > b || (a == b && b.is_sign_negative()) {
                a
            } else {
                b
            }
        }
        Min => {
            if a < b || (a == b && a.is_sign_negative()) {
                a
            } else {
                b
            }
        }
        Eq => return Scalar::Bool(a == b),
        Ne => return Scalar::Bool(a != b),
        Lt => return Scalar::Bool(a < b),
        Le => return Scalar::Bool(a <= b),
        Gt => return Scalar::Bool(a > b),
        Ge => return Scalar::Bool(a >= b),
        _ => unreachable!("{op:?} is no float instruction of two operands; the verifier refuses it"),
    })
}

/// `None` if there is no result, because the divisor is zero or the exponent is negative.
fn binary_int(op: ScalarOp, a: i128, b: i128) -> Option<Scalar> {
    use ScalarOp::*;
    let divisor = || (b != 0).then_some(b);
    Some(Scalar::Int(match op {
        Add => a + b,
        Sub => a - b,
        Mul => a.wrapping_mul(b),
        Div => a / divisor()?,
        FloorDiv => a.div_euclid(divisor()?) - i128::from(b < 0 && a.rem_euclid(b) != 0),
        Fmod => a % divisor()?,
        Remainder => {
            let r = a % divisor()?;
            if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
        }
        Pow => {
            let (mut base, mut e, mut out) = (a as i64, u64::try_from(b).ok()?, 1i64);
            while e > 0 {
                if e & 1 == 1 {
                    out = out.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                e >>= 1;
            }
            i128::from(out)
        }
        Max => a.max(b),
        Min => a.min(b),
        Eq => return Some(Scalar::Bool(a == b)),
        Ne => return Some(Scalar::Bool(a != b)),
        Lt => return Some(Scalar::Bool(a < b)),
        Le => return Some(Scalar::Bool(a <= b)),
        Gt => return Some(Scalar::Bool(a > b)),
        Ge => return Some(Scalar::Bool(a >= b)),
        And => return Some(Scalar::Bool(a != 0 && b != 0)),
        Or => return Some(Scalar::Bool(a != 0 || b != 0)),
        Xor => return Some(Scalar::Bool((a != 0) != (b != 0))),
        _ => unreachable!("{op:?} is no integer instruction of two operands; the verifier refuses it"),
    } as i64))
}
