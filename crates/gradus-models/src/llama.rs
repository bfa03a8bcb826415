//! [`Llama`], with transformers' names.

use gradus_nn::{
    Embedding, Forward, ForwardPass, Init, KvCache, Linear, Module, RmsNorm, RmsNormConfig, RotaryEmbedding,
};
use gradus_tensor::{Causal, Error, Result, Tensor};

use crate::CausalLm;
use crate::checks;
use crate::generate::decoded;
use crate::heads::Heads;
use crate::new_layers::{normal_embedding, normal_linear, normal_linear_without_bias};

const OP: &str = "llama";

/// The numbers of a [`Llama`], with transformers' names. The defaults are those of the first model with 7 billion
/// parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LlamaConfig {
    /// Number of different tokens. Default 32000.
    pub vocab_size: usize,
    /// Number of features of a token. Default 4096.
    pub hidden_size: usize,
    /// Number of features inside of the three linear layers that follow each attention. Default 11008.
    pub intermediate_size: usize,
    /// Number of layers. Default 32.
    pub num_hidden_layers: usize,
    /// Number of attention heads. Default 32.
    pub num_attention_heads: usize,
    /// Number of heads of keys and values, which divides that of queries. By default as many.
    pub num_key_value_heads: Option<usize>,
    /// Number of features of a head, an even number. By default the heads share the features of a token.
    pub head_dim: Option<usize>,
    /// The most tokens that the model sees at once. Default 2048.
    pub max_position_embeddings: usize,
    /// The base of the rotary positions. Default 10,000.
    pub rope_theta: f64,
    /// The `eps` of the norms. Default 1e-6.
    pub rms_norm_eps: f64,
    /// Whether the head shares the table of tokens. Default false.
    pub tie_word_embeddings: bool,
    /// Whether the projections of the attention have biases. Default false.
    pub attention_bias: bool,
    /// Whether the three linear layers have biases. Default false.
    pub mlp_bias: bool,
    /// Probability of dropping an attention weight in training. Default 0.
    pub attention_dropout: f64,
    /// The standard deviation of new weights. Default 0.02.
    pub initializer_range: f64,
}

impl Default for LlamaConfig {
    fn default() -> Self {
        LlamaConfig {
            vocab_size: 32000,
            hidden_size: 4096,
            intermediate_size: 11008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: None,
            head_dim: None,
            max_position_embeddings: 2048,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-6,
            tie_word_embeddings: false,
            attention_bias: false,
            mlp_bias: false,
            attention_dropout: 0.0,
            initializer_range: 0.02,
        }
    }
}

impl LlamaConfig {
    fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// The features of a head. The heads are not 0.
    fn size(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    #[track_caller]
    fn check(&self) -> Result<()> {
        let (heads, kv_heads) = (("num_attention_heads", self.num_attention_heads), self.kv_heads());
        checks::sizes(OP, &[("vocab_size", self.vocab_size), ("hidden_size", self.hidden_size), heads])?;
        checks::sizes(OP, &[("intermediate_size", self.intermediate_size), ("num_key_value_heads", kv_heads)])?;
        checks::sizes(OP, &[("max_position_embeddings", self.max_position_embeddings)])?;
        checks::layers(OP, &[("num_hidden_layers", self.num_hidden_layers)])?;
        if self.head_dim.is_none() {
            checks::divides(OP, heads, ("hidden_size", self.hidden_size))?;
        }
        checks::sizes(OP, &[("head_dim", self.size())])?;
        checks::divides(OP, ("num_key_value_heads", kv_heads), heads)
    }

    #[track_caller]
    fn norm(&self, init: &mut Init<'_>) -> Result<RmsNorm> {
        RmsNorm::new([self.hidden_size], RmsNormConfig { eps: self.rms_norm_eps, ..RmsNormConfig::default() }, init)
    }

    #[track_caller]
    fn linear(&self, [inputs, outputs]: [usize; 2], bias: bool, init: &mut Init<'_>) -> Result<Linear> {
        match bias {
            true => normal_linear(inputs, outputs, self.initializer_range, init),
            false => normal_linear_without_bias(inputs, outputs, self.initializer_range, init),
        }
    }
}

/// A language model of the shape of LLaMA (Touvron et al., 2023), transformers' `LlamaForCausalLM`: tokens `[n, length]`
/// (i64, i32 or u32) to the logits of the next token at each position, `[n, length, vocab_size]`. Rotary positions, RMS
/// norms, SiLU gates and grouped heads make it the shape of many later models too. The positions are not scaled as Llama
/// 3.1 and later ones do.
///
/// Parameters have transformers' names, shapes and initial distributions: `model.embed_tokens.weight`,
/// `model.layers.0.self_attn.q_proj.weight`, `lm_head.weight`.
///
/// ```
/// # use gradus_models::{GenerateOptions, Llama, LlamaConfig, generate}; use gradus_nn::{Forward, Init};
/// # use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let mut model = Llama::new(
///     LlamaConfig {
///         vocab_size: 100,
///         hidden_size: 32,
///         intermediate_size: 48,
///         num_hidden_layers: 2,
///         num_attention_heads: 4,
///         num_key_value_heads: Some(2),
///         ..LlamaConfig::default()
///     },
///     &mut init,
/// )?;
/// let tokens = Tensor::from_vec(vec![3i64, 1, 4, 1, 5], [1, 5], &device)?;
/// assert_eq!(model.forward(&tokens)?.shape(), [1, 5, 100]);
/// // Writing token by token keeps the keys and values of the earlier ones.
/// let options = GenerateOptions { max_new_tokens: 8, ..GenerateOptions::default() };
/// let written = generate(&mut model, &[3, 1, 4], &device, options)?.collect::<Result<Vec<i64>>>()?;
/// assert_eq!(written.len(), 8);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Module)]
pub struct Llama {
    /// The transformer.
    pub model: LlamaModel,
    /// From features to logits.
    pub lm_head: Linear,
}

impl Llama {
    /// Creates a model with new parameters. The errors are those of [`LlamaModel::new`].
    #[track_caller]
    pub fn new(config: LlamaConfig, init: &mut Init<'_>) -> Result<Self> {
        let model = LlamaModel::new(config, init)?;
        let lm_head = match config.tie_word_embeddings {
            true => Linear::from_parameters(model.embed_tokens.weight.clone(), None)?,
            false => config.linear([config.hidden_size, config.vocab_size], false, init)?,
        };
        Ok(Llama { model, lm_head })
    }

    /// The config.
    pub fn config(&self) -> &LlamaConfig {
        &self.model.config
    }
}

impl Forward for Llama {
    #[track_caller]
    fn compute(&self, tokens: &Tensor) -> Result<Tensor> {
        self.lm_head.forward(&self.model.forward(tokens)?)
    }
}

impl CausalLm for Llama {
    fn context(&self) -> usize {
        self.config().max_position_embeddings
    }

    fn vocabulary_size(&self) -> usize {
        self.config().vocab_size
    }

    fn new_cache(&self) -> Vec<KvCache> {
        self.model.layers.iter().map(|_| KvCache::new()).collect()
    }

    #[track_caller]
    fn decode(&self, tokens: &Tensor, cache: &mut [KvCache]) -> Result<Tensor> {
        let pass = ForwardPass::begin()?;
        let x = pass.end(self, decoded(cache, |cache| self.model.run(tokens, Some(cache))))?;
        self.lm_head.forward(&x.select(1, -1)?)
    }
}

/// A [`Llama`] without its head, transformers' `LlamaModel`: tokens `[n, length]` to features `[n, length, hidden_size]`.
#[derive(Debug, Module)]
pub struct LlamaModel {
    /// The table of tokens.
    pub embed_tokens: Embedding,
    /// The layers.
    pub layers: Vec<LlamaLayer>,
    /// The last norm.
    pub norm: RmsNorm,
    #[module(skip)]
    config: LlamaConfig,
}

impl LlamaModel {
    /// Creates a model with new parameters.
    ///
    /// # Errors
    /// Fails if a number of the config is 0 or too large, if heads do not divide features or one another, if the features
    /// of a head are an odd number, or if the probability of dropout is not one.
    #[track_caller]
    pub fn new(config: LlamaConfig, init: &mut Init<'_>) -> Result<Self> {
        config.check()?;
        // All layers share the table of the angles.
        let rotary = RotaryEmbedding::new(config.size(), config.rope_theta)?.half_split();
        let (hidden, std) = (config.hidden_size, config.initializer_range);
        let embed_tokens = normal_embedding(config.vocab_size, hidden, None, std, init)?;
        let mut layers = Vec::new();
        for _ in 0..config.num_hidden_layers {
            layers.push(LlamaLayer::new(&config, &rotary, init)?);
        }
        Ok(LlamaModel { embed_tokens, layers, norm: config.norm(init)?, config })
    }

    /// The features of tokens that follow those in the caches, one cache for each layer.
    #[track_caller]
    fn run(&self, tokens: &Tensor, mut caches: Option<&mut [KvCache]>) -> Result<Tensor> {
        let first = match &caches {
            Some(caches) if caches.len() != self.layers.len() => {
                let m = format!("{} caches for {} layers", caches.len(), self.layers.len());
                return Err(Error::argument(OP, m).help("make the caches by new_cache()"));
            }
            Some(caches) => caches.first().map_or(0, KvCache::len),
            None => 0,
        };
        checks::tokens(OP, tokens, self.config.max_position_embeddings.saturating_sub(first))?;
        let mut x = self.embed_tokens.forward(tokens)?;
        for (i, layer) in self.layers.iter().enumerate() {
            x = match &mut caches {
                Some(caches) => layer.run(&x, Some(&mut caches[i]))?,
                None => layer.forward(&x)?,
            };
        }
        self.norm.forward(&x)
    }
}

impl Forward for LlamaModel {
    #[track_caller]
    fn compute(&self, tokens: &Tensor) -> Result<Tensor> {
        self.run(tokens, None)
    }
}

/// A layer: attention and three linear layers, each a residual branch that begins with a norm. Transformers'
/// `LlamaDecoderLayer`.
#[derive(Debug, Module)]
pub struct LlamaLayer {
    /// The attention.
    pub self_attn: LlamaAttention,
    /// The linear layers.
    pub mlp: LlamaMlp,
    /// The norm before the attention.
    pub input_layernorm: RmsNorm,
    /// The norm before the linear layers.
    pub post_attention_layernorm: RmsNorm,
}

impl LlamaLayer {
    #[track_caller]
    fn new(config: &LlamaConfig, rotary: &RotaryEmbedding, init: &mut Init<'_>) -> Result<Self> {
        let LlamaConfig { hidden_size: hidden, intermediate_size: inside, .. } = *config;
        let (bias, size) = (config.attention_bias, config.size());
        let (all, kv) = (config.num_attention_heads * size, config.kv_heads() * size);
        Ok(LlamaLayer {
            self_attn: LlamaAttention {
                heads: Heads::new(size, config.attention_dropout, init.generator)?,
                rotary: rotary.clone(),
                q_proj: config.linear([hidden, all], bias, init)?,
                k_proj: config.linear([hidden, kv], bias, init)?,
                v_proj: config.linear([hidden, kv], bias, init)?,
                o_proj: config.linear([all, hidden], bias, init)?,
            },
            mlp: LlamaMlp {
                gate_proj: config.linear([hidden, inside], config.mlp_bias, init)?,
                up_proj: config.linear([hidden, inside], config.mlp_bias, init)?,
                down_proj: config.linear([inside, hidden], config.mlp_bias, init)?,
            },
            input_layernorm: config.norm(init)?,
            post_attention_layernorm: config.norm(init)?,
        })
    }

    #[track_caller]
    fn run(&self, x: &Tensor, cache: Option<&mut KvCache>) -> Result<Tensor> {
        let x = self.self_attn.run(&self.input_layernorm.forward(x)?, cache)?.add(x)?;
        self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?.add(&x)
    }
}

impl Forward for LlamaLayer {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, None)
    }
}

/// Causal self-attention with rotary positions, transformers' `LlamaAttention`.
#[derive(Debug, Module)]
pub struct LlamaAttention {
    heads: Heads,
    #[module(skip)]
    rotary: RotaryEmbedding,
    /// Projects to the queries.
    pub q_proj: Linear,
    /// Projects to the keys.
    pub k_proj: Linear,
    /// Projects to the values.
    pub v_proj: Linear,
    /// Projects the heads' results to the output.
    pub o_proj: Linear,
}

impl LlamaAttention {
    #[track_caller]
    fn run(&self, x: &Tensor, cache: Option<&mut KvCache>) -> Result<Tensor> {
        let first = cache.as_ref().map_or(0, |cache| cache.len());
        let q = self.rotary.apply(&self.heads.split(&self.q_proj.forward(x)?)?, first)?;
        let mut k = self.rotary.apply(&self.heads.split(&self.k_proj.forward(x)?)?, first)?;
        let mut v = self.heads.split(&self.v_proj.forward(x)?)?;
        if let Some(cache) = cache {
            (k, v) = cache.append(&k, &v)?;
        }
        self.o_proj.forward(&self.heads.attend([&q, &k, &v], None, Causal::BottomRight)?)
    }
}

impl Forward for LlamaAttention {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, None)
    }
}

/// `down_proj(silu(gate_proj(x)) * up_proj(x))`, transformers' `LlamaMLP`.
#[derive(Debug, Module)]
pub struct LlamaMlp {
    /// To the gates.
    pub gate_proj: Linear,
    /// To what they let through.
    pub up_proj: Linear,
    /// Back to the features of a token.
    pub down_proj: Linear,
}

impl Forward for LlamaMlp {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let gates = self.gate_proj.forward(input)?.silu()?;
        self.down_proj.forward(&gates.mul(&self.up_proj.forward(input)?)?)
    }
}
