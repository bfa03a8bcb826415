//! What most programs use: `use gradus::prelude::*;`.

pub use crate::devices::DeviceExt;
#[cfg(feature = "plugin")]
pub use gradus_plugin::LoadPlugin;

pub use gradus_tensor::{
    AttentionOptions, BackwardOptions, Causal, ConvOptions, DType, Device, Ellipsis, Error, ErrorKind, Generator,
    Gradients, INFER, NewAxis, PoolOptions, Result, Tensor, all_or_nothing, fused, grad, no_grad,
};

pub use gradus_nn::{
    Adam, AdamConfig, AdamW, BatchNorm2d, BatchNormConfig, Buffer, Conv2d, Conv2dConfig, Dropout, Embedding, Flatten,
    Forward, Init, LayerNorm, LayerNormConfig, Linear, MaxPool2d, Module, Optimizer, Parameter, Relu, Schedule,
    Sequential, Sgd, SgdConfig, StateDict, Strict,
};

pub use gradus_data::{DataLoader, Dataset, Image, ImageSet, TensorDataset};

pub use gradus_train::{Classification, Trainer, evaluate};
