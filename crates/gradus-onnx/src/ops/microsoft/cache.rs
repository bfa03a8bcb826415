//! `GroupQueryAttention`: attention with a cache of keys and values, which each sequence of the batch has filled to a
//! length of its own.

use gradus_tensor::{DType, Error, Result, Tensor};

use super::super::attention::{heads, merged, turned};
use super::attention::{attend, causal, scale, sum};
use crate::graph::{Call, Row, row, size, unsupported};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[row("GroupQueryAttention", &[1], group_query)];

fn group_query(c: &Call<'_>) -> Values {
    let query = c.tensor(0)?;
    let (count, groups) = (size(c.int("num_heads", 0)?)?, size(c.int("kv_num_heads", 0)?)?);
    let (softcap, window) = (c.float("softcap", 0.0)?, c.int("local_window_size", -1)?);
    c.skip(&["smooth_softmax", "qk_output", "k_quant_type", "v_quant_type", "kv_cache_bit_width"]);
    let plain = softcap == 0.0 && c.int("smooth_softmax", 0)? <= 0 && c.int("qk_output", 0)? == 0;
    if !plain || c.given(11).is_some() || c.node.outputs.len() > 3 {
        return Err(unsupported("GroupQueryAttention with softcap, smooth_softmax, sinks or its scores as an output"));
    }
    let &[b, steps, width] = query.shape() else {
        return Err(Error::shape("onnx", format!("queries of shape {:?}, not [b, steps, width]", query.shape())));
    };
    if groups == 0 || count == 0 || !count.is_multiple_of(groups) {
        return Err(Error::argument("onnx", format!("{count} heads of queries for {groups} of keys")));
    }
    let (q, k, v) = match (c.optional(1)?, c.optional(2)?) {
        (Some(k), Some(v)) => (heads(&query, count)?, heads(&k, groups)?, heads(&v, groups)?),
        _ => {
            let d = width / (count + 2 * groups);
            let part = |at: usize, n: usize| heads(&query.narrow(-1, at * d, n * d)?, n);
            (part(0, count)?, part(count, groups)?, part(count + groups, groups)?)
        }
    };
    let d = q.shape()[3];
    let scale = scale(c, d)?;
    let past = c.optional(3)?.zip(c.optional(4)?);
    // How many keys each sequence has, with the new ones.
    let lengths = c.host_ints(5)?.iter().map(|&n| size(n.saturating_add(1))).collect::<Result<Vec<_>>>()?;
    let total = size(c.number(6)?.unwrap_or(0.0) as i64)?;
    let room = past.as_ref().and_then(|(k, _)| k.shape().get(2).copied()).unwrap_or(0);
    let size_of = room.max(total);
    let first = total == steps;
    if lengths.len() != b || lengths.iter().any(|&n| n > size_of || n == 0 || (!first && n < steps)) {
        return Err(Error::argument("onnx", format!("seqlens_k = {lengths:?} (and one less) for {size_of} places")));
    }
    let before: Vec<usize> = lengths.iter().map(|&n| if first { 0 } else { n - steps }).collect();
    let (mut q, mut k) = (q, k);
    if c.flag("do_rotary", false)? {
        let caches = [c.tensor(7)?, c.tensor(8)?];
        let places = match c.optional(9)? {
            Some(places) => places,
            None => {
                let places = before.iter().flat_map(|&n| (n..n + steps).map(|p| p as i64)).collect::<Vec<_>>();
                Tensor::from_vec(places, [b, steps], c.device)?
            }
        };
        let interleaved = c.flag("rotary_interleaved", false)?;
        let width = 2 * caches[0].shape().last().copied().unwrap_or(0);
        q = turned(&q, &caches, Some(&places), width, interleaved)?;
        k = turned(&k, &caches, Some(&places), width, interleaved)?;
    }
    c.skip(&["rotary_interleaved"]);
    let extra = c.optional(10)?;
    let (mut outputs, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (i, &old) in before.iter().enumerate() {
        let row = |x: &Tensor| x.narrow(0, i, 1);
        let filled = |past: Option<&Tensor>, new: Tensor| match past {
            Some(past) if old > 0 => Tensor::cat(&[&row(past)?.narrow(2, 0, old)?, &new], 2),
            _ => Ok(new),
        };
        let (k, v) = (filled(past.as_ref().map(|p| &p.0), row(&k)?)?, filled(past.as_ref().map(|p| &p.1), row(&v)?)?);
        let now = k.shape()[2];
        let mut bias = Some(causal(c, steps, now, old, q.dtype())?);
        if window > 0 {
            let i = Tensor::arange(old as i64, (old + steps) as i64, 1, DType::I64, c.device)?.unsqueeze(1)?;
            let near = i.sub(Tensor::arange(0, now as i64, 1, DType::I64, c.device)?)?.lt(window)?;
            bias = sum(bias, Some(near.where_(0.0, f64::from(f32::MIN))?.to_dtype(q.dtype())?))?;
        }
        if let Some(extra) = &extra {
            let part = if extra.shape().first() == Some(&b) { row(extra)? } else { extra.clone() };
            bias = sum(bias, Some(part.narrow(-1, 0, now)?))?;
        }
        outputs.push(attend(&row(&q)?, &k, &v, scale, bias.as_ref())?);
        // The caches have room for `size_of` steps; what lies beyond the new keys is 0.
        let padded = |x: Tensor| match size_of.saturating_sub(now) {
            0 => x.narrow(2, 0, size_of),
            more => Tensor::cat(&[&x, &Tensor::zeros([1, groups, more, x.shape()[3]], x.dtype(), c.device)?], 2),
        };
        keys.push(padded(k)?);
        values.push(padded(v)?);
    }
    let all = |parts: &[Tensor]| Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0);
    Ok(vec![merged(&all(&outputs)?)?.into(), all(&keys)?.into(), all(&values)?.into()])
}
