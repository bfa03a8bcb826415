//! Quantised operators of `com.microsoft`: products with integers, and operators on 8 bits that compute with the values
//! which these stand for.

use gradus_tensor::{DType, Error, Result, Tensor};

use super::super::cast::values_of;
use super::super::quantise::{self, centred, centred_bytes, every_axis, in_8_bits, stored};
use crate::graph::{Call, Row, axis, one, row, size};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("QuantizeLinear", &[1], quantise::quantize),
    row("DequantizeLinear", &[1], quantise::dequantize),
    row("MatMulIntegerToFloat", &[1], |c| {
        let (a, b) = (centred_bytes(c, 0, 4, Some(-2))?, centred_bytes(c, 1, 5, Some(-1))?);
        scaled_product(c, &a, &b, &c.tensor(2)?.mul(c.tensor(3)?)?, 6)
    }),
    row("DynamicQuantizeMatMul", &[1], |c| {
        let a = c.tensor(0)?;
        let (a, scale) = in_8_bits(&a, &every_axis(&a))?;
        let b = centred_bytes(c, 1, 3, Some(-1))?;
        scaled_product(c, &a, &b, &scale.mul(c.tensor(2)?)?, 4)
    }),
    row("MatMulNBits", &[1], mat_mul_n_bits),
    row("QGemm", &[1], q_gemm),
    row("QLinearAdd", &[1], |c| binary(c, |a, b| a.add(b))),
    row("QLinearMul", &[1], |c| binary(c, |a, b| a.mul(b))),
    row("QLinearConcat", &[1], concat),
    row("QLinearWhere", &[1], |c| {
        let (yes, no) = (value(c, 1)?, value(c, 4)?);
        Ok(vec![quantised(c, &c.tensor(0)?.where_(yes, no)?, 7)?])
    }),
    row("QLinearLeakyRelu", &[1], |c| Ok(vec![quantised(c, &value(c, 0)?.leaky_relu(c.float("alpha", 0.01)?)?, 3)?])),
    row("QLinearSigmoid", &[1], |c| Ok(vec![quantised(c, &value(c, 0)?.sigmoid()?, 3)?])),
    row("QLinearSoftmax", &[1], |c| {
        let x = value(c, 0)?;
        let at = axis(c.int("axis", -1)?, x.rank())?;
        let y = if c.int("opset", 13)? >= 13 {
            x.softmax(at as isize)?
        } else {
            let (rows, columns) = x.shape().split_at(at);
            let flat = x.reshape([rows.iter().product::<usize>(), columns.iter().product()])?;
            flat.softmax(1)?.reshape(x.shape())?
        };
        Ok(vec![quantised(c, &y, 3)?])
    }),
    row("QLinearReduceMean", &[1], |c| {
        let x = value(c, 0)?;
        let all: Vec<i64> = (0..x.rank() as i64).collect();
        let axes = c.ints("axes")?.unwrap_or(&all).iter().map(|&a| Ok(axis(a, x.rank())? as isize));
        let y = x.mean(&axes.collect::<Result<Vec<_>>>()?, c.flag("keepdims", true)?)?;
        Ok(vec![quantised(c, &y, 3)?])
    }),
];

/// The values that input `at` stands for, in f32. Its scale is the next input, and its zero point the one after.
pub(super) fn value(c: &Call<'_>, at: usize) -> Result<Tensor> {
    centred(c, at, at + 2, None, DType::F32)?.mul(c.tensor(at + 1)?.to_dtype(DType::F32)?)
}

/// Quantises a result. Its scale is input `at`, and its zero point, whose type is that of the result, the next one.
pub(super) fn quantised(c: &Call<'_>, y: &Tensor, at: usize) -> Result<OnnxValue> {
    let y = y.div(c.tensor(at)?)?.round()?;
    match c.given(at + 1) {
        Some(_) => stored(&y.add(values_of(c, at + 1)?.to_dtype(DType::F32)?)?, c.array(at + 1)?.elem(), true),
        None => stored(&y, c.array(0)?.elem(), true),
    }
}

fn binary(c: &Call<'_>, f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> Values {
    Ok(vec![quantised(c, &f(&value(c, 0)?, &value(c, 3)?)?, 6)?])
}

/// Inputs: the scale and zero point of the result, and three for each part.
fn concat(c: &Call<'_>) -> Values {
    let parts = (2..c.inputs.len()).step_by(3).map(|at| value(c, at)).collect::<Result<Vec<_>>>()?;
    let Some(first) = parts.first() else { return Err(Error::argument("onnx", "QLinearConcat of nothing")) };
    let at = axis(c.int("axis", 0)?, first.rank())?;
    Ok(vec![quantised(c, &Tensor::cat(&parts.iter().collect::<Vec<_>>(), at as isize)?, 0)?])
}

/// The product of numbers without their zero points, times the scale, plus an optional bias.
fn scaled_product(c: &Call<'_>, a: &Tensor, b: &Tensor, scale: &Tensor, bias: usize) -> Values {
    let y = a.matmul_i32(b)?.to_dtype(DType::F32)?.mul(scale)?;
    Ok(one(match c.optional(bias)? {
        Some(bias) => y.add(bias)?,
        None => y,
    }))
}

/// The product with a matrix `[n, k]` whose rows are stored in blocks of `bits` bits for each element, each block with
/// a scale and a zero point.
fn mat_mul_n_bits(c: &Call<'_>) -> Values {
    c.skip(&["accuracy_level"]);
    let a = c.tensor(0)?;
    let (k, n) = (size(c.int("K", 0)?)?, size(c.int("N", 0)?)?);
    let (bits, block) = (size(c.int("bits", 4)?)?, size(c.int("block_size", 0)?)?);
    if !matches!(bits, 2 | 4 | 8) || block < 16 || !block.is_power_of_two() || k == 0 || n == 0 {
        return Err(Error::argument("onnx", format!("{bits} bits in blocks of {block} for a matrix [{n}, {k}]")));
    }
    if c.given(4).is_some() {
        return Err(crate::graph::unsupported("MatMulNBits with g_idx, an order of the columns"));
    }
    let blocks = k.div_ceil(block);
    let per_byte = 8 / bits;
    // `[rows, columns]` of numbers of a few bits, the lowest bits first. Each row begins with a byte.
    let unpacked = |packed: &Tensor, rows: usize, columns: usize| -> Result<Tensor> {
        let bytes = columns.div_ceil(per_byte);
        if packed.numel() != rows.saturating_mul(bytes) || packed.dtype() != DType::U8 {
            let m = format!("{} bytes for {rows} rows of {columns} numbers of {bits} bits", packed.numel());
            return Err(Error::shape("onnx", m));
        }
        let packed = packed.reshape([rows, bytes, 1])?.to_dtype(DType::F32)?;
        let parts: Vec<f32> = (0..per_byte).map(|i| (1u32 << (i * bits)) as f32).collect();
        let base = (1u32 << bits) as f64;
        let shifted = packed.div(Tensor::from_vec(parts, [per_byte], packed.device())?)?.floor()?;
        let numbers = shifted.sub(shifted.div(base)?.floor()?.mul(base)?)?;
        numbers.reshape([rows, bytes * per_byte])?.narrow(1, 0, columns)
    };
    let quantised = unpacked(&c.tensor(1)?, n, blocks * block)?.reshape([n, blocks, block])?;
    let zero = match c.optional(3)? {
        None => Tensor::full([n, blocks, 1], (1u32 << (bits - 1)) as f64, DType::F32, c.device)?,
        Some(zero) if zero.dtype() == DType::U8 => unpacked(&zero, n, blocks)?.reshape([n, blocks, 1])?,
        Some(zero) => zero.to_dtype(DType::F32)?.reshape([n, blocks, 1])?,
    };
    let scale = c.tensor(2)?.to_dtype(DType::F32)?.reshape([n, blocks, 1])?;
    let w = quantised.sub(zero)?.mul(scale)?.reshape([n, blocks * block])?.narrow(1, 0, k)?;
    let bias = c.optional(5)?.map(|b| b.to_dtype(DType::F32)).transpose()?;
    let y = a.to_dtype(DType::F32)?.linear(&w, bias.as_ref())?;
    Ok(one(y.to_dtype(a.dtype())?))
}

/// `alpha * a @ b + c`, as floats or, with a scale for the result, quantised.
fn q_gemm(c: &Call<'_>) -> Values {
    // The zero points of `b` are those of the columns of the matrix that is multiplied.
    let along = if c.flag("transB", false)? { -2 } else { -1 };
    let (a, b) = (centred_bytes(c, 0, 2, None)?, centred_bytes(c, 3, 5, Some(along))?);
    let a = if c.flag("transA", false)? { a.t()? } else { a };
    let b = if c.flag("transB", false)? { b.t()? } else { b };
    let mut y = a.matmul_i32(&b)?;
    if let Some(bias) = c.optional(6)? {
        y = y.add(bias)?;
    }
    let y = y.to_dtype(DType::F32)?.mul(c.tensor(1)?.mul(c.tensor(4)?)?.mul(c.float("alpha", 1.0)?)?)?;
    match c.given(7) {
        Some(_) => Ok(vec![quantised(c, &y, 7)?]),
        None => Ok(one(y)),
    }
}
