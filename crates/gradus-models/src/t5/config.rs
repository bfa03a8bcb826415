//! [`T5Config`].

use gradus_nn::{Dropout, Init, Linear, RmsNorm, RmsNormConfig};
use gradus_tensor::Result;

use super::positions::{OP, T5Distances};
use crate::checks;
use crate::new_layers::normal_linear_without_bias;

/// The two linear layers, or three, that follow each attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum T5FeedForward {
    /// Two with a ReLU in between, `relu`, as in the first version.
    #[default]
    Relu,
    /// Three, of which one makes gates by the tanh form of GELU, `gated-gelu`, as in T5 1.1 and FLAN-T5.
    GatedGelu,
}

/// The numbers of a [`T5`](crate::T5), with transformers' names. The defaults are those of `t5-small`.
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
    pub(super) fn decoder_layers(&self) -> usize {
        self.num_decoder_layers.unwrap_or(self.num_layers)
    }

    /// The distances of the decoder or the encoder.
    pub(super) fn distances(&self, causal: bool) -> T5Distances {
        let (rows, most) = (self.relative_attention_num_buckets, self.relative_attention_max_distance);
        T5Distances { causal, rows, most }
    }

    #[track_caller]
    pub(super) fn check(&self) -> Result<()> {
        checks::sizes(OP, &[("vocab_size", self.vocab_size), ("d_model", self.d_model), ("d_kv", self.d_kv)])?;
        checks::sizes(OP, &[("d_ff", self.d_ff), ("num_heads", self.num_heads)])?;
        checks::layers(OP, &[("num_layers", self.num_layers), ("num_decoder_layers", self.decoder_layers())])?;
        self.distances(false).check()
    }

    #[track_caller]
    pub(super) fn norm(&self, init: &mut Init<'_>) -> Result<RmsNorm> {
        RmsNorm::new([self.d_model], RmsNormConfig { eps: self.layer_norm_epsilon, ..RmsNormConfig::default() }, init)
    }

    /// A linear layer whose weights have a standard deviation of `1 / sqrt(fan)`.
    #[track_caller]
    pub(super) fn linear(&self, inputs: usize, outputs: usize, fan: usize, init: &mut Init<'_>) -> Result<Linear> {
        normal_linear_without_bias(inputs, outputs, self.initializer_factor / (fan as f64).sqrt(), init)
    }

    #[track_caller]
    pub(super) fn dropout(&self, init: &mut Init<'_>) -> Result<Dropout> {
        Dropout::new(self.dropout_rate, init.generator)
    }
}
