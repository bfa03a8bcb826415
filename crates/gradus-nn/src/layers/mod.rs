//! Layers. Each has the formula, shapes and defaults of the PyTorch layer of the same name, unless its documentation
//! says otherwise.

mod activation;
mod attention;
mod batch_norm;
mod conv;
mod dropout;
mod embedding;
mod kv_cache;
mod layer_norm;
mod linear;
mod lora;
mod norm;
mod pool;
mod positions;
mod rnn;
mod rnn_cell;
mod sequential;
mod shape;
mod transformer;

pub use activation::{Gelu, GeluTanh, LeakyRelu, LogSoftmax, Relu, Sigmoid, Silu, Softmax, Softplus, Tanh};
pub use attention::{Masks, MultiheadAttention, MultiheadAttentionConfig};
pub use batch_norm::{BatchNorm, BatchNormConfig};
pub use conv::{
    Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig, ConvConfig, ConvTranspose1d, ConvTranspose2d,
    ConvTranspose3d, ConvTransposeConfig,
};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use kv_cache::KvCache;
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use linear::Linear;
pub use lora::{LoraConfig, LoraLinear};
pub use norm::{GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig, RmsNorm, RmsNormConfig};
pub use pool::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d,
    AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d,
};
pub use positions::{LearnedPositions, RotaryEmbedding, SinusoidalPositions, alibi_bias};
pub use rnn::{Gru, Lstm, Nonlinearity, RecurrentConfig, Rnn};
pub use rnn_cell::{GruCell, LstmCell, RnnCell};
pub use sequential::Sequential;
pub use shape::{Flatten, Identity};
pub use transformer::{
    Transformer, TransformerActivation, TransformerConfig, TransformerDecoder, TransformerDecoderLayer,
    TransformerEncoder, TransformerEncoderLayer, TransformerMasks, causal_mask,
};

/// [`BatchNorm`] under PyTorch's name for images.
pub type BatchNorm2d = BatchNorm;

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
debug_as_tree!(AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d);
debug_as_tree!(AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d);
