//! The blocks of a [`T5`](crate::T5).

use gradus_nn::{Dropout, Embedding, Forward, Init, KvCache, Linear, Module, RmsNorm};
use gradus_tensor::{Causal, Result, Tensor};

use super::config::{T5Config, T5FeedForward};
use crate::heads::Heads;
use crate::new_layers::normal_embedding;

/// Keys and values of attention, split among the heads.
pub(super) type KeysAndValues = (Tensor, Tensor);

/// A block of the encoder or decoder, transformers' `T5Block`.
#[derive(Debug, Module)]
pub struct T5Block {
    /// The layers of the block, by their numbers.
    pub layer: T5Layers,
}

/// The layers of a [`T5Block`].
#[derive(Debug, Module)]
#[allow(clippy::large_enum_variant)]
pub enum T5Layers {
    /// Self-attention and linear layers.
    Encoder(T5SelfAttention, T5Feed),
    /// Causal self-attention, attention to the encoder, and linear layers.
    Decoder(T5SelfAttention, T5CrossAttention, T5Feed),
}

impl T5Layers {
    pub(super) fn attention(&self) -> &T5Attention {
        match self {
            T5Layers::Encoder(attention, _) | T5Layers::Decoder(attention, ..) => &attention.attention,
        }
    }
}

impl T5Block {
    #[track_caller]
    pub(super) fn new(config: &T5Config, is_decoder: bool, has_bias: bool, init: &mut Init<'_>) -> Result<Self> {
        let attention = T5SelfAttention {
            causal: is_decoder,
            attention: T5Attention::new(config, has_bias, init)?,
            layer_norm: config.norm(init)?,
            dropout: config.dropout(init)?,
        };
        let layer = if is_decoder {
            let cross = T5CrossAttention {
                attention: T5Attention::new(config, false, init)?,
                layer_norm: config.norm(init)?,
                dropout: config.dropout(init)?,
            };
            T5Layers::Decoder(attention, cross, T5Feed::new(config, init)?)
        } else {
            T5Layers::Encoder(attention, T5Feed::new(config, init)?)
        };
        Ok(T5Block { layer })
    }

    /// The keys and values of the encoder's features, in a block of the decoder.
    #[track_caller]
    pub(super) fn source(&self, encoded: &Tensor) -> Result<Option<KeysAndValues>> {
        match &self.layer {
            T5Layers::Decoder(_, cross, _) => cross.attention.keys(encoded).map(Some),
            T5Layers::Encoder(..) => Ok(None),
        }
    }

    /// The output for `x`. `bias` is added to the scores of self-attention, whose earlier keys and values are in the cache;
    /// `mask` hides keys of the encoder.
    #[track_caller]
    pub(super) fn run(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        cache: Option<&mut KvCache>,
        source: Option<&KeysAndValues>,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        match (&self.layer, source) {
            (T5Layers::Decoder(attention, cross, feed), Some(source)) => {
                let x = attention.run(x, bias, cache)?;
                feed.forward(&cross.run(&x, source, mask)?)
            }
            (T5Layers::Encoder(attention, feed) | T5Layers::Decoder(attention, _, feed), _) => {
                feed.forward(&attention.run(x, bias, cache)?)
            }
        }
    }
}

/// Self-attention as a residual branch that begins with a norm, transformers' `T5LayerSelfAttention`.
#[derive(Debug, Module)]
pub struct T5SelfAttention {
    causal: bool,
    /// The attention.
    #[module(rename = "SelfAttention")]
    pub attention: T5Attention,
    /// The norm before it.
    pub layer_norm: RmsNorm,
    dropout: Dropout,
}

impl T5SelfAttention {
    #[track_caller]
    fn run(&self, x: &Tensor, bias: Option<&Tensor>, cache: Option<&mut KvCache>) -> Result<Tensor> {
        let normed = self.layer_norm.forward(x)?;
        let causal = if self.causal { Causal::BottomRight } else { Causal::No };
        let mut keys = self.attention.keys(&normed)?;
        if let Some(cache) = cache {
            keys = cache.append(&keys.0, &keys.1)?;
        }
        let attended = self.attention.run(&normed, &keys, bias, causal)?;
        self.dropout.forward(&attended)?.add(x)
    }
}

/// Attention to the features of the encoder as a residual branch that begins with a norm, transformers'
/// `T5LayerCrossAttention`.
#[derive(Debug, Module)]
pub struct T5CrossAttention {
    /// The attention.
    #[module(rename = "EncDecAttention")]
    pub attention: T5Attention,
    /// The norm before it.
    pub layer_norm: RmsNorm,
    dropout: Dropout,
}

impl T5CrossAttention {
    #[track_caller]
    fn run(&self, x: &Tensor, source: &KeysAndValues, mask: Option<&Tensor>) -> Result<Tensor> {
        let attended = self.attention.run(&self.layer_norm.forward(x)?, source, mask, Causal::No)?;
        self.dropout.forward(&attended)?.add(x)
    }
}

/// Attention without scaling and biases, transformers' `T5Attention`.
#[derive(Debug, Module)]
pub struct T5Attention {
    heads: Heads,
    /// Projects to the queries.
    pub q: Linear,
    /// Projects to the keys.
    pub k: Linear,
    /// Projects to the values.
    pub v: Linear,
    /// Projects the heads' results to the output.
    pub o: Linear,
    /// A number for each distance and head, in the first block alone: `[relative_attention_num_buckets, num_heads]`.
    pub relative_attention_bias: Option<Embedding>,
}

impl T5Attention {
    #[track_caller]
    fn new(config: &T5Config, has_bias: bool, init: &mut Init<'_>) -> Result<Self> {
        let T5Config { d_model, d_kv, num_heads, initializer_factor, .. } = *config;
        let inside = num_heads * d_kv;
        let std = initializer_factor / (d_model as f64).sqrt();
        let relative_attention_bias = match has_bias {
            true => Some(normal_embedding(config.relative_attention_num_buckets, num_heads, None, std, init)?),
            false => None,
        };
        Ok(T5Attention {
            heads: Heads::new(d_kv, config.dropout_rate, init.generator)?.scale(1.0),
            q: config.linear(d_model, inside, d_model * d_kv, init)?,
            k: config.linear(d_model, inside, d_model, init)?,
            v: config.linear(d_model, inside, d_model, init)?,
            o: config.linear(inside, d_model, inside, init)?,
            relative_attention_bias,
        })
    }

    #[track_caller]
    fn keys(&self, x: &Tensor) -> Result<KeysAndValues> {
        Ok((self.heads.split(&self.k.forward(x)?)?, self.heads.split(&self.v.forward(x)?)?))
    }

    #[track_caller]
    fn run(&self, x: &Tensor, (k, v): &KeysAndValues, mask: Option<&Tensor>, causal: Causal) -> Result<Tensor> {
        let q = self.heads.split(&self.q.forward(x)?)?;
        self.o.forward(&self.heads.attend([&q, k, v], mask, causal)?)
    }
}

/// The linear layers of a block as a residual branch that begins with a norm, transformers' `T5LayerFF`.
#[derive(Debug, Module)]
pub struct T5Feed {
    /// The linear layers.
    #[module(rename = "DenseReluDense")]
    pub dense: T5Dense,
    /// The norm before them.
    pub layer_norm: RmsNorm,
    dropout: Dropout,
}

impl T5Feed {
    #[track_caller]
    fn new(config: &T5Config, init: &mut Init<'_>) -> Result<Self> {
        let T5Config { d_model, d_ff, .. } = *config;
        let mut first = || config.linear(d_model, d_ff, d_model, init);
        let (wi, wi_0, wi_1) = match config.feed_forward_proj {
            T5FeedForward::Relu => (Some(first()?), None, None),
            T5FeedForward::GatedGelu => (None, Some(first()?), Some(first()?)),
        };
        let wo = config.linear(d_ff, d_model, d_ff, init)?;
        let dense = T5Dense { wi, wi_0, wi_1, wo, dropout: config.dropout(init)? };
        Ok(T5Feed { dense, layer_norm: config.norm(init)?, dropout: config.dropout(init)? })
    }
}

impl Forward for T5Feed {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.dropout.forward(&self.dense.forward(&self.layer_norm.forward(input)?)?)?.add(input)
    }
}

/// The linear layers of a block, transformers' `T5DenseActDense` or `T5DenseGatedActDense`.
#[derive(Debug, Module)]
pub struct T5Dense {
    /// The first layer, where there are no gates.
    pub wi: Option<Linear>,
    /// To the gates.
    pub wi_0: Option<Linear>,
    /// To what they let through.
    pub wi_1: Option<Linear>,
    /// The last layer.
    pub wo: Linear,
    dropout: Dropout,
}

impl Forward for T5Dense {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let x = match (&self.wi, &self.wi_0, &self.wi_1) {
            (_, Some(gates), Some(through)) => gates.forward(input)?.gelu_tanh()?.mul(&through.forward(input)?)?,
            (Some(wi), ..) => wi.forward(input)?.relu()?,
            _ => input.clone(),
        };
        self.wo.forward(&self.dropout.forward(&x)?)
    }
}
