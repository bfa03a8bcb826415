//! Floats of 8 and 4 bits, whose bits are stored in u8. They are encoded and decoded by table look-ups on the device.

use gradus_tensor::{DType, Error, Result, Tensor};

use crate::elem::Elem;

/// The bit format of a small float.
struct Format {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    /// The bits of NaN, if there is one.
    nan: Option<u8>,
    /// The bits of infinity, if there is one.
    infinity: Option<u8>,
    /// The bits of the largest finite number.
    most: u8,
    /// Whether there is no -0, because its bits mean NaN.
    unsigned_zero: bool,
}

fn format(elem: Elem) -> Option<Format> {
    let (exponent, mantissa, bias, nan, infinity, most, unsigned_zero) = match elem {
        Elem::F8E4M3FN => (4, 3, 7, Some(0x7f), None, 0x7e, false),
        Elem::F8E4M3FNUZ => (4, 3, 8, Some(0x80), None, 0x7f, true),
        Elem::F8E5M2 => (5, 2, 15, Some(0x7f), Some(0x7c), 0x7b, false),
        Elem::F8E5M2FNUZ => (5, 2, 16, Some(0x80), None, 0x7f, true),
        Elem::F4E2M1 => (2, 1, 1, None, None, 0x7, false),
        _ => return None,
    };
    Some(Format { exponent, mantissa, bias, nan, infinity, most, unsigned_zero })
}

impl Format {
    fn sign(&self) -> u8 {
        1 << (self.exponent + self.mantissa)
    }

    /// The value of the bits other than the sign.
    fn magnitude(&self, bits: u8) -> f32 {
        let (e, m) = (i32::from(bits >> self.mantissa), f32::from(bits & ((1 << self.mantissa) - 1)));
        let fraction = m / (1 << self.mantissa) as f32;
        match e {
            0 => fraction * 2f32.powi(1 - self.bias),
            _ => (1.0 + fraction) * 2f32.powi(e - self.bias),
        }
    }

    fn value(&self, bits: u8) -> f32 {
        let (sign, rest) = (bits & self.sign() != 0, bits & (self.sign() - 1));
        let value = match () {
            () if Some(bits) == self.nan
                || (!self.unsigned_zero && self.nan.is_some() && rest > self.infinity.unwrap_or(self.most)) =>
            {
                f32::NAN
            }
            () if Some(rest) == self.infinity => f32::INFINITY,
            () => self.magnitude(rest),
        };
        if sign { -value } else { value }
    }
}

/// The values of bits, as f32.
pub(crate) fn decode(elem: Elem, bits: &Tensor) -> Result<Tensor> {
    let value = |b: u8| match format(elem) {
        Some(f) => f.value(b & (f.sign() | (f.sign() - 1))),
        None if b == 255 => f32::NAN,
        None => 2f64.powi(i32::from(b) - 127) as f32,
    };
    let table: Vec<f32> = (0..=255).map(value).collect();
    let table = Tensor::from_vec(table, [256], bits.device())?;
    let flat = bits.reshape([bits.numel()])?.to_dtype(DType::I64)?;
    table.index_select(0, &flat)?.reshape(bits.shape())
}

/// How powers of two are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Up,
    Down,
    Nearest,
}

/// The bits of the nearest values, with ties to even. Values beyond the largest number become that number if `saturate`
/// is set, and otherwise infinity or NaN, whichever the type has.
pub(crate) fn encode(elem: Elem, x: &Tensor, saturate: bool, rounding: Rounding) -> Result<Tensor> {
    let x = x.detach().to_dtype(DType::F32)?;
    let Some(f) = format(elem) else { return encode_power(&x, saturate, rounding) };
    // A magnitude is encoded as `i` if it lies above exactly the first `i` borders.
    let mut borders: Vec<f32> = Vec::new();
    for bits in 0..f.most {
        let middle = (f.magnitude(bits) + f.magnitude(bits + 1)) / 2.0;
        borders.push(if bits % 2 == 1 { middle.next_down() } else { middle });
    }
    // The last border: values up to half a step above the largest number still round to it.
    let step = f.magnitude(f.most) - f.magnitude(f.most - 1);
    let end = f.magnitude(f.most) + step / 2.0;
    borders.push(if f.most % 2 == 1 { end.next_down() } else { end });
    let n = borders.len();
    let borders = Tensor::from_vec(borders, [n], x.device())?;
    let magnitude = x.abs()?;
    let place = magnitude.reshape([x.numel()])?.bucketize(&borders, false)?.reshape(x.shape())?;
    let most = i64::from(f.most);
    let beyond = if saturate { most } else { i64::from(f.infinity.or(f.nan).unwrap_or(f.most)) };
    let code = place.gt(most)?.where_(beyond, &place)?;
    let sign = i64::from(f.sign());
    let negative = x.signbit()?;
    let signed = negative.where_(code.add(sign)?, &code)?;
    let signed = if f.unsigned_zero {
        // -0 becomes 0, and the code of NaN, 0x80, keeps its bits.
        code.eq(0i64)?.logical_or(code.eq(0x80i64)?)?.where_(&code, &signed)?
    } else {
        signed
    };
    // A type without NaN uses -0 instead, as in ONNX.
    let nan = i64::from(f.nan.unwrap_or(f.sign()));
    x.isnan()?.where_(nan, &signed)?.to_dtype(DType::U8)
}

/// The bits of powers of two (`float8e8m0`).
fn encode_power(x: &Tensor, saturate: bool, rounding: Rounding) -> Result<Tensor> {
    // The exponent field of an f32 has the same bits as this type.
    let bits: Vec<u8> = x
        .to_vec::<f32>()?
        .into_iter()
        .map(|v| {
            if v.is_nan() || (v.is_infinite() && !saturate) {
                return 255;
            }
            if v.is_infinite() {
                return 254;
            }
            let raw = v.abs().to_bits();
            let (exponent, rest) = (raw >> 23, raw & 0x7f_ffff);
            let up = match rounding {
                Rounding::Up => rest > 0,
                Rounding::Down => false,
                Rounding::Nearest => rest >= 0x40_0000,
            };
            match exponent + u32::from(up) {
                over if over > 254 => {
                    if saturate {
                        254
                    } else {
                        255
                    }
                }
                exponent => exponent as u8,
            }
        })
        .collect();
    Tensor::from_vec(bits, x.shape(), x.device())
}

/// The rounding mode that an attribute names.
pub(crate) fn rounding(name: &str) -> Result<Rounding> {
    match name {
        "up" => Ok(Rounding::Up),
        "down" => Ok(Rounding::Down),
        "nearest" => Ok(Rounding::Nearest),
        other => Err(Error::argument("onnx", format!("round_mode = `{other}`"))),
    }
}
