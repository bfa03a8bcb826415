//! Transformers: [`TransformerEncoderLayer`], [`TransformerEncoder`], [`TransformerDecoderLayer`],
//! [`TransformerDecoder`] and [`Transformer`].

use gradus_tensor::{Here, Result, Tensor};

use super::{Dropout, LayerNorm, LayerNormConfig, Linear, Masks, MultiheadAttention, MultiheadAttentionConfig};
use crate::init::Gain;
use crate::module::ForwardPass;
use crate::{Forward, Init, Module};

/// The activation between the two linear layers of a transformer layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransformerActivation {
    /// `max(x, 0)`
    #[default]
    Relu,
    /// The exact GELU.
    Gelu,
}

/// Options of the layers of a transformer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransformerConfig {
    /// Number of features between the two linear layers. Default 2048.
    pub dim_feedforward: usize,
    /// Probability of dropping an attention weight, a feature between the linear layers, and a feature of each residual
    /// branch in training, 0 to 1. Default 0.1.
    pub dropout: f64,
    /// The activation between the linear layers. Default ReLU.
    pub activation: TransformerActivation,
    /// The `eps` of the layer norms. Default 1e-5.
    pub layer_norm_eps: f64,
    /// Whether the batch axis comes before the sequence axis. Default true, unlike in PyTorch.
    pub batch_first: bool,
    /// Whether each residual branch begins with its layer norm; otherwise the norm follows the sum. Default false.
    pub norm_first: bool,
    /// Whether the linear layers and the layer norms have biases. Default true.
    pub bias: bool,
}

impl Default for TransformerConfig {
    fn default() -> Self {
        TransformerConfig {
            dim_feedforward: 2048,
            dropout: 0.1,
            activation: TransformerActivation::Relu,
            layer_norm_eps: 1e-5,
            batch_first: true,
            norm_first: false,
            bias: true,
        }
    }
}

impl TransformerConfig {
    #[track_caller]
    fn norm(&self, d_model: usize, init: &mut Init<'_>) -> Result<LayerNorm> {
        let config = LayerNormConfig { eps: self.layer_norm_eps, bias: self.bias, ..LayerNormConfig::default() };
        LayerNorm::new([d_model], config, init)
    }

    #[track_caller]
    fn linear(&self, from: usize, to: usize, init: &mut Init<'_>) -> Result<Linear> {
        if self.bias { Linear::new(from, to, init) } else { Linear::without_bias(from, to, init) }
    }

    #[track_caller]
    fn attention(&self, d_model: usize, nhead: usize, init: &mut Init<'_>) -> Result<MultiheadAttention> {
        let TransformerConfig { dropout, bias, batch_first, .. } = *self;
        let config = MultiheadAttentionConfig { dropout, bias, batch_first, ..Default::default() };
        MultiheadAttention::new(d_model, nhead, config, init)
    }

    #[track_caller]
    fn dropout(&self, init: &mut Init<'_>) -> Result<Dropout> {
        Dropout::new(self.dropout, init.generator)
    }
}

/// Adds a residual branch to `x`: the norm comes before the branch or after the sum.
#[track_caller]
fn residual(
    norm_first: bool,
    norm: &LayerNorm,
    x: &Tensor,
    branch: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if norm_first {
        return x.add(&branch(&norm.forward(x)?).here()?);
    }
    norm.forward(&x.add(&branch(x).here()?)?)
}

/// Runs a function of a module as a [`ForwardPass`].
#[track_caller]
fn pass<M: Module>(module: &M, run: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    let pass = ForwardPass::begin()?;
    pass.end(module, run())
}

/// A layer of a transformer encoder (Vaswani et al., 2017): self-attention and two linear layers, each a residual branch
/// with dropout and a layer norm. Input and output: `[n, length, d_model]`. Parameters have PyTorch's names, shapes and
/// initial values.
///
/// ```
/// # use gradus_nn::{Init, Masks, Module, TransformerConfig, TransformerEncoderLayer}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = TransformerConfig { dim_feedforward: 32, norm_first: true, ..Default::default() };
/// let layer = TransformerEncoderLayer::new(8, 2, config, &mut init)?;
/// let x = Tensor::ones([3, 5, 8], DType::F32, &device)?;
/// assert_eq!(layer.run(&x, Masks::causal(Causal::TopLeft))?.shape(), [3, 5, 8]);
/// assert_eq!(layer.named_parameters()[2].0, "self_attn.out_proj.weight");
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct TransformerEncoderLayer {
    /// Self-attention.
    pub self_attn: MultiheadAttention,
    /// From `d_model` to `dim_feedforward` features.
    pub linear1: Linear,
    dropout: Dropout,
    /// From `dim_feedforward` to `d_model` features.
    pub linear2: Linear,
    /// The norm of self-attention.
    pub norm1: LayerNorm,
    /// The norm of the linear layers.
    pub norm2: LayerNorm,
    dropout1: Dropout,
    dropout2: Dropout,
    #[module(skip)]
    config: TransformerConfig,
}

impl TransformerEncoderLayer {
    /// Creates a layer with new parameters. Errors if `nhead` does not divide `d_model`, if the dropout probability is
    /// outside 0 to 1, or if `layer_norm_eps` is not above 0.
    #[track_caller]
    pub fn new(d_model: usize, nhead: usize, config: TransformerConfig, init: &mut Init<'_>) -> Result<Self> {
        Ok(TransformerEncoderLayer {
            self_attn: config.attention(d_model, nhead, init)?,
            linear1: config.linear(d_model, config.dim_feedforward, init)?,
            dropout: config.dropout(init)?,
            linear2: config.linear(config.dim_feedforward, d_model, init)?,
            norm1: config.norm(d_model, init)?,
            norm2: config.norm(d_model, init)?,
            dropout1: config.dropout(init)?,
            dropout2: config.dropout(init)?,
            config,
        })
    }

    /// Runs the layer with masks. A float mask is added to the scores, a bool mask keeps what is true.
    #[track_caller]
    pub fn run(&self, src: &Tensor, masks: Masks<'_>) -> Result<Tensor> {
        pass(self, || {
            let first = self.config.norm_first;
            let x = residual(first, &self.norm1, src, |x| {
                self.dropout1.forward(&self.self_attn.attend_with(x, x, x, masks)?)
            })?;
            residual(first, &self.norm2, &x, |x| {
                let x = feed_forward(&self.linear1, self.config.activation, &self.dropout, &self.linear2, x)?;
                self.dropout2.forward(&x)
            })
        })
    }
}

/// The two linear layers.
#[track_caller]
fn feed_forward(
    linear1: &Linear,
    activation: TransformerActivation,
    dropout: &Dropout,
    linear2: &Linear,
    x: &Tensor,
) -> Result<Tensor> {
    let x = linear1.forward(x)?;
    let x = match activation {
        TransformerActivation::Relu => x.relu()?,
        TransformerActivation::Gelu => x.gelu()?,
    };
    linear2.forward(&dropout.forward(&x)?)
}

/// A layer of a transformer decoder: self-attention, attention to the encoder's output (the memory), and two linear
/// layers, each a residual branch with dropout and a layer norm. Parameters have PyTorch's names, shapes and initial
/// values.
#[derive(Clone, Module)]
pub struct TransformerDecoderLayer {
    /// Self-attention.
    pub self_attn: MultiheadAttention,
    /// Attention to the memory.
    pub multihead_attn: MultiheadAttention,
    /// From `d_model` to `dim_feedforward` features.
    pub linear1: Linear,
    dropout: Dropout,
    /// From `dim_feedforward` to `d_model` features.
    pub linear2: Linear,
    /// The norm of self-attention.
    pub norm1: LayerNorm,
    /// The norm of the attention to the memory.
    pub norm2: LayerNorm,
    /// The norm of the linear layers.
    pub norm3: LayerNorm,
    dropout1: Dropout,
    dropout2: Dropout,
    dropout3: Dropout,
    #[module(skip)]
    config: TransformerConfig,
}

impl TransformerDecoderLayer {
    /// Creates a layer with new parameters. Errors as [`TransformerEncoderLayer::new`] does.
    #[track_caller]
    pub fn new(d_model: usize, nhead: usize, config: TransformerConfig, init: &mut Init<'_>) -> Result<Self> {
        Ok(TransformerDecoderLayer {
            self_attn: config.attention(d_model, nhead, init)?,
            multihead_attn: config.attention(d_model, nhead, init)?,
            linear1: config.linear(d_model, config.dim_feedforward, init)?,
            dropout: config.dropout(init)?,
            linear2: config.linear(config.dim_feedforward, d_model, init)?,
            norm1: config.norm(d_model, init)?,
            norm2: config.norm(d_model, init)?,
            norm3: config.norm(d_model, init)?,
            dropout1: config.dropout(init)?,
            dropout2: config.dropout(init)?,
            dropout3: config.dropout(init)?,
            config,
        })
    }

    /// Runs the layer on the targets `[n, length, d_model]` and the memory `[n, memory length, d_model]`. `masks` are
    /// those of self-attention, most often [`Causal::TopLeft`](gradus_tensor::Causal::TopLeft), and `memory_masks` those of
    /// the attention to the memory.
    #[track_caller]
    pub fn run(&self, tgt: &Tensor, memory: &Tensor, masks: Masks<'_>, memory_masks: Masks<'_>) -> Result<Tensor> {
        pass(self, || {
            let first = self.config.norm_first;
            let x = residual(first, &self.norm1, tgt, |x| {
                self.dropout1.forward(&self.self_attn.attend_with(x, x, x, masks)?)
            })?;
            let x = residual(first, &self.norm2, &x, |x| {
                self.dropout2.forward(&self.multihead_attn.attend_with(x, memory, memory, memory_masks)?)
            })?;
            residual(first, &self.norm3, &x, |x| {
                let x = feed_forward(&self.linear1, self.config.activation, &self.dropout, &self.linear2, x)?;
                self.dropout3.forward(&x)
            })
        })
    }
}

/// Layers of a transformer encoder, one after the other, and an optional norm at the end.
///
/// Unlike in PyTorch, which copies one layer, each layer starts with its own random values.
#[derive(Clone, Module)]
pub struct TransformerEncoder {
    /// The layers.
    pub layers: Vec<TransformerEncoderLayer>,
    /// The norm of the output.
    pub norm: Option<LayerNorm>,
}

impl TransformerEncoder {
    /// Creates `num_layers` new layers, with a norm at the end if `norm` is set. Errors as
    /// [`TransformerEncoderLayer::new`] does.
    #[track_caller]
    pub fn new(
        num_layers: usize,
        d_model: usize,
        nhead: usize,
        config: TransformerConfig,
        norm: bool,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        let mut layers = vec![]; // at most `num_layers`
        for _ in 0..num_layers {
            layers.push(TransformerEncoderLayer::new(d_model, nhead, config, init)?);
        }
        let norm = if norm { Some(config.norm(d_model, init)?) } else { None };
        Ok(TransformerEncoder { layers, norm })
    }

    /// Runs all layers with the same masks. See [`TransformerEncoderLayer::run`].
    #[track_caller]
    pub fn run(&self, src: &Tensor, masks: Masks<'_>) -> Result<Tensor> {
        pass(self, || {
            let mut x = src.clone();
            for layer in &self.layers {
                x = layer.run(&x, masks)?;
            }
            if let Some(norm) = &self.norm { norm.forward(&x) } else { Ok(x) }
        })
    }
}

/// Layers of a transformer decoder, one after the other, and an optional norm at the end.
#[derive(Clone, Module)]
pub struct TransformerDecoder {
    /// The layers.
    pub layers: Vec<TransformerDecoderLayer>,
    /// The norm of the output.
    pub norm: Option<LayerNorm>,
}

impl TransformerDecoder {
    /// Creates `num_layers` new layers, with a norm at the end if `norm` is set. Errors as
    /// [`TransformerEncoderLayer::new`] does.
    #[track_caller]
    pub fn new(
        num_layers: usize,
        d_model: usize,
        nhead: usize,
        config: TransformerConfig,
        norm: bool,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        let mut layers = vec![]; // at most `num_layers`
        for _ in 0..num_layers {
            layers.push(TransformerDecoderLayer::new(d_model, nhead, config, init)?);
        }
        let norm = if norm { Some(config.norm(d_model, init)?) } else { None };
        Ok(TransformerDecoder { layers, norm })
    }

    /// Runs all layers with the same masks. See [`TransformerDecoderLayer::run`].
    #[track_caller]
    pub fn run(&self, tgt: &Tensor, memory: &Tensor, masks: Masks<'_>, memory_masks: Masks<'_>) -> Result<Tensor> {
        pass(self, || {
            let mut x = tgt.clone();
            for layer in &self.layers {
                x = layer.run(&x, memory, masks, memory_masks)?;
            }
            if let Some(norm) = &self.norm { norm.forward(&x) } else { Ok(x) }
        })
    }
}

/// The masks of a [`Transformer`]: of the self-attention of encoder and decoder, and of the attention to the memory.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct TransformerMasks<'a> {
    pub src: Masks<'a>,
    pub tgt: Masks<'a>,
    pub memory: Masks<'a>,
}

/// The transformer of Vaswani et al. (2017): an encoder and a decoder, each with a layer norm at the end. It has no
/// embeddings and no positions. Matrices are initialised by [`Init::xavier_uniform`], as in PyTorch.
///
/// ```
/// # use gradus_nn::{Init, Masks, Transformer, TransformerConfig, TransformerMasks}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = TransformerConfig { dim_feedforward: 32, ..Default::default() };
/// let model = Transformer::new(8, 2, 2, 1, config, &mut init)?;
/// let (src, tgt) = (Tensor::ones([3, 7, 8], DType::F32, &device)?, Tensor::ones([3, 5, 8], DType::F32, &device)?);
/// let masks = TransformerMasks { tgt: Masks::causal(Causal::TopLeft), ..Default::default() };
/// assert_eq!(model.run(&src, &tgt, masks)?.shape(), [3, 5, 8]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Transformer {
    /// The encoder.
    pub encoder: TransformerEncoder,
    /// The decoder.
    pub decoder: TransformerDecoder,
}

impl Transformer {
    /// Creates a transformer with new parameters. PyTorch's defaults are `d_model` 512, `nhead` 8, and six layers each.
    /// Errors as [`TransformerEncoderLayer::new`] does.
    #[track_caller]
    pub fn new(
        d_model: usize,
        nhead: usize,
        num_encoder_layers: usize,
        num_decoder_layers: usize,
        config: TransformerConfig,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        let encoder = TransformerEncoder::new(num_encoder_layers, d_model, nhead, config, true, init)?;
        let decoder = TransformerDecoder::new(num_decoder_layers, d_model, nhead, config, true, init)?;
        let model = Transformer { encoder, decoder };
        for p in model.parameters().iter().filter(|p| p.rank() > 1) {
            p.set(&init.xavier_uniform(p.shape(), Gain::Linear)?)?;
        }
        Ok(model)
    }

    /// Runs the encoder on the source `[n, source length, d_model]`, and the decoder on the target
    /// `[n, target length, d_model]` and the encoder's output. Returns the decoder's output.
    #[track_caller]
    pub fn run(&self, src: &Tensor, tgt: &Tensor, masks: TransformerMasks<'_>) -> Result<Tensor> {
        pass(self, || {
            let memory = self.encoder.run(src, masks.src)?;
            self.decoder.run(tgt, &memory, masks.tgt, masks.memory)
        })
    }
}

impl Forward for TransformerEncoderLayer {
    /// The layer without masks.
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, Masks::default())
    }
}

impl Forward for TransformerEncoder {
    /// The layers without masks.
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, Masks::default())
    }
}
