//! What `ai.onnx.ml` does to features before and after a model.

use std::collections::HashMap;
use std::sync::Arc;

use gradus_tensor::{DType, Error, Result, Tensor};

use super::classify::Labels;
use super::elementwise::like;
use super::ml::keys;
use crate::elem::Elem;
use crate::graph::{Call, Row, one, row, size, unsupported};
use crate::value::{Array, OnnxMap, OnnxValue, Strings};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("Normalizer", &[1], normalizer),
    row("OneHotEncoder", &[1], one_hot),
    row("Imputer", &[1], imputer),
    row("FeatureVectorizer", &[1], feature_vectorizer),
    row("CategoryMapper", &[1], category_mapper),
    row("DictVectorizer", &[1], dict_vectorizer),
    row("ZipMap", &[1], zip_map),
];

/// Divides each row by its norm; a row whose norm is 0 stays.
fn normalizer(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?.to_dtype(DType::F32)?;
    let norm = match c.text("norm", "MAX")? {
        "MAX" => x.max(&[-1], true)?,
        "L1" => x.abs()?.sum(&[-1], true)?,
        "L2" => x.square()?.sum(&[-1], true)?.sqrt()?,
        other => return Err(Error::argument("onnx", format!("norm = `{other}`"))),
    };
    like(&x, x.div(norm.eq(0.0)?.where_(1.0, &norm)?))
}

/// The texts of labels, which are equal exactly if the labels are.
fn texts(labels: &Labels<'_>) -> Vec<String> {
    match labels {
        Labels::Ints(labels) => labels.iter().map(i64::to_string).collect(),
        Labels::Texts(labels) => labels.to_vec(),
    }
}

fn one_hot(c: &Call<'_>) -> Values {
    let labels = Labels::of(c, "cats_int64s", "cats_strings")?;
    let (zeros, shape) = (c.flag("zeros", true)?, shape_of(c)?);
    let wanted = match c.input(0)? {
        OnnxValue::Tensor(a) if a.elem().dtype().is_some_and(DType::is_float) => {
            a.to_f64(c.device)?.iter().map(|&v| (v as i64).to_string()).collect()
        }
        other => keys(other, c)?,
    };
    let places: HashMap<String, usize> = texts(&labels).into_iter().enumerate().map(|(i, t)| (t, i)).collect();
    let n = labels.len();
    if wanted.len().saturating_mul(n) > 1 << 28 {
        return Err(unsupported(format!("{} elements in {n} categories", wanted.len())));
    }
    let mut values = Vec::new();
    for text in &wanted {
        let place = places.get(text);
        if place.is_none() && !zeros {
            return Err(Error::argument("onnx", format!("{text} is none of the {n} categories")));
        }
        values.extend((0..n).map(|i| f32::from(place == Some(&i))));
    }
    Ok(one(Tensor::from_vec(values, [&shape[..], &[n]].concat(), c.device)?))
}

fn shape_of(c: &Call<'_>) -> Result<Vec<usize>> {
    Ok(match c.input(0)? {
        OnnxValue::Strings(s) => s.shape.clone(),
        _ => c.array(0)?.shape().to_vec(),
    })
}

/// Replaces one number, or NaN, with that of its column or of all columns.
fn imputer(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let (floats, ints) = (c.floats("imputed_value_floats")?, c.ints("imputed_value_int64s")?);
    let (old_float, old_int) = (c.float("replaced_value_float", 0.0)?, c.int("replaced_value_int64", 0)?);
    let (new, hit) = if x.dtype().is_float() {
        let values = floats.unwrap_or_default();
        let hit = if old_float.is_nan() { x.isnan()? } else { x.eq(old_float)? };
        (Tensor::from_vec(values, [values.len()], c.device)?, hit)
    } else {
        let values = ints.unwrap_or_default();
        (Tensor::from_vec(values, [values.len()], c.device)?, x.eq(Tensor::scalar(old_int, c.device)?)?)
    };
    if new.numel() != 1 && Some(&new.numel()) != x.shape().last() {
        return Err(Error::shape("onnx", format!("{} values for columns of {:?}", new.numel(), x.shape())));
    }
    like(&x, hit.where_(new.to_dtype(x.dtype())?, &x))
}

/// The columns of all inputs, each cut or filled with zeros to the width that the node states.
fn feature_vectorizer(c: &Call<'_>) -> Values {
    let widths = c.ints("inputdimensions")?.unwrap_or_default();
    let mut parts = Vec::new();
    for i in 0..c.inputs.len() {
        let x = c.tensor(i)?.to_dtype(DType::F32)?;
        let x = if x.rank() == 1 { x.unsqueeze(0)? } else { x };
        let &[rows, have] = x.shape() else {
            return Err(Error::shape("onnx", format!("features of shape {:?}, not a matrix", x.shape())));
        };
        let want = widths.get(i).map_or(Ok(have), |&w| size(w))?;
        parts.push(if want <= have {
            x.narrow(1, 0, want)?
        } else {
            Tensor::cat(&[&x, &Tensor::zeros([rows, want - have], DType::F32, c.device)?], 1)?
        });
    }
    Ok(one(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?))
}

/// Integers for strings, or strings for integers.
fn category_mapper(c: &Call<'_>) -> Values {
    let (texts, ints) = (c.texts("cats_strings")?.unwrap_or_default(), c.ints("cats_int64s")?.unwrap_or_default());
    let (text, int) = (c.text("default_string", "_Unused")?, c.int("default_int64", -1)?);
    if texts.len() != ints.len() {
        return Err(Error::argument("onnx", format!("{} strings for {} integers", texts.len(), ints.len())));
    }
    Ok(vec![match c.input(0)? {
        OnnxValue::Strings(s) => {
            let places: HashMap<&String, i64> = texts.iter().zip(ints.iter().copied()).collect();
            let values = s.values.iter().map(|t| places.get(t).copied().unwrap_or(int)).collect();
            c.upload(Elem::I64, s.shape.clone(), values)
        }
        _ => {
            let places: HashMap<i64, &String> = ints.iter().copied().zip(texts).collect();
            let values = c.host_ints(0)?.iter().map(|n| places.get(n).map_or(text, |t| t).to_owned()).collect();
            OnnxValue::Strings(Arc::new(Strings { shape: shape_of(c)?, values }))
        }
    }])
}

/// The values of a map in the order of the vocabulary, 0 for keys that it has not.
fn dict_vectorizer(c: &Call<'_>) -> Values {
    let OnnxValue::Map(map) = c.input(0)? else {
        return Err(Error::argument("onnx", format!("a map belongs here, not {}", c.input(0)?.describe())));
    };
    let vocabulary = texts(&Labels::of(c, "int64_vocabulary", "string_vocabulary")?);
    let values = map.values.raw(c.device)?;
    let n = values.numel();
    let places: HashMap<String, usize> = keys(&map.keys, c)?.into_iter().enumerate().map(|(i, k)| (k, i)).collect();
    let places: Vec<i64> = vocabulary.iter().map(|word| places.get(word).map_or(n, |&i| i.min(n)) as i64).collect();
    let with_zero = Tensor::cat(&[&values.reshape([n])?, &Tensor::zeros([1], values.dtype(), c.device)?], 0)?;
    let index = Tensor::from_vec(&places, [places.len()], c.device)?;
    Ok(one(with_zero.index_select(0, &index)?.unsqueeze(0)?))
}

/// A sequence of maps from the labels to the numbers of a row.
fn zip_map(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let x = if x.rank() == 1 { x.unsqueeze(0)? } else { x };
    let labels = Labels::of(c, "classlabels_int64s", "classlabels_strings")?;
    let &[rows, columns] = x.shape() else {
        return Err(Error::shape("onnx", format!("scores of shape {:?}, not a matrix", x.shape())));
    };
    if columns != labels.len() {
        return Err(Error::shape("onnx", format!("{columns} scores for {} labels", labels.len())));
    }
    let keys = labels.picked(c, &(0..columns).collect::<Vec<_>>())?;
    let map = |i: usize| -> Result<OnnxValue> {
        let values = Array::new(x.select(0, i as isize)?);
        Ok(OnnxValue::Map(Arc::new(OnnxMap { keys: keys.clone(), values })))
    };
    Ok(vec![OnnxValue::Sequence(Arc::new((0..rows).map(map).collect::<Result<_>>()?))])
}
