//! Operators on quantised numbers.

use gradus_tensor::{DType, Error, Result, Tensor, fused};

use super::cast::values_of;
use super::conv::{Window, convolved, kernel_of};
use crate::elem::Elem;
use crate::graph::{Call, Row, axis, one, row, size, unsupported};
use crate::small_float::{Rounding, encode};
use crate::value::{Array, OnnxValue};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("QuantizeLinear", &[10, 13, 19, 21, 23, 24, 25], quantize),
    row("DequantizeLinear", &[10, 13, 19, 21, 23, 24, 25], dequantize),
    row("DynamicQuantizeLinear", &[11], dynamic),
    row("MatMulInteger", &[10], mat_mul_integer),
    row("QLinearMatMul", &[10, 21], q_linear_mat_mul),
    row("ConvInteger", &[10], conv_integer),
    row("QLinearConv", &[10], q_linear_conv),
];

/// Expands a scale or zero point to the shape `x`. It has one number for the tensor, for each index along an axis, or
/// for each block.
fn spread(c: &Call<'_>, scale: &Tensor, x: &[usize]) -> Result<Tensor> {
    c.skip(&["axis", "block_size"]);
    if scale.numel() == 1 {
        return scale.reshape([1usize; 0]);
    }
    let at = axis(c.int("axis", 1)?, x.len())?;
    let block = size(c.int("block_size", 0)?)?;
    if scale.rank() == 1 && block == 0 {
        let mut scale = scale.clone();
        for _ in at + 1..x.len() {
            scale = scale.unsqueeze(-1)?;
        }
        return Ok(scale);
    }
    if scale.rank() != x.len() || block == 0 {
        return Err(Error::shape(
            "onnx",
            format!("a scale of shape {:?} for {x:?} in blocks of {block}", scale.shape()),
        ));
    }
    let wide = scale.repeat_interleave(block, at as isize)?;
    if wide.shape()[at] < x[at] {
        return Err(Error::shape(
            "onnx",
            format!("a scale of shape {:?} for {x:?} in blocks of {block}", scale.shape()),
        ));
    }
    wide.narrow(at as isize, 0, x[at])
}

/// The dtype in which sums of products of integers are exact: f64, or on a device without it f32, up to 2^24.
fn exact(c: &Call<'_>) -> DType {
    if c.device.backend().supports(DType::F64) { DType::F64 } else { DType::F32 }
}

/// Rounds and clamps to an integer type, or encodes as a small float.
pub(super) fn stored(x: &Tensor, elem: Elem, saturate: bool) -> Result<OnnxValue> {
    let tensor = match elem.range() {
        Some((lo, hi)) => x.clamp(lo as f64, hi as f64)?.to_dtype(elem.stored())?,
        None if elem.is_small_float() => encode(elem, x, saturate, Rounding::Nearest)?,
        None => return Err(unsupported(format!("quantisation to {}", elem.name()))),
    };
    Ok(OnnxValue::Tensor(Array::stored(elem, tensor)))
}

pub(super) fn quantize(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let scale = spread(c, &values_of(c, 1)?, x.shape())?;
    let elem = match (c.optional_array(2)?, c.elem_attribute("output_dtype")?) {
        (Some(zero), _) => zero.elem(),
        (None, Some(elem)) => elem,
        (None, None) => Elem::U8,
    };
    let saturate = c.flag("saturate", true)?;
    let precision = match c.elem_attribute("precision")? {
        Some(elem) => elem.dtype().ok_or_else(|| unsupported(format!("precision = {}", elem.name())))?,
        None => DType::F32,
    };
    let y = x.to_dtype(precision)?.div(scale.to_dtype(precision)?)?;
    let y = if elem.range().is_some() { y.round()? } else { y };
    let y = match c.given(2) {
        Some(_) => y.add(spread(c, &values_of(c, 2)?, x.shape())?.to_dtype(DType::F32)?)?,
        None => y,
    };
    Ok(vec![stored(&y, elem, saturate)?])
}

pub(super) fn dequantize(c: &Call<'_>) -> Values {
    let scale_elem = c.array(1)?.elem();
    let to = c.elem_attribute("output_dtype")?.unwrap_or(scale_elem);
    let dtype = to.dtype().ok_or_else(|| unsupported(format!("values of {}", to.name())))?;
    let x = values_of(c, 0)?;
    let scale = spread(c, &values_of(c, 1)?, x.shape())?;
    let mut y = x.to_dtype(DType::F32)?;
    if c.given(2).is_some() {
        y = y.sub(spread(c, &values_of(c, 2)?, x.shape())?.to_dtype(DType::F32)?)?;
    }
    Ok(one(y.mul(scale.to_dtype(DType::F32)?)?.to_dtype(dtype)?))
}

/// The scale and the zero point of `DynamicQuantizeLinear`, as floats, for the range of 0 and the elements along `axes`.
fn dynamic_range(x: &Tensor, axes: &[isize]) -> Result<(Tensor, Tensor)> {
    let (lo, hi) = x.aminmax(axes, axes.len() < x.rank())?;
    let scale = fused!(|lo, hi| {
        let range = (hi.max(0.0) - lo.min(0.0)) / 255.0;
        range.eq(0.0).select(1.0, range)
    });
    let scale = scale(&lo, &hi)?;
    let zero = fused!(|lo, scale| (-lo.min(0.0) / scale).round().max(0.0).min(255.0));
    let zero = zero(&lo, &scale)?;
    Ok((scale, zero))
}

fn dynamic(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let (scale, zero) = dynamic_range(&x, &every_axis(&x))?;
    let y = x.div(&scale)?.round()?.add(&zero)?;
    Ok(vec![stored(&y, Elem::U8, true)?, scale.into(), zero.to_dtype(DType::U8)?.into()])
}

pub(super) fn every_axis(x: &Tensor) -> Vec<isize> {
    (0..x.rank() as isize).collect()
}

/// What `DynamicQuantizeLinear` makes of `x`, without its zero point, as i16; and the scale. What differs along other axes
/// than `axes` is quantised apart.
pub(super) fn in_8_bits(x: &Tensor, axes: &[isize]) -> Result<(Tensor, Tensor)> {
    if x.numel() == 0 {
        return Ok((x.to_dtype(DType::I16)?, Tensor::ones([1usize; 0], DType::F32, x.device())?));
    }
    let (bytes, scale, zero) = in_bytes(x, axes)?;
    Ok((bytes.to_dtype(DType::I16)?.sub(zero.to_dtype(DType::I16)?)?, scale))
}

/// What `DynamicQuantizeLinear` makes of a non-empty `x`, its scale, and its zero point in i32.
pub(super) fn in_bytes(x: &Tensor, axes: &[isize]) -> Result<(Tensor, Tensor, Tensor)> {
    let (scale, zero) = dynamic_range(x, axes)?;
    let rounded = fused!(|x, scale, zero| ((x / scale).round() + zero).max(0.0).min(255.0));
    Ok((rounded(x, &scale, &zero)?.to_dtype(DType::U8)?, scale, zero.to_dtype(DType::I32)?))
}

/// An input minus its zero point, computed exactly in `dtype`. There is one zero point, or one for each index along
/// `along`.
pub(super) fn centred(c: &Call<'_>, input: usize, zero: usize, along: Option<isize>, dtype: DType) -> Result<Tensor> {
    let x = values_of(c, input)?.to_dtype(dtype)?;
    if c.given(zero).is_none() {
        return Ok(x);
    }
    let mut zero = values_of(c, zero)?.to_dtype(dtype)?;
    if zero.numel() == 1 {
        zero = zero.reshape([1usize; 0])?;
    }
    if let (1, Some(along)) = (zero.rank(), along) {
        let after = if along < 0 { -1 - along } else { x.rank() as isize - 1 - along };
        for _ in 0..after {
            zero = zero.unsqueeze(-1)?;
        }
    }
    x.sub(zero)
}

/// An 8-bit input minus its zero point, for [`Tensor::matmul_i32`].
pub(super) fn centred_bytes(c: &Call<'_>, input: usize, zero: usize, along: Option<isize>) -> Result<Tensor> {
    let given = if c.given(zero).is_some() { &[input, zero][..] } else { &[input] };
    for &at in given {
        if !is_bytes(c, at)? {
            return Err(unsupported(format!("an integer product of {}", c.array(at)?.elem().name())));
        }
    }
    if given.len() == 1 { values_of(c, input) } else { centred(c, input, zero, along, DType::I16) }
}

fn is_bytes(c: &Call<'_>, input: usize) -> Result<bool> {
    Ok(matches!(c.array(input)?.elem(), Elem::U8 | Elem::I8))
}

fn is_elem(c: &Call<'_>, input: usize, elem: Elem) -> Result<bool> {
    Ok(c.array(input)?.elem() == elem)
}

/// `MatMulInteger` whose second operand is a constant that has been prepared as i8. Input 3 has the sums of its columns, after their
/// zero points were subtracted. If the differences do not fit i8, each column is stored with another zero point: input 4 has what must be
/// added to the elements of each column, and input 5 is a column of ones, by which the rows of the first operand are summed. Inputs 3
/// and 4 are of i32, and expand to `[.., 1, columns]`.
pub(crate) static CENTRED: Row = row("MatMulInteger", &[10], |c| {
    let (given, w) = (c.tensor(0)?, c.tensor(1)?);
    // The zero points of bytes are subtracted from the sums, so that products have bytes.
    let are_bytes = is_elem(c, 0, Elem::U8)? && (c.given(2).is_none() || is_elem(c, 2, Elem::U8)?);
    let a = if are_bytes { given } else { centred_bytes(c, 0, 2, Some(-2))? };
    let is_vector = a.rank() == 1;
    let a = if is_vector { a.unsqueeze(0)? } else { a };
    let mut y = a.matmul_i32(&w)?;
    if let Some(more) = c.optional(4)? {
        y = y.add(a.matmul_i32(&c.tensor(5)?)?.mul(more)?)?;
    }
    if are_bytes && c.given(2).is_some() {
        let zero = c.tensor(2)?.to_dtype(DType::I32)?;
        let zero = match zero.rank() {
            _ if zero.numel() == 1 => zero.reshape([1usize; 0])?,
            1 => zero.unsqueeze(-1)?,
            _ => zero,
        };
        y = y.sub(zero.mul(c.tensor(3)?)?)?;
    }
    let y = if is_vector { y.squeeze(-2)? } else { y };
    Ok(one(y))
});

/// `ConvInteger` with such a kernel in f32, if no sum can exceed 2^24.
pub(crate) static CENTRED_CONV: Row = row("ConvInteger", &[10], |c| {
    let (x, w) = (centred(c, 0, 2, None, DType::F32)?, c.tensor(1)?);
    let window = Window::of(c, &x, Some(kernel_of(&w)?))?;
    Ok(one(convolved(&x, &w, None, &window, size(c.int("group", 1)?)?)?.to_dtype(DType::I32)?))
});

fn mat_mul_integer(c: &Call<'_>) -> Values {
    Ok(one(centred_bytes(c, 0, 2, Some(-2))?.matmul_i32(&centred_bytes(c, 1, 3, Some(-1))?)?))
}

/// Multiplies by a scale, and converts to the output type of the model.
fn rescaled(c: &Call<'_>, y: &Tensor, factor: &Tensor, zero: usize) -> Values {
    let elem = c.array(zero)?.elem();
    let y = y.mul(factor)?;
    let y = if elem.range().is_some() { y.round()? } else { y };
    Ok(vec![stored(&y.add(values_of(c, zero)?.to_dtype(exact(c))?)?, elem, true)?])
}

fn q_linear_mat_mul(c: &Call<'_>) -> Values {
    let product = if is_bytes(c, 0)? && is_bytes(c, 3)? {
        centred_bytes(c, 0, 2, Some(-2))?.matmul_i32(&centred_bytes(c, 3, 5, Some(-1))?)?.to_dtype(exact(c))?
    } else {
        centred(c, 0, 2, Some(-2), exact(c))?.matmul(&centred(c, 3, 5, Some(-1), exact(c))?)?
    };
    let wide = |input: usize, along_rows: bool| -> Result<Tensor> {
        let scale = values_of(c, input)?.to_dtype(exact(c))?;
        if scale.rank() == 1 && scale.numel() > 1 && along_rows { scale.unsqueeze(-1) } else { Ok(scale) }
    };
    let factor = wide(1, true)?.mul(wide(4, false)?)?.div(wide(6, true)?)?;
    rescaled(c, &product, &factor, 7)
}

fn conv_integer(c: &Call<'_>) -> Values {
    let (x, w) = (centred(c, 0, 2, None, exact(c))?, centred(c, 1, 3, Some(0), exact(c))?);
    let window = Window::of(c, &x, Some(kernel_of(&w)?))?;
    Ok(one(convolved(&x, &w, None, &window, size(c.int("group", 1)?)?)?.to_dtype(DType::I32)?))
}

fn q_linear_conv(c: &Call<'_>) -> Values {
    let (x, w) = (centred(c, 0, 2, None, exact(c))?, centred(c, 3, 5, Some(0), exact(c))?);
    let window = Window::of(c, &x, Some(kernel_of(&w)?))?;
    let bias = c.optional(8)?.map(|b| b.to_dtype(exact(c))).transpose()?;
    let y = convolved(&x, &w, bias.as_ref(), &window, size(c.int("group", 1)?)?)?;
    let (x_scale, y_scale) = (c.tensor(1)?.to_dtype(exact(c))?, c.tensor(6)?.to_dtype(exact(c))?);
    let mut w_scale = c.tensor(4)?.to_dtype(exact(c))?;
    if w_scale.numel() == 1 {
        w_scale = w_scale.reshape([1usize; 0])?;
    }
    if w_scale.rank() == 1 {
        for _ in 2..w.rank() {
            w_scale = w_scale.unsqueeze(-1)?;
        }
    }
    rescaled(c, &y, &x_scale.mul(w_scale)?.div(y_scale)?, 7)
}
