//! [`generate`]: writes on from a prompt, token by token, with any [`CausalLm`].

use gradus_nn::{KvCache, Module};
use gradus_tensor::{DType, Device, Error, Generator, Here, Result, Tensor, no_grad_guard};

use crate::sampling::{Sampling, sample};

const OP: &str = "generate";

/// A language model that predicts the next token from those before it.
pub trait CausalLm: Module {
    /// The most tokens that the model sees at once.
    fn context(&self) -> usize;

    /// The number of different tokens.
    fn vocabulary_size(&self) -> usize;

    /// Empty caches, one for each layer with attention.
    fn new_cache(&self) -> Vec<KvCache>;

    /// The logits `[n, vocabulary_size]` of the token after `tokens [n, length]`, which follow the tokens in the caches
    /// and are added to them. Call it inside [`no_grad`](gradus_tensor::no_grad).
    ///
    /// # Errors
    /// Fails if there are no tokens, if there are more tokens than the [`context`](CausalLm::context) holds, or if the
    /// caches are of another model. The caches are then as they were.
    fn decode(&self, tokens: &Tensor, cache: &mut [KvCache]) -> Result<Tensor>;
}

/// Runs a function that adds tokens to the caches, and removes them again if it fails.
#[track_caller]
pub(crate) fn decoded<T>(cache: &mut [KvCache], run: impl FnOnce(&mut [KvCache]) -> Result<T>) -> Result<T> {
    let before: Vec<usize> = cache.iter().map(KvCache::len).collect();
    let done = run(cache);
    if done.is_err() {
        for (cache, before) in cache.iter_mut().zip(before) {
            cache.truncate(before.min(cache.len()))?;
        }
    }
    done.here()
}

/// How [`generate`] writes. The defaults draw from the model's own probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to write. Default 256.
    pub max_new_tokens: usize,
    /// How to draw a token.
    pub sampling: Sampling,
    /// The seed of the random numbers. Default 0.
    pub seed: u64,
    /// Tokens that end the text. They are not part of it. Default none.
    pub stop: Vec<i64>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions { max_new_tokens: 256, sampling: Sampling::default(), seed: 0, stop: Vec::new() }
    }
}

/// Writes on from the tokens of a prompt. Each item of the iterator is the next token, computed when it is requested.
/// The iterator ends after `max_new_tokens` tokens, before a token of `stop`, or after an error.
///
/// The model is left in evaluation mode. Keys and values are cached, so that a token costs one pass over one token.
/// When prompt and text fill the context, the model goes on with the newer half of what it saw.
///
/// ```
/// # use gradus_models::{GenerateOptions, Gpt2, Gpt2Config, Sampling, generate}; use gradus_nn::Init; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = Gpt2Config { vocab_size: 65, n_positions: 16, n_embd: 8, n_layer: 1, n_head: 2, ..Default::default() };
/// let mut model = Gpt2::new(config, &mut init)?;
/// let sampling = Sampling { temperature: 0.8, top_k: Some(20), ..Default::default() };
/// let options = GenerateOptions { max_new_tokens: 30, sampling, ..Default::default() };
/// let text = generate(&mut model, &[3, 1, 4], &device, options)?.collect::<Result<Vec<i64>>>()?;
/// assert_eq!(text.len(), 30);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// Fails if the prompt is empty, longer than the model's context, or holds a token outside the vocabulary, or if an
/// option of the sampling is out of its range.
#[track_caller]
pub fn generate<'m, M: CausalLm + ?Sized>(
    model: &'m mut M,
    prompt: &[i64],
    device: &Device,
    options: GenerateOptions,
) -> Result<Generation<'m, M>> {
    options.sampling.check()?;
    let (context, size) = (model.context(), model.vocabulary_size());
    if prompt.is_empty() {
        return Err(Error::argument(OP, "the prompt is empty").help("give at least one token to write on from"));
    }
    if prompt.len() > context {
        let m = format!("the prompt has {} tokens; the model sees {context} at once", prompt.len());
        return Err(Error::argument(OP, m).help(format!("give a shorter prompt, such as its last {context} tokens")));
    }
    if let Some(at) = prompt.iter().position(|&t| usize::try_from(t).is_ok_and(|t| t >= size) || t < 0) {
        let m = format!("token {at} of the prompt is {}; the vocabulary has {size}", prompt[at]);
        return Err(Error::argument(OP, m).help("encode the prompt with the tokeniser of the model"));
    }
    model.eval();
    Ok(Generation {
        cache: model.new_cache(),
        model,
        device: device.clone(),
        // At most `context` tokens.
        seen: prompt.to_vec(),
        cached: 0,
        left: options.max_new_tokens,
        generator: Generator::new(options.seed),
        options,
    })
}

/// The tokens that a model writes, as an iterator. [`generate`] makes it.
pub struct Generation<'m, M: ?Sized> {
    model: &'m M,
    device: Device,
    cache: Vec<KvCache>,
    /// The tokens that the model sees: at most as many as its context holds.
    seen: Vec<i64>,
    /// How many of these are in the caches.
    cached: usize,
    left: usize,
    generator: Generator,
    options: GenerateOptions,
}

impl<M: CausalLm + ?Sized> Generation<'_, M> {
    /// The next token, or nothing if it is one of `stop`.
    #[track_caller]
    fn draw(&mut self) -> Result<Option<i64>> {
        let context = self.model.context();
        if self.seen.len() > context {
            self.seen.drain(..self.seen.len() - context.div_ceil(2));
            self.cache = self.model.new_cache();
            self.cached = 0;
        }
        let _guard = no_grad_guard();
        let new = &self.seen[self.cached..];
        let tokens = Tensor::from_vec(new, [1, new.len()], &self.device)?;
        let logits = self.model.decode(&tokens, &mut self.cache)?;
        self.cached = self.seen.len();
        if logits.numel() != self.model.vocabulary_size() {
            let m = format!("`decode` returns {} numbers for {} tokens", logits.numel(), self.model.vocabulary_size());
            let e = Error::shape("generate", m).operand("logits", logits.shape(), logits.dtype(), logits.device());
            return Err(e.help("`CausalLm::decode` returns the logits of the last position alone"));
        }
        let logits = logits.to_dtype(DType::F64)?.to_vec::<f64>()?;
        let token = sample(&logits, &self.seen, &self.options.sampling, &mut self.generator)?;
        if self.options.stop.contains(&token) {
            return Ok(None);
        }
        self.seen.push(token);
        Ok(Some(token))
    }
}

impl<M: CausalLm + ?Sized> Iterator for Generation<'_, M> {
    type Item = Result<i64>;

    fn next(&mut self) -> Option<Result<i64>> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let next = self.draw().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.left = 0;
        }
        next
    }
}
