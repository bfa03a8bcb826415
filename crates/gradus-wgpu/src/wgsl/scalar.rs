//! The instructions of the IR as WGSL expressions. Behaviour that WGSL leaves open (NaN, zeros, saturation) is spelled
//! out.

use gradus_backend::{DType, Scalar, ScalarOp};

use super::{suffix, ty};

/// A constant of a compute type.
pub(crate) fn constant(value: Scalar, dtype: DType) -> String {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            let v = value.to_f64() as f32;
            if v.is_finite() && (v == 0.0 || v.is_normal()) && !(v == 0.0 && v.is_sign_negative()) {
                format!("({v:e}f)")
            } else {
                format!("f32_of({:#x}u)", v.to_bits())
            }
        }
        DType::F64 => {
            let v = value.to_f64();
            if v.is_finite() && (v == 0.0 || v.is_normal()) && !(v == 0.0 && v.is_sign_negative()) {
                format!("({v:e}lf)")
            } else {
                format!("f64_of({:#x}lu)", v.to_bits())
            }
        }
        DType::I64 | DType::U64 => {
            let v = match value {
                // A float above `i64::MAX` may be one that u64 can represent.
                Scalar::Float(v) if dtype == DType::U64 => v as u64,
                v => v.to_i64() as u64,
            };
            format!("vec2<u32>({}u, {}u)", v as u32, v >> 32)
        }
        DType::I32 | DType::I16 | DType::I8 => format!("bitcast<i32>({:#x}u)", value.to_i64() as u32),
        DType::U32 | DType::U16 | DType::U8 => format!("{}u", value.to_i64() as u32),
        DType::Bool => (value.to_f64() != 0.0).to_string(),
    }
}

/// Wraps `v` to a small integer dtype. Other dtypes wrap by themselves.
fn wrapped(v: String, dtype: DType) -> String {
    match dtype {
        DType::I8 => format!("(({v} << 24u) >> 24u)"),
        DType::I16 => format!("(({v} << 16u) >> 16u)"),
        DType::U8 => format!("({v} & 0xffu)"),
        DType::U16 => format!("({v} & 0xffffu)"),
        _ => v,
    }
}

/// Whether a dtype is computed as two words.
fn is_wide(dtype: DType) -> bool {
    matches!(dtype, DType::I64 | DType::U64)
}

/// The conversion of `v` between two compute types.
pub(crate) fn cast(v: &str, from: DType, to: DType) -> String {
    let (f, t) = (ty(from), ty(to));
    if to == DType::Bool {
        return match from {
            DType::Bool => v.to_owned(),
            // A NaN counts as nonzero: the test is a negated equality.
            _ if from.is_float() => format!("!({v} == {f}(0))"),
            _ if is_wide(from) => format!("any({v} != vec2<u32>(0u))"),
            _ => format!("({v} != {f}(0))"),
        };
    }
    if f == t && from.is_float() {
        return v.to_owned();
    }
    if from == DType::Bool {
        let [zero, one] = [0, 1].map(|n| constant(Scalar::Int(n), to));
        return format!("select({zero}, {one}, {v})");
    }
    if is_wide(from) && to.is_float() || from.is_float() && is_wide(to) {
        return format!("{}_from_{}({v})", suffix(to), suffix(from));
    }
    if to.is_float() {
        return format!("{t}({v})");
    }
    if from.is_float() {
        let bits = to.size() as u32 * 8;
        let (lo, hi) = if to.is_signed() {
            (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits))
        } else {
            (0, (u64::MAX >> (64 - bits)) as i64)
        };
        // The first float above the range, which is a power of two, and the ends of the range.
        let beyond = constant(Scalar::Float(hi as f64 + 1.0), from);
        let below = constant(Scalar::Float(lo as f64), from);
        let [max, min] = [hi, lo].map(|end| constant(Scalar::Int(end), to));
        // A value in the range is converted. Then the ends are handled. A NaN becomes 0, because every comparison with
        // it is false.
        let inside = format!("select({f}(0), {v}, ({v} > {below}) && ({v} < {beyond}))");
        let value = format!("select({t}({inside}), {max}, {v} >= {beyond})");
        return format!("select({value}, {min}, {v} <= {below})");
    }
    let converted = match (is_wide(from), is_wide(to)) {
        (true, true) => v.to_owned(),
        // Signed integers are sign-extended. A narrower result keeps only the low bits.
        (false, true) if f == "i32" => format!("i64_from_i32({v})"),
        (false, true) => format!("vec2<u32>({v}, 0u)"),
        (true, false) if t == "i32" => format!("bitcast<i32>(({v}).x)"),
        (true, false) => format!("({v}).x"),
        _ if f == t => v.to_owned(),
        _ => format!("bitcast<{t}>({v})"),
    };
    wrapped(converted, to)
}

/// An instruction with two operands of the same dtype.
pub(crate) fn binary(op: ScalarOp, dtype: DType, a: &str, b: &str) -> String {
    instruction(op, dtype, dtype, [a.to_owned(), b.to_owned(), String::new()])
}

/// An instruction on values with the given names. `from` is the dtype of the first one.
pub(crate) fn instruction(op: ScalarOp, from: DType, dtype: DType, [a, b, c]: [String; 3]) -> String {
    use ScalarOp::*;
    let (t, end) = (ty(from), suffix(from));
    let (float, wide) = (from.is_float(), is_wide(from));
    let call = |name: &str| format!("{name}_{end}({a})");
    let call2 = |name: &str| format!("{name}_{end}({a}, {b})");
    let int = |text: String| wrapped(text, dtype);
    match op {
        Cast => cast(&a, from, dtype),
        Select => format!("select({c}, {b}, {a})"),
        Not => format!("!{a}"),
        And => format!("({a} && {b})"),
        Or => format!("({a} || {b})"),
        Xor => format!("({a} != {b})"),
        Neg if wide => format!("neg_64({a})"),
        Neg => int(format!("(-{a})")),
        Abs if float => format!("abs({a})"),
        Abs if from == DType::I64 => call("abs"),
        Abs if from.is_signed() => int(format!("select({a}, -{a}, {a} < {t}(0))")),
        Abs => a,
        Sign if float || wide => call("sign"),
        Sign if from.is_signed() => {
            format!("(select({t}(0), {t}(1), {a} > {t}(0)) - select({t}(0), {t}(1), {a} < {t}(0)))")
        }
        Sign => format!("min({a}, {t}(1))"),
        Floor | Ceil | Round | Trunc if !float => a,
        Floor => call("floored"),
        Ceil => call("ceiled"),
        Round => call("rounded"),
        Trunc => call("truncated"),
        IsNan => {
            if float {
                call("is_nan")
            } else {
                "false".to_owned()
            }
        }
        IsFinite => {
            if float {
                call("is_finite")
            } else {
                "true".to_owned()
            }
        }
        Add | Sub | Mul if wide => format!("{}_64({a}, {b})", op.name()),
        Add => int(format!("({a} + {b})")),
        Sub => int(format!("({a} - {b})")),
        Mul => int(format!("({a} * {b})")),
        Div if from.compute() == DType::F32 => call2("nearest_quotient"),
        Div if float => call2("divided"),
        Max | Min if float || wide => call2(if op == Max { "larger" } else { "smaller" }),
        Max => format!("max({a}, {b})"),
        Min => format!("min({a}, {b})"),
        Eq if wide => format!("all({a} == {b})"),
        Ne if wide => format!("any({a} != {b})"),
        Lt if wide => call2("less"),
        Gt if wide => format!("less_{end}({b}, {a})"),
        Le if wide => format!("!less_{end}({b}, {a})"),
        Ge if wide => format!("!less_{end}({a}, {b})"),
        Eq => format!("({a} == {b})"),
        // Not every driver treats a NaN as unequal to itself.
        Ne => format!("!({a} == {b})"),
        Lt | Le | Gt | Ge => {
            let sign = match op {
                Lt => "<",
                Le => "<=",
                Gt => ">",
                _ => ">=",
            };
            if from == DType::Bool {
                format!("(select(0u, 1u, {a}) {sign} select(0u, 1u, {b}))")
            } else {
                format!("({a} {sign} {b})")
            }
        }
        Div => int(call2("divided")),
        FloorDiv | Fmod | Remainder | Pow => int(call2(op.name())),
        _ => call(op.name()),
    }
}
