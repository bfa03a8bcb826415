//! The domain `ai.onnx.ml`.

use std::collections::HashMap;
use std::sync::Arc;

use gradus_tensor::{DType, Error, Result, Tensor};

use crate::elem::Elem;
use crate::graph::{Call, Row, one, row};
use crate::value::{OnnxValue, Strings};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("Binarizer", &[1], |c| {
        let x = c.tensor(0)?;
        Ok(one(x.gt(c.float("threshold", 0.0)?)?.to_dtype(x.dtype())?))
    }),
    row("ArrayFeatureExtractor", &[1], |c| {
        let (x, index) = (c.tensor(0)?, c.tensor(1)?.to_dtype(DType::I64)?);
        let n = index.numel();
        let picked = x.index_select(-1, &index.reshape([n])?)?;
        Ok(one(if x.rank() == 1 { picked.reshape([1, n])? } else { picked }))
    }),
    row("LabelEncoder", &[1, 2, 4], label_encoder),
    row("Scaler", &[1], scaler),
];

/// `(x - offset) * scale`, with one number for all features or one for each, as f32.
fn scaler(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?.to_dtype(DType::F32)?;
    let vector = |name: &str, default: f32| -> Result<Tensor> {
        let values = c.floats(name)?.filter(|values| !values.is_empty()).unwrap_or(std::slice::from_ref(&default));
        if values.len() != 1 && Some(&values.len()) != x.shape().last() {
            return Err(Error::shape("onnx", format!("{} numbers in `{name}` for {:?}", values.len(), x.shape())));
        }
        Tensor::from_vec(values, [values.len()], c.device)
    };
    Ok(one(x.sub(vector("offset", 0.0)?)?.mul(vector("scale", 1.0)?)?))
}

/// The elements of a list of labels as strings, which are equal exactly if the labels are.
pub(super) fn keys(value: &OnnxValue, c: &Call<'_>) -> Result<Vec<String>> {
    match value {
        OnnxValue::Strings(s) => Ok(s.values.clone()),
        OnnxValue::Tensor(a) if a.elem().dtype().is_some_and(DType::is_float) => {
            Ok(a.to_f64(c.device)?.iter().map(f64::to_string).collect())
        }
        OnnxValue::Tensor(a) => Ok(a.ints()?.iter().map(i64::to_string).collect()),
        other => Err(Error::argument("onnx", format!("labels that are {}", other.describe()))),
    }
}

/// A list of labels from the attributes, of which there is one for each type.
fn list(c: &Call<'_>, what: &str) -> Result<OnnxValue> {
    if let Some(value) = c.value(&format!("{what}_tensor"))? {
        return Ok(value.clone());
    }
    if let Some(values) = c.texts(&format!("{what}_strings"))?.filter(|v| !v.is_empty()) {
        return Ok(OnnxValue::Strings(Arc::new(Strings { shape: vec![values.len()], values: values.to_vec() })));
    }
    if let Some(values) = c.floats(&format!("{what}_floats"))?.filter(|v| !v.is_empty()) {
        return Ok(Tensor::from_vec(values, [values.len()], c.device)?.into());
    }
    match c.ints(&format!("{what}_int64s"))? {
        Some(values) => Ok(c.upload(Elem::I64, vec![values.len()], values.to_vec())),
        None => Err(Error::argument("onnx", format!("no list of {what} is given"))),
    }
}

fn label_encoder(c: &Call<'_>) -> Values {
    let (from, to) = (keys(&list(c, "keys")?, c)?, list(c, "values")?);
    let places: HashMap<&str, usize> = from.iter().enumerate().rev().map(|(i, key)| (&**key, i)).collect();
    let shape = match c.input(0)? {
        OnnxValue::Strings(s) => s.shape.clone(),
        _ => c.array(0)?.shape().to_vec(),
    };
    let labels = keys(c.input(0)?, c)?;
    let found = labels.iter().map(|label| places.get(&**label).copied());
    let (float, int) = (c.float("default_float", -0.0)?, c.int("default_int64", -1)?);
    let text = c.text("default_string", "_Unused")?;
    let default = c.value("default_tensor")?;
    match &to {
        OnnxValue::Strings(s) => {
            let text = match default {
                Some(OnnxValue::Strings(d)) => d.values.first().map_or(text, |d| d),
                _ => text,
            };
            let values = found.map(|i| i.and_then(|i| s.values.get(i)).map_or(text, |v| v).to_owned()).collect();
            Ok(vec![OnnxValue::Strings(Arc::new(Strings { shape, values }))])
        }
        OnnxValue::Tensor(a) => {
            let values = a.raw(c.device)?;
            let last = match default {
                Some(OnnxValue::Tensor(d)) => d.raw(c.device)?.reshape([1])?,
                _ if values.dtype().is_float() => Tensor::full([1], float, values.dtype(), c.device)?,
                _ => Tensor::full([1], int, values.dtype(), c.device)?,
            };
            let n = values.numel();
            let index: Vec<i64> = found.map(|i| i.unwrap_or(n).min(n) as i64).collect();
            let index = Tensor::from_vec(&index, [index.len()], c.device)?;
            Ok(one(Tensor::cat(&[&values.reshape([n])?, &last], 0)?.index_select(0, &index)?.reshape(shape)?))
        }
        other => Err(Error::argument("onnx", format!("labels that are {}", other.describe()))),
    }
}
