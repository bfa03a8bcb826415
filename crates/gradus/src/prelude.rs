//! The names that a training program needs: `use gradus::prelude::*;`.
//!
//! They include tensors and gradients, every layer of [`nn`](crate::nn) with its settings, optimisers and schedules,
//! datasets and loaders, and the trainer. Less common items are in their modules, for example [`crate::nn::init`] and
//! [`crate::data::digits`].
//!
//! Your own names take precedence over those of the prelude. Of the names in the standard library's prelude it replaces
//! only `Result`, which still accepts an error type: `Result<T>` means `Result<T, gradus::Error>`.

pub use crate::devices::DeviceExt;
#[cfg(feature = "plugin")]
pub use gradus_plugin::LoadPlugin;

pub use gradus_tensor::{
    AttentionOptions, BackwardOptions, Causal, ConvOptions, DType, Device, Ellipsis, Error, ErrorKind, Generator,
    Gradients, INFER, NewAxis, PoolOptions, Reduction, Result, Tensor, all_or_nothing, checkpoint, fused, grad,
    inference, no_grad,
};

pub use gradus_nn::layers::*;
pub use gradus_nn::{
    Adam, AdamConfig, AdamW, Buffer, Forward, Group, Init, Mode, Module, Optimizer, Parameter, RandomState, Schedule,
    Sgd, SgdConfig, StateDict, Strict, clip_grad_norm, clip_grad_value,
};

pub use gradus_data::{DataLoader, Dataset, Image, ImageSet, Sample, TensorDataset};

pub use gradus_train::{Classification, Outcome, Task, Trainer, evaluate};
