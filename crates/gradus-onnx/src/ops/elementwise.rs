//! Elementwise operators.

use gradus_tensor::{DType, Error, Result, Tensor};

use super::host;
use crate::elem::Elem;
use crate::graph::{Call, Row, one, row, unsupported};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("Abs", &[1, 6, 13], |c| unary(c, Tensor::abs)),
    row("Acos", &[7, 22], |c| unary(c, Tensor::acos)),
    row("Acosh", &[9, 22], |c| unary(c, Tensor::acosh)),
    row("Asin", &[7, 22], |c| unary(c, Tensor::asin)),
    row("Asinh", &[9, 22], |c| unary(c, Tensor::asinh)),
    row("Atan", &[7, 22], |c| unary(c, Tensor::atan)),
    row("Atanh", &[9, 22], |c| unary(c, Tensor::atanh)),
    row("Ceil", &[1, 6, 13], |c| unary(c, Tensor::ceil)),
    row("Cos", &[7, 22], |c| unary(c, Tensor::cos)),
    row("Cosh", &[9, 22], |c| unary(c, Tensor::cosh)),
    row("Erf", &[9, 13], |c| unary(c, Tensor::erf)),
    row("Exp", &[1, 6, 13], |c| unary(c, Tensor::exp)),
    row("Floor", &[1, 6, 13], |c| unary(c, Tensor::floor)),
    row("HardSwish", &[14, 22], |c| unary(c, Tensor::hardswish)),
    row("Log", &[1, 6, 13], |c| unary(c, Tensor::log)),
    row("Mish", &[18, 22], |c| unary(c, Tensor::mish)),
    row("Neg", &[1, 6, 13], |c| unary(c, Tensor::neg)),
    row("Reciprocal", &[1, 6, 13], |c| unary(c, Tensor::recip)),
    row("Relu", &[1, 6, 13, 14], |c| unary(c, Tensor::relu)),
    row("Round", &[11, 22], |c| unary(c, Tensor::round)),
    row("Sigmoid", &[1, 6, 13], |c| unary(c, Tensor::sigmoid)),
    row("Sign", &[9, 13], |c| unary(c, Tensor::sign)),
    row("Sin", &[7, 22], |c| unary(c, Tensor::sin)),
    row("Sinh", &[9, 22], |c| unary(c, Tensor::sinh)),
    row("Softplus", &[1, 22], |c| unary(c, Tensor::softplus)),
    row("Softsign", &[1, 22], |c| unary(c, Tensor::softsign)),
    row("Sqrt", &[1, 6, 13], |c| unary(c, Tensor::sqrt)),
    row("Tan", &[7, 22], |c| unary(c, Tensor::tan)),
    row("Tanh", &[1, 6, 13], |c| unary(c, Tensor::tanh)),
    row("IsNaN", &[9, 13, 20], |c| Ok(one(c.tensor(0)?.isnan()?))),
    row("IsInf", &[10, 20], is_inf),
    row("Celu", &[12], |c| with(c, |x| x.celu(c.float("alpha", 1.0)?))),
    row("Elu", &[1, 6, 22], |c| with(c, |x| x.elu(c.float("alpha", 1.0)?))),
    row("LeakyRelu", &[1, 6, 16], |c| with(c, |x| x.leaky_relu(c.float("alpha", 0.01)?))),
    row("ThresholdedRelu", &[10, 22], |c| with(c, |x| x.threshold(c.float("alpha", 1.0)?, 0.0))),
    row("Selu", &[1, 6, 22], selu),
    row("Gelu", &[20], gelu),
    row("Swish", &[24], swish),
    row("HardSigmoid", &[1, 6, 22], hard_sigmoid),
    row("Shrink", &[9], shrink),
    row("Clip", &[1, 6, 11, 12, 13], clip),
    row("PRelu", &[1, 6, 7, 9, 16], |c| {
        c.skip(&["consumed_inputs"]);
        let (x, mut slope) = (c.tensor(0)?, c.tensor(1)?);
        // Before opset 7, a vector holds one slope per channel.
        for _ in 2..if c.opset() < 7 && slope.numel() > 1 { x.rank() } else { 0 } {
            slope = slope.unsqueeze(-1)?;
        }
        like(&x, x.ge(0.0)?.where_(&x, x.mul(&slope)?))
    }),
    row("Add", &[1, 6, 7, 13, 14], |c| binary(c, |a, b| a.add(b))).host(host::add),
    row("Sub", &[1, 6, 7, 13, 14], |c| binary(c, |a, b| a.sub(b))).host(host::sub),
    row("Mul", &[1, 6, 7, 13, 14], |c| binary(c, |a, b| a.mul(b))).host(host::mul),
    row("Div", &[1, 6, 7, 13, 14], |c| binary(c, |a, b| if a.dtype().is_float() { a.div(b) } else { a.trunc_div(b) }))
        .host(host::div),
    row("Pow", &[1, 7, 12, 13, 15], |c| {
        let (x, y) = (c.tensor(0)?, c.tensor(1)?);
        like(&x, x.pow(&y))
    }),
    row("Mod", &[10, 13], modulo),
    row("Max", &[1, 6, 8, 12, 13], |c| fold(c, |a, b| a.maximum(b))).host(host::max),
    row("Min", &[1, 6, 8, 12, 13], |c| fold(c, |a, b| a.minimum(b))).host(host::min),
    row("Sum", &[1, 6, 8, 13], |c| fold(c, |a, b| a.add(b))),
    row("Mean", &[1, 6, 8, 13], |c| {
        let n = c.inputs.len() as f64;
        let sum = folded(c, |a, b| a.add(b))?;
        like(&sum, sum.div(n))
    }),
    row("Where", &[9, 16], |c| Ok(one(c.tensor(0)?.where_(c.tensor(1)?, c.tensor(2)?)?))).host(host::where_),
    row("Equal", &[1, 7, 11, 13, 19], equal).host(host::equal),
    row("Less", &[1, 7, 9, 13], |c| Ok(one(c.tensor(0)?.lt(c.tensor(1)?)?))).host(host::less),
    row("LessOrEqual", &[12, 16], |c| Ok(one(c.tensor(0)?.le(c.tensor(1)?)?))),
    row("Greater", &[1, 7, 9, 13], |c| Ok(one(c.tensor(0)?.gt(c.tensor(1)?)?))).host(host::greater),
    row("GreaterOrEqual", &[12, 16], |c| Ok(one(c.tensor(0)?.ge(c.tensor(1)?)?))),
    row("And", &[1, 7], |c| binary(c, |a, b| a.logical_and(b))).host(host::and),
    row("Or", &[1, 7], |c| binary(c, |a, b| a.logical_or(b))).host(host::or),
    row("Xor", &[1, 7], |c| binary(c, |a, b| a.logical_xor(b))),
    row("Not", &[1], |c| Ok(one(c.tensor(0)?.logical_not()?))).host(host::not),
    row("BitwiseAnd", &[18], |c| bits(c, |a, b, _| a & b)),
    row("BitwiseOr", &[18], |c| bits(c, |a, b, _| a | b)),
    row("BitwiseXor", &[18], |c| bits(c, |a, b, _| a ^ b)),
    row("BitwiseNot", &[18], |c| {
        let (elem, a) = (c.array(0)?.elem(), c.host_ints(0)?);
        Ok(vec![c.upload(elem, c.array(0)?.shape().to_vec(), a.iter().map(|v| !v).collect())])
    }),
    row("BitShift", &[11], bit_shift),
];

/// Casts a result to the dtype of `x`.
pub(super) fn like(x: &Tensor, result: Result<Tensor>) -> Values {
    Ok(one(result?.to_dtype(x.dtype())?))
}

fn unary(c: &Call<'_>, f: fn(&Tensor) -> Result<Tensor>) -> Values {
    c.skip(&["consumed_inputs"]);
    let x = c.tensor(0)?;
    like(&x, f(&x))
}

fn with(c: &Call<'_>, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Values {
    c.skip(&["consumed_inputs"]);
    let x = c.tensor(0)?;
    like(&x, f(&x))
}

/// The operands, the second aligned with the first by the attributes `broadcast` and `axis` of early opsets.
fn operands(c: &Call<'_>) -> Result<(Tensor, Tensor)> {
    c.skip(&["consumed_inputs"]);
    let (a, mut b) = (c.tensor(0)?, c.tensor(1)?);
    if c.opset() < 7 && c.flag("broadcast", false)? && c.has("axis") {
        let axis = crate::graph::axis(c.int("axis", 0)?, a.rank())?;
        for _ in axis + b.rank()..a.rank() {
            b = b.unsqueeze(-1)?;
        }
    }
    Ok((a, b))
}

fn binary(c: &Call<'_>, f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> Values {
    let (a, b) = operands(c)?;
    Ok(one(f(&a, &b)?))
}

fn folded(c: &Call<'_>, f: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    c.skip(&["consumed_inputs"]);
    let mut result = c.tensor(0)?;
    for i in 1..c.inputs.len() {
        result = f(&result, &c.tensor(i)?)?;
    }
    Ok(result)
}

fn fold(c: &Call<'_>, f: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Values {
    Ok(one(folded(c, f)?))
}

fn equal(c: &Call<'_>) -> Values {
    if let (OnnxValue::Strings(a), OnnxValue::Strings(b)) = (c.input(0)?, c.input(1)?) {
        if a.shape != b.shape && b.values.len() != 1 {
            return Err(unsupported(format!("strings of shapes {:?} and {:?} are not compared", a.shape, b.shape)));
        }
        let equal = |(i, text): (usize, &String)| i64::from(b.values.get(i).or(b.values.first()) == Some(text));
        return Ok(vec![c.upload(Elem::Bool, a.shape.clone(), a.values.iter().enumerate().map(equal).collect())]);
    }
    let (a, b) = operands(c)?;
    Ok(one(if a.dtype() == DType::Bool { a.logical_xor(&b)?.logical_not()? } else { a.eq(&b)? }))
}

fn is_inf(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let (negative, positive) = (c.flag("detect_negative", true)?, c.flag("detect_positive", true)?);
    Ok(one(match (negative, positive) {
        (true, true) => x.isinf()?,
        (true, false) => x.eq(f64::NEG_INFINITY)?,
        (false, true) => x.eq(f64::INFINITY)?,
        (false, false) => x.isinf()?.logical_and(x.isnan()?)?,
    }))
}

fn selu(c: &Call<'_>) -> Values {
    let alpha = c.float("alpha", if c.opset() < 6 { 1.6732 } else { f64::from(1.673_263_2f32) })?;
    let gamma = c.float("gamma", if c.opset() < 6 { 1.0507 } else { f64::from(1.050_701f32) })?;
    with(c, |x| x.elu(alpha)?.mul(gamma))
}

fn gelu(c: &Call<'_>) -> Values {
    match c.text("approximate", "none")? {
        "none" => unary(c, Tensor::gelu),
        "tanh" => unary(c, Tensor::gelu_tanh),
        other => Err(Error::argument("onnx", format!("approximate = `{other}`, not `none` or `tanh`"))),
    }
}

fn swish(c: &Call<'_>) -> Values {
    let alpha = c.float("alpha", 1.0)?;
    if alpha == 1.0 { unary(c, Tensor::silu) } else { with(c, |x| x.mul(alpha)?.sigmoid()?.mul(x)) }
}

fn hard_sigmoid(c: &Call<'_>) -> Values {
    let (alpha, beta) = (c.float("alpha", 0.2)?, c.float("beta", 0.5)?);
    with(c, |x| x.mul(alpha)?.add(beta)?.hardtanh(0.0, 1.0))
}

fn shrink(c: &Call<'_>) -> Values {
    let (lambda, bias) = (c.float("lambd", 0.5)?, c.float("bias", 0.0)?);
    with(c, |x| {
        let above = x.gt(lambda)?.where_(x.sub(bias)?, 0.0)?;
        x.lt(-lambda)?.where_(x.add(bias)?, &above)
    })
}

fn clip(c: &Call<'_>) -> Values {
    c.skip(&["consumed_inputs"]);
    let x = c.tensor(0)?;
    if x.dtype().is_float() {
        let (lo, hi) = if c.opset() < 11 {
            (c.float("min", f64::NEG_INFINITY)?, c.float("max", f64::INFINITY)?)
        } else {
            (c.number(1)?.unwrap_or(f64::NEG_INFINITY), c.number(2)?.unwrap_or(f64::INFINITY))
        };
        return like(&x, x.clamp(lo, hi));
    }
    let mut y = x;
    if let Some(lo) = c.optional(1)? {
        y = y.maximum(&lo)?;
    }
    if let Some(hi) = c.optional(2)? {
        y = y.minimum(&hi)?;
    }
    Ok(one(y))
}

fn modulo(c: &Call<'_>) -> Values {
    let fmod = c.flag("fmod", false)?;
    binary(c, |a, b| if fmod { a.fmod(b) } else { a.remainder(b) })
}

/// An operator on the bits of integers, computed on the host.
fn bits(c: &Call<'_>, f: fn(i64, i64, u32) -> i64) -> Values {
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    let both = Tensor::broadcast_tensors(&[&a, &b])?;
    let [a, b] = &both[..] else { return Err(Error::argument("onnx", "two operands belong here")) };
    let width = 8 * a.dtype().size() as u32;
    let (x, y) = (crate::value::download(a)?, crate::value::download(b)?);
    let values = x.iter().zip(&y).map(|(&x, &y)| f(x, y, width)).collect();
    Ok(vec![c.upload(c.array(0)?.elem(), a.shape().to_vec(), values)])
}

fn bit_shift(c: &Call<'_>) -> Values {
    match c.text("direction", "")? {
        "LEFT" => bits(c, |a, b, width| if (0..i64::from(width)).contains(&b) { ((a as u64) << b) as i64 } else { 0 }),
        "RIGHT" => bits(c, |a, b, width| if (0..i64::from(width)).contains(&b) { (a as u64 >> b) as i64 } else { 0 }),
        other => Err(Error::argument("onnx", format!("direction = `{other}`, not LEFT or RIGHT"))),
    }
}
