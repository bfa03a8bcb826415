//! Normalisations of `com.microsoft`.

use gradus_tensor::{DType, Error, Result, Tensor};

use super::super::elementwise::like;
use crate::graph::{Call, Row, row, size};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("SkipLayerNormalization", &[1], |c| skip_norm(c, false)),
    row("SkipSimplifiedLayerNormalization", &[1], |c| skip_norm(c, true)),
    row("EmbedLayerNormalization", &[1], embed),
    row("GroupNorm", &[1], |c| group_norm(c, None)),
    row("SkipGroupNorm", &[1], |c| group_norm(c, Some(3))),
];

/// The normalisation of the last axis, with the mean and the inverse deviation of each row.
fn normalised(c: &Call<'_>, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, rms: bool) -> Result<[Tensor; 3]> {
    let eps = c.float("epsilon", 1e-12)?;
    let shape = [x.shape().last().copied().unwrap_or(1)];
    let y = match rms {
        true => x.rms_norm(&shape, Some(weight), eps)?,
        false => x.layer_norm(&shape, Some(weight), bias, eps)?,
    };
    if !c.wants(1) && !c.wants(2) {
        return Ok([y, x.clone(), x.clone()]);
    }
    let wide = x.to_dtype(DType::F32)?;
    let mean = wide.mean(&[-1], true)?;
    let centred = if rms { wide } else { wide.sub(&mean)? };
    let inverse = centred.square()?.mean(&[-1], true)?.add(eps)?.rsqrt()?;
    Ok([y, mean, inverse])
}

/// The normalisation of `x + skip + bias`, which is the last output.
fn skip_norm(c: &Call<'_>, rms: bool) -> Values {
    let mut x = c.tensor(0)?.add(c.tensor(1)?)?;
    let (beta, bias) = if rms { (None, 3) } else { (c.optional(3)?, 4) };
    if let Some(bias) = c.optional(bias)? {
        x = x.add(bias)?;
    }
    let [y, mean, inverse] = normalised(c, &x, &c.tensor(2)?, beta.as_ref(), rms)?;
    Ok([y, mean, inverse, x].map(OnnxValue::from).into())
}

/// The sum of the embeddings of words, positions and segments, normalised.
fn embed(c: &Call<'_>) -> Values {
    let ids = c.tensor(0)?;
    let &[batch, steps] = ids.shape() else {
        return Err(Error::shape("onnx", format!("words of shape {:?}, not [batch, length]", ids.shape())));
    };
    let pick = |table: &Tensor, ids: &Tensor| -> Result<Tensor> {
        let &[_, width] = table.shape() else {
            return Err(Error::shape("onnx", format!("embeddings of shape {:?}", table.shape())));
        };
        let picked = table.index_select(0, &ids.reshape([ids.numel()])?.to_dtype(DType::I64)?)?;
        picked.reshape([ids.shape(), &[width]].concat())
    };
    let places = match c.optional(8)? {
        Some(places) => places,
        None => Tensor::arange(0, steps as i64, 1, DType::I64, c.device)?.unsqueeze(0)?,
    };
    let mut x = pick(&c.tensor(2)?, &ids)?.add(pick(&c.tensor(3)?, &places)?)?;
    if let (Some(segments), Some(table)) = (c.optional(1)?, c.optional(4)?) {
        x = x.add(pick(&table, &segments)?)?;
    }
    let lengths = match c.optional(7)? {
        Some(mask) => mask.to_dtype(DType::I32)?.sum(&[1], false)?.to_dtype(DType::I32)?,
        None => Tensor::zeros([batch], DType::I32, c.device)?,
    };
    c.skip(&["mask_index_type"]);
    let shape = [x.shape()[2]];
    let y = x.layer_norm(&shape, Some(&c.tensor(5)?), Some(&c.tensor(6)?), c.float("epsilon", 1e-12)?)?;
    Ok(vec![y.into(), lengths.into(), x.into()])
}

/// Group normalisation with the channels last, unless `channels_last` is 0, of the sum with `skip` and a bias.
fn group_norm(c: &Call<'_>, skip: Option<usize>) -> Values {
    let mut x = c.tensor(0)?;
    let (groups, eps) = (size(c.int("groups", 0)?)?, c.float("epsilon", 1e-5)?);
    if let Some(at) = skip {
        let more = c.tensor(at)?;
        let last = more.shape().last().copied().unwrap_or(0);
        let more = if more.rank() == 2 { more.reshape([more.shape()[0], 1, 1, last])? } else { more };
        x = x.add(more)?;
        if let Some(bias) = c.optional(at + 1)? {
            x = x.add(bias)?;
        }
    }
    let last = c.flag("channels_last", true)?;
    let first = if last { x.movedim(&[-1], &[1])? } else { x.clone() };
    if groups == 0 || !first.shape().get(1).is_some_and(|n| n.is_multiple_of(groups)) {
        return Err(Error::argument("onnx", format!("{groups} groups of the channels of {:?}", x.shape())));
    }
    let (weight, bias) = (c.tensor(1)?.to_dtype(DType::F32)?, c.tensor(2)?.to_dtype(DType::F32)?);
    let y = first.to_dtype(DType::F32)?.group_norm(groups, Some(&weight), Some(&bias), eps)?;
    let y = match c.int("activation", 0)? {
        0 => y,
        1 => y.silu()?,
        other => return Err(Error::argument("onnx", format!("activation = {other}, not 0 or 1"))),
    };
    let mut results = like(&x, if last { y.movedim(&[1], &[-1]) } else { Ok(y) })?;
    if skip.is_some() {
        results.push(x.into());
    }
    Ok(results)
}
