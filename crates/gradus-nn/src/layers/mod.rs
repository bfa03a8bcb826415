//! Layers. Each has the formula, shapes and defaults of the PyTorch layer of the same name, unless its documentation
//! says otherwise.

mod activation;
mod adaptive_softmax;
mod attention;
mod batch_norm;
mod compare;
mod conv;
mod dropout;
mod embedding;
mod embedding_bag;
mod fractional_pool;
mod kv_cache;
mod layer_norm;
mod linear;
mod lora;
mod lstm_projected;
mod norm;
mod pad;
mod pool;
mod positions;
mod rnn;
mod rnn_cell;
mod running;
mod sequential;
mod shape;
mod spectral_norm;
mod transformer;
mod upsample;
mod weight_norm;
mod weighted;

pub use activation::{
    Celu, Elu, Gelu, GeluTanh, Glu, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyRelu, LogSigmoid, LogSoftmax,
    Mish, PRelu, RRelu, Relu, Relu6, Selu, Sigmoid, Silu, Softmax, Softmax2d, Softmin, Softplus, Softshrink, Softsign,
    Tanh, Tanhshrink, Threshold,
};
pub use adaptive_softmax::{AdaptiveLogSoftmaxConfig, AdaptiveLogSoftmaxWithLoss};
pub use attention::{HeadFeatures, Masks, MultiheadAttention, MultiheadAttentionConfig};
pub use batch_norm::{BatchNorm, BatchNormConfig};
pub use compare::{Bilinear, CosineSimilarity, PairwiseDistance};
pub use conv::{
    Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig, ConvConfig, ConvTranspose1d, ConvTranspose2d,
    ConvTranspose3d, ConvTransposeConfig, PaddingMode,
};
pub use dropout::{AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout, StochasticDepth};
pub use embedding::Embedding;
pub use embedding_bag::{BagMode, EmbeddingBag, EmbeddingBagConfig};
pub use fractional_pool::{FractionalMaxPool2d, FractionalMaxPool3d};
pub use kv_cache::KvCache;
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use linear::Linear;
pub use lora::{LoraConfig, LoraLinear};
pub use norm::{
    GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig, LocalResponseNorm, RmsNorm, RmsNormConfig,
};
pub use pad::{
    CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d, ConstantPad3d, ReflectionPad1d,
    ReflectionPad2d, ReflectionPad3d, ReplicationPad1d, ReplicationPad2d, ReplicationPad3d, ZeroPad1d, ZeroPad2d,
    ZeroPad3d,
};
pub use pool::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d,
    AvgPool1d, AvgPool2d, AvgPool3d, LpPool1d, LpPool2d, LpPool3d, MaxPool1d, MaxPool2d, MaxPool3d, MaxUnpool1d,
    MaxUnpool2d, MaxUnpool3d,
};
pub use positions::{LearnedPositions, RotaryEmbedding, SinusoidalPositions, alibi_bias};
pub use rnn::{Gru, Lstm, Nonlinearity, RecurrentConfig, Rnn};
pub use rnn_cell::{GruCell, LstmCell, RnnCell};
pub use sequential::Sequential;
pub use shape::{ChannelShuffle, Flatten, Fold, Identity, PixelShuffle, PixelUnshuffle, Unflatten, Unfold};
pub use spectral_norm::SpectralNorm;
pub use transformer::{
    Transformer, TransformerActivation, TransformerConfig, TransformerDecoder, TransformerDecoderLayer,
    TransformerEncoder, TransformerEncoderLayer, TransformerMasks,
};
pub use upsample::Upsample;
pub use weight_norm::WeightNorm;
pub use weighted::Weighted;

/// [`BatchNorm`] under PyTorch's name for vectors and sequences.
pub type BatchNorm1d = BatchNorm;
/// [`BatchNorm`] under PyTorch's name for images.
pub type BatchNorm2d = BatchNorm;
/// [`BatchNorm`] under PyTorch's name for volumes.
pub type BatchNorm3d = BatchNorm;
/// [`InstanceNorm`] under PyTorch's name for sequences.
pub type InstanceNorm1d = InstanceNorm;
/// [`InstanceNorm`] under PyTorch's name for images.
pub type InstanceNorm2d = InstanceNorm;
/// [`InstanceNorm`] under PyTorch's name for volumes.
pub type InstanceNorm3d = InstanceNorm;

/// Implements `Debug` by printing the tree of submodules, like `Display`.
macro_rules! debug_as_tree {
    ($($layer:ty),*) => {$(
        impl std::fmt::Debug for $layer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}
debug_as_tree!(BatchNorm, Dropout, Embedding, GroupNorm, InstanceNorm, LayerNorm, Linear, MultiheadAttention, RmsNorm);
debug_as_tree!(Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Sequential);
debug_as_tree!(Transformer, TransformerEncoder, TransformerEncoderLayer, TransformerDecoder, TransformerDecoderLayer);
debug_as_tree!(LearnedPositions, LoraLinear, Rnn, Lstm, Gru, RnnCell, LstmCell, GruCell);
debug_as_tree!(AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d);
debug_as_tree!(LpPool1d, LpPool2d, LpPool3d, MaxUnpool1d, MaxUnpool2d, MaxUnpool3d);
debug_as_tree!(AlphaDropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout, StochasticDepth);
debug_as_tree!(AdaptiveLogSoftmaxWithLoss, FractionalMaxPool2d, FractionalMaxPool3d);
debug_as_tree!(Bilinear, EmbeddingBag, PRelu, RRelu);
debug_as_tree!(AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d);
debug_as_tree!(AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d);
