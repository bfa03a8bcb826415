//! [`Gpt2`], the language model of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).

use std::panic::Location;

use gradus_nn::{
    Dropout, Embedding, Forward, ForwardPass, Init, KvCache, LayerNorm, LayerNormConfig, Linear, Module, Parameter,
};
use gradus_tensor::{Causal, DType, Error, Here, Result, Tensor};

use crate::CausalLm;
use crate::checks;
use crate::generate::decoded;
use crate::heads::Heads;
use crate::new_layers::normal_embedding;

const OP: &str = "gpt2";

/// The activation between the two linear layers of a block, transformers' `activation_function`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gpt2Activation {
    /// GELU by its formula with tanh, `gelu_new`.
    #[default]
    GeluNew,
    /// The exact GELU.
    Gelu,
    /// `max(x, 0)`
    Relu,
}

/// Options of [`Gpt2`] and [`Gpt2Model`], with transformers' names. The defaults are those of the smallest published
/// model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpt2Config {
    /// Number of different tokens. Default 50257.
    pub vocab_size: usize,
    /// The most tokens that the model sees at once. Default 1024.
    pub n_positions: usize,
    /// Number of features of a token. Default 768.
    pub n_embd: usize,
    /// Number of blocks. Default 12.
    pub n_layer: usize,
    /// Number of attention heads, which must divide `n_embd`. Default 12.
    pub n_head: usize,
    /// Number of features between the two linear layers of a block. By default four times `n_embd`.
    pub n_inner: Option<usize>,
    /// The activation between these layers. Default `gelu_new`.
    pub activation_function: Gpt2Activation,
    /// Probability of dropping a feature of a residual branch in training. Default 0.1.
    pub resid_pdrop: f64,
    /// Probability of dropping a feature of the embeddings in training. Default 0.1.
    pub embd_pdrop: f64,
    /// Probability of dropping an attention weight in training. Default 0.1.
    pub attn_pdrop: f64,
    /// The `eps` of the layer norms. Default 1e-5.
    pub layer_norm_epsilon: f64,
    /// The standard deviation of new weights. Default 0.02.
    pub initializer_range: f64,
}

impl Default for Gpt2Config {
    fn default() -> Self {
        Gpt2Config {
            vocab_size: 50257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_inner: None,
            activation_function: Gpt2Activation::GeluNew,
            resid_pdrop: 0.1,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            layer_norm_epsilon: 1e-5,
            initializer_range: 0.02,
        }
    }
}

impl Gpt2Config {
    /// Fails if the sizes describe no network.
    #[track_caller]
    fn check(&self) -> Result<()> {
        let (width, heads) = (("n_embd", self.n_embd), ("n_head", self.n_head));
        checks::sizes(OP, &[("vocab_size", self.vocab_size), ("n_positions", self.n_positions), width, heads])?;
        checks::sizes(OP, &[("n_inner", self.inner())])?;
        checks::layers(OP, &[("n_layer", self.n_layer)])?;
        checks::divides(OP, heads, width)
    }

    fn inner(&self) -> usize {
        self.n_inner.unwrap_or(self.n_embd.saturating_mul(4))
    }

    #[track_caller]
    fn norm(&self, init: &mut Init<'_>) -> Result<LayerNorm> {
        let config = LayerNormConfig { eps: self.layer_norm_epsilon, ..LayerNormConfig::default() };
        LayerNorm::new([self.n_embd], config, init)
    }

    /// The standard deviation of the weights that end a residual branch. There are two branches in each block, and the
    /// sum of all of them has the variance of one.
    fn residual_range(&self) -> f64 {
        self.initializer_range / (2.0 * self.n_layer as f64).sqrt()
    }
}

/// A linear layer whose weight is stored `[in_features, out_features]`, as transformers' `Conv1D` is.
#[derive(Clone, Module)]
pub struct Conv1D {
    /// `[in_features, out_features]`
    pub weight: Parameter,
    /// `[out_features]`
    pub bias: Parameter,
}

impl Conv1D {
    #[track_caller]
    fn new(from: usize, to: usize, std: f64, init: &mut Init<'_>) -> Result<Conv1D> {
        let weight = Parameter::new(init.normal([from, to], 0.0, std)?)?;
        Ok(Conv1D { weight, bias: Parameter::new(init.zeros([to])?)? })
    }
}

impl Forward for Conv1D {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let weight = self.weight.t()?;
        match self.weight.division() {
            None => input.linear(&weight, Some(self.bias.tensor())),
            Some(division) => division.linear(input, &weight, Some(&self.bias), 1, Location::caller()).here(),
        }
    }
}

/// Causal self-attention of several heads, transformers' `GPT2Attention`.
#[derive(Clone, Module)]
pub struct Gpt2Attention {
    /// From `n_embd` to queries, keys and values, side by side.
    pub c_attn: Conv1D,
    /// From the concatenated results of the heads to `n_embd`.
    pub c_proj: Conv1D,
    heads: Heads,
    resid_dropout: Dropout,
}

impl Gpt2Attention {
    #[track_caller]
    fn new(config: &Gpt2Config, init: &mut Init<'_>) -> Result<Self> {
        let width = config.n_embd;
        Ok(Gpt2Attention {
            c_attn: Conv1D::new(width, 3 * width, config.initializer_range, init)?,
            c_proj: Conv1D::new(width, width, config.residual_range(), init)?,
            heads: Heads::new(width / config.n_head, config.attn_pdrop, init.generator)?,
            resid_dropout: Dropout::new(config.resid_pdrop, init.generator)?,
        })
    }

    /// Attention of the tokens `x [n, length, n_embd]` to those in the cache and to themselves.
    #[track_caller]
    fn attend(&self, x: &Tensor, cache: Option<&mut KvCache>) -> Result<Tensor> {
        let parts = self.c_attn.forward(x)?.split(self.c_proj.weight.shape()[0], -1)?;
        let q = self.heads.split(&parts[0])?;
        let (mut k, mut v) = (self.heads.split(&parts[1])?, self.heads.split(&parts[2])?);
        if let Some(cache) = cache {
            (k, v) = cache.append(&k, &v)?;
        }
        let y = self.heads.attend([&q, &k, &v], None, Causal::BottomRight)?;
        self.resid_dropout.forward(&self.c_proj.forward(&y)?)
    }
}

impl Forward for Gpt2Attention {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.attend(input, None)
    }
}

/// The two linear layers of a block, transformers' `GPT2MLP`.
#[derive(Clone, Module)]
pub struct Gpt2Mlp {
    /// From `n_embd` to `n_inner` features.
    pub c_fc: Conv1D,
    /// From `n_inner` to `n_embd` features.
    pub c_proj: Conv1D,
    dropout: Dropout,
    #[module(skip)]
    activation: Gpt2Activation,
}

impl Gpt2Mlp {
    #[track_caller]
    fn new(config: &Gpt2Config, init: &mut Init<'_>) -> Result<Self> {
        let inner = config.inner();
        Ok(Gpt2Mlp {
            c_fc: Conv1D::new(config.n_embd, inner, config.initializer_range, init)?,
            c_proj: Conv1D::new(inner, config.n_embd, config.residual_range(), init)?,
            dropout: Dropout::new(config.resid_pdrop, init.generator)?,
            activation: config.activation_function,
        })
    }
}

impl Forward for Gpt2Mlp {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.c_fc.forward(input)?;
        let x = match self.activation {
            Gpt2Activation::GeluNew => x.gelu_tanh()?,
            Gpt2Activation::Gelu => x.gelu()?,
            Gpt2Activation::Relu => x.relu()?,
        };
        self.dropout.forward(&self.c_proj.forward(&x)?)
    }
}

/// A block of the transformer, transformers' `GPT2Block`: attention and two linear layers, each a residual branch that
/// begins with a layer norm.
#[derive(Clone, Module)]
pub struct Gpt2Block {
    /// The norm before attention.
    pub ln_1: LayerNorm,
    /// Attention.
    pub attn: Gpt2Attention,
    /// The norm before the linear layers.
    pub ln_2: LayerNorm,
    /// The linear layers.
    pub mlp: Gpt2Mlp,
}

impl Gpt2Block {
    #[track_caller]
    fn new(config: &Gpt2Config, init: &mut Init<'_>) -> Result<Self> {
        Ok(Gpt2Block {
            ln_1: config.norm(init)?,
            attn: Gpt2Attention::new(config, init)?,
            ln_2: config.norm(init)?,
            mlp: Gpt2Mlp::new(config, init)?,
        })
    }

    #[track_caller]
    fn run(&self, x: &Tensor, cache: Option<&mut KvCache>) -> Result<Tensor> {
        let h = self.ln_1.forward(x)?;
        let attended = match cache {
            Some(cache) => self.attn.attend(&h, Some(cache))?,
            None => self.attn.forward(&h)?,
        };
        let x = x.add(&attended)?;
        x.add(&self.mlp.forward(&self.ln_2.forward(&x)?)?)
    }
}

impl Forward for Gpt2Block {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, None)
    }
}

/// The embeddings of a model, the first of its [parts](Gpt2::part): tokens `[n, length]` (i64, i32 or u32) to features
/// `[n, length, n_embd]`.
#[derive(Clone, Module)]
pub struct Gpt2Embeddings {
    /// The table of tokens, `[vocab_size, n_embd]`.
    pub wte: Embedding,
    /// The table of positions, `[n_positions, n_embd]`.
    pub wpe: Embedding,
    drop: Dropout,
}

impl Gpt2Embeddings {
    #[track_caller]
    fn new(config: &Gpt2Config, init: &mut Init<'_>) -> Result<Self> {
        let (width, std) = (config.n_embd, config.initializer_range);
        let wte = normal_embedding(config.vocab_size, width, None, std, init)?;
        let wpe = normal_embedding(config.n_positions, width, None, std, init)?;
        Ok(Gpt2Embeddings { wte, wpe, drop: Dropout::new(config.embd_pdrop, init.generator)? })
    }
}

impl Forward for Gpt2Embeddings {
    #[track_caller]
    fn compute(&self, tokens: &Tensor) -> Result<Tensor> {
        self.drop.forward(&embedded(&self.wte, &self.wpe, tokens, 0)?)
    }
}

/// The embeddings of tokens `[n, length]` that follow `first` others.
#[track_caller]
fn embedded(wte: &Embedding, wpe: &Embedding, tokens: &Tensor, first: usize) -> Result<Tensor> {
    let &[_, length] = tokens.shape() else {
        let e = Error::shape(OP, "tokens are [n, length]");
        return Err(e.operand("tokens", tokens.shape(), tokens.dtype(), tokens.device()));
    };
    let most = wpe.weight.shape()[0];
    if first.checked_add(length).is_none_or(|end| end > most) {
        let m = format!("{length} tokens after {first} of the cache; the model has {most} positions");
        let e = Error::argument(OP, m).operand("tokens", tokens.shape(), tokens.dtype(), tokens.device());
        return Err(e.help(format!("pass at most {} tokens, or begin with an empty cache", most - first.min(most))));
    }
    let positions = Tensor::arange(first as i64, (first + length) as i64, 1, DType::I64, tokens.device())?;
    wte.forward(tokens)?.add(&wpe.forward(&positions)?)
}

/// The last norm and the head of a model, the last of its [parts](Gpt2::part): features `[n, length, n_embd]` to logits
/// `[n, length, vocab_size]`.
#[derive(Clone, Module)]
pub struct Gpt2Head {
    /// The last norm.
    pub ln_f: LayerNorm,
    /// From features to logits.
    pub lm_head: Linear,
}

impl Forward for Gpt2Head {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.lm_head.forward(&self.ln_f.forward(input)?)
    }
}

/// GPT-2 without a head, transformers' `GPT2Model`: tokens `[n, length]` (i64, i32 or u32) to features
/// `[n, length, n_embd]`.
#[derive(Clone, Module)]
pub struct Gpt2Model {
    /// The table of tokens, `[vocab_size, n_embd]`.
    pub wte: Embedding,
    /// The table of positions, `[n_positions, n_embd]`.
    pub wpe: Embedding,
    drop: Dropout,
    /// The blocks.
    pub h: Vec<Gpt2Block>,
    /// The last norm.
    pub ln_f: LayerNorm,
    #[module(skip)]
    config: Gpt2Config,
}

impl Gpt2Model {
    /// Creates a model with new parameters: normally distributed weights, biases of 0, and norms of weight 1. Errors if
    /// a size is 0 or too large, if `n_head` does not divide `n_embd`, or if a dropout probability is outside 0 to 1.
    #[track_caller]
    pub fn new(config: Gpt2Config, init: &mut Init<'_>) -> Result<Self> {
        config.check()?;
        let Gpt2Embeddings { wte, wpe, drop } = Gpt2Embeddings::new(&config, init)?;
        let h = (0..config.n_layer).map(|_| Gpt2Block::new(&config, init)).collect::<Result<_>>()?;
        Ok(Gpt2Model { wte, wpe, drop, h, ln_f: config.norm(init)?, config })
    }

    /// The configuration.
    pub fn config(&self) -> &Gpt2Config {
        &self.config
    }

    /// The features of tokens `[n, length]` that follow the tokens in the caches, one cache for each block.
    #[track_caller]
    fn run(&self, tokens: &Tensor, mut caches: Option<&mut [KvCache]>) -> Result<Tensor> {
        let first = match &caches {
            Some(caches) if caches.len() != self.h.len() => {
                let m = format!("{} caches for {} blocks", caches.len(), self.h.len());
                return Err(Error::argument(OP, m).help("make the caches by new_cache()"));
            }
            Some(caches) => caches.first().map_or(0, KvCache::len),
            None => 0,
        };
        let mut x = self.drop.forward(&embedded(&self.wte, &self.wpe, tokens, first)?)?;
        for (i, block) in self.h.iter().enumerate() {
            x = match &mut caches {
                Some(caches) => block.run(&x, Some(&mut caches[i]))?,
                None => block.forward(&x)?,
            };
        }
        self.ln_f.forward(&x)
    }
}

impl Forward for Gpt2Model {
    #[track_caller]
    fn compute(&self, tokens: &Tensor) -> Result<Tensor> {
        self.run(tokens, None)
    }
}

/// GPT-2 as a language model, transformers' `GPT2LMHeadModel`: tokens `[n, length]` (i64, i32 or u32) to the logits of
/// the next token at each position, `[n, length, vocab_size]`.
///
/// Parameters have transformers' names, layouts and initial values. The head shares the table of tokens, so that
/// `lm_head.weight` is the parameter `transformer.wte.weight`. A file may contain either name or both.
///
/// ```
/// # use gradus_models::{Gpt2, Gpt2Config}; use gradus_nn::{Forward, Init}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = Gpt2Config { vocab_size: 65, n_positions: 16, n_embd: 8, n_layer: 2, n_head: 2, ..Default::default() };
/// let model = Gpt2::new(config, &mut init)?;
/// let tokens = Tensor::from_vec(vec![3i64, 1, 4, 1, 5], [1, 5], &device)?;
/// assert_eq!(model.forward(&tokens)?.shape(), [1, 5, 65]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Gpt2 {
    /// The transformer.
    pub transformer: Gpt2Model,
    /// From features to logits.
    pub lm_head: Linear,
}

impl Gpt2 {
    /// Creates a model with new parameters. The errors are those of [`Gpt2Model::new`].
    #[track_caller]
    pub fn new(config: Gpt2Config, init: &mut Init<'_>) -> Result<Self> {
        let transformer = Gpt2Model::new(config, init)?;
        let lm_head = Linear::from_parameters(transformer.wte.weight.clone(), None)?;
        Ok(Gpt2 { transformer, lm_head })
    }

    /// Part `i` of the `n_layer + 2` parts that make a model when they are applied one after the other: the
    /// [`Gpt2Embeddings`], each [`Gpt2Block`], and the [`Gpt2Head`]. For pipelines, whose stages make only theirs.
    ///
    /// With one generator, all parts in turn get the numbers of [`new`](Gpt2::new). The head has a weight of its own,
    /// `lm_head.weight`, drawn after them; tie it to `wte.weight` to train the model of `new`.
    ///
    /// ```
    /// # use gradus_models::{Gpt2, Gpt2Config}; use gradus_nn::{Forward, Init}; use gradus_tensor::*;
    /// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
    /// let config = Gpt2Config { vocab_size: 65, n_positions: 16, n_embd: 8, n_layer: 2, n_head: 2, ..Default::default() };
    /// let mut x = Tensor::from_vec(vec![3i64, 1, 4, 1, 5], [1, 5], &device)?;
    /// for i in 0..config.n_layer + 2 {
    ///     let mut generator = Generator::new(7).fork(i as u64);
    ///     x = Gpt2::part(&config, i, &mut Init::new(DType::F32, &device, &mut generator))?.forward(&x)?;
    /// }
    /// assert_eq!(x.shape(), [1, 5, 65]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Gpt2Model::new`], and [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if there is
    /// no part `i`.
    #[track_caller]
    pub fn part(config: &Gpt2Config, i: usize, init: &mut Init<'_>) -> Result<Box<dyn Forward>> {
        config.check()?;
        match i {
            0 => Ok(Box::new(Gpt2Embeddings::new(config, init)?)),
            i if i <= config.n_layer => Ok(Box::new(Gpt2Block::new(config, init)?)),
            i if i == config.n_layer + 1 => {
                let ln_f = config.norm(init)?;
                let weight = init.normal([config.vocab_size, config.n_embd], 0.0, config.initializer_range)?;
                Ok(Box::new(Gpt2Head { ln_f, lm_head: Linear::from_parameters(Parameter::new(weight)?, None)? }))
            }
            _ => {
                let m =
                    format!("part {i} of a model of {} blocks, which has {} parts", config.n_layer, config.n_layer + 2);
                Err(Error::argument(OP, m))
            }
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Gpt2Config {
        self.transformer.config()
    }
}

impl Forward for Gpt2 {
    #[track_caller]
    fn compute(&self, tokens: &Tensor) -> Result<Tensor> {
        self.lm_head.forward(&self.transformer.forward(tokens)?)
    }
}

impl CausalLm for Gpt2 {
    fn context(&self) -> usize {
        self.config().n_positions
    }

    fn vocabulary_size(&self) -> usize {
        self.config().vocab_size
    }

    fn new_cache(&self) -> Vec<KvCache> {
        self.transformer.h.iter().map(|_| KvCache::new()).collect()
    }

    #[track_caller]
    fn decode(&self, tokens: &Tensor, cache: &mut [KvCache]) -> Result<Tensor> {
        let pass = ForwardPass::begin()?;
        let x = pass.end(self, decoded(cache, |cache| self.transformer.run(tokens, Some(cache))))?;
        self.lm_head.forward(&x.select(1, -1)?)
    }
}
