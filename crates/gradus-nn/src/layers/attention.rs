//! The [`MultiheadAttention`] layer.

use gradus_tensor::ops::causal_mask;
use gradus_tensor::{AttentionOptions, Causal, DType, Error, Generator, Here, Result, Tensor};

use self::masks::{OP, both};
use super::dropout::check_probability;
use super::kv_cache::KvCache;
use super::positions::RotaryEmbedding;
use super::{Linear, linear};
use crate::init::Gain;
use crate::module::ForwardPass;
use crate::{Forward, Init, Mode, Module, Parameter, RandomState};

mod heads;
mod masks;

pub use heads::HeadFeatures;
pub use masks::Masks;

/// Multi-head attention (Vaswani et al., 2017). Takes queries `[n, lq, embed_dim]`, keys `[n, lk, kdim]` and values
/// `[n, lk, vdim]`, and returns `[n, lq, embed_dim]`. Without a batch axis, all three have rank 2. With
/// `batch_first: false` the batch axis is the second one.
///
/// Queries, keys and values are projected to `embed_dim` features, which are split among the heads. The results of the
/// heads are concatenated and passed through `out_proj`. [`forward`](Forward::forward) computes self-attention,
/// [`attend_with`](MultiheadAttention::attend_with) also takes masks, and [`decode`](MultiheadAttention::decode) goes
/// through a sequence in parts.
///
/// Parameters have PyTorch's names, shapes and initial values: `in_proj_weight [3 embed_dim, embed_dim]` (or
/// `q_proj_weight`, `k_proj_weight` and `v_proj_weight` if keys or values have another size),
/// `in_proj_bias [3 embed_dim]`, `bias_k`, `bias_v`, `out_proj.weight` and `out_proj.bias`. With fewer key heads than
/// query heads (`num_kv_heads`, which PyTorch's layer lacks), the projections of keys and values have `num_kv_heads`
/// times the features of a head. Masks mean the same as in [`Tensor::scaled_dot_product_attention`]: true keeps a
/// position.
///
/// ```
/// # use gradus_nn::{Forward, Init, Module, MultiheadAttention, MultiheadAttentionConfig}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let attention = MultiheadAttention::new(8, 2, MultiheadAttentionConfig::default(), &mut init)?;
/// let (x, memory) = (Tensor::ones([3, 5, 8], DType::F32, &device)?, Tensor::ones([3, 7, 8], DType::F32, &device)?);
/// assert_eq!(attention.forward(&x)?.shape(), [3, 5, 8]);
/// assert_eq!(attention.attend(&x, &memory, &memory, None, Causal::No)?.shape(), [3, 5, 8]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct MultiheadAttention {
    embed_dim: usize,
    num_heads: usize,
    #[module(skip)]
    num_kv_heads: usize,
    dropout: f64,
    #[module(skip)]
    batch_first: bool,
    #[module(skip)]
    add_zero_attn: bool,
    /// `[3 embed_dim, embed_dim]`: the projections of query, key and value, stacked in this order.
    pub in_proj_weight: Option<Parameter>,
    /// `[embed_dim, embed_dim]`; present if `in_proj_weight` is not.
    pub q_proj_weight: Option<Parameter>,
    /// `[embed_dim, kdim]`, or fewer rows with `num_kv_heads`; present if `in_proj_weight` is not.
    pub k_proj_weight: Option<Parameter>,
    /// `[embed_dim, vdim]`, or fewer rows with `num_kv_heads`; present if `in_proj_weight` is not.
    pub v_proj_weight: Option<Parameter>,
    /// `[3 embed_dim]`: the biases of query, key and value.
    pub in_proj_bias: Option<Parameter>,
    /// `[1, 1, embed_dim]`: one more key for every sequence.
    pub bias_k: Option<Parameter>,
    /// `[1, 1, embed_dim]`: its value.
    pub bias_v: Option<Parameter>,
    /// Projects the concatenated results of the heads to the output.
    pub out_proj: Linear,
    #[module(skip)]
    rotary: Option<RotaryEmbedding>,
    random: RandomState,
    mode: Mode,
}

/// Options of [`MultiheadAttention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MultiheadAttentionConfig {
    /// Probability of dropping an attention weight in training, 0 to 1. Default 0.
    pub dropout: f64,
    /// Whether the projections have biases. Default true.
    pub bias: bool,
    /// Whether there is one more key and value, `bias_k` and `bias_v`, for every sequence. Default false.
    pub add_bias_kv: bool,
    /// Whether there is one more key and value of zeros for every sequence. Default false.
    pub add_zero_attn: bool,
    /// Number of features of the keys, `embed_dim` by default.
    pub kdim: Option<usize>,
    /// Number of features of the values, `embed_dim` by default.
    pub vdim: Option<usize>,
    /// Number of heads of keys and values, each of which serves several query heads (Ainslie et al., 2023). By default
    /// as many as query heads.
    pub num_kv_heads: Option<usize>,
    /// Whether the batch axis comes before the sequence axis. Default true, unlike in PyTorch.
    pub batch_first: bool,
}

impl Default for MultiheadAttentionConfig {
    fn default() -> Self {
        MultiheadAttentionConfig {
            dropout: 0.0,
            bias: true,
            add_bias_kv: false,
            add_zero_attn: false,
            kdim: None,
            vdim: None,
            num_kv_heads: None,
            batch_first: true,
        }
    }
}

/// A result with the heads `[n, heads, lq, ..]`, and the attention weights if they were requested.
type Heads = (Tensor, Option<Tensor>);

/// `[n, length, features]` as `[n, heads, length, features per head]`.
#[track_caller]
fn split_heads(t: &Tensor, heads: usize) -> Result<Tensor> {
    let [n, l, features] = [t.shape()[0], t.shape()[1], t.shape()[2]];
    t.reshape([n, l, heads, features / heads])?.transpose(1, 2)
}

/// `[n, key heads, length, size]` with each head repeated, so that there are `heads`.
#[track_caller]
fn repeat_heads(t: &Tensor, heads: usize) -> Result<Tensor> {
    let [n, own, l, size] = [t.shape()[0], t.shape()[1], t.shape()[2], t.shape()[3]];
    if own == heads {
        return Ok(t.clone());
    }
    t.unsqueeze(2)?.expand([n, own, heads / own, l, size])?.reshape([n, heads, l, size])
}

impl MultiheadAttention {
    /// Creates a layer with new parameters.
    ///
    /// # Errors
    /// Fails if `num_heads` does not divide `embed_dim`, if `num_kv_heads` does not divide `num_heads`, or if the
    /// dropout probability is outside 0 to 1.
    #[track_caller]
    pub fn new(
        embed_dim: usize,
        num_heads: usize,
        config: MultiheadAttentionConfig,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        let MultiheadAttentionConfig { dropout, bias, kdim, vdim, .. } = config;
        if num_heads == 0 || !embed_dim.is_multiple_of(num_heads) {
            return Err(Error::argument(OP, format!("{num_heads} heads do not divide {embed_dim} features")));
        }
        let num_kv_heads = config.num_kv_heads.unwrap_or(num_heads);
        if num_kv_heads == 0 || !num_heads.is_multiple_of(num_kv_heads) {
            return Err(Error::argument(OP, format!("{num_kv_heads} key heads do not divide {num_heads} query heads")));
        }
        check_probability(OP, "dropout", dropout)?;
        let kv_dim = embed_dim / num_heads * num_kv_heads;
        let all = kv_dim.checked_mul(2).and_then(|kv| kv.checked_add(embed_dim));
        let all = all.ok_or_else(|| Error::argument(OP, "too many features")).here()?;
        let (kdim, vdim) = (kdim.unwrap_or(embed_dim), vdim.unwrap_or(embed_dim));
        let mut weight = |rows, columns| Parameter::new(init.xavier_uniform([rows, columns], Gain::Linear)?);
        let (mut packed, mut q, mut k, mut v) = (None, None, None, None);
        if kdim == embed_dim && vdim == embed_dim && kv_dim == embed_dim {
            packed = Some(weight(all, embed_dim).here()?);
        } else {
            q = Some(weight(embed_dim, embed_dim).here()?);
            k = Some(weight(kv_dim, kdim).here()?);
            v = Some(weight(kv_dim, vdim).here()?);
        }
        let zeros = |size: usize, init: &Init<'_>| Parameter::new(init.zeros([size])?);
        let in_proj_bias = if bias { Some(zeros(all, init).here()?) } else { None };
        let out_bias = if bias { Some(zeros(embed_dim, init).here()?) } else { None };
        let out_proj = Linear::from_parameters(linear::default_weight(&[embed_dim, embed_dim], init)?, out_bias)?;
        let mut extra = || Parameter::new(init.xavier_normal([1, 1, kv_dim], Gain::Linear)?);
        let bias_k = if config.add_bias_kv { Some(extra().here()?) } else { None };
        let bias_v = if config.add_bias_kv { Some(extra().here()?) } else { None };
        Ok(MultiheadAttention {
            embed_dim,
            num_heads,
            num_kv_heads,
            dropout,
            batch_first: config.batch_first,
            add_zero_attn: config.add_zero_attn,
            in_proj_weight: packed,
            q_proj_weight: q,
            k_proj_weight: k,
            v_proj_weight: v,
            in_proj_bias,
            bias_k,
            bias_v,
            out_proj,
            rotary: None,
            random: RandomState::new(Generator::new(init.generator.next_u64())),
            mode: Mode::Train,
        })
    }

    /// Turns the features of each query and key by its position, as [`RotaryEmbedding`] says, before they are compared.
    #[must_use]
    pub fn with_rotary(mut self, rotary: RotaryEmbedding) -> Self {
        self.rotary = Some(rotary);
        self
    }

    /// Computes the attention of `query [n, lq, embed_dim]` to `key [n, lk, kdim]` with the values
    /// `value [n, lk, vdim]`. The result has the shape `[n, lq, embed_dim]`.
    ///
    /// `mask` broadcasts with the scores `[n, heads, lq, lk]`. A bool mask keeps the positions where it is true; a
    /// float mask is added to the scores. After an error, the random state of dropout is restored.
    #[track_caller]
    pub fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        mask: Option<&Tensor>,
        causal: Causal,
    ) -> Result<Tensor> {
        self.attend_with(query, key, value, Masks { mask, key_mask: None, causal })
    }

    /// [`attend`](MultiheadAttention::attend) with all kinds of masks.
    #[track_caller]
    pub fn attend_with(&self, query: &Tensor, key: &Tensor, value: &Tensor, masks: Masks<'_>) -> Result<Tensor> {
        Ok(self.run([query, key, value], masks, false, None)?.0)
    }

    /// [`attend_with`](MultiheadAttention::attend_with) that also returns the attention weights `[n, lq, lk]` (or
    /// `[lq, lk]`), the mean over the heads. The keys that `add_bias_kv` and `add_zero_attn` add come last.
    #[track_caller]
    pub fn attend_with_weights(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: Masks<'_>,
    ) -> Result<(Tensor, Tensor)> {
        match self.run([query, key, value], masks, true, None)? {
            (y, Some(weights)) => Ok((y, weights)),
            _ => Err(Error::argument(OP, "the attention gave no weights")),
        }
    }

    /// Self-attention of the next tokens `x [n, l, embed_dim]` of sequences whose earlier tokens are in `cache`, to
    /// which it adds these. Each token sees the earlier ones and itself, so the results equal those of the whole
    /// sequence with [`Causal::BottomRight`]. The masks are over all keys, and their own causal rule is not read.
    ///
    /// # Errors
    /// Fails if the cache holds another batch or other heads, if a gradient is required, and if the layer has
    /// `add_bias_kv` or `add_zero_attn`. The cache is then as it was.
    #[track_caller]
    pub fn decode(&self, x: &Tensor, cache: &mut KvCache, masks: Masks<'_>) -> Result<Tensor> {
        if self.bias_k.is_some() || self.add_zero_attn {
            return Err(Error::argument(OP, "a layer that adds keys does not decode with a cache"));
        }
        let before = cache.len();
        let masks = Masks { causal: Causal::BottomRight, ..masks };
        match self.run([x; 3], masks, false, Some(cache)) {
            Ok((y, _)) => Ok(y),
            Err(e) => {
                cache.truncate(before)?;
                Err(e)
            }
        }
    }

    #[track_caller]
    fn run(
        &self,
        inputs: [&Tensor; 3],
        masks: Masks<'_>,
        weights: bool,
        cache: Option<&mut KvCache>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let pass = ForwardPass::begin()?;
        pass.end(self, self.attended(inputs, masks, weights, cache))
    }

    #[track_caller]
    fn attended(
        &self,
        inputs: [&Tensor; 3],
        masks: Masks<'_>,
        weights: bool,
        cache: Option<&mut KvCache>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let single = inputs.iter().all(|t| t.rank() == 2);
        for (name, t) in ["query", "key", "value"].into_iter().zip(inputs) {
            if t.rank() != 3 && !single {
                let e =
                    Error::shape(OP, format!("the {name} is [n, length, features], or all three have no batch axis"));
                return Err(e.operand(name, t.shape(), t.dtype(), t.device()));
            }
        }
        let [query, key, value] = inputs;
        let (query, key, value) =
            (self.batched(query, single)?, self.batched(key, single)?, self.batched(value, single)?);
        let (n, lq) = (query.shape()[0], query.shape()[1]);
        let (h, hk, size) = (self.num_heads, self.num_kv_heads, self.embed_dim / self.num_heads);
        let (e, kv) = (self.embed_dim, hk * size);
        let mut q = self.project(&query, 0, e, &self.q_proj_weight)?;
        let mut k = self.project(&key, e, kv, &self.k_proj_weight)?;
        let mut v = self.project(&value, e + kv, kv, &self.v_proj_weight)?;
        let mut added = 0;
        if let (Some(bias_k), Some(bias_v)) = (&self.bias_k, &self.bias_v) {
            let one = [k.shape()[0], 1, kv];
            k = Tensor::cat(&[&k, &bias_k.expand(one)?], 1)?;
            v = Tensor::cat(&[&v, &bias_v.expand(one)?], 1)?;
            added += 1;
        }
        (q, k, v) = (split_heads(&q, h)?, split_heads(&k, hk)?, split_heads(&v, hk)?);
        if self.add_zero_attn {
            let zero = Tensor::zeros([k.shape()[0], hk, 1, size], k.dtype(), k.device())?;
            (k, v) = (Tensor::cat(&[&k, &zero], 2)?, Tensor::cat(&[&v, &zero], 2)?);
            added += 1;
        }
        if let Some(rotary) = &self.rotary {
            let first = cache.as_ref().map_or(0, |c| c.len());
            (q, k) = (rotary.apply(&q, first)?, rotary.apply(&k, first)?);
        }
        if let Some(cache) = cache {
            (k, v) = cache.append(&k, &v)?;
        }
        let mut mask = masks.merged()?;
        let mut causal = masks.causal;
        if added > 0 {
            // Masks are over the keys that were passed; those that were added are seen by every query.
            let lk = k.shape()[2] - added;
            if causal != Causal::No {
                let rule = causal_mask(lq, lk, causal, q.device())?;
                mask = Some(if let Some(mask) = mask { both(&mask, &rule)? } else { rule });
                causal = Causal::No;
            }
            mask = match mask {
                Some(m) => Some(widened(&m, lk, added)?),
                None => None,
            };
        }
        let (y, weights) = self.heads([&q, &k, &v], mask.as_ref(), causal, weights)?;
        let y = self.out_proj.forward(&y.transpose(1, 2)?.reshape([n, lq, e])?)?;
        let weights = if let Some(w) = weights { Some(w.mean(&[1], false)?) } else { None };
        Ok(match () {
            () if single => (y.squeeze(0)?, if let Some(w) = weights { Some(w.squeeze(0)?) } else { None }),
            () if self.batch_first => (y, weights),
            () => (y.transpose(0, 1)?, weights),
        })
    }

    /// An input as `[n, length, features]`.
    #[track_caller]
    fn batched(&self, t: &Tensor, single: bool) -> Result<Tensor> {
        match () {
            () if single => t.unsqueeze(0),
            () if self.batch_first => Ok(t.clone()),
            () => t.transpose(0, 1),
        }
    }

    /// The attention of the heads, with dropout while the layer trains.
    #[track_caller]
    fn heads(&self, [q, k, v]: [&Tensor; 3], mask: Option<&Tensor>, causal: Causal, weights: bool) -> Result<Heads> {
        if self.mode.is_training() && self.dropout > 0.0 {
            let mut draw = self.random.begin();
            let found = self.dropped([q, k, v], mask, causal, weights, Some(&mut draw.generator));
            return draw.end(found);
        }
        self.dropped([q, k, v], mask, causal, weights, None)
    }

    /// The attention of the heads, with dropout if there is a generator.
    #[track_caller]
    fn dropped(
        &self,
        [q, k, v]: [&Tensor; 3],
        mask: Option<&Tensor>,
        causal: Causal,
        weights: bool,
        generator: Option<&mut Generator>,
    ) -> Result<Heads> {
        if weights {
            let (h, size) = (q.shape()[1], q.shape()[3]);
            let scale = if size > 0 { 1.0 / (size as f64).sqrt() } else { 1.0 };
            let mut scores = q.mul(scale)?.matmul(&repeat_heads(k, h)?.transpose(-2, -1)?)?;
            let mut keep = None;
            match mask {
                Some(m) if m.dtype() == DType::Bool => keep = Some(m.clone()),
                Some(m) => scores = scores.add(&m.to_dtype(scores.dtype())?)?,
                None => {}
            }
            if causal != Causal::No {
                let rule = causal_mask(q.shape()[2], k.shape()[2], causal, q.device())?;
                keep = Some(if let Some(keep) = keep { keep.logical_and(&rule)? } else { rule });
            }
            let keep = if let Some(keep) = keep { keep } else { scores.ne(f64::NEG_INFINITY)? };
            let mut p = scores.masked_softmax(&keep, -1)?;
            if let Some(generator) = generator {
                p = p.dropout(self.dropout, generator)?;
            }
            Ok((p.matmul(&repeat_heads(v, h)?)?, Some(p)))
        } else {
            let mut options = AttentionOptions::new().causal(causal);
            if let Some(mask) = mask {
                options = options.mask(mask);
            }
            if let Some(generator) = generator {
                options = options.dropout(self.dropout, generator);
            }
            Ok((q.scaled_dot_product_attention(k, v, options)?, None))
        }
    }

    /// Projects `x [n, l, ..]` with its own weight or with the rows `first..first + rows` of the packed one, and adds
    /// these rows of the bias. The result is `[n, l, rows]`.
    #[track_caller]
    fn project(&self, x: &Tensor, first: usize, rows: usize, weight: &Option<Parameter>) -> Result<Tensor> {
        let weight = match (weight, &self.in_proj_weight) {
            (Some(w), _) => w.tensor().clone(),
            (None, Some(w)) => w.narrow(0, first, rows)?,
            (None, None) => return Err(Error::argument(OP, "the layer has no projection weights")),
        };
        let bias = match &self.in_proj_bias {
            Some(b) => Some(b.narrow(0, first, rows)?),
            None => None,
        };
        x.linear(&weight, bias.as_ref())
    }
}

/// A mask over `lk` keys, with `added` more that it does not hide.
#[track_caller]
fn widened(mask: &Tensor, lk: usize, added: usize) -> Result<Tensor> {
    // At most eight axes.
    let mut shape = mask.shape().to_vec();
    let Some(last) = shape.last_mut() else { return Ok(mask.clone()) };
    *last = lk;
    let mask = mask.expand(&shape)?;
    if let Some(last) = shape.last_mut() {
        *last = added;
    }
    let seen = if mask.dtype() == DType::Bool { 1.0 } else { 0.0 };
    let more = Tensor::full(&shape, seen, DType::F32, mask.device())?.to_dtype(mask.dtype())?;
    Tensor::cat(&[&mask, &more], -1)
}

impl Forward for MultiheadAttention {
    /// Self-attention: the input is query, key and value.
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.attend(input, input, input, None, Causal::No)
    }
}
