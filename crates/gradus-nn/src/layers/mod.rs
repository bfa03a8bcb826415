//! Layers. Each has the formula, shapes and defaults of the PyTorch layer of the same name.

mod activation;
mod batch_norm;
mod conv;
mod dropout;
mod embedding;
mod layer_norm;
mod linear;
mod pool;
mod sequential;
mod shape;

pub use activation::{Gelu, GeluTanh, LeakyRelu, LogSoftmax, Relu, Sigmoid, Silu, Softmax, Softplus, Tanh};
pub use batch_norm::{BatchNorm, BatchNormConfig};
pub use conv::{Conv2d, Conv2dConfig};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use linear::Linear;
pub use pool::{AvgPool2d, MaxPool2d};
pub use sequential::Sequential;
pub use shape::{Flatten, Identity};

/// [`BatchNorm`] under the name that images know it by.
pub type BatchNorm2d = BatchNorm;

/// `Debug` as the tree of modules, like `Display`.
macro_rules! debug_as_tree {
    ($($layer:ty),*) => {$(
        impl std::fmt::Debug for $layer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}
debug_as_tree!(BatchNorm, Conv2d, Dropout, Embedding, LayerNorm, Linear, AvgPool2d, MaxPool2d, Sequential);
