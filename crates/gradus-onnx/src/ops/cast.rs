//! Operators that convert between element types.

use std::sync::Arc;

use gradus_tensor::{DType, Error, Result, Tensor};

use super::host;
use crate::elem::{Elem, STRING};
use crate::graph::{Call, Row, row, unsupported};
use crate::small_float::{decode, encode, rounding};
use crate::value::{Array, OnnxValue, Strings, device_floats, download};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("Cast", &[1, 6, 9, 13, 19, 21, 23, 24, 25], |c| {
        let to = match c.has("to") && c.opset() < 6 {
            true => number_of(c.text("to", "")?)?,
            false => c.int("to", 0)?,
        };
        cast(c, to)
    })
    .host(host::cast),
    row("CastLike", &[15, 19, 21, 23, 24, 25], |c| {
        let to = match c.input(1)? {
            OnnxValue::Tensor(array) => array.elem().number(),
            OnnxValue::Strings(_) => STRING,
            other => return Err(Error::argument("onnx", format!("a type like {}", other.describe()))),
        };
        cast(c, to)
    }),
    row("BitCast", &[26], bit_cast),
];

/// The number of the type with this name, which opset 1 uses instead.
fn number_of(name: &str) -> Result<i64> {
    const NAMES: [&str; 17] = [
        "UNDEFINED",
        "FLOAT",
        "UINT8",
        "INT8",
        "UINT16",
        "INT16",
        "INT32",
        "INT64",
        "STRING",
        "BOOL",
        "FLOAT16",
        "DOUBLE",
        "UINT32",
        "UINT64",
        "COMPLEX64",
        "COMPLEX128",
        "BFLOAT16",
    ];
    let at = NAMES.iter().position(|known| *known == name);
    at.map(|at| at as i64).ok_or_else(|| Error::argument("onnx", format!("`{name}` is no element type")))
}

fn cast(c: &Call<'_>, to: i64) -> Values {
    let saturate = c.flag("saturate", true)?;
    let round = rounding(c.text("round_mode", "up")?)?;
    match (c.input(0)?, to) {
        (OnnxValue::Strings(_), STRING) => Ok(vec![c.input(0)?.clone()]),
        (OnnxValue::Strings(s), _) => parsed(c, s, Elem::of_number(to)?),
        (_, STRING) => {
            let array = c.array(0)?;
            let values = written(&array.to_f64(c.device)?, array.elem());
            Ok(vec![OnnxValue::Strings(Arc::new(Strings { shape: array.shape().to_vec(), values }))])
        }
        _ => {
            let (elem, to) = (c.array(0)?.elem(), Elem::of_number(to)?);
            if elem == to {
                return Ok(vec![c.input(0)?.clone()]);
            }
            let x = values_of(c, 0)?;
            if to.is_small_float() {
                return Ok(vec![OnnxValue::Tensor(Array::stored(to, encode(to, &x, saturate, round)?))]);
            }
            if to.is_small_int() {
                let x = if x.dtype().is_float() { x.detach().trunc()? } else { x.detach() };
                let (lo, hi) = to.range().unwrap_or((0, 0));
                // The lowest bits.
                let bits = x.to_dtype(DType::I64)?.remainder(hi - lo + 1)?;
                let signed = bits.gt(hi)?.where_(bits.sub(hi - lo + 1)?, &bits)?;
                return Ok(vec![OnnxValue::Tensor(Array::stored(to, signed.to_dtype(to.stored())?))]);
            }
            Ok(vec![OnnxValue::Tensor(Array::stored(to, x.to_dtype(to.stored())?))])
        }
    }
}

/// The values of an input of any numeric element type, in a dtype that holds them.
pub(super) fn values_of(c: &Call<'_>, input: usize) -> Result<Tensor> {
    let (elem, raw) = c.stored(input)?;
    if elem.is_small_float() { decode(elem, &raw) } else { Ok(raw) }
}

/// Numbers in strings.
fn parsed(c: &Call<'_>, s: &Strings, to: Elem) -> Values {
    let dtype = to.dtype().ok_or_else(|| unsupported(format!("strings to {}", to.name())))?;
    let mut values = Vec::new();
    for text in &s.values {
        let value = text.trim().parse::<f64>();
        values.push(value.map_err(|_| Error::argument("onnx", format!("`{text}` is not a number")))?);
    }
    Ok(vec![device_floats(&values, &s.shape, dtype, c.device)?.into()])
}

/// Numbers as strings, floats with a point.
fn written(values: &[f64], elem: Elem) -> Vec<String> {
    let text = |&v: &f64| match elem {
        _ if v.is_nan() => "nan".to_owned(),
        Elem::F64 => format!("{v:?}"),
        Elem::Bool => if v == 0.0 { "False" } else { "True" }.to_owned(),
        e if e.range().is_some() => format!("{v}"),
        _ => format!("{:?}", v as f32),
    };
    values.iter().map(text).collect()
}

/// Reinterprets the bits as another element type of the same size.
fn bit_cast(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let to = Elem::of_number(c.int("to", 0)?)?;
    if elem.bits() != to.bits() {
        return Err(Error::argument("onnx", format!("{} has not the size of {}", elem.name(), to.name())));
    }
    if elem.is_small_int() && to.is_small_int() && elem.stored() != to.stored() {
        let values = download(&x)?;
        let (lo, hi) = to.range().unwrap_or((0, 0));
        let wrap = |v: &i64| (v - lo).rem_euclid(hi - lo + 1) + lo;
        return Ok(vec![c.upload(to, x.shape().to_vec(), values.iter().map(wrap).collect())]);
    }
    let bytes = x.to_bytes()?;
    let bytes = if to == Elem::Bool { bytes.iter().map(|&b| u8::from(b != 0)).collect() } else { bytes };
    let y = Tensor::from_bytes(&bytes, x.shape(), to.stored(), c.device)?;
    Ok(vec![OnnxValue::Tensor(Array::stored(to, y))])
}
