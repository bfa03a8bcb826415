//! The [`MultiheadAttention`] layer.

use gradus_tensor::{Attempt, AttentionOptions, Causal, Error, Generator, Here, Result, Tensor};

use super::{Linear, linear};
use crate::init::Gain;
use crate::module::out_of_forward;
use crate::{Forward, Init, Mode, Module, Parameter, RandomState};

/// Multi-head attention (Vaswani et al., 2017). Takes queries `[n, lq, embed_dim]`, keys `[n, lk, kdim]` and values
/// `[n, lk, vdim]`, and returns `[n, lq, embed_dim]`. The batch axis comes first.
///
/// Queries, keys and values are projected to `embed_dim` features, which are split among the heads. The results of the
/// heads are concatenated and passed through `out_proj`. [`forward`](Forward::forward) computes self-attention.
///
/// Parameters have PyTorch's names, shapes and initial values: `in_proj_weight [3 embed_dim, embed_dim]` (or
/// `q_proj_weight`, `k_proj_weight` and `v_proj_weight` if keys or values have another size),
/// `in_proj_bias [3 embed_dim]`, `out_proj.weight` and `out_proj.bias`. Masks mean the same as in
/// [`Tensor::scaled_dot_product_attention`]: true keeps a position.
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
    dropout: f64,
    /// `[3 embed_dim, embed_dim]`: the projections of query, key and value, stacked in this order.
    pub in_proj_weight: Option<Parameter>,
    /// `[embed_dim, embed_dim]`; present if `in_proj_weight` is not.
    pub q_proj_weight: Option<Parameter>,
    /// `[embed_dim, kdim]`; present if `in_proj_weight` is not.
    pub k_proj_weight: Option<Parameter>,
    /// `[embed_dim, vdim]`; present if `in_proj_weight` is not.
    pub v_proj_weight: Option<Parameter>,
    /// `[3 embed_dim]`: the biases of query, key and value.
    pub in_proj_bias: Option<Parameter>,
    /// Projects the concatenated results of the heads to the output.
    pub out_proj: Linear,
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
    /// Number of features of the keys, `embed_dim` by default.
    pub kdim: Option<usize>,
    /// Number of features of the values, `embed_dim` by default.
    pub vdim: Option<usize>,
}

impl Default for MultiheadAttentionConfig {
    fn default() -> Self {
        MultiheadAttentionConfig { dropout: 0.0, bias: true, kdim: None, vdim: None }
    }
}

impl MultiheadAttention {
    /// Creates a layer with new parameters. Errors if `num_heads` does not divide `embed_dim`, or if the dropout
    /// probability is outside 0 to 1.
    #[track_caller]
    pub fn new(
        embed_dim: usize,
        num_heads: usize,
        config: MultiheadAttentionConfig,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        const OP: &str = "multihead_attention";
        let MultiheadAttentionConfig { dropout, bias, kdim, vdim } = config;
        if num_heads == 0 || !embed_dim.is_multiple_of(num_heads) {
            return Err(Error::argument(OP, format!("{num_heads} heads do not divide {embed_dim} features")));
        }
        if !(0.0..=1.0).contains(&dropout) {
            return Err(Error::argument(OP, format!("dropout is {dropout}; it is a probability, 0 to 1")));
        }
        let three = embed_dim.checked_mul(3).ok_or_else(|| Error::argument(OP, "too many features")).here()?;
        let (kdim, vdim) = (kdim.unwrap_or(embed_dim), vdim.unwrap_or(embed_dim));
        let mut weight = |rows, columns| Parameter::new(init.xavier_uniform([rows, columns], Gain::Linear)?);
        let (mut packed, mut q, mut k, mut v) = (None, None, None, None);
        if kdim == embed_dim && vdim == embed_dim {
            packed = Some(weight(three, embed_dim).here()?);
        } else {
            q = Some(weight(embed_dim, embed_dim).here()?);
            k = Some(weight(embed_dim, kdim).here()?);
            v = Some(weight(embed_dim, vdim).here()?);
        }
        let zeros = |size: usize, init: &Init<'_>| Parameter::new(init.zeros([size])?);
        let in_proj_bias = if bias { Some(zeros(three, init).here()?) } else { None };
        let out_bias = if bias { Some(zeros(embed_dim, init).here()?) } else { None };
        Ok(MultiheadAttention {
            embed_dim,
            num_heads,
            dropout,
            in_proj_weight: packed,
            q_proj_weight: q,
            k_proj_weight: k,
            v_proj_weight: v,
            in_proj_bias,
            out_proj: Linear::from_parameters(linear::default_weight(&[embed_dim, embed_dim], init)?, out_bias)?,
            random: RandomState::new(Generator::new(init.generator.next_u64())),
            mode: Mode::Train,
        })
    }

    /// Computes the attention of `query [n, lq, embed_dim]` to `key [n, lk, kdim]` with the values
    /// `value [n, lk, vdim]`. The result has the shape `[n, lq, embed_dim]`.
    ///
    /// `mask` broadcasts with the scores `[n, heads, lq, lk]`. A bool mask keeps the positions where it is true; a
    /// float mask is added to the scores. To mask keys for each sample, pass the shape `[n, 1, 1, lk]`. After an error,
    /// the random state of dropout is restored.
    #[track_caller]
    pub fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        mask: Option<&Tensor>,
        causal: Causal,
    ) -> Result<Tensor> {
        let attempt = Attempt::begin();
        let done = attempt.end(self.attended([query, key, value], mask, causal));
        done.map_err(|e| out_of_forward(self, e)).here()
    }

    #[track_caller]
    fn attended(&self, [query, key, value]: [&Tensor; 3], mask: Option<&Tensor>, causal: Causal) -> Result<Tensor> {
        for (name, t) in [("query", query), ("key", key), ("value", value)] {
            if t.rank() != 3 {
                let e = Error::shape("multihead_attention", format!("the {name} is [n, length, features]"));
                return Err(e.operand(name, t.shape(), t.dtype(), t.device()));
            }
        }
        let q = self.project(query, 0, &self.q_proj_weight)?;
        let k = self.project(key, 1, &self.k_proj_weight)?;
        let v = self.project(value, 2, &self.v_proj_weight)?;
        let mut options = AttentionOptions::new().causal(causal);
        if let Some(mask) = mask {
            options = options.mask(mask);
        }
        let y = if self.mode.is_training() && self.dropout > 0.0 {
            // No lock is held while the device works, because a function that watches the device may read the random
            // state.
            let (mut generator, _source) = (self.random.get(), self.random.as_source());
            let y = q.scaled_dot_product_attention(&k, &v, options.dropout(self.dropout, &mut generator))?;
            self.random.set(generator);
            y
        } else {
            q.scaled_dot_product_attention(&k, &v, options)?
        };
        self.out_proj.forward(&y.transpose(1, 2)?.reshape(query.shape())?)
    }

    /// Applies the projection number `part` (0 query, 1 key, 2 value) to `x [n, l, ..]`. The result has the shape
    /// `[n, heads, l, features per head]`.
    #[track_caller]
    fn project(&self, x: &Tensor, part: usize, weight: &Option<Parameter>) -> Result<Tensor> {
        let e = self.embed_dim;
        let weight = match (weight, &self.in_proj_weight) {
            (Some(w), _) => w.tensor().clone(),
            (None, Some(w)) => w.narrow(0, part * e, e)?,
            (None, None) => return Err(Error::argument("multihead_attention", "the layer has no projection weights")),
        };
        let bias = match &self.in_proj_bias {
            Some(b) => Some(b.narrow(0, part * e, e)?),
            None => None,
        };
        let y = x.linear(&weight, bias.as_ref())?;
        y.reshape([x.shape()[0], x.shape()[1], self.num_heads, e / self.num_heads])?.transpose(1, 2)
    }
}

impl Forward for MultiheadAttention {
    /// Self-attention: the input is query, key and value.
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.attend(input, input, input, None, Causal::No)
    }
}
