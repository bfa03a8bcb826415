//! The instructions of the IR as expressions of CUDA C. Behaviour that C leaves open (overflow, saturation, NaN) is
//! spelled out.

use gradus_backend::{DType, Scalar, ScalarOp};

use super::compute;

/// A constant of a compute type.
pub(crate) fn constant(value: Scalar, dtype: DType) -> String {
    match dtype.compute() {
        DType::F32 => {
            let v = value.to_f64() as f32;
            if v.is_normal() { format!("({v:e}f)") } else { format!("__uint_as_float({:#x}u)", v.to_bits()) }
        }
        DType::F64 => {
            let v = value.to_f64();
            if v.is_normal() { format!("({v:e})") } else { format!("__longlong_as_double({:#x}ll)", v.to_bits()) }
        }
        DType::Bool => (value.to_f64() != 0.0).to_string(),
        DType::U64 => match value {
            // A float above `i64::MAX` may be one that u64 can represent.
            Scalar::Float(v) => format!("{}ull", v as u64),
            v => format!("{}ull", v.to_i64() as u64),
        },
        d => format!("({}){:#x}ull", compute(d), value.to_i64() as u64),
    }
}

/// The conversion of `v` between two compute types.
pub(crate) fn cast(v: &str, from: DType, to: DType) -> String {
    let (from, to) = (from.compute(), to.compute());
    let t = compute(to);
    if to == DType::Bool {
        return if from == DType::Bool { v.to_owned() } else { format!("({v} != ({})0)", compute(from)) };
    }
    if from.is_float() && to.is_int() {
        let bits = to.size() as u32 * 8;
        let (lo, hi) = if to.is_signed() {
            (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits))
        } else {
            (0, (u64::MAX >> (64 - bits)) as i64)
        };
        // The first float above the range, which is a power of two, and the ends of the range.
        let above = if to == DType::U64 { 18_446_744_073_709_551_616.0 } else { hi as f64 + 1.0 };
        let beyond = constant(Scalar::Float(above), from);
        let below = constant(Scalar::Float(lo as f64), from);
        let [max, min] = [hi, lo].map(|end| constant(Scalar::Int(end), to));
        // A NaN becomes 0, because every comparison with it is false.
        return format!("({v} >= {beyond} ? {max} : {v} <= {below} ? {min} : {v} == {v} ? ({t}){v} : ({t})0)");
    }
    format!("({t})({v})")
}

/// An instruction with two operands of the same dtype.
pub(crate) fn binary(op: ScalarOp, dtype: DType, a: &str, b: &str) -> String {
    instruction(op, dtype, dtype, [a.to_owned(), b.to_owned(), String::new()])
}

/// An instruction on values with the given names. `from` is the dtype of the first one. Integer instructions that may
/// have no result set `bad`.
pub(crate) fn instruction(op: ScalarOp, from: DType, dtype: DType, [a, b, c]: [String; 3]) -> String {
    use ScalarOp::*;
    let (float, t) = (from.is_float(), compute(from));
    let end = if from.compute() == DType::F64 { "f64" } else { "f32" };
    let call = |name: &str| format!("{name}_{end}({a})");
    let call2 = |name: &str| format!("{name}_{end}({a}, {b})");
    let int = |name: &str| format!("{name}<{t}>({a}, {b}, bad)");
    // Signed overflow has no meaning in C, but unsigned overflow wraps.
    let wrapped = |sign: &str| format!("({t})((u64){a} {sign} (u64){b})");
    match op {
        Cast => cast(&a, from, dtype),
        Select => format!("({a} ? {b} : {c})"),
        Not => format!("(!{a})"),
        And => format!("({a} && {b})"),
        Or => format!("({a} || {b})"),
        Xor => format!("({a} != {b})"),
        Neg if float => format!("(-{a})"),
        Neg => format!("({t})(0ull - (u64){a})"),
        Abs if float => format!("fabs({a})"),
        Abs if from.is_signed() => format!("({a} < 0 ? ({t})(0ull - (u64){a}) : {a})"),
        Abs => a,
        Sign if float => call("sign"),
        Sign => format!("({t})(({a} > ({t})0) - ({a} < ({t})0))"),
        Floor | Ceil | Round | Trunc if !float => a,
        Floor => call("floored"),
        Ceil => call("ceiled"),
        Round => call("rounded"),
        Trunc => call("truncated"),
        IsNan if !float => "false".to_owned(),
        IsFinite if !float => "true".to_owned(),
        IsNan => call("is_nan"),
        IsFinite => call("is_finite"),
        Add if float => format!("({a} + {b})"),
        Sub if float => format!("({a} - {b})"),
        Mul if float => format!("({a} * {b})"),
        Div if float => format!("({a} / {b})"),
        Add => wrapped("+"),
        Sub => wrapped("-"),
        Mul => wrapped("*"),
        Max | Min if float => call2(if op == Max { "larger" } else { "smaller" }),
        Max => format!("({a} > {b} ? {a} : {b})"),
        Min => format!("({a} < {b} ? {a} : {b})"),
        Eq => format!("({a} == {b})"),
        Ne => format!("({a} != {b})"),
        Lt => format!("({a} < {b})"),
        Le => format!("({a} <= {b})"),
        Gt => format!("({a} > {b})"),
        Ge => format!("({a} >= {b})"),
        Div => int("divided"),
        Fmod if !float => int("fmod_int"),
        Remainder if !float => int("remainder_int"),
        FloorDiv if !float => int("floor_div_int"),
        Pow if !float => int("pow_int"),
        FloorDiv | Fmod | Remainder | Pow => call2(op.name()),
        _ => call(op.name()),
    }
}
