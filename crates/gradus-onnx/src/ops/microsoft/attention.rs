//! Attention of `com.microsoft`, with the products that make queries, keys and values, and rotary embedding.

use gradus_tensor::{AttentionOptions, Causal, DType, Error, Result, Tensor};

use super::super::attention::{heads, merged, turned};
use crate::graph::{Call, Row, one, row, size, unsupported};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("Attention", &[1], attention),
    row("MultiHeadAttention", &[1], multi_head),
    row("RotaryEmbedding", &[1], rotary),
];

/// What is added to scores that are masked, unless the node says otherwise.
const MASKED: f64 = -10_000.0;

/// Attention of `[b, heads, steps, d]` with a mask that is added to the scores.
pub(super) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, bias: Option<&Tensor>) -> Result<Tensor> {
    let mut options = AttentionOptions::new().scale(scale).causal(Causal::No);
    if let Some(bias) = bias {
        options = options.mask(bias);
    }
    q.scaled_dot_product_attention(k, v, options)?.to_dtype(q.dtype())
}

/// The attribute `scale`, which is `1 / sqrt(d)` if it is 0 or missing.
pub(super) fn scale(c: &Call<'_>, d: usize) -> Result<f64> {
    match c.float("scale", 0.0)? {
        0.0 => Ok(1.0 / (d as f64).sqrt()),
        scale => Ok(scale),
    }
}

/// The sum of masks.
pub(super) fn sum(bias: Option<Tensor>, more: Option<Tensor>) -> Result<Option<Tensor>> {
    match (bias, more) {
        (Some(bias), Some(more)) => bias.add(more).map(Some),
        (bias, more) => Ok(bias.or(more)),
    }
}

/// The mask of keys after their query, for queries that come after `past` others: `[lq, lk]`.
pub(super) fn causal(c: &Call<'_>, lq: usize, lk: usize, past: usize, dtype: DType) -> Result<Tensor> {
    let i = Tensor::arange(past as i64, (past + lq) as i64, 1, DType::I64, c.device)?.unsqueeze(1)?;
    i.ge(Tensor::arange(0, lk as i64, 1, DType::I64, c.device)?)?.where_(0.0, f64::from(f32::MIN))?.to_dtype(dtype)
}

/// The mask of keys from `[b, lk]` (1 for keys that are seen), `[b, lq, lk]`, the lengths `[b]`, or the ends and the
/// beginnings `[2 * b]` of the keys that are seen: `[b, 1, lq or 1, lk]`.
fn padding(c: &Call<'_>, mask: &Tensor, b: usize, lk: usize, dtype: DType) -> Result<Tensor> {
    let filler = c.float("mask_filter_value", MASKED)?;
    let places = || Tensor::arange(0, lk as i64, 1, DType::I32, c.device);
    let seen = match mask.shape() {
        &[n, m] if n == b && m == lk => mask.gt(0.0)?.reshape([b, 1, 1, lk])?,
        &[n, lq, m] if n == b && m == lk => mask.gt(0.0)?.reshape([b, 1, lq, lk])?,
        &[n] if n == b => places()?.lt(mask.reshape([b, 1, 1, 1])?)?,
        &[n] if n == 2 * b => {
            let (ends, begins) = (mask.narrow(0, 0, b)?, mask.narrow(0, b, b)?);
            let after = places()?.ge(begins.reshape([b, 1, 1, 1])?)?;
            after.logical_and(places()?.lt(ends.reshape([b, 1, 1, 1])?)?)?
        }
        other => return Err(unsupported(format!("a mask of shape {other:?} for a batch of {b} with {lk} keys"))),
    };
    seen.where_(0.0, filler)?.to_dtype(dtype)
}

/// Self-attention of `input [b, s, in]`, whose queries, keys and values are its product with one matrix.
fn attention(c: &Call<'_>) -> Values {
    let (x, w) = (c.tensor(0)?, c.tensor(1)?);
    let count = size(c.int("num_heads", 0)?)?;
    if c.flag("do_rotary", false)? || c.flag("past_present_share_buffer", false)? {
        return Err(unsupported("com.microsoft.Attention with do_rotary or past_present_share_buffer"));
    }
    c.skip(&["rotary_embedding_dim"]);
    let (&[b, s, _], &[_, columns]) = (x.shape(), w.shape()) else {
        return Err(Error::shape("onnx", format!("an input {:?} and weights {:?}", x.shape(), w.shape())));
    };
    let [wq, wk, wv] = match c.ints("qkv_hidden_sizes")? {
        Some(&[q, k, v]) => [size(q)?, size(k)?, size(v)?],
        Some(other) => return Err(Error::argument("onnx", format!("qkv_hidden_sizes = {other:?}, not three sizes"))),
        None => [columns / 3; 3],
    };
    if wq.checked_add(wk).and_then(|n| n.checked_add(wv)) != Some(columns) || wq != wk {
        return Err(Error::shape(
            "onnx",
            format!("{columns} columns for queries, keys and values of {wq}, {wk}, {wv}"),
        ));
    }
    let product = x.linear(&w.t()?, c.optional(2)?.as_ref())?;
    let part = |at: usize, width: usize| heads(&product.narrow(-1, at, width)?, count);
    let (q, mut k, mut v) = (part(0, wq)?, part(wq, wk)?, part(wq + wk, wv)?);
    let past = c.optional(4)?;
    if let Some(past) = &past {
        (k, v) = (Tensor::cat(&[&past.select(0, 0)?, &k], 2)?, Tensor::cat(&[&past.select(0, 1)?, &v], 2)?);
    }
    let lk = k.shape()[2];
    let mut bias = c.optional(3)?.map(|mask| padding(c, &mask, b, lk, x.dtype())).transpose()?;
    c.skip(&["mask_filter_value"]);
    if c.flag("unidirectional", false)? {
        bias = sum(bias, Some(causal(c, s, lk, lk - s, x.dtype())?))?;
    }
    bias = sum(bias, c.optional(5)?)?;
    let y = merged(&attend(&q, &k, &v, scale(c, q.shape()[3])?, bias.as_ref())?)?;
    let present = if c.wants(1) { Tensor::stack(&[&k, &v], 0)? } else { y.clone() };
    Ok(vec![y.into(), present.into()])
}

/// Attention of `query [b, s, d]`, or of queries, keys and values that are packed in one or two tensors.
fn multi_head(c: &Call<'_>) -> Values {
    let query = c.tensor(0)?;
    let count = size(c.int("num_heads", 0)?)?;
    if c.given(8).is_some() || c.given(9).is_some() {
        return Err(unsupported("MultiHeadAttention with a shared buffer of keys, or beams"));
    }
    // `[b, steps, heads, parts, d]` as the parts `[b, heads, steps, d]`.
    let packed = |x: &Tensor, part: isize| x.select(3, part)?.permute(&[0, 2, 1, 3]);
    let (q, k, v) = match (c.optional(1)?, c.optional(2)?) {
        (None, None) if query.rank() == 5 => (packed(&query, 0)?, packed(&query, 1)?, packed(&query, 2)?),
        (Some(keys), None) if keys.rank() == 5 => (heads(&query, count)?, packed(&keys, 0)?, packed(&keys, 1)?),
        (Some(keys), Some(values)) => (heads(&query, count)?, heads(&keys, count)?, heads(&values, count)?),
        _ => return Err(Error::argument("onnx", "keys and values are missing, and the queries do not hold them")),
    };
    let (&[b, hq, lq, d], Some(&dv)) = (q.shape(), v.shape().last()) else {
        return Err(Error::shape("onnx", format!("queries of shape {:?}", query.shape())));
    };
    let [q, mut k, mut v] = match c.optional(3)? {
        None => [q, k, v],
        Some(bias) => {
            let part = |x: &Tensor, at: usize, d: usize| x.add(bias.narrow(0, at, hq * d)?.reshape([1, hq, 1, d])?);
            // Keys and values that are already in heads have their bias.
            let own = c.optional(1)?.is_none_or(|k| k.rank() != 4);
            let q = part(&q, 0, d)?;
            if own { [q, part(&k, hq * d, d)?, part(&v, 2 * hq * d, dv)?] } else { [q, k, v] }
        }
    };
    let mut past = 0;
    if let (Some(keys), Some(values)) = (c.optional(6)?, c.optional(7)?) {
        past = keys.shape().get(2).copied().unwrap_or(0);
        (k, v) = (Tensor::cat(&[&keys, &k], 2)?, Tensor::cat(&[&values, &v], 2)?);
    }
    let lk = k.shape()[2];
    let mut bias = c.optional(4)?.map(|mask| padding(c, &mask, b, lk, q.dtype())).transpose()?;
    c.skip(&["mask_filter_value"]);
    if c.flag("unidirectional", false)? {
        bias = sum(bias, Some(causal(c, lq, lk, past, q.dtype())?))?;
    }
    bias = sum(bias, c.optional(5)?)?;
    let y = merged(&attend(&q, &k, &v, scale(c, d)?, bias.as_ref())?)?;
    Ok([y, k, v].map(OnnxValue::from).into())
}

fn rotary(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    if c.flag("is_packed_batching", false)? || c.float("scale", 1.0)? != 1.0 {
        return Err(unsupported("RotaryEmbedding with packed batches or a scale"));
    }
    let caches = [c.tensor(2)?, c.tensor(3)?];
    let width = size(c.int("rotary_embedding_dim", 0)?)?;
    let flat = x.rank() == 3;
    let count = match size(c.int("num_heads", 0)?)? {
        // The size of a head is that of the caches.
        0 => x.shape().last().copied().unwrap_or(0) / (2 * caches[0].shape().last().copied().unwrap_or(0)).max(1),
        count => count,
    };
    let x = heads(&x, count)?;
    let &[b, _, steps, _] = x.shape() else { return Err(Error::shape("onnx", "an input of four axes belongs here")) };
    let places = c.tensor(1)?;
    let places = match places.numel() {
        // The place of the first step of each sequence.
        1 => {
            let steps = Tensor::arange(0, steps as i64, 1, DType::I64, c.device)?.add(places.reshape([1, 1])?)?;
            steps.expand([b, steps.shape()[1]])?.contiguous()?
        }
        _ => places,
    };
    let y = turned(&x, &caches, Some(&places), width, c.flag("interleaved", false)?)?;
    Ok(one(if flat { merged(&y)? } else { y }))
}
