//! [`ViT`], with timm's names.

use gradus_nn::{
    Conv2d, Conv2dConfig, Dropout, Forward, Init, LayerNorm, LayerNormConfig, Linear, Module, Parameter,
    StochasticDepth,
};
use gradus_tensor::{Causal, Error, Result, Tensor};

use crate::checks;
use crate::heads::Heads;
use crate::new_layers::normal_linear;

const OP: &str = "vit";

/// The standard deviation of new weights.
const STD: f64 = 0.02;

/// A transformer over the patches of an image (Dosovitskiy et al., 2021): `[n, in_channels, h, w]` to `[n, num_classes]`.
/// The positions are learned, so all images have the size of the config.
///
/// Parameters have the names, shapes and initial distributions of timm's `vit_tiny_patch16_224` and its kin: `cls_token`,
/// `pos_embed`, `patch_embed.proj.weight`, `blocks.0.attn.qkv.weight`, `head.weight`.
///
/// ```
/// # use gradus_models::{ViT, ViTConfig}; use gradus_nn::{Forward, Init}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// // ViT-tiny for the images of Fashion-MNIST, with 49 patches each.
/// let config = ViTConfig { image_size: [28, 28], patch_size: 4, in_channels: 1, num_classes: 10, ..ViTConfig::tiny() };
/// let model = ViT::new(ViTConfig { depth: 2, ..config }, &mut init)?;
/// assert_eq!(model.forward(&Tensor::zeros([2, 1, 28, 28], DType::F32, &device)?)?.shape(), [2, 10]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Module)]
pub struct ViT {
    #[module(skip)]
    config: ViTConfig,
    /// The token that collects what the last layer reads, `[1, 1, embed_dim]`.
    pub cls_token: Parameter,
    /// The positions of that token and the patches, `[1, patches + 1, embed_dim]`.
    pub pos_embed: Parameter,
    /// From patches to tokens.
    pub patch_embed: ViTPatches,
    pos_drop: Dropout,
    /// The layers of the transformer.
    pub blocks: Vec<ViTBlock>,
    /// Normalises their output.
    pub norm: LayerNorm,
    /// The last layer, from the first token to the classes.
    pub head: Linear,
}

/// The numbers of a [`ViT`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ViTConfig {
    /// Height and width of the images. Default 224 x 224.
    pub image_size: [usize; 2],
    /// Height and width of a patch, which divides the height and width of the images. Default 16.
    pub patch_size: usize,
    /// The channels of the images. Default 3.
    pub in_channels: usize,
    /// The number of classes. Default 1000.
    pub num_classes: usize,
    /// The features of a token.
    pub embed_dim: usize,
    /// The number of layers.
    pub depth: usize,
    /// The heads of attention, which divide the features.
    pub num_heads: usize,
    /// The features inside of the two layers that follow each attention.
    pub mlp_dim: usize,
    /// The probability of dropout after the positions, after each attention and in the two layers. Default 0.
    pub dropout: f64,
    /// The probability of dropping a weight of the attention. Default 0.
    pub attention_dropout: f64,
    /// The probability with which a sample skips the last block in training. It grows linearly from 0 in the first block.
    /// Default 0.
    pub stochastic_depth: f64,
}

macro_rules! sizes {
    ($($name:ident $dim:literal, $depth:literal, $heads:literal, $doc:literal;)*) => {
        impl ViTConfig {
            $(
                #[doc = concat!("The config of ", $doc, " for images of 224 x 224 pixels with patches of 16 x 16.")]
                pub fn $name() -> Self {
                    ViTConfig {
                        image_size: [224, 224],
                        patch_size: 16,
                        in_channels: 3,
                        num_classes: 1000,
                        embed_dim: $dim,
                        depth: $depth,
                        num_heads: $heads,
                        mlp_dim: 4 * $dim,
                        dropout: 0.0,
                        attention_dropout: 0.0,
                        stochastic_depth: 0.0,
                    }
                }
            )*
        }

        impl ViT {
            $(
                #[doc = concat!("Creates a ", $doc, " for images of `in_channels` channels and 224 x 224 pixels, with new")]
                /// parameters.
                #[track_caller]
                pub fn $name(num_classes: usize, in_channels: usize, init: &mut Init<'_>) -> Result<Self> {
                    Self::new(ViTConfig { num_classes, in_channels, ..ViTConfig::$name() }, init)
                }
            )*
        }
    };
}

sizes! {
    tiny 192, 12, 3, "ViT-tiny";
    small 384, 12, 6, "ViT-small";
    base 768, 12, 12, "ViT-base";
}

impl ViT {
    /// Creates a network with new parameters.
    ///
    /// # Errors
    /// Fails if a number of the config is 0 or too large, if the patches do not divide the image or the heads the
    /// features, or if a probability is not one.
    #[track_caller]
    pub fn new(config: ViTConfig, init: &mut Init<'_>) -> Result<Self> {
        let ViTConfig { image_size: [height, width], patch_size, in_channels, num_classes, embed_dim, .. } = config;
        checks::sizes(OP, &[("the image height", height), ("the image width", width), ("patch_size", patch_size)])?;
        checks::sizes(OP, &[("num_classes", num_classes), ("in_channels", in_channels), ("embed_dim", embed_dim)])?;
        checks::sizes(OP, &[("num_heads", config.num_heads), ("mlp_dim", config.mlp_dim)])?;
        checks::layers(OP, &[("depth", config.depth)])?;
        for side in [("the image height", height), ("the image width", width)] {
            checks::divides(OP, ("patch_size", patch_size), side)?;
        }
        checks::divides(OP, ("num_heads", config.num_heads), ("embed_dim", embed_dim))?;
        let depth = config.stochastic_depth;
        if !(0.0..=1.0).contains(&depth) {
            let m = format!("stochastic_depth is {depth}; it is a probability, 0 to 1");
            return Err(Error::argument(OP, m));
        }
        let tokens = height / patch_size * (width / patch_size) + 1;
        let stride = Conv2dConfig { stride: [patch_size; 2], ..Conv2dConfig::default() };
        let patch_embed = ViTPatches { proj: Conv2d::new(in_channels, embed_dim, [patch_size; 2], stride, init)? };
        let cls_token = Parameter::new(init.normal([1, 1, embed_dim], 0.0, 1e-6)?)?;
        let pos_embed = Parameter::new(init.normal([1, tokens, embed_dim], 0.0, STD)?)?;
        let pos_drop = Dropout::new(config.dropout, init.generator)?;
        let mut blocks = Vec::new();
        for i in 0..config.depth {
            let skipped = depth * i as f64 / (config.depth - 1).max(1) as f64;
            blocks.push(ViTBlock::new(&config, skipped, init)?);
        }
        let (norm, head) = (norm(embed_dim, init)?, normal_linear(embed_dim, num_classes, STD, init)?);
        Ok(ViT { config, cls_token, pos_embed, patch_embed, pos_drop, blocks, norm, head })
    }
}

impl Forward for ViT {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let ViTConfig { image_size: [height, width], in_channels, embed_dim, .. } = self.config;
        checks::images(OP, input, in_channels)?;
        if input.shape()[2..] != [height, width] {
            let e = Error::shape(OP, format!("the images are {height} x {width} pixels"));
            let e = e.operand("input", input.shape(), input.dtype(), input.device());
            return Err(e.help("resize them, or make the model with another image_size"));
        }
        let patches = self.patch_embed.forward(input)?;
        let class = self.cls_token.expand([input.shape()[0], 1, embed_dim])?;
        let mut x = self.pos_drop.forward(&Tensor::cat(&[&class, &patches], 1)?.add(&self.pos_embed)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        // What follows works on each token by itself, and only the first one is read.
        self.head.forward(&self.norm.forward(&x.select(1, 0)?)?)
    }
}

#[track_caller]
fn norm(dim: usize, init: &mut Init<'_>) -> Result<LayerNorm> {
    LayerNorm::new([dim], LayerNormConfig { eps: 1e-6, ..LayerNormConfig::default() }, init)
}

/// A projection of each patch: `[n, c, h, w]` to `[n, patches, embed_dim]`.
#[derive(Debug, Module)]
pub struct ViTPatches {
    /// The projection, a convolution.
    pub proj: Conv2d,
}

impl Forward for ViTPatches {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.proj.forward(input)?.flatten(2, 3)?.transpose(1, 2)
    }
}

/// A layer of the transformer: attention, then two layers for each token. Each normalises its input, and is added to it.
#[derive(Debug, Module)]
pub struct ViTBlock {
    /// Normalises the input of the attention.
    pub norm1: LayerNorm,
    /// The attention.
    pub attn: ViTAttention,
    /// Normalises the input of the two layers.
    pub norm2: LayerNorm,
    /// The two layers.
    pub mlp: ViTMlp,
    skip1: StochasticDepth,
    skip2: StochasticDepth,
}

impl ViTBlock {
    #[track_caller]
    fn new(config: &ViTConfig, skipped: f64, init: &mut Init<'_>) -> Result<Self> {
        let dim = config.embed_dim;
        Ok(ViTBlock {
            norm1: norm(dim, init)?,
            attn: ViTAttention {
                heads: Heads::new(dim / config.num_heads, config.attention_dropout, init.generator)?,
                qkv: normal_linear(dim, 3 * dim, STD, init)?,
                proj: normal_linear(dim, dim, STD, init)?,
                proj_drop: Dropout::new(config.dropout, init.generator)?,
            },
            norm2: norm(dim, init)?,
            mlp: ViTMlp {
                fc1: normal_linear(dim, config.mlp_dim, STD, init)?,
                drop1: Dropout::new(config.dropout, init.generator)?,
                fc2: normal_linear(config.mlp_dim, dim, STD, init)?,
                drop2: Dropout::new(config.dropout, init.generator)?,
            },
            skip1: StochasticDepth::new(skipped, init.generator)?,
            skip2: StochasticDepth::new(skipped, init.generator)?,
        })
    }
}

impl Forward for ViTBlock {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.skip1.forward(&self.attn.forward(&self.norm1.forward(input)?)?)?.add(input)?;
        self.skip2.forward(&self.mlp.forward(&self.norm2.forward(&x)?)?)?.add(&x)
    }
}

/// Self-attention with one projection for queries, keys and values.
#[derive(Debug, Module)]
pub struct ViTAttention {
    heads: Heads,
    /// The projections of queries, keys and values, stacked in this order.
    pub qkv: Linear,
    /// Projects the heads' results to the output.
    pub proj: Linear,
    proj_drop: Dropout,
}

impl Forward for ViTAttention {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let qkv = self.qkv.forward(input)?.chunk(3, -1)?;
        let [q, k, v] = [self.heads.split(&qkv[0])?, self.heads.split(&qkv[1])?, self.heads.split(&qkv[2])?];
        let y = self.heads.attend([&q, &k, &v], None, Causal::No)?;
        self.proj_drop.forward(&self.proj.forward(&y)?)
    }
}

/// Two layers for each token, with a GELU in between.
#[derive(Debug, Module)]
pub struct ViTMlp {
    /// The first layer.
    pub fc1: Linear,
    drop1: Dropout,
    /// The second layer.
    pub fc2: Linear,
    drop2: Dropout,
}

impl Forward for ViTMlp {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.drop1.forward(&self.fc1.forward(input)?.gelu()?)?;
        self.drop2.forward(&self.fc2.forward(&x)?)
    }
}
