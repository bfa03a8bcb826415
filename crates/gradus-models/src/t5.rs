//! [`T5`], with transformers' names.

mod block;
mod config;
mod positions;

use gradus_nn::{
    Dropout, Embedding, Forward, ForwardPass, Init, KvCache, Linear, Module, RmsNorm, Visitor, VisitorMut,
};
use gradus_tensor::{Error, Result, Tensor, no_grad_guard};

pub use block::{T5Attention, T5Block, T5CrossAttention, T5Dense, T5Feed, T5Layers, T5SelfAttention};
pub use config::{T5Config, T5FeedForward};

use self::block::KeysAndValues;
use self::positions::{OP, T5Distances, buckets};
use crate::CausalLm;
use crate::checks;
use crate::generate::decoded;
use crate::new_layers::{normal_embedding, normal_linear_without_bias};

/// The most tokens of a text. T5 has no limit of its own; each layer needs memory for the square of the length.
const MOST_TOKENS: usize = 1 << 16;

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
/// # use gradus_models::{GenerateOptions, T5, T5Config, generate}; use gradus_nn::{Forward, Init, Module}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = T5Config { vocab_size: 100, d_model: 16, d_kv: 4, d_ff: 32, num_layers: 2, num_heads: 4, ..Default::default() };
/// let mut model = T5::new(config, &mut init)?;
/// let question = Tensor::from_vec(vec![5i64, 8, 9, 1, 7, 2, 1, 0], [2, 4], &device)?;
/// let answer = Tensor::from_vec(vec![0i64, 6, 4, 0, 3, 1], [2, 3], &device)?;
/// let mask = question.ne(0)?; // the second question has three tokens
/// assert_eq!(model.logits(&question, Some(&mask), &answer)?.shape(), [2, 3, 100]);
///
/// // The answer to the first question, until the token 1 ends it.
/// let options = GenerateOptions { max_new_tokens: 5, stop: vec![1], ..GenerateOptions::default() };
/// let mut writer = model.writer(&question.narrow(0, 0, 1)?, None)?;
/// let answer = generate(&mut writer, &[0], &device, options)?.collect::<Result<Vec<i64>>>()?;
/// assert!(answer.len() <= 5);
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
        pass.end(self, self.encoder.run(tokens, mask, &[], None))
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
        let sources = self.decoder.sources(encoded)?;
        self.scored(self.decoder.run(written, mask, &sources, None)?)
    }

    /// The logits for features of the decoder.
    #[track_caller]
    fn scored(&self, mut x: Tensor) -> Result<Tensor> {
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

    /// Reads a text, tokens `[1, length]`, for [`generate`](crate::generate) to write the answer, whose first token is 0.
    /// Fails if `tokens` has another shape, and as [`encode`](T5::encode) does.
    #[track_caller]
    pub fn writer(&mut self, tokens: &Tensor, mask: Option<&Tensor>) -> Result<T5Writer<'_>> {
        if !matches!(tokens.shape(), [1, _]) {
            let e = Error::shape("t5", "one text is answered at a time").operand(
                "tokens",
                tokens.shape(),
                tokens.dtype(),
                tokens.device(),
            );
            return Err(e.help("give tokens of the shape [1, length]"));
        }
        self.eval();
        let _guard = no_grad_guard();
        let sources = self.decoder.sources(&self.encode(tokens, mask)?)?;
        Ok(T5Writer { model: self, sources, mask: mask.cloned() })
    }
}

/// A [`T5`] that has read a text and writes the answer. [`T5::writer`] makes it.
#[derive(Debug)]
pub struct T5Writer<'m> {
    model: &'m mut T5,
    sources: Vec<KeysAndValues>,
    mask: Option<Tensor>,
}

impl Module for T5Writer<'_> {
    fn visit<'v>(&'v self, visitor: &mut Visitor<'v>) {
        self.model.visit(visitor);
    }

    fn visit_mut<'v>(&'v mut self, visitor: &mut VisitorMut<'v>) {
        self.model.visit_mut(visitor);
    }
}

impl CausalLm for T5Writer<'_> {
    fn context(&self) -> usize {
        MOST_TOKENS
    }

    fn vocabulary_size(&self) -> usize {
        self.model.config.vocab_size
    }

    fn new_cache(&self) -> Vec<KvCache> {
        self.model.decoder.block.iter().map(|_| KvCache::new()).collect()
    }

    #[track_caller]
    fn decode(&self, tokens: &Tensor, cache: &mut [KvCache]) -> Result<Tensor> {
        let (pass, decoder) = (ForwardPass::begin()?, &self.model.decoder);
        let x = decoded(cache, |cache| decoder.run(tokens, self.mask.as_ref(), &self.sources, Some(cache)));
        self.model.scored(pass.end(self, x)?.select(1, -1)?)
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

    /// The keys and values of the encoder's features in each block, for a decoder.
    #[track_caller]
    fn sources(&self, encoded: &Tensor) -> Result<Vec<KeysAndValues>> {
        let mut sources = Vec::new();
        for block in &self.block {
            sources.extend(block.source(encoded)?);
        }
        Ok(sources)
    }

    /// The features of tokens, which follow those in the caches, one for each block. The mask is that of the encoder's
    /// tokens. A decoder is given the sources.
    #[track_caller]
    fn run(
        &self,
        tokens: &Tensor,
        mask: Option<&Tensor>,
        sources: &[KeysAndValues],
        mut caches: Option<&mut [KvCache]>,
    ) -> Result<Tensor> {
        let first = match &caches {
            Some(caches) if caches.len() != self.block.len() => {
                let m = format!("{} caches for {} blocks", caches.len(), self.block.len());
                return Err(Error::argument(OP, m).help("make the caches by new_cache()"));
            }
            Some(caches) => caches.first().map_or(0, KvCache::len),
            None => 0,
        };
        let [n, length] = checks::tokens(OP, tokens, MOST_TOKENS.saturating_sub(first))?;
        let keys = if let Some((keys, _)) = sources.first() { [n, keys.size(2)?] } else { [n, length] };
        let mask = if let Some(mask) = mask { Some(checks::key_mask(OP, mask, keys)?) } else { None };
        let mut x = self.dropout.forward(&self.embed_tokens.forward(tokens)?)?;
        let mut bias = None;
        for (i, block) in self.block.iter().enumerate() {
            if let Some(table) = &block.layer.attention().relative_attention_bias {
                bias = Some(self.bias(table, [first, length], mask.as_ref().filter(|_| sources.is_empty()))?);
            }
            let cache = caches.as_mut().map(|caches| &mut caches[i]);
            x = block.run(&x, bias.as_ref(), cache, sources.get(i), mask.as_ref())?;
        }
        self.dropout.forward(&self.final_layer_norm.forward(&x)?)
    }

    /// What is added to the scores of self-attention: a learned number for each head and distance, and minus infinity for
    /// keys that the mask hides. All blocks share those of the first.
    #[track_caller]
    fn bias(&self, table: &Embedding, [first, length]: [usize; 2], mask: Option<&Tensor>) -> Result<Tensor> {
        let at = buckets(self.distances, first, length, table.weight.device())?;
        let bias = table.forward(&at)?.permute(&[2, 0, 1])?.unsqueeze(0)?;
        match mask {
            Some(mask) => mask.where_(&bias, f64::NEG_INFINITY),
            None => Ok(bias),
        }
    }
}
