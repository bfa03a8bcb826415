//! [`T5`], with transformers' names.

use gradus_nn::{Dropout, Embedding, Forward, ForwardPass, Init, Linear, Module, RmsNorm, RmsNormConfig};
use gradus_tensor::{Causal, Result, Tensor};

use crate::checks;
use crate::heads::Heads;
use crate::new_layers::{normal_embedding, normal_linear_without_bias};
use crate::t5_positions::{OP, T5Distances, buckets};

/// The most tokens of a text. T5 has no limit of its own; each layer needs memory for the square of the length.
const MOST_TOKENS: usize = 1 << 16;

/// The two linear layers, or three, that follow each attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum T5FeedForward {
    /// Two with a ReLU in between, `relu`, as in the first version.
    #[default]
    Relu,
    /// Three, of which one makes gates by the tanh form of GELU, `gated-gelu`, as in T5 1.1 and FLAN-T5.
    GatedGelu,
}

/// The numbers of a [`T5`], with transformers' names. The defaults are those of `t5-small`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct T5Config {
    /// Number of different tokens. Default 32128.
    pub vocab_size: usize,
    /// Number of features of a token. Default 512.
    pub d_model: usize,
    /// Number of features of a head. Default 64.
    pub d_kv: usize,
    /// Number of features inside of the linear layers that follow each attention. Default 2048.
    pub d_ff: usize,
    /// Number of layers of the encoder. Default 6.
    pub num_layers: usize,
    /// Number of layers of the decoder. By default as many.
    pub num_decoder_layers: Option<usize>,
    /// Number of attention heads. Default 8.
    pub num_heads: usize,
    /// How many distances between tokens are told apart: an even number, at least 4. Default 32.
    pub relative_attention_num_buckets: usize,
    /// The distance from which on all are the same. Default 128.
    pub relative_attention_max_distance: usize,
    /// Probability of dropping a feature or an attention weight in training. Default 0.1.
    pub dropout_rate: f64,
    /// The `eps` of the norms. Default 1e-6.
    pub layer_norm_epsilon: f64,
    /// A factor of the standard deviations of new weights. Default 1.
    pub initializer_factor: f64,
    /// The linear layers that follow each attention. Default `relu`.
    pub feed_forward_proj: T5FeedForward,
    /// Whether the features are divided by the root of `d_model` before the head, as in the first version. T5 1.1 and
    /// FLAN-T5 do not do so. Default true. Transformers derives it from `tie_word_embeddings`.
    pub scale_decoder_outputs: bool,
    /// Whether the head shares the table of tokens. Default true. In the files of T5 1.1 and FLAN-T5 it does not.
    pub tie_word_embeddings: bool,
}

impl Default for T5Config {
    fn default() -> Self {
        T5Config {
            vocab_size: 32128,
            d_model: 512,
            d_kv: 64,
            d_ff: 2048,
            num_layers: 6,
            num_decoder_layers: None,
            num_heads: 8,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: 128,
            dropout_rate: 0.1,
            layer_norm_epsilon: 1e-6,
            initializer_factor: 1.0,
            feed_forward_proj: T5FeedForward::Relu,
            scale_decoder_outputs: true,
            tie_word_embeddings: true,
        }
    }
}

impl T5Config {
    fn decoder_layers(&self) -> usize {
        self.num_decoder_layers.unwrap_or(self.num_layers)
    }

    /// The distances of the decoder or the encoder.
    fn distances(&self, causal: bool) -> T5Distances {
        let (rows, most) = (self.relative_attention_num_buckets, self.relative_attention_max_distance);
        T5Distances { causal, rows, most }
    }

    #[track_caller]
    fn check(&self) -> Result<()> {
        checks::sizes(OP, &[("vocab_size", self.vocab_size), ("d_model", self.d_model), ("d_kv", self.d_kv)])?;
        checks::sizes(OP, &[("d_ff", self.d_ff), ("num_heads", self.num_heads)])?;
        checks::layers(OP, &[("num_layers", self.num_layers), ("num_decoder_layers", self.decoder_layers())])?;
        self.distances(false).check()
    }

    #[track_caller]
    fn norm(&self, init: &mut Init<'_>) -> Result<RmsNorm> {
        RmsNorm::new([self.d_model], RmsNormConfig { eps: self.layer_norm_epsilon, ..RmsNormConfig::default() }, init)
    }

    /// A linear layer whose weights have a standard deviation of `1 / sqrt(fan)`.
    #[track_caller]
    fn linear(&self, inputs: usize, outputs: usize, fan: usize, init: &mut Init<'_>) -> Result<Linear> {
        normal_linear_without_bias(inputs, outputs, self.initializer_factor / (fan as f64).sqrt(), init)
    }

    #[track_caller]
    fn dropout(&self, init: &mut Init<'_>) -> Result<Dropout> {
        Dropout::new(self.dropout_rate, init.generator)
    }
}

/// A model that maps a text to a text (Raffel et al., 2020), transformers' `T5ForConditionalGeneration`.
///
/// The encoder reads tokens `[n, length]`; the decoder reads what has been written so far, beginning with the token 0, and
/// [`logits`](T5::logits) are those of the next token at each position. As a module of one input, it is the encoder.
///
/// Parameters have transformers' names, shapes and initial distributions: `shared.weight`,
/// `encoder.block.0.layer.0.SelfAttention.q.weight`, `lm_head.weight`. The encoder, the decoder and usually the head share
/// the table of tokens, so a file may contain any of its names.
///
/// ```
/// # use gradus_models::{T5, T5Config}; use gradus_nn::{Forward, Init, Module}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = T5Config { vocab_size: 100, d_model: 16, d_kv: 4, d_ff: 32, num_layers: 2, num_heads: 4, ..Default::default() };
/// let model = T5::new(config, &mut init)?;
/// let question = Tensor::from_vec(vec![5i64, 8, 9, 1, 7, 2, 1, 0], [2, 4], &device)?;
/// let answer = Tensor::from_vec(vec![0i64, 6, 4, 0, 3, 1], [2, 3], &device)?;
/// let mask = question.ne(0)?; // the second question has three tokens
/// assert_eq!(model.logits(&question, Some(&mask), &answer)?.shape(), [2, 3, 100]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Module)]
pub struct T5 {
    /// The table of tokens.
    pub shared: Embedding,
    /// Reads the text that is given.
    pub encoder: T5Stack,
    /// Reads the text that is written.
    pub decoder: T5Stack,
    /// From features to logits.
    pub lm_head: Linear,
    #[module(skip)]
    config: T5Config,
}

impl T5 {
    /// Creates a model with new parameters.
    ///
    /// # Errors
    /// Fails if a number of the config is 0 or too large, if the numbers of distances are none of those that it says, or
    /// if the probability of dropout is not one.
    #[track_caller]
    pub fn new(config: T5Config, init: &mut Init<'_>) -> Result<Self> {
        config.check()?;
        let shared = normal_embedding(config.vocab_size, config.d_model, None, config.initializer_factor, init)?;
        let encoder = T5Stack::new(&config, &shared, false, init)?;
        let decoder = T5Stack::new(&config, &shared, true, init)?;
        let lm_head = match config.tie_word_embeddings {
            true => Linear::from_parameters(shared.weight.clone(), None)?,
            false => {
                let std = config.initializer_factor;
                normal_linear_without_bias(config.d_model, config.vocab_size, std, init)?
            }
        };
        Ok(T5 { shared, encoder, decoder, lm_head, config })
    }

    /// The config.
    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// The features `[n, length, d_model]` of tokens `[n, length]`. The mask `[n, length]` is true (or not 0) where there
    /// is a token; without one, all count.
    ///
    /// # Errors
    /// Fails if a shape is another one, or if a token is outside of the table.
    #[track_caller]
    pub fn encode(&self, tokens: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let pass = ForwardPass::begin()?;
        pass.end(self, self.encoder.run(tokens, mask, None))
    }

    /// The logits `[n, length, vocab_size]` of the token after each of `written [n, length]`, for the features of the
    /// encoder and the mask of its tokens.
    #[track_caller]
    pub fn decode(&self, encoded: &Tensor, mask: Option<&Tensor>, written: &Tensor) -> Result<Tensor> {
        let pass = ForwardPass::begin()?;
        pass.end(self, self.predicted(encoded, mask, written))
    }

    #[track_caller]
    fn predicted(&self, encoded: &Tensor, mask: Option<&Tensor>, written: &Tensor) -> Result<Tensor> {
        let mut x = self.decoder.run(written, mask, Some(encoded))?;
        if self.config.scale_decoder_outputs {
            x = x.mul(1.0 / (self.config.d_model as f64).sqrt())?;
        }
        self.lm_head.forward(&x)
    }

    /// [`decode`](T5::decode) after [`encode`](T5::encode).
    #[track_caller]
    pub fn logits(&self, tokens: &Tensor, mask: Option<&Tensor>, written: &Tensor) -> Result<Tensor> {
        self.decode(&self.encode(tokens, mask)?, mask, written)
    }
}

impl Forward for T5 {
    #[track_caller]
    fn compute(&self, tokens: &Tensor) -> Result<Tensor> {
        self.encode(tokens, None)
    }
}

/// The encoder or the decoder of a [`T5`], transformers' `T5Stack`.
#[derive(Debug, Module)]
pub struct T5Stack {
    #[module(skip)]
    distances: T5Distances,
    /// The table of tokens, which is shared.
    pub embed_tokens: Embedding,
    /// The blocks.
    pub block: Vec<T5Block>,
    /// The last norm.
    pub final_layer_norm: RmsNorm,
    dropout: Dropout,
}

impl T5Stack {
    #[track_caller]
    fn new(config: &T5Config, shared: &Embedding, is_decoder: bool, init: &mut Init<'_>) -> Result<Self> {
        let count = if is_decoder { config.decoder_layers() } else { config.num_layers };
        let mut block = Vec::new();
        for i in 0..count {
            block.push(T5Block::new(config, is_decoder, i == 0, init)?);
        }
        Ok(T5Stack {
            distances: config.distances(is_decoder),
            embed_tokens: shared.clone(),
            block,
            final_layer_norm: config.norm(init)?,
            dropout: config.dropout(init)?,
        })
    }

    /// The features of tokens. The mask is that of the encoder's tokens; the decoder's features are given `encoded`.
    #[track_caller]
    fn run(&self, tokens: &Tensor, mask: Option<&Tensor>, encoded: Option<&Tensor>) -> Result<Tensor> {
        let [n, length] = checks::tokens(OP, tokens, MOST_TOKENS)?;
        let keys = if let Some(encoded) = encoded { [n, encoded.size(1)?] } else { [n, length] };
        let mask = if let Some(mask) = mask { Some(checks::key_mask(OP, mask, keys)?) } else { None };
        let mut x = self.dropout.forward(&self.embed_tokens.forward(tokens)?)?;
        let mut bias = None;
        for block in &self.block {
            if let Some(table) = &block.layer.attention().relative_attention_bias {
                bias = Some(self.bias(table, length, if encoded.is_none() { mask.as_ref() } else { None })?);
            }
            x = block.run(&x, bias.as_ref(), mask.as_ref(), encoded)?;
        }
        self.dropout.forward(&self.final_layer_norm.forward(&x)?)
    }

    /// What is added to the scores of self-attention: a learned number for each head and distance, and minus infinity for
    /// keys that the mask hides. All blocks share those of the first.
    #[track_caller]
    fn bias(&self, table: &Embedding, length: usize, mask: Option<&Tensor>) -> Result<Tensor> {
        let at = buckets(self.distances, length, table.weight.device())?;
        let bias = table.forward(&at)?.permute(&[2, 0, 1])?.unsqueeze(0)?;
        match mask {
            Some(mask) => mask.where_(&bias, f64::NEG_INFINITY),
            None => Ok(bias),
        }
    }
}

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
    fn attention(&self) -> &T5Attention {
        match self {
            T5Layers::Encoder(attention, _) | T5Layers::Decoder(attention, ..) => &attention.attention,
        }
    }
}

impl T5Block {
    #[track_caller]
    fn new(config: &T5Config, is_decoder: bool, has_bias: bool, init: &mut Init<'_>) -> Result<Self> {
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

    #[track_caller]
    fn run(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        mask: Option<&Tensor>,
        encoded: Option<&Tensor>,
    ) -> Result<Tensor> {
        match (&self.layer, encoded) {
            (T5Layers::Decoder(attention, cross, feed), Some(encoded)) => {
                let x = attention.run(x, bias)?;
                feed.forward(&cross.run(&x, encoded, mask)?)
            }
            (T5Layers::Encoder(attention, feed) | T5Layers::Decoder(attention, _, feed), _) => {
                feed.forward(&attention.run(x, bias)?)
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
    fn run(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let normed = self.layer_norm.forward(x)?;
        let causal = if self.causal { Causal::BottomRight } else { Causal::No };
        let attended = self.attention.run(&normed, &normed, bias, causal)?;
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
    fn run(&self, x: &Tensor, encoded: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let attended = self.attention.run(&self.layer_norm.forward(x)?, encoded, mask, Causal::No)?;
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
            heads: Heads::new(num_heads, config.dropout_rate, init.generator)?.scale(1.0),
            q: config.linear(d_model, inside, d_model * d_kv, init)?,
            k: config.linear(d_model, inside, d_model, init)?,
            v: config.linear(d_model, inside, d_model, init)?,
            o: config.linear(inside, d_model, inside, init)?,
            relative_attention_bias,
        })
    }

    #[track_caller]
    fn run(&self, x: &Tensor, keys: &Tensor, mask: Option<&Tensor>, causal: Causal) -> Result<Tensor> {
        let q = self.heads.queries(&self.q.forward(x)?)?;
        let (k, v) = (self.heads.keys(&self.k.forward(keys)?)?, self.heads.keys(&self.v.forward(keys)?)?);
        self.o.forward(&self.heads.attend([&q, &k, &v], mask, causal)?)
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
