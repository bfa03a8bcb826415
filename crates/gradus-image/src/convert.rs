//! Other forms of images: bytes and floats, channels last.

use gradus_tensor::{DType, Error, Here, Result, Tensor};

/// `[.., h, w, c]`, as many other programs have it, to `[.., c, h, w]`. A view.
///
/// # Errors
/// Fewer than three axes.
#[track_caller]
pub fn from_hwc(x: &Tensor) -> Result<Tensor> {
    three_axes("from_hwc", x)?.transpose(-1, -2)?.transpose(-2, -3)
}

/// `[.., c, h, w]` to `[.., h, w, c]`. A view.
///
/// # Errors
/// Fewer than three axes.
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

/// `u8` (0 to 255) or `u16` (0 to 65535) to floats from 0 to 1 in `dtype`; floats are only converted to it.
///
/// # Errors
/// A `dtype` that is not float, and images of other integers or booleans.
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
    // Integers have no gradient, so that what they become can be divided where it lies.
    let wide = x.to_dtype(if dtype == DType::F64 { DType::F64 } else { DType::F32 })?;
    wide.div_(most)?;
    wide.to_dtype(dtype)
}

/// Floats from 0 to 1, or `u16`, to `u8`: rounded (halves to even) and saturated; NaN becomes 0. `u8` stays.
///
/// # Errors
/// Images of other integers or booleans.
#[track_caller]
pub fn to_bytes(x: &Tensor) -> Result<Tensor> {
    let unit = match x.dtype() {
        DType::U8 => return Ok(x.clone()),
        DType::F64 => x.clone(),
        _ => to_float(x, DType::F32).map_err(|e| Error::new(e.kind().clone(), "to_bytes", e.message())).here()?,
    };
    // Step by step, so that no more than two of them are there at once.
    let mut x = unit.clamp(0.0, 1.0)?;
    drop(unit);
    x = x.mul(255.0)?;
    x = x.round()?;
    x.to_dtype(DType::U8)
}
