//! `scaled_dot_product_attention`, which computes `softmax(scale * q k^T + mask) v` as one recorded operation.
//!
//! The backward pass is normally one call of the backend. It is composed of matrix products and a softmax instead if
//! the gradient must be differentiable itself, if a float mask requires a gradient, or if a gradient arrives through
//! the log-sum-exp. With dropout, the forward pass itself is composed of these simpler operations, and each of them is
//! recorded.

use gradus_backend::{AttentionParams, Backend, DType, Error, ErrorKind, Here, Result, Shape, View, ViewMut};
use smallvec::smallvec;

use super::causal::{Causal, causal_mask};
use super::operand_rules::{cast, common_dtype};
use super::softmax::without_empty_rows;
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, Spec, apply};
use crate::{Generator, Tensor};

/// Attention of `q [b, h, lq, d]`, `k [b, hk, lk, d]` and `v [b, hk, lk, dv]`, with an optional mask that broadcasts
/// with `[b, h, lq, lk]`. Outputs: the result `[b, lq, h, dv]`, and for each query `[b, h, lq, 2]` a shift of its scores
/// and the sum of `e^(score - shift)`.
///
/// These two numbers are differentiable only as the log-sum-exp of the scores, `shift + ln(sum)`: its gradient arrives as
/// that of the shift, and the sum has none. So neither is differentiated alone.
///
/// The heads of a query lie side by side in the result. Merging the heads, which usually comes next, is therefore a
/// view, and this operation and the next one save the same memory for the backward pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attention {
    /// The scale, and whether query `i` sees only the keys up to `i + lk - lq`.
    pub params: AttentionParams,
}

/// Options of [`Tensor::scaled_dot_product_attention`]. By default there is no mask, no causal rule and no dropout, and
/// the scale is `1 / sqrt(d)`.
#[must_use = "options do nothing until they are passed to an operation, and setting one gives new options"]
#[derive(Debug, Default)]
pub struct AttentionOptions<'a> {
    mask: Option<&'a Tensor>,
    causal: Causal,
    scale: Option<f64>,
    dropout: Option<(f64, &'a mut Generator)>,
}

impl<'a> AttentionOptions<'a> {
    /// The default options: no mask, not causal, scale `1 / sqrt(d)`, no dropout.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a mask that broadcasts with `[.., h, lq, lk]`. A bool mask keeps the scores where it is true; a float mask
    /// is added to the scores.
    pub fn mask(mut self, mask: &'a Tensor) -> Self {
        self.mask = Some(mask);
        self
    }

    /// Sets the causal rule, which limits the keys that a query may see in addition to the mask.
    pub fn causal(mut self, causal: Causal) -> Self {
        self.causal = causal;
        self
    }

    /// Sets the factor of the scores, which must be finite.
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Drops each attention weight with probability `p` (0 to 1) and divides the remaining weights by `1 - p`.
    pub fn dropout(mut self, p: f64, generator: &'a mut Generator) -> Self {
        self.dropout = Some((p, generator));
        self
    }
}

/// The attention weights.
struct Weights {
    /// The weights `[b, h, lq, lk]`: 0 for a query that may see no key.
    p: Tensor,
    /// The scores `[b, h, lq, lk]`: 0 for a query that may see no key.
    scores: Tensor,
    /// Whether each query may see a key, `[b, h, lq, 1]`.
    any: Tensor,
    /// The leading axes `[b, hk, rows]` of the operands that are multiplied with keys and values. The rows are the
    /// queries of all heads that share a key head.
    stacked: [usize; 3],
}

impl Weights {
    /// Reshapes queries, or a tensor with the same leading axes, to one matrix per key head.
    #[track_caller]
    fn stack(&self, x: &Tensor) -> Result<Tensor> {
        let [b, hk, rows] = self.stacked;
        x.reshape([b, hk, rows, x.shape()[3]])
    }

    /// The log-sum-exp of the scores `[b, h, lq]`.
    #[track_caller]
    fn lse(&self) -> Result<Tensor> {
        let s = &self.scores;
        if s.shape()[3] == 0 {
            return Tensor::full(&s.shape()[..3], f64::NEG_INFINITY, s.dtype(), s.device());
        }
        let largest = s.detach().max(&[3], true)?;
        let lse = s.sub(&largest)?.exp()?.sum(&[3], true)?.log()?.add(&largest)?;
        self.any.where_(&lse, f64::NEG_INFINITY)?.squeeze(3)
    }
}

/// What the log-sum-exp of the scores is computed from, if it is asked for.
enum Rows {
    /// The second output of [`Attention`].
    Stats(Tensor),
    Weights(Weights),
}

impl Rows {
    /// The log-sum-exp of the scores `[b, h, lq]`.
    #[track_caller]
    fn lse(&self) -> Result<Tensor> {
        match self {
            Rows::Stats(stats) => stats.select(3, 0)?.add(&stats.select(3, 1)?.detach().log()?),
            Rows::Weights(weights) => weights.lse(),
        }
    }
}

impl Attention {
    /// Computes the weights with simpler operations from query and key, which have the compute dtype.
    #[track_caller]
    fn weights(&self, q: &Tensor, k: &Tensor, mask: Option<&Tensor>) -> Result<Weights> {
        let (&[b, h, lq, d], &[_, hk, lk, _]) = (q.shape(), k.shape()) else {
            return Err(Error::shape(self.name(), "query and key have rank 4"));
        };
        // The queries of all heads that share a key head are stacked.
        let stacked = [b, hk, h.checked_div(hk).unwrap_or(0) * lq];
        let scores = q.reshape([b, hk, stacked[2], d])?.product(&k.transpose(-2, -1)?)?;
        let mut scores = scores.mul(self.params.scale)?.reshape([b, h, lq, lk])?;
        match mask {
            Some(mask) if mask.dtype() == DType::Bool => scores = mask.where_(&scores, f64::NEG_INFINITY)?,
            Some(mask) => scores = scores.add(&mask.to_dtype(scores.dtype())?)?,
            None => {}
        }
        if self.params.causal {
            scores = causal_mask(lq, lk, Causal::BottomRight, q.device())?.where_(&scores, f64::NEG_INFINITY)?;
        }
        let keep = scores.ne(f64::NEG_INFINITY)?;
        let (scores, any) = without_empty_rows(&scores, &keep, 3)?;
        Ok(Weights { p: any.where_(&scores.softmax(3)?, 0.0)?, scores, any, stacked })
    }

    /// Computes the result with simpler operations, applying dropout to the weights. Also returns the weights.
    #[track_caller]
    fn decompose(
        &self,
        inputs: [&Tensor; 3],
        mask: Option<&Tensor>,
        (p, generator): (f64, &mut Generator),
    ) -> Result<(Tensor, Weights)> {
        let wide = inputs[0].dtype().compute();
        let [q, k, v] = [inputs[0].to_dtype(wide)?, inputs[1].to_dtype(wide)?, inputs[2].to_dtype(wide)?];
        let weights = self.weights(&q, &k, mask)?;
        let kept = weights.stack(&weights.p.dropout(p, generator)?)?;
        let out = kept.product(&v)?.reshape([&q.shape()[..3], &v.shape()[3..]].concat())?;
        Ok((out, weights))
    }

    /// The gradients of query, key, value and mask, composed of simpler operations so that they are differentiable
    /// themselves. They follow the backend's formulas and yield the same infinities and NaNs. `g` holds the gradients
    /// of the result `[b, h, lq, dv]` and of the log-sum-exp.
    #[track_caller]
    fn gradients(&self, inputs: &[Tensor], g: [Option<&Tensor>; 2], needs: &[bool]) -> Result<Grads> {
        let mut out = Grads::from_elem(None, inputs.len());
        let (dtype, mask) = (inputs[0].dtype(), inputs.get(3));
        let wide = dtype.compute();
        let [q, k, v] = [inputs[0].to_dtype(wide)?, inputs[1].to_dtype(wide)?, inputs[2].to_dtype(wide)?];
        let weights = self.weights(&q, &k, mask)?;
        let p = &weights.p;
        // The factor by which the weights are multiplied to obtain the gradient of the scores.
        let mut slope = None;
        if let Some(g) = g[0] {
            let g = weights.stack(&g.to_dtype(wide)?)?;
            if needs[2] {
                out[2] = Some(weights.stack(p)?.transpose(-2, -1)?.matmul(&g)?.to_dtype(dtype)?);
            }
            let dp = g.matmul(&v.transpose(-2, -1)?)?.reshape(p.shape())?;
            slope = Some(dp.sub(&p.mul(&dp)?.sum(&[3], true)?)?);
        }
        if let Some(g) = g[1] {
            let g = g.unsqueeze(3)?;
            slope = Some(match slope {
                Some(slope) => slope.add(&g)?,
                None => g,
            });
        }
        let Some(slope) = slope.filter(|_| needs[0] || needs[1] || needs.get(3) == Some(&true)) else { return Ok(out) };
        let ds = p.mul(&slope)?;
        if let Some(mask) = mask.filter(|_| needs[3]) {
            out[3] = Some(ds.sum_to(mask.layout().shape())?.to_dtype(mask.dtype())?);
        }
        let ds = weights.stack(&ds)?;
        if needs[0] {
            out[0] = Some(ds.matmul(&k)?.mul(self.params.scale)?.reshape(q.shape())?.to_dtype(dtype)?);
        }
        if needs[1] {
            let dk = ds.transpose(-2, -1)?.matmul(&weights.stack(&q)?)?;
            out[1] = Some(dk.mul(self.params.scale)?.to_dtype(dtype)?);
        }
        Ok(out)
    }
}

impl Operation for Attention {
    fn name(&self) -> &str {
        "scaled_dot_product_attention"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["query", "key", "value", "mask"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (q, v) = (inputs[0].shape, inputs[2].shape);
        let out = Spec { shape: Shape::new(&[q[0], q[2], q[1], v[3]])?, dtype: inputs[0].dtype };
        let stats = Shape::new(&[q[0], q[1], q[2], 2])?;
        Ok(smallvec![out, Spec { shape: stats, dtype: out.dtype.compute() }])
    }

    fn forward(&self, backend: &dyn Backend, x: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (out, stats) = outputs.split_at_mut(1);
        let by_head = out[0].layout.transpose(1, 2)?;
        backend.attention(&self.params, x[0], x[1], x[2], x.get(3).copied(), &mut out[0].with(&by_head), &mut stats[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        Keep::inputs(0..needs.len()).and_outputs([0, 1])
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let count = ctx.input_count();
        let mut out = Grads::from_elem(None, count);
        // There are at most four inputs.
        let inputs: Vec<Tensor> = (0..count).map(|i| ctx.input(i)).collect::<Result<_>>().here()?;
        if !ctx.create_graph() && !ctx.needs(3) && g[1].is_none() {
            let Some(g) = &g[0] else { return Ok(out) };
            let (g, o, stats) = (g.transpose(1, 2)?, ctx.output(0)?.transpose(1, 2)?, ctx.output(1)?);
            let mut operands = vec![&inputs[0], &inputs[1], &inputs[2], &o, &stats, &g];
            operands.extend(inputs.get(3));
            let found = apply(AttentionBackward { params: self.params }, &operands)?;
            for (i, d) in found.into_iter().enumerate().filter(|&(i, _)| ctx.needs(i)) {
                out[i] = Some(d);
            }
            return Ok(out);
        }
        let by_head = g[0].as_ref().map(|g| g.transpose(1, 2)).transpose()?;
        // There are at most four inputs.
        let needs: Vec<bool> = (0..count).map(|i| ctx.needs(i)).collect();
        let of_lse = g[1].as_ref().map(|g| g.select(3, 0)).transpose()?;
        self.gradients(&inputs, [by_head.as_ref(), of_lse.as_ref()], &needs)
    }
}

/// The fused gradients of [`Attention`] with respect to query, key and value. Inputs: query, key, value, the two
/// outputs, the gradient of the result and, if there is one, the mask.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttentionBackward {
    /// The scale and the causal rule.
    pub params: AttentionParams,
}

impl Operation for AttentionBackward {
    fn name(&self) -> &str {
        "scaled_dot_product_attention_backward"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(inputs[..3].iter().map(|x| Spec { shape: *x.shape, dtype: x.dtype }).collect())
    }

    fn forward(&self, backend: &dyn Backend, x: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let [dq, dk, dv] = outputs else { return Err(Error::argument(self.name(), "three gradients are needed")) };
        backend.attention_backward(&self.params, x[0], x[1], x[2], x.get(6).copied(), x[3], x[4], x[5], dq, dk, dv)
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

impl Tensor {
    /// Attention, `softmax(scale * q k^T + mask) v`, of the queries `self [.., h, lq, d]` to keys `[.., hk, lk, d]`
    /// with values `[.., hk, lk, dv]`. Returns `[.., h, lq, dv]`.
    ///
    /// The leading axes broadcast. `h` must be a multiple of `hk`; each key head serves `h / hk` consecutive query
    /// heads. An operand without a head axis, such as `[lq, d]`, has one head. A single head is broadcast to the number
    /// of heads of the other operands.
    ///
    /// A query that may see no key yields 0 and has gradient 0. Keys that a bool mask hides from all queries have no
    /// influence, even if they are NaN. The dtypes of query, key and value promote to a common float dtype, regardless
    /// of the mask's dtype. Half precision is computed in f32. Differentiable to any order, also with respect to a
    /// float mask. Without dropout, the heads of a query lie side by side in memory, so `transpose(-3, -2)` followed by
    /// merging the last two axes is a view.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let q = Tensor::ones([1, 2, 3, 4], DType::F32, &device)?; // [batch, heads, queries, size]
    /// let (k, v) = (q.clone(), q.mul(0.5)?);
    /// let y = q.scaled_dot_product_attention(&k, &v, AttentionOptions::new().causal(Causal::BottomRight))?;
    /// assert_eq!((y.shape(), y.to_vec::<f32>()?), (&[1, 2, 3, 4][..], vec![0.5; 24]));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the shapes do not fit together, if the number of query heads is not a multiple of the number of key
    /// heads, if the common dtype is not a float, if the mask does not broadcast or is neither bool nor float, if the
    /// scale is not finite, or if the dropout probability is outside 0 to 1.
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &self,
        key: &Tensor,
        value: &Tensor,
        options: AttentionOptions<'_>,
    ) -> Result<Tensor> {
        Ok(self.attend(key, value, options, false)?.0)
    }

    /// [`scaled_dot_product_attention`](Tensor::scaled_dot_product_attention) that also returns the log-sum-exp of each
    /// query's scores, `[.., h, lq]`. The log-sum-exp is differentiable and at least f32. For a query that may see no
    /// key it is -inf, with gradient 0.
    #[track_caller]
    pub fn attention_with_lse(
        &self,
        key: &Tensor,
        value: &Tensor,
        options: AttentionOptions<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let (y, lse) = self.attend(key, value, options, true)?;
        let lse = lse.ok_or_else(|| Error::argument("attention_with_lse", "there are no sums"))?;
        let lse = lse.reshape(&y.shape()[..y.rank() - 1])?;
        Ok((y, lse))
    }

    /// Computes the result, and the log-sum-exp if it is asked for.
    #[track_caller]
    fn attend(
        &self,
        key: &Tensor,
        value: &Tensor,
        options: AttentionOptions<'_>,
        with_lse: bool,
    ) -> Result<(Tensor, Option<Tensor>)> {
        const OP: &str = "scaled_dot_product_attention";
        let describe = |e: Error| value.describe(key.describe(self.describe(e, "query"), "key"), "value");
        let dtype = common_dtype(OP, &[self, key, value], &["query", "key", "value"])?;
        if !dtype.is_float() {
            return Err(describe(Error::dtype(OP, dtype, "floats")));
        }
        let Sizes { rank, lead, h, hk, lq, lk, d, dv } = Sizes::new(OP, self, key, value).map_err(describe)?;
        let q = four_of(self, dtype, &lead, [h, lq, d])?;
        let (mut k, mut v) = (four_of(key, dtype, &lead, [hk, lk, d])?, four_of(value, dtype, &lead, [hk, lk, dv])?);
        let scale = options.scale.unwrap_or(if d > 0 { 1.0 / (d as f64).sqrt() } else { 1.0 });
        if !scale.is_finite() {
            return Err(describe(Error::argument(OP, format!("the scale is {scale}; it is a finite number"))));
        }
        let heads: Vec<usize> = if rank > 2 { [&lead[..], &[h, lq]].concat() } else { vec![lq] };
        let scores = [&heads[..], &[lk]].concat();
        let mut mask = match options.mask {
            Some(m) => Some(four_axes(m, &scores).map_err(|e| m.describe(e, "mask"))?),
            None => None,
        };
        // The two alignments are the same if there are as many queries as keys.
        let top_left = options.causal == Causal::TopLeft && lq != lk;
        if top_left {
            let visible = causal_mask(lq, lk, Causal::TopLeft, q.device())?.reshape([1, 1, lq, lk])?;
            mask = Some(match mask {
                None => visible,
                Some(m) if m.dtype() == DType::Bool => m.logical_and(&visible)?,
                Some(m) => visible.where_(&m, f64::NEG_INFINITY)?,
            });
        }
        if let Some(m) = mask.as_ref().filter(|m| m.dtype() == DType::Bool) {
            // 0 times NaN is NaN, so a weight of 0 does not hide a NaN. Keys and values that no query sees are
            // therefore zeroed.
            let seen = m.any(&[1, 2], true)?.transpose(2, 3)?;
            (k, v) = (seen.where_(&k, 0.0)?, seen.where_(&v, 0.0)?);
        }
        let op = Attention { params: AttentionParams { causal: options.causal != Causal::No && !top_left, scale } };
        let dropout = options.dropout.filter(|(p, _)| *p != 0.0);
        // The generator advances only once the result is computed.
        let mut moved = dropout.as_ref().map(|(p, generator)| (*p, Generator::clone(generator)));
        let (y, rows) = if let Some((p, moved)) = &mut moved {
            let (y, weights) = op.decompose([&q, &k, &v], mask.as_ref(), (*p, moved))?;
            (y, Rows::Weights(weights))
        } else {
            let mut inputs = vec![&q, &k, &v];
            inputs.extend(&mask);
            let mut y = apply(op, &inputs)?;
            let stats = y.swap_remove(1);
            (y.swap_remove(0).transpose(1, 2)?, Rows::Stats(stats))
        };
        let y = y.to_dtype(dtype)?.reshape([&heads[..], &[dv]].concat())?;
        let lse = if with_lse { Some(rows.lse()?) } else { None };
        if let (Some((_, generator)), Some((_, moved))) = (dropout, moved) {
            *generator = moved;
        }
        Ok((y, lse))
    }
}

/// The sizes of query, key and value after broadcasting.
struct Sizes {
    /// The largest rank of the three. It is 2 if none of them has a head axis.
    rank: usize,
    /// The axes before the heads.
    lead: Shape,
    h: usize,
    hk: usize,
    lq: usize,
    lk: usize,
    d: usize,
    dv: usize,
}

impl Sizes {
    #[track_caller]
    fn new(op: &str, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Sizes> {
        let operands = [q.shape(), k.shape(), v.shape()];
        if operands.iter().any(|s| s.len() < 2) {
            return Err(Error::shape(op, "query, key and value are [.., h, l, d]"));
        }
        let [(lq, d), (lk, dk), (lv, dv)] = operands.map(|s| (s[s.len() - 2], s[s.len() - 1]));
        if d != dk {
            return Err(Error::shape(op, format!("the size of query and key differ: {d} != {dk}")));
        }
        let apart = |m: &str| Error::new(ErrorKind::Broadcast, op, m);
        let heads = operands.map(|s| s.len().checked_sub(3).map_or(1, |i| s[i]));
        let hk = Shape::broadcast(op, &heads[1..2], &heads[2..3]).ok().filter(|_| lk == lv);
        let Some(hk) = hk.map(|s| s[0]) else {
            return Err(Error::shape(op, "value has the heads and the length of key"));
        };
        let h = if heads[0] == 1 { hk } else { heads[0] };
        if !h.is_multiple_of(hk) {
            return Err(Error::shape(op, format!("{h} query heads are no multiple of {hk} key heads")));
        }
        let mut lead = Shape::SCALAR;
        for s in operands {
            lead = Shape::broadcast(op, &lead, &s[..s.len().saturating_sub(3)])
                .map_err(|_| apart("the axes before the heads do not broadcast"))
                .here()?;
        }
        let rank = operands.map(<[usize]>::len).into_iter().max().unwrap_or(2);
        Ok(Sizes { rank, lead, h, hk, lq, lk, d, dv })
    }
}

/// An operand in a dtype, expanded to the shape `lead` + `last` (heads, length and size), with the axes of `lead`
/// merged into one.
#[track_caller]
fn four_of(t: &Tensor, dtype: DType, lead: &[usize], last: [usize; 3]) -> Result<Tensor> {
    let t = cast(t, dtype)?;
    let t = if t.rank() == 2 { t.unsqueeze(0)? } else { t.into_owned() };
    let batch = lead.iter().product();
    t.expand([lead, &last].concat())?.reshape([batch, last[0], last[1], last[2]])
}

/// A mask that broadcasts with `scores [.., h, lq, lk]`, as four axes with the leading ones merged. The last three axes
/// are not expanded.
#[track_caller]
fn four_axes(mask: &Tensor, scores: &[usize]) -> Result<Tensor> {
    const OP: &str = "scaled_dot_product_attention";
    if mask.dtype() != DType::Bool && !mask.dtype().is_float() {
        return Err(Error::dtype(OP, mask.dtype(), "a bool that keeps, or a float that is added"));
    }
    let fits = mask.rank() <= scores.len()
        && mask.shape().iter().rev().zip(scores.iter().rev()).all(|(m, s)| m == s || *m == 1);
    if !fits {
        let m = format!("the mask does not broadcast with the scores {}", Shape::display(scores));
        return Err(Error::new(ErrorKind::Broadcast, OP, m));
    }
    let mut dims = vec![1; scores.len().max(4) - mask.rank()];
    dims.extend(mask.shape());
    let padded = mask.reshape(&dims)?;
    let lead = dims.len() - 3;
    if dims[..lead].iter().all(|&d| d == 1) {
        return padded.reshape([&[1], &dims[lead..]].concat());
    }
    dims[..lead].copy_from_slice(&scores[..lead]);
    let batch = dims[..lead].iter().product();
    padded.expand(&dims)?.reshape([&[batch], &dims[lead..]].concat())
}
