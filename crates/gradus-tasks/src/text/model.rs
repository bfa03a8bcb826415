//! [`Text`]: a trained language model. [`Sizes`]: how large one is.

use gradus_data::text::{TokenWindows, Tokenizer};
use gradus_data::{Dataset, Sample};
use gradus_models::{GenerateOptions, Gpt2, Gpt2Config};
use gradus_nn::{Forward, Init, Module, StateDict, Strict};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Here, Result, Tensor, no_grad};
use gradus_train::Outcome;
use serde::{Deserialize, Serialize};

use crate::{Measured, Metric};

use super::tokens::Vocabulary;
use super::writing::{Writing, write_on};

/// The sizes of a language model of the shape of GPT-2. The defaults learn a megabyte of text on two cores within
/// minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Number of blocks. Default 4.
    pub layers: usize,
    /// Number of attention heads, which must divide `width`. Default 4.
    pub heads: usize,
    /// Number of features of a token. Default 128.
    pub width: usize,
    /// The most tokens that the model sees at once. Default 128.
    pub context: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { layers: 4, heads: 4, width: 128, context: 128 }
    }
}

impl Sizes {
    /// The configuration of a model with this many tokens, and with this probability of dropout in all places.
    pub fn config(&self, vocabulary_size: usize, dropout: f64) -> Gpt2Config {
        Gpt2Config {
            vocab_size: vocabulary_size,
            n_positions: self.context,
            n_embd: self.width,
            n_layer: self.layers,
            n_head: self.heads,
            resid_pdrop: dropout,
            embd_pdrop: dropout,
            attn_pdrop: dropout,
            ..Gpt2Config::default()
        }
    }
}

/// What a model file says of a language model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// How large the model is.
    #[serde(flatten)]
    pub sizes: Sizes,
    /// The tokeniser.
    pub tokenizer: Vocabulary,
    /// What to write on from if there is no prompt: a text of the vocabulary.
    pub start: String,
}

/// A trained language model.
pub struct Text {
    spec: Spec,
    model: Gpt2,
    tokenizer: Box<dyn Tokenizer>,
    device: Device,
}

impl Text {
    /// The model with the weights of `state`, ready to write.
    #[track_caller]
    pub(crate) fn from_state(spec: Spec, state: &StateDict, device: &Device) -> Result<Text> {
        let tokenizer = spec.tokenizer.tokenizer()?;
        let config = spec.sizes.config(tokenizer.vocabulary_size(), 0.0);
        let help = "the file was changed, or made by another version; give a model.safetensors of `gradus train text`";
        // The sizes are compared with the weights first, so that those of a damaged file do not allocate more than it
        // holds.
        let shape = |name: &str| state.get(name).map(Tensor::shape);
        let has_layer = |i: usize| shape(&format!("transformer.h.{i}.ln_1.weight")) == Some(&[config.n_embd]);
        let is_there = shape("transformer.wte.weight") == Some(&[config.vocab_size, config.n_embd])
            && shape("transformer.wpe.weight") == Some(&[config.n_positions, config.n_embd])
            && (0..config.n_layer).all(has_layer);
        if !is_there {
            let Sizes { layers, width, context, .. } = spec.sizes;
            let m = format!(
                "the weights are not those of {layers} layers, {} tokens, a width of {width} and a context of {context}",
                config.vocab_size
            );
            return Err(Error::new(ErrorKind::Format, "load", m).help(help));
        }
        let mut model = Gpt2::new(config, &mut Init::new(DType::F32, device, &mut Generator::new(0)).skip())?;
        model.load_state_dict(state, Strict::Yes).map_err(|e| e.help(help))?;
        model.eval();
        Ok(Text { spec, model, tokenizer, device: device.clone() })
    }

    /// How large the model is, and its tokeniser.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The model: tokens `[n, length]` to the logits of the next `[n, length, vocabulary]`.
    pub fn network(&self) -> &Gpt2 {
        &self.model
    }

    /// How well the model predicts a text, which it reads in sections of its context, one after the other. A last section
    /// that is not full is left out, unless it is the only one.
    ///
    /// # Errors
    /// Fails if the text has fewer than two tokens or a character that is not in the vocabulary, or if the loss is not
    /// finite.
    #[track_caller]
    pub fn evaluate(&self, text: &str) -> Result<Measured> {
        const OP: &str = "evaluate";
        let tokens = self.tokenizer.encode(text).map_err(|e| {
            e.note("in the text to evaluate on")
                .help("the model knows only the characters of the text that it has learned")
        });
        let tokens = tokens.here()?;
        let bytes_per_token = text.len() as f64 / tokens.len().max(1) as f64;
        let Some(length) = tokens.len().checked_sub(1).filter(|&n| n > 0) else {
            let e = Error::argument(OP, format!("the text has {} tokens", tokens.len()));
            return Err(e.help("give a text of two tokens or more: the second is the first that can be predicted"));
        };
        let length = length.min(self.spec.sizes.context);
        let windows = TokenWindows::new(tokens, length, length)?;
        // At most one for each section of the text.
        let mut losses = Vec::new();
        for section in 0..windows.len() {
            let (input, next) = Sample::collate(vec![windows.get(section)?], &self.device)?;
            let logits = no_grad(|| self.model.forward(&input))?.flatten(0, 1)?;
            losses.push(logits.cross_entropy(&next.flatten(0, 1)?)?.item()?);
        }
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        if !loss.is_finite() {
            return Err(crate::answer::not_finite(&format!("the loss on the text is {loss}")));
        }
        Ok(Measured { metrics: loss_metrics(loss, bytes_per_token), confusion: None, losses })
    }

    /// Writes on from a prompt, piece by piece. The errors are those of [`write_on`].
    #[track_caller]
    pub fn write_on(&mut self, prompt: &str, options: GenerateOptions) -> Result<Writing<'_, Gpt2>> {
        write_on(&mut self.model, &*self.tokenizer, prompt, &self.device, options)
    }
}

/// The task of a language model: the mean cross-entropy, in nats, between its predictions and the next tokens. A batch is
/// two tensors `[n, length]`, and a sample is one of the `n` sections.
#[track_caller]
pub fn next_token_loss<M: Forward>(model: &M, (tokens, next): &(Tensor, Tensor)) -> Result<Outcome> {
    let logits = model.forward(tokens)?.flatten(0, 1)?;
    let loss = logits.cross_entropy(&next.flatten(0, 1)?).here()?;
    Ok(Outcome { loss, samples: tokens.size(0)?, correct: None })
}

/// What a mean loss of a token in nats amounts to: the loss itself, perplexity, and bits per byte, which models with
/// different tokenisers share.
pub fn loss_metrics(loss: f64, bytes_per_token: f64) -> Vec<Metric> {
    vec![
        Metric::number("loss", "Loss", loss),
        Metric::number("perplexity", "Perplexity", loss.exp()),
        Metric::number("bits_per_byte", "Bits per byte", loss / bytes_per_token / std::f64::consts::LN_2),
    ]
}
