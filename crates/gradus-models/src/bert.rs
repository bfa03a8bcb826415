//! [`Bert`], with transformers' names.

use gradus_nn::{Dropout, Embedding, Forward, ForwardPass, Init, LayerNorm, LayerNormConfig, Linear, Module};
use gradus_tensor::{Causal, DType, Error, Result, Tensor};

use crate::checks;
use crate::heads::Heads;
use crate::new_layers::{normal_embedding, normal_linear};

const OP: &str = "bert";

/// The numbers of a [`Bert`], with transformers' names. The defaults are those of `bert-base-uncased`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BertConfig {
    /// Number of different tokens. Default 30522.
    pub vocab_size: usize,
    /// Number of features of a token. Default 768.
    pub hidden_size: usize,
    /// Number of layers. Default 12.
    pub num_hidden_layers: usize,
    /// Number of attention heads, which divides the features. Default 12.
    pub num_attention_heads: usize,
    /// Number of features between the two linear layers of a layer. Default 3072.
    pub intermediate_size: usize,
    /// The most tokens in a row. Default 512.
    pub max_position_embeddings: usize,
    /// Number of kinds of tokens, such as those of a first and a second sentence. Default 2.
    pub type_vocab_size: usize,
    /// The token that fills up short texts. Its row of the table receives no gradient. Default 0.
    pub pad_token_id: Option<usize>,
    /// Probability of dropping a feature in training. Default 0.1.
    pub hidden_dropout_prob: f64,
    /// Probability of dropping an attention weight in training. Default 0.1.
    pub attention_probs_dropout_prob: f64,
    /// The `eps` of the layer norms. Default 1e-12.
    pub layer_norm_eps: f64,
    /// The standard deviation of new weights. Default 0.02.
    pub initializer_range: f64,
    /// Whether there is a pooler: a layer for the features of the first token. Default true.
    pub pooler: bool,
}

impl Default for BertConfig {
    fn default() -> Self {
        BertConfig {
            vocab_size: 30522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            pad_token_id: Some(0),
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            layer_norm_eps: 1e-12,
            initializer_range: 0.02,
            pooler: true,
        }
    }
}

impl BertConfig {
    /// The config of `all-MiniLM-L6-v2`, a small model for the embeddings of sentences.
    pub fn minilm() -> Self {
        BertConfig { hidden_size: 384, num_hidden_layers: 6, intermediate_size: 1536, ..Self::default() }
    }

    #[track_caller]
    fn check(&self) -> Result<()> {
        let positions = ("max_position_embeddings", self.max_position_embeddings);
        checks::sizes(OP, &[("vocab_size", self.vocab_size), ("hidden_size", self.hidden_size), positions])?;
        checks::sizes(
            OP,
            &[("num_attention_heads", self.num_attention_heads), ("type_vocab_size", self.type_vocab_size)],
        )?;
        checks::sizes(OP, &[("intermediate_size", self.intermediate_size)])?;
        checks::layers(OP, &[("num_hidden_layers", self.num_hidden_layers)])?;
        checks::divides(OP, ("num_attention_heads", self.num_attention_heads), ("hidden_size", self.hidden_size))
    }

    #[track_caller]
    fn norm(&self, init: &mut Init<'_>) -> Result<LayerNorm> {
        let config = LayerNormConfig { eps: self.layer_norm_eps, ..LayerNormConfig::default() };
        LayerNorm::new([self.hidden_size], config, init)
    }

    #[track_caller]
    fn linear(&self, inputs: usize, outputs: usize, init: &mut Init<'_>) -> Result<Linear> {
        normal_linear(inputs, outputs, self.initializer_range, init)
    }

    #[track_caller]
    fn dropout(&self, init: &mut Init<'_>) -> Result<Dropout> {
        Dropout::new(self.hidden_dropout_prob, init.generator)
    }

    #[track_caller]
    fn residual(&self, inputs: usize, init: &mut Init<'_>) -> Result<BertOutput> {
        let dense = self.linear(inputs, self.hidden_size, init)?;
        Ok(BertOutput { dense, layer_norm: self.norm(init)?, dropout: self.dropout(init)? })
    }
}

/// BERT (Devlin et al., 2019), transformers' `BertModel`: tokens `[n, length]` (i64, i32 or u32) to features
/// `[n, length, hidden_size]`.
///
/// Parameters have transformers' names, shapes and initial distributions: `embeddings.word_embeddings.weight`,
/// `encoder.layer.0.attention.self.query.weight`, `pooler.dense.weight`. Texts of different lengths are filled up, and
/// come with a mask.
///
/// ```
/// # use gradus_models::{Bert, BertConfig}; use gradus_nn::{Forward, Init, Module}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = BertConfig { vocab_size: 100, hidden_size: 24, num_hidden_layers: 2, ..BertConfig::minilm() };
/// let mut model = Bert::new(config, &mut init)?;
/// model.eval();
/// let tokens = Tensor::from_vec(vec![1i64, 5, 7, 2, 1, 9, 2, 0], [2, 4], &device)?;
/// assert_eq!(model.forward(&tokens)?.shape(), [2, 4, 24]);
/// // The second text has three tokens.
/// let embeddings = model.sentence_embeddings(&tokens, &tokens.ne(0)?)?;
/// assert_eq!(embeddings.shape(), [2, 24]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Module)]
pub struct Bert {
    /// The tables of tokens, positions and kinds.
    pub embeddings: BertEmbeddings,
    /// The layers.
    pub encoder: BertEncoder,
    /// The layer for the features of the first token.
    pub pooler: Option<BertPooler>,
    #[module(skip)]
    config: BertConfig,
}

impl Bert {
    /// Creates a model with new parameters.
    ///
    /// # Errors
    /// Fails if a number of the config is 0 or too large, if the heads do not divide the features, or if a probability is
    /// not one.
    #[track_caller]
    pub fn new(config: BertConfig, init: &mut Init<'_>) -> Result<Self> {
        config.check()?;
        let (hidden, std) = (config.hidden_size, config.initializer_range);
        let embeddings = BertEmbeddings {
            word_embeddings: normal_embedding(config.vocab_size, hidden, config.pad_token_id, std, init)?,
            position_embeddings: normal_embedding(config.max_position_embeddings, hidden, None, std, init)?,
            token_type_embeddings: normal_embedding(config.type_vocab_size, hidden, None, std, init)?,
            layer_norm: config.norm(init)?,
            dropout: config.dropout(init)?,
        };
        let mut layer = Vec::new();
        for _ in 0..config.num_hidden_layers {
            layer.push(BertLayer::new(&config, init)?);
        }
        let pooler =
            if config.pooler { Some(BertPooler { dense: config.linear(hidden, hidden, init)? }) } else { None };
        Ok(Bert { embeddings, encoder: BertEncoder { layer }, pooler, config })
    }

    /// The config.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// The features `[n, length, hidden_size]` of tokens `[n, length]`. The mask `[n, length]` is true (or not 0) where
    /// there is a token; without one, all count. Without `token_types [n, length]`, all are of kind 0.
    ///
    /// # Errors
    /// Fails if a shape is another one, if there are more tokens than positions, and if a token or kind is outside of its
    /// table.
    #[track_caller]
    pub fn encode(&self, tokens: &Tensor, mask: Option<&Tensor>, token_types: Option<&Tensor>) -> Result<Tensor> {
        let pass = ForwardPass::begin()?;
        pass.end(self, self.features(tokens, mask, token_types))
    }

    #[track_caller]
    fn features(&self, tokens: &Tensor, mask: Option<&Tensor>, token_types: Option<&Tensor>) -> Result<Tensor> {
        let shape = checks::tokens(OP, tokens, self.config.max_position_embeddings)?;
        let mask = if let Some(mask) = mask { Some(checks::key_mask(OP, mask, shape)?) } else { None };
        let mut x = self.embeddings.embed(tokens, token_types)?;
        for layer in &self.encoder.layer {
            x = layer.run(&x, mask.as_ref())?;
        }
        Ok(x)
    }

    /// The output of the pooler, `[n, hidden_size]`, for features `[n, length, hidden_size]`. Errors if the model has
    /// none.
    #[track_caller]
    pub fn pooled(&self, features: &Tensor) -> Result<Tensor> {
        let Some(pooler) = &self.pooler else {
            return Err(Error::argument(OP, "the model has no pooler").help("set pooler in its config"));
        };
        let pass = ForwardPass::begin()?;
        pass.end(self, pooler.forward(features))
    }

    /// An embedding `[n, hidden_size]` of length 1 for each text, as the `sentence-transformers` of MiniLM make them: the
    /// mean of the features of its tokens, divided by its length. The mask `[n, length]` is true (or not 0) where there is
    /// a token. The dot product of two embeddings says how similar the texts are.
    #[track_caller]
    pub fn sentence_embeddings(&self, tokens: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let features = self.encode(tokens, Some(mask), None)?;
        let weights = mask.to_dtype(DType::Bool)?.to_dtype(features.dtype())?.unsqueeze(2)?;
        let count = weights.sum(&[1], false)?.maximum(1e-9)?;
        features.mul(&weights)?.sum(&[1], false)?.div(&count)?.normalize(2.0, 1, 1e-12)
    }
}

impl Forward for Bert {
    #[track_caller]
    fn compute(&self, tokens: &Tensor) -> Result<Tensor> {
        self.encode(tokens, None, None)
    }
}

/// The sum of the rows of three tables, normalised: transformers' `BertEmbeddings`.
#[derive(Debug, Module)]
pub struct BertEmbeddings {
    /// The table of tokens.
    pub word_embeddings: Embedding,
    /// The table of positions.
    pub position_embeddings: Embedding,
    /// The table of kinds of tokens.
    pub token_type_embeddings: Embedding,
    /// Normalises the sum.
    #[module(rename = "LayerNorm")]
    pub layer_norm: LayerNorm,
    dropout: Dropout,
}

impl BertEmbeddings {
    #[track_caller]
    fn embed(&self, tokens: &Tensor, types: Option<&Tensor>) -> Result<Tensor> {
        let mut x = self.word_embeddings.forward(tokens)?;
        x = match types {
            Some(types) if types.shape() == tokens.shape() => x.add(&self.token_type_embeddings.forward(types)?)?,
            Some(types) => {
                let e = Error::shape(OP, "there is a kind for each token");
                let e = e.operand("tokens", tokens.shape(), tokens.dtype(), tokens.device());
                return Err(e.operand("token_types", types.shape(), types.dtype(), types.device()));
            }
            None => {
                self.token_type_embeddings
                    .weight
                    .check_whole(OP)
                    .map_err(|e| e.help("leave the table out of the plan"))?;
                x.add(&self.token_type_embeddings.weight.narrow(0, 0, 1)?)?
            }
        };
        self.position_embeddings.weight.check_whole(OP).map_err(|e| e.help("leave the table out of the plan"))?;
        let positions = self.position_embeddings.weight.narrow(0, 0, tokens.size(1)?)?;
        self.dropout.forward(&self.layer_norm.forward(&x.add(&positions)?)?)
    }
}

/// The layers of a [`Bert`].
#[derive(Debug, Module)]
pub struct BertEncoder {
    /// The layers in order.
    pub layer: Vec<BertLayer>,
}

/// A layer: attention and two linear layers, each added to its input and normalised. Transformers' `BertLayer`.
#[derive(Debug, Module)]
pub struct BertLayer {
    /// The attention.
    pub attention: BertAttention,
    /// The first linear layer.
    pub intermediate: BertIntermediate,
    /// The second linear layer, and the normalisation of the sum.
    pub output: BertOutput,
}

impl BertLayer {
    #[track_caller]
    fn new(config: &BertConfig, init: &mut Init<'_>) -> Result<Self> {
        let hidden = config.hidden_size;
        let attention = BertSelfAttention {
            heads: Heads::new(
                hidden / config.num_attention_heads,
                config.attention_probs_dropout_prob,
                init.generator,
            )?,
            query: config.linear(hidden, hidden, init)?,
            key: config.linear(hidden, hidden, init)?,
            value: config.linear(hidden, hidden, init)?,
        };
        Ok(BertLayer {
            attention: BertAttention { attention, output: config.residual(hidden, init)? },
            intermediate: BertIntermediate { dense: config.linear(hidden, config.intermediate_size, init)? },
            output: config.residual(config.intermediate_size, init)?,
        })
    }

    #[track_caller]
    fn run(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let x = self.attention.output.add(&self.attention.attention.run(x, mask)?, x)?;
        self.output.add(&self.intermediate.forward(&x)?, &x)
    }
}

impl Forward for BertLayer {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.run(input, None)
    }
}

/// Attention, added to its input and normalised: transformers' `BertAttention`.
#[derive(Debug, Module)]
pub struct BertAttention {
    /// The attention itself, called `self`.
    #[module(rename = "self")]
    pub attention: BertSelfAttention,
    /// Projects the heads' results, and normalises the sum.
    pub output: BertOutput,
}

/// Self-attention without the projection of its result: transformers' `BertSelfAttention`.
#[derive(Debug, Module)]
pub struct BertSelfAttention {
    heads: Heads,
    /// Projects to the queries.
    pub query: Linear,
    /// Projects to the keys.
    pub key: Linear,
    /// Projects to the values.
    pub value: Linear,
}

impl BertSelfAttention {
    #[track_caller]
    fn run(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (q, k, v) = (self.query.forward(x)?, self.key.forward(x)?, self.value.forward(x)?);
        let [q, k, v] = [self.heads.split(&q)?, self.heads.split(&k)?, self.heads.split(&v)?];
        self.heads.attend([&q, &k, &v], mask, Causal::No)
    }
}

/// A linear layer and a GELU: transformers' `BertIntermediate`.
#[derive(Debug, Module)]
pub struct BertIntermediate {
    /// The linear layer.
    pub dense: Linear,
}

impl Forward for BertIntermediate {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.dense.forward(input)?.gelu()
    }
}

/// A linear layer whose output is added to another tensor, and the sum normalised: transformers' `BertOutput` and
/// `BertSelfOutput`.
#[derive(Debug, Module)]
pub struct BertOutput {
    /// The linear layer.
    pub dense: Linear,
    /// Normalises the sum.
    #[module(rename = "LayerNorm")]
    pub layer_norm: LayerNorm,
    dropout: Dropout,
}

impl BertOutput {
    #[track_caller]
    fn add(&self, x: &Tensor, to: &Tensor) -> Result<Tensor> {
        self.layer_norm.forward(&self.dropout.forward(&self.dense.forward(x)?)?.add(to)?)
    }
}

/// A layer for the features of the first token: transformers' `BertPooler`.
#[derive(Debug, Module)]
pub struct BertPooler {
    /// The linear layer, before a tanh.
    pub dense: Linear,
}

impl Forward for BertPooler {
    #[track_caller]
    fn compute(&self, features: &Tensor) -> Result<Tensor> {
        self.dense.forward(&features.select(1, 0)?)?.tanh()
    }
}

/// BERT as a classifier of texts, transformers' `BertForSequenceClassification`: tokens `[n, length]` to logits
/// `[n, num_labels]`.
#[derive(Debug, Module)]
pub struct BertForSequenceClassification {
    /// The model, which has a pooler.
    pub bert: Bert,
    dropout: Dropout,
    /// From the output of the pooler to the classes.
    pub classifier: Linear,
}

impl BertForSequenceClassification {
    /// Creates a model with new parameters, and with a pooler whatever the config says. The errors are those of
    /// [`Bert::new`].
    #[track_caller]
    pub fn new(config: BertConfig, num_labels: usize, init: &mut Init<'_>) -> Result<Self> {
        checks::sizes(OP, &[("num_labels", num_labels)])?;
        let bert = Bert::new(BertConfig { pooler: true, ..config }, init)?;
        let (dropout, classifier) = (config.dropout(init)?, config.linear(config.hidden_size, num_labels, init)?);
        Ok(BertForSequenceClassification { bert, dropout, classifier })
    }

    /// The logits `[n, num_labels]`. The arguments and errors are those of [`Bert::encode`].
    #[track_caller]
    pub fn logits(&self, tokens: &Tensor, mask: Option<&Tensor>, token_types: Option<&Tensor>) -> Result<Tensor> {
        let pass = ForwardPass::begin()?;
        pass.end(self, self.classified(tokens, mask, token_types))
    }

    #[track_caller]
    fn classified(&self, tokens: &Tensor, mask: Option<&Tensor>, token_types: Option<&Tensor>) -> Result<Tensor> {
        let features = self.bert.encode(tokens, mask, token_types)?;
        self.classifier.forward(&self.dropout.forward(&self.bert.pooled(&features)?)?)
    }
}

impl Forward for BertForSequenceClassification {
    #[track_caller]
    fn compute(&self, tokens: &Tensor) -> Result<Tensor> {
        self.logits(tokens, None, None)
    }
}
