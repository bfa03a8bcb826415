//! Elementwise operations, activations, and functions that create tensors.

use gradus::Scalar;
use gradus::prelude::*;

use crate::sample::{KW, Rows, Sample, inexpressible, rows};

pub(crate) const ROWS: Rows = rows! {
    // Entries with the same name in Gradus's table of elementwise operations.
    "abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc exp exp2 expm1 floor fmod frac hypot \
     isfinite isinf isnan log log10 log1p log2 logaddexp neg remainder round rsqrt sigmoid sign signbit sin sinh sqrt square \
     tan tanh trunc xlogy mul maximum minimum fmax fmin eq ne lt le gt ge pow logical_and logical_or logical_xor logical_not \
     nn.functional.relu nn.functional.hardswish nn.functional.hardsigmoid nn.functional.mish nn.functional.softsign \
     nn.functional.relu6 nn.functional.silu nn.functional.selu", |s| s.elementwise()?;

    "add", |s| s.x()?.add(&scaled(s, s.t(1, "other")?)?)?;
    "sub", |s| s.x()?.sub(&scaled(s, s.t(1, "other")?)?)?;
    "rsub", |s| s.t(1, "other")?.sub(&scaled(s, s.x()?)?)?;
    "reciprocal", |s| s.x()?.recip()?;
    "sgn", |s| s.x()?.sign()?;
    "div/no_rounding_mode true_divide", |s| s.x()?.div(s.t(1, "other")?)?;
    "div/trunc_rounding", |s| { s.text(KW, "rounding_mode", "")?; s.x()?.trunc_div(s.t(1, "other")?)? };
    "div/floor_rounding", |s| { s.text(KW, "rounding_mode", "")?; s.x()?.floor_div(s.t(1, "other")?)? };
    "floor_divide", |s| s.x()?.floor_div(s.t(1, "other")?)?;
    "max/binary", |s| s.x()?.maximum(s.t(1, "other")?)?;
    "min/binary", |s| s.x()?.minimum(s.t(1, "other")?)?;
    "__radd__", |s| s.x()?.add(s.operand(1, "other")?)?;
    "__rmul__", |s| s.x()?.mul(s.operand(1, "other")?)?;
    "__rsub__", |s| s.t(1, "other")?.sub(s.x()?)?;
    "__rdiv__", |s| s.t(1, "other")?.div(s.x()?)?;
    "__rmod__", |s| s.t(1, "other")?.remainder(s.x()?)?;
    "__rpow__", |s| s.t(1, "other")?.pow(s.x()?)?;
    "float_power", |s| s.x()?.to_dtype(DType::F64)?.pow(&s.t(1, "other")?.to_dtype(DType::F64)?)?;
    "clamp_max", |s| s.x()?.minimum(s.t(1, "max")?)?;
    "clamp_min", |s| s.x()?.maximum(s.t(1, "min")?)?;
    "clamp", |s| {
        let x = match s.opt(1, "min")? {
            Some(lo) => s.x()?.maximum(lo)?,
            None => s.x()?.clone(),
        };
        match s.opt(2, "max")? {
            Some(hi) => x.minimum(hi)?,
            None => x,
        }
    };
    "addcmul", |s| s.x()?.add(&s.t(1, "")?.mul(s.t(2, "")?)?.mul(s.scalar(KW, "value", 1)?)?)?;
    "addcdiv", |s| s.x()?.add(&s.t(1, "")?.div(s.t(2, "")?)?.mul(s.scalar(KW, "value", 1)?)?)?;
    "lerp", |s| s.x()?.lerp(s.t(1, "end")?, s.operand(2, "weight")?)?;
    "where", |s| s.t(1, "condition")?.where_(s.x()?, s.t(2, "other")?)?;
    "deg2rad", |s| s.x()?.mul(std::f64::consts::PI / 180.0)?;
    "rad2deg", |s| s.x()?.mul(180.0 / std::f64::consts::PI)?;
    "round/decimals_0 round/decimals_3 round/decimals_neg_3", |s| {
        s.x()?.round_decimals(s.int(KW, "decimals", 0)? as i32)?
    };
    "nan_to_num", |s| s.x()?.nan_to_num(s.num(1, "nan", 0.0)?, s.opt_num(2, "posinf")?, s.opt_num(3, "neginf")?)?;
    "isposinf", |s| s.x()?.eq(f64::INFINITY)?;
    "isneginf", |s| s.x()?.eq(f64::NEG_INFINITY)?;
    "special.ndtr", |s| s.x()?.mul(-std::f64::consts::FRAC_1_SQRT_2)?.erfc()?.mul(0.5)?;

    "nn.functional.logsigmoid", |s| s.x()?.log_sigmoid()?;
    "nn.functional.tanhshrink", |s| s.x()?.sub(&s.x()?.tanh()?)?;
    "nn.functional.leaky_relu", |s| s.x()?.leaky_relu(s.num(1, "negative_slope", 0.01)?)?;
    "nn.functional.elu", |s| s.x()?.elu(s.num(1, "alpha", 1.0)?)?;
    "nn.functional.celu", |s| s.x()?.celu(s.num(1, "alpha", 1.0)?)?;
    "nn.functional.hardtanh", |s| {
        let (lo, hi) = (s.num(1, "min_val", -1.0)?, s.num(2, "max_val", 1.0)?);
        if s.x()?.dtype().is_float() { s.x()?.hardtanh(lo, hi)? } else { s.x()?.hardtanh(lo as i64, hi as i64)? }
    };
    "nn.functional.hardshrink", |s| s.x()?.hardshrink(s.num(1, "lambd", 0.5)?)?;
    "nn.functional.softshrink", |s| s.x()?.softshrink(s.num(1, "lambd", 0.5)?)?;
    "nn.functional.threshold", |s| s.x()?.threshold(s.scalar(1, "threshold", 0)?, s.scalar(2, "value", 0)?)?;
    "nn.functional.softplus", |s| {
        let (beta, _) = (s.num(1, "beta", 1.0)?, s.num(2, "threshold", 20.0)?);
        s.x()?.mul(beta)?.softplus()?.div(beta)?
    };
    "nn.functional.gelu", |s| match s.text(KW, "approximate", "none")? {
        "none" => s.x()?.gelu()?,
        "tanh" => s.x()?.gelu_tanh()?,
        other => return inexpressible(format!("approximate is {other}")),
    };
    "nn.functional.prelu", |s| s.x()?.prelu(s.t(1, "weight")?)?;
    "nn.functional.glu", |s| s.x()?.glu(s.int(1, "dim", -1)?)?;

    "item", |s| match s.x()?.dtype() {
        DType::F64 => Tensor::scalar(s.x()?.to_scalar::<f64>()?, s.device)?,
        DType::I64 => Tensor::scalar(s.x()?.to_scalar::<i64>()?, s.device)?,
        _ => Tensor::scalar(s.x()?.to_scalar::<bool>()?, s.device)?,
    };
    "double", |s| converted(s, DType::F64)?;
    "float", |s| converted(s, DType::F32)?;
    "half", |s| converted(s, DType::F16)?;
    "bfloat16", |s| converted(s, DType::BF16)?;
    "long", |s| converted(s, DType::I64)?;
    "int", |s| converted(s, DType::I32)?;
    "short", |s| converted(s, DType::I16)?;
    "char", |s| converted(s, DType::I8)?;
    "byte", |s| converted(s, DType::U8)?;
    "bool", |s| converted(s, DType::Bool)?;
    "to", |s| {
        // The memory format, and whether to copy, do not affect the values.
        s.value(KW, "memory_format");
        for k in 1..5 {
            s.value(k, "");
        }
        // The target is a tensor with the dtype, a dtype, or a device followed by a dtype.
        let dtype = match s.t(1, "other") {
            Ok(other) => other.dtype(),
            Err(_) => s.dtype(1, "dtype").or_else(|_| s.dtype(2, "dtype"))?.unwrap_or(s.x()?.dtype()),
        };
        s.x()?.to_dtype(dtype)?
    };
    "clone contiguous alias_copy", |s| { s.value(KW, "memory_format"); s.x()?.copy()? };

    "zeros_like", |s| Tensor::zeros(s.x()?.shape(), made(s, s.x()?.dtype())?, s.device)?;
    "ones_like", |s| Tensor::ones(s.x()?.shape(), made(s, s.x()?.dtype())?, s.device)?;
    "full_like", |s| Tensor::full(s.x()?.shape(), s.scalar(1, "fill_value", 0)?, made(s, s.x()?.dtype())?, s.device)?;
    "new_zeros", |s| Tensor::zeros(s.sizes(1, "size")?, made(s, s.x()?.dtype())?, s.device)?;
    "new_ones", |s| Tensor::ones(s.sizes(1, "size")?, made(s, s.x()?.dtype())?, s.device)?;
    "new_full", |s| {
        let dims = s.ints(1, "size")?.unwrap_or_default().into_iter().map(|d| d as usize).collect::<Vec<_>>();
        Tensor::full(dims, s.scalar(2, "fill_value", 0)?, made(s, s.x()?.dtype())?, s.device)?
    };
    "zeros", |s| Tensor::zeros(s.sizes(0, "size")?, made(s, DType::F32)?, s.device)?;
    "ones", |s| Tensor::ones(s.sizes(0, "size")?, made(s, DType::F32)?, s.device)?;
    "full", |s| {
        let dims = s.ints(0, "size")?.unwrap_or_default().into_iter().map(|d| d as usize).collect::<Vec<_>>();
        Tensor::full(dims, s.scalar(1, "fill_value", 0)?, made(s, DType::F32)?, s.device)?
    };
    "scalar_tensor", |s| Tensor::full([], s.scalar(0, "s", 0)?, made(s, DType::F32)?, s.device)?;
    "fill", |s| s.x()?.full_like(s.scalar(1, "value", 0)?)?;
    "zero_", |s| s.x()?.zeros_like()?;
    "eye", |s| {
        let n = s.size(0, "n", 0)?;
        let (m, dtype) = (s.size(1, "m", n)?, made(s, DType::F32)?);
        // `Tensor::eye` only creates square matrices.
        Tensor::eye(n.max(m), dtype, s.device)?.narrow(0, 0, n)?.narrow(1, 0, m)?
    };
    "arange", |s| {
        let whole = |v: Scalar| match v {
            Scalar::Int(v) => Ok(v),
            Scalar::Bool(v) => Ok(i64::from(v)),
            other => inexpressible(format!("{other} is no whole number")),
        };
        let dtype = made(s, DType::I64)?;
        let one = s.value(1, "end").is_none();
        let (start, end) = if one { (Scalar::Int(0), s.scalar(0, "end", 0)?) } else { (s.scalar(0, "start", 0)?, s.scalar(1, "end", 0)?) };
        Tensor::arange(whole(start)?, whole(end)?, whole(s.scalar(2, "step", 1)?)?, dtype, s.device)?
    };
    "linspace", |s| {
        let dtype = made(s, DType::F32)?;
        Tensor::linspace(s.num(0, "start", 0.0)?, s.num(1, "end", 0.0)?, s.size(2, "steps", 0)?, dtype, s.device)?
    };
};

/// `x` multiplied by the keyword argument `alpha`.
fn scaled(s: &Sample<'_>, x: &Tensor) -> Result<Tensor> {
    match s.value(KW, "alpha") {
        None => Ok(x.clone()),
        Some(serde_json::Value::Bool(alpha)) => {
            if *alpha {
                Ok(x.clone())
            } else {
                x.zeros_like()
            }
        }
        Some(_) => x.mul(s.scalar(KW, "alpha", 1)?),
    }
}

fn converted(s: &Sample<'_>, dtype: DType) -> Result<Tensor> {
    s.value(KW, "memory_format");
    s.x()?.to_dtype(dtype)
}

/// The dtype of a tensor to create. The arguments `device` and `requires_grad` are read, but do not affect the values.
fn made(s: &Sample<'_>, default: DType) -> Result<DType> {
    for name in ["device", "requires_grad"] {
        s.value(KW, name);
    }
    Ok(s.dtype(KW, "dtype")?.unwrap_or(default))
}
