//! The names that a training program needs: `use gradus::prelude::*;`.
//!
//! They include tensors and gradients, every layer and loss of [`nn`](crate::nn) with its settings, optimisers and
//! schedules, datasets, loaders and tables, and the trainer. Less common items are in their modules, for example
//! [`crate::nn::init`] and [`crate::data::digits`].
//!
//! Your own names take precedence over those of the prelude. Of the names in the standard library's prelude it replaces
//! only `Result`, which still accepts an error type: `Result<T>` means `Result<T, gradus::Error>`.

pub use crate::devices::DeviceExt;
#[cfg(feature = "plugin")]
pub use gradus_plugin::LoadPlugin;

pub use gradus_tensor::{
    AttentionOptions, BackwardOptions, Causal, ConvOptions, DType, Device, Ellipsis, Error, ErrorKind, Generator,
    Gradients, INFER, Interpolation, NewAxis, PoolOptions, Reduction, Result, Tensor, all_or_nothing, autocast,
    checkpoint, fused, grad, inference, no_autocast, no_grad,
};

pub use gradus_nn::layers::*;
pub use gradus_nn::{
    Adadelta, AdadeltaConfig, Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, Adamax, AdamaxConfig, AveragedModel,
    BceLoss, BceWithLogitsLoss, Buffer, CosineEmbeddingLoss, CrossEntropyLoss, CtcLoss, CyclicConfig, Forward,
    GaussianNllLoss, GradScaler, GradScalerConfig, Group, HingeEmbeddingLoss, HuberLoss, Init, KlDivLoss, L1Loss, Lamb,
    LambConfig, Lbfgs, LbfgsConfig, LineSearch, Lion, LionConfig, MarginRankingLoss, Mode, Module, MseLoss,
    MultiLabelMarginLoss, MultiLabelSoftMarginLoss, MultiMarginLoss, Muon, MuonConfig, NAdam, NAdamConfig, NllLoss,
    OneCycleConfig, Optimizer, Parameter, PlateauConfig, PoissonNllLoss, RAdam, RAdamConfig, RandomState,
    ReduceLrOnPlateau, RmsProp, RmsPropConfig, Schedule, Sgd, SgdConfig, SmoothL1Loss, SoftMarginLoss, StateDict,
    Strict, TripletMarginLoss, TripletMarginWithDistanceLoss, clip_grad_norm, clip_grad_norm_on_device,
    clip_grad_norm_with, clip_grad_value, grad_norm, step_memory, summary, update_bn,
};

pub use gradus_data::{
    Channels, CsvOptions, DataLoader, Dataset, Image, ImageFolder, ImageSet, Photo, PreprocessOptions, Preprocessor,
    Sample, Sampler, Sequence, Table, TensorDataset,
};

pub use crate::{Compile, Compiled};
pub use gradus_graph::capture;

pub use gradus_train::{
    Checkpoint, Checkpoints, Classification, EarlyStopping, Outcome, RunReport, Task, Trainer, evaluate,
};
