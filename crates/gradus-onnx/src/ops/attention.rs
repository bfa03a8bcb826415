//! Attention, rotary embedding, linear attention, and causal convolution with a cache.

use gradus_tensor::{AttentionOptions, Causal, ConvOptions, DType, Error, PadMode, Result, Scalar, Tensor};

use crate::elem::Elem;
use crate::graph::{Call, Row, one, row, size, unsupported};
use crate::run::run;
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("Attention", &[23, 24], attention),
    row("RotaryEmbedding", &[23], rotary),
    row("LinearAttention", &[27], linear),
    row("CausalConvWithState", &[27], causal_conv),
];

/// `FlexAttention`, of the preview domain.
pub(super) const PREVIEW: &[Row] = &[row("FlexAttention", &[1], flex)];

/// `[b, t, heads * d]` as `[b, heads, t, d]`.
pub(super) fn heads(x: &Tensor, count: usize) -> Result<Tensor> {
    match x.shape() {
        &[b, t, width] if count > 0 && width.is_multiple_of(count) => {
            x.reshape([b, t, count, width / count])?.permute(&[0, 2, 1, 3])
        }
        [_, _, _, _] => Ok(x.clone()),
        other => Err(Error::shape("onnx", format!("shape {other:?} is not {count} heads"))),
    }
}

/// The other way.
pub(super) fn merged(x: &Tensor) -> Result<Tensor> {
    let &[b, h, t, d] = x.shape() else { return Ok(x.clone()) };
    x.permute(&[0, 2, 1, 3])?.reshape([b, t, h * d])
}

/// The mask that is added to the scores. It combines the given mask, the causal mask and the mask of padded keys.
fn bias(c: &Call<'_>, dtype: DType, lq: usize, lk: usize, past: usize) -> Result<Option<Tensor>> {
    let causal = c.flag("is_causal", false)?;
    let mut bias: Option<Tensor> = None;
    let mut add = |more: Tensor| -> Result<()> {
        bias = Some(match bias.take() {
            None => more,
            Some(bias) => bias.add(more)?,
        });
        Ok(())
    };
    let hidden = |seen: &Tensor| seen.where_(0.0, f64::NEG_INFINITY)?.to_dtype(dtype);
    if let Some(mask) = c.optional(3)? {
        let mask = if mask.dtype() == DType::Bool { hidden(&mask)? } else { mask };
        let short = lk.saturating_sub(mask.shape().last().copied().unwrap_or(lk));
        let mut sides = Vec::new();
        sides.resize(mask.rank(), (0, 0));
        if let Some(last) = sides.last_mut() {
            *last = (0, short as isize);
        }
        add(if short > 0 { mask.pad(&sides, PadMode::Constant(Scalar::Float(f64::NEG_INFINITY)))? } else { mask })?;
    }
    if causal {
        let i = Tensor::arange(past as i64, (past + lq) as i64, 1, DType::I64, c.device)?.unsqueeze(1)?;
        add(hidden(&i.ge(Tensor::arange(0, lk as i64, 1, DType::I64, c.device)?)?)?)?;
    }
    if let Some(lengths) = c.optional(6)? {
        let seen = Tensor::arange(0, lk as i64, 1, DType::I64, c.device)?.lt(lengths.unsqueeze(-1)?)?;
        add(hidden(&seen.unsqueeze(1)?.unsqueeze(1)?)?)?;
    }
    Ok(bias)
}

fn attention(c: &Call<'_>) -> Values {
    let (q, k, v) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let flat = q.rank() == 3;
    let (q_heads, kv_heads) = (size(c.int("q_num_heads", 0)?)?, size(c.int("kv_num_heads", 0)?)?);
    let (q, mut k, mut v) = (heads(&q, q_heads)?, heads(&k, kv_heads)?, heads(&v, kv_heads)?);
    let past = c.optional(4)?;
    if let Some(past) = &past {
        k = Tensor::cat(&[past, &k], 2)?;
    }
    if let Some(past) = c.optional(5)? {
        v = Tensor::cat(&[&past, &v], 2)?;
    }
    let (&[_, hq, lq, d], &[_, hk, lk, _]) = (q.shape(), k.shape()) else {
        return Err(Error::shape("onnx", "queries and keys of four axes belong here"));
    };
    if hk == 0 || !hq.is_multiple_of(hk) {
        return Err(Error::shape("onnx", format!("{hq} heads of queries for {hk} of keys")));
    }
    let scale = match c.float("scale", 0.0)? {
        0.0 => 1.0 / (d as f64).sqrt(),
        scale => scale,
    };
    let (softcap, mode) = (c.float("softcap", 0.0)?, c.int("qk_matmul_output_mode", 0)?);
    let precision = c.elem_attribute("softmax_precision")?.and_then(Elem::dtype);
    let before = past.as_ref().and_then(|past| past.shape().get(2).copied()).unwrap_or(0);
    // Without another mask, the rule needs no matrix.
    let ruled = c.flag("is_causal", false)? && before == 0 && c.given(3).is_none() && c.given(6).is_none();
    let plain = softcap == 0.0 && !c.wants(3) && precision.is_none_or(|p| p == DType::F32) && q.dtype() == k.dtype();
    if ruled && plain {
        let options = AttentionOptions::new().scale(scale).causal(Causal::TopLeft);
        let y = q.scaled_dot_product_attention(&k, &v, options)?;
        let y = if flat { merged(&y)? } else { y };
        return Ok(vec![y.to_dtype(q.dtype())?.into(), k.into(), v.into()]);
    }
    let bias = bias(c, q.dtype(), lq, lk, before)?;
    let shaped = |y: &Tensor| if flat { merged(y) } else { Ok(y.clone()) };
    if plain {
        let mut options = AttentionOptions::new().scale(scale).causal(Causal::No);
        let wide = bias.map(|b| if b.rank() == 1 { b.unsqueeze(0) } else { Ok(b) }).transpose()?;
        if let Some(bias) = &wide {
            options = options.mask(bias);
        }
        let y = q.scaled_dot_product_attention(&k, &v, options)?;
        return Ok(vec![shaped(&y)?.to_dtype(q.dtype())?.into(), k.into(), v.into()]);
    }
    let (keys, values) = (k.repeat_interleave(hq / hk, 1)?, v.repeat_interleave(hq / hk, 1)?);
    let root = scale.sqrt();
    let mut scores = q.mul(root)?.matmul(&keys.mul(root)?.transpose(-2, -1)?)?;
    let mut shown = scores.clone();
    if softcap != 0.0 {
        scores = scores.div(softcap)?.tanh()?.mul(softcap)?;
    }
    if mode == 1 {
        shown = scores.clone();
    }
    if let Some(bias) = &bias {
        scores = scores.add(bias)?;
    }
    if mode == 2 {
        shown = scores.clone();
    }
    let p = scores.to_dtype(precision.unwrap_or(scores.dtype()))?.softmax(-1)?;
    if mode == 3 {
        shown = p.clone();
    }
    let y = p.to_dtype(values.dtype())?.matmul(&values)?.to_dtype(q.dtype())?;
    Ok(vec![shaped(&y)?.into(), k.into(), v.into(), shown.to_dtype(q.dtype())?.into()])
}

/// Attention with sub-graphs that modify its scores and weights.
fn flex(c: &Call<'_>) -> Values {
    let (q, k, v) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (&[_, hq, _, d], &[_, hk, _, _]) = (q.shape(), k.shape()) else {
        return Err(Error::shape("onnx", "queries and keys of four axes belong here"));
    };
    if hk == 0 || !hq.is_multiple_of(hk) {
        return Err(Error::shape("onnx", format!("{hq} heads of queries for {hk} of keys")));
    }
    let (keys, values) = (k.repeat_interleave(hq / hk, 1)?, v.repeat_interleave(hq / hk, 1)?);
    let root = c.float("scale", 1.0 / (d as f64).sqrt())?.sqrt();
    let dtype = c.elem_attribute("softmax_precision")?.and_then(Elem::dtype).unwrap_or(q.dtype().compute());
    let change = |name: &str, x: Tensor| -> Result<Tensor> {
        if !c.has(name) {
            return Ok(x);
        }
        match run(c.graph(name)?, vec![Some(x.into())], c.around, c.state)?.pop() {
            Some(OnnxValue::Tensor(array)) => array.tensor(c.device)?.to_dtype(dtype),
            _ => Err(unsupported(format!("`{name}` gives no tensor"))),
        }
    };
    let scores = q.mul(root)?.matmul(&keys.mul(root)?.transpose(-2, -1)?)?.to_dtype(dtype)?;
    let p = change("score_mod", scores)?.softmax(-1)?;
    let y = change("prob_mod", p)?.matmul(&values.to_dtype(dtype)?)?;
    Ok(one(y.to_dtype(v.dtype())?))
}

fn rotary(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let flat = x.rank() == 3;
    let x = heads(&x, size(c.int("num_heads", 0)?)?)?;
    let caches = [c.tensor(1)?, c.tensor(2)?];
    let width = size(c.int("rotary_embedding_dim", 0)?)?;
    let y = turned(&x, &caches, c.optional(3)?.as_ref(), width, c.flag("interleaved", false)?)?;
    Ok(one(if flat { merged(&y)? } else { y }))
}

/// Turns pairs of the first `width` numbers of each head of `x [b, heads, steps, d]`, or of all if `width` is 0. The
/// caches have the cosines and sines of each place `[places, width / 2]`, or of each step `[b, steps, width / 2]` if
/// there are no places.
pub(super) fn turned(
    x: &Tensor,
    caches: &[Tensor; 2],
    places: Option<&Tensor>,
    width: usize,
    interleaved: bool,
) -> Result<Tensor> {
    let &[_, _, steps, d] = x.shape() else { return Err(Error::shape("onnx", "an input of four axes belongs here")) };
    let pick = |cache: &Tensor| -> Result<Tensor> {
        let Some(places) = places else { return cache.unsqueeze(1) };
        let width = cache.shape().get(1).copied().unwrap_or(0);
        let shape = [places.shape(), &[width]].concat();
        cache.index_select(0, &places.reshape([places.numel()])?)?.reshape(shape)?.unsqueeze(1)
    };
    let (cos, sin) = (pick(&caches[0])?, pick(&caches[1])?);
    let width = if width == 0 { d } else { width };
    let half = width / 2;
    if width > d || cos.shape().last() != Some(&half) {
        return Err(Error::shape("onnx", format!("{steps} steps of {d} turned by {:?}", cos.shape())));
    }
    let turned = x.narrow(3, 0, width)?;
    let (a, b) = match interleaved {
        true => (turned.slice(3, 0, width, 2)?, turned.slice(3, 1, width, 2)?),
        false => (turned.narrow(3, 0, half)?, turned.narrow(3, half, half)?),
    };
    let (real, imaginary) = (a.mul(&cos)?.sub(b.mul(&sin)?)?, a.mul(&sin)?.add(b.mul(&cos)?)?);
    let turned = match interleaved {
        true => Tensor::stack(&[&real, &imaginary], -1)?.reshape(turned.shape())?,
        false => Tensor::cat(&[&real, &imaginary], 3)?,
    };
    if width < d { Tensor::cat(&[&turned, &x.narrow(3, width, d - width)?], 3) } else { Ok(turned) }
}

/// Attention as a recurrence over a state `[b, heads, d, dv]`.
fn linear(c: &Call<'_>) -> Values {
    c.skip(&["chunk_size"]);
    let (q, k, v) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = q.dtype();
    let (hq, hk) = (size(c.int("q_num_heads", 0)?)?, size(c.int("kv_num_heads", 0)?)?);
    let rule = c.text("update_rule", "gated_delta")?;
    let (gated, delta) = match rule {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(Error::argument("onnx", format!("update_rule = `{other}`"))),
    };
    if hk == 0 || !hq.is_multiple_of(hk) || gated != c.given(4).is_some() || delta != c.given(5).is_some() {
        return Err(Error::argument(
            "onnx",
            format!("{hq} and {hk} heads by the rule `{rule}`, or inputs that it has not"),
        ));
    }
    let wide = DType::F32;
    let split = |x: &Tensor, count: usize| heads(&x.to_dtype(wide)?, count);
    let (q, k, v) = (split(&q, hq)?, split(&k, hk)?, split(&v, hk)?);
    let (&[b, _, steps, d], Some(&dv)) = (q.shape(), v.shape().last()) else {
        return Err(Error::shape("onnx", "queries of three axes belong here"));
    };
    let decay = c.optional(4)?.map(|g| split(&g, hk)).transpose()?;
    let beta = c.optional(5)?.map(|g| split(&g, if g.shape().last() == Some(&1) { 1 } else { hk })).transpose()?;
    let past = c.optional(3)?;
    let state_dtype = past.as_ref().map_or(dtype, Tensor::dtype);
    let mut state = match past {
        Some(past) => past.to_dtype(wide)?,
        None => Tensor::zeros([b, hk, d, dv], wide, c.device)?,
    };
    let scale = match c.float("scale", 0.0)? {
        0.0 => 1.0 / (d as f64).sqrt(),
        scale => scale,
    };
    let mut outputs = Vec::new();
    for t in 0..steps as isize {
        let (k, mut v) = (k.select(2, t)?, v.select(2, t)?);
        if let Some(decay) = &decay {
            state = state.mul(decay.select(2, t)?.exp()?.unsqueeze(-1)?)?;
        }
        if let Some(beta) = &beta {
            let kept = k.unsqueeze(2)?.matmul(&state)?.squeeze(2)?;
            v = beta.select(2, t)?.mul(v.sub(kept)?)?;
        }
        state = state.add(k.unsqueeze(-1)?.mul(v.unsqueeze(2)?)?)?;
        let read = if hq == hk { state.clone() } else { state.repeat_interleave(hq / hk, 1)? };
        outputs.push(q.select(2, t)?.mul(scale)?.unsqueeze(2)?.matmul(&read)?.squeeze(2)?);
    }
    let y = match outputs.is_empty() {
        true => Tensor::zeros([b, hq, 0, dv], wide, c.device)?,
        false => Tensor::stack(&outputs.iter().collect::<Vec<_>>(), 2)?,
    };
    Ok(vec![merged(&y)?.to_dtype(dtype)?.into(), state.to_dtype(state_dtype)?.into()])
}

/// A causal convolution of each channel. The last steps of the previous call are its state.
fn causal_conv(c: &Call<'_>) -> Values {
    let (x, w) = (c.tensor(0)?, c.tensor(1)?);
    let (&[b, channels, _], Some(&k)) = (x.shape(), w.shape().get(2)) else {
        return Err(Error::shape("onnx", "an input and a weight of three axes belong here"));
    };
    let past = match c.optional(3)? {
        Some(past) => past,
        None => Tensor::zeros([b, channels, k.saturating_sub(1)], x.dtype(), c.device)?,
    };
    let whole = Tensor::cat(&[&past, &x], 2)?;
    let y = whole.conv1d(&w, c.optional(2)?.as_ref(), ConvOptions::new().groups(channels))?;
    let y = match c.text("activation", "none")? {
        "none" => y,
        "silu" | "swish" => y.silu()?,
        other => return Err(Error::argument("onnx", format!("activation = `{other}`"))),
    };
    let state = k.saturating_sub(1);
    let length = whole.shape()[2];
    Ok(vec![y.into(), whole.narrow(2, length - state.min(length), state.min(length))?.contiguous()?.into()])
}
