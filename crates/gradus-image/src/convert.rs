//! Converts images between bytes and floats, and between channels first and channels last.

use gradus_tensor::{DType, Error, Here, Result, Tensor};

/// Converts `[.., h, w, c]`, the layout of many other programs, to `[.., c, h, w]`. The result is a view.
///
/// # Errors
/// Returns an error if `x` has fewer than three axes.
#[track_caller]
pub fn from_hwc(x: &Tensor) -> Result<Tensor> {
    three_axes("from_hwc", x)?.transpose(-1, -2)?.transpose(-2, -3)
}

/// Converts `[.., c, h, w]` to `[.., h, w, c]`. The result is a view.
///
/// # Errors
/// Returns an error if `x` has fewer than three axes.
#[track_caller]
pub fn to_hwc(x: &Tensor) -> Result<Tensor> {
    three_axes("to_hwc", x)?.transpose(-3, -2)?.transpose(-2, -1)
}

#[track_caller]
fn three_axes<'a>(op: &str, x: &'a Tensor) -> Result<&'a Tensor> {
    if x.rank() >= 3 {
        return Ok(x);
    }
    let e = Error::shape(op, format!("an image has three axes at least, this has {}", x.rank()));
    Err(e.operand("image", x.shape(), x.dtype(), x.device()))
}

/// Converts `u8` (0 to 255) or `u16` (0 to 65535) to floats from 0 to 1 in `dtype`. Floats are only converted to
/// `dtype`.
///
/// # Errors
/// Returns an error if `dtype` is not a float dtype, or if the image consists of other integers or booleans.
#[track_caller]
pub fn to_float(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if !dtype.is_float() {
        return Err(Error::dtype("to_float", dtype, "floats as the dtype of the result"));
    }
    let most = match x.dtype() {
        DType::U8 => 255.0,
        DType::U16 => 65535.0,
        d if d.is_float() => return x.to_dtype(dtype),
        d => {
            let e = Error::dtype("to_float", d, "u8, u16 or floats");
            return Err(e.operand("image", x.shape(), x.dtype(), x.device()));
        }
    };
    // Integers have no gradient, so the converted tensor can be divided in place.
    let wide = x.to_dtype(if dtype == DType::F64 { DType::F64 } else { DType::F32 })?;
    wide.div_(most)?;
    wide.to_dtype(dtype)
}

/// Converts floats from 0 to 1, or `u16`, to `u8`. Values are rounded (halves to even) and saturated, and NaN becomes
/// 0. A `u8` image does not change.
///
/// # Errors
/// Returns an error if the image consists of other integers or booleans.
#[track_caller]
pub fn to_bytes(x: &Tensor) -> Result<Tensor> {
    let unit = match x.dtype() {
        DType::U8 => return Ok(x.clone()),
        DType::F64 => x.clone(),
        _ => to_float(x, DType::F32).map_err(|e| Error::new(e.kind().clone(), "to_bytes", e.message())).here()?,
    };
    // Computed in single steps, so that no more than two tensors exist at once.
    let mut x = unit.clamp(0.0, 1.0)?;
    drop(unit);
    x = x.mul(255.0)?;
    x = x.round()?;
    x.to_dtype(DType::U8)
}
