//! Modules, layers, losses, initialisers, optimisers and schedules.
//!
//! A part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`, which makes the stability promises; this
//! crate may change between releases.
//!
//! ```
//! use gradus_nn::{AdamConfig, AdamW, Forward, Init, Linear, Module, Optimizer};
//! use gradus_tensor::{DType, Device, Generator, Result, Tensor};
//!
//! #[derive(Module)]
//! struct Mlp {
//!     fc1: Linear,
//!     fc2: Linear,
//! }
//!
//! impl Forward for Mlp {
//!     fn compute(&self, x: &Tensor) -> Result<Tensor> {
//!         self.fc2.forward(&self.fc1.forward(x)?.relu()?)
//!     }
//! }
//!
//! # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
//! let mut generator = Generator::new(42);
//! let mut init = Init::new(DType::F32, &device, &mut generator);
//! let model = Mlp { fc1: Linear::new(4, 8, &mut init)?, fc2: Linear::new(8, 3, &mut init)? };
//! let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 0.01, ..Default::default() })?;
//!
//! let x = Tensor::randn([16, 4], DType::F32, &device, &mut generator)?;
//! let target = Tensor::randint(0, 3, [16], DType::I64, &device, &mut generator)?;
//! let first = model.forward(&x)?.cross_entropy(&target)?.item()?;
//! for _ in 0..20 {
//!     let loss = model.forward(&x)?.cross_entropy(&target)?;
//!     optimizer.step(&loss.backward()?)?;
//! }
//! assert!(model.forward(&x)?.cross_entropy(&target)?.item()? < first);
//! # Ok::<(), gradus_tensor::Error>(())
//! ```
//!
//! A model is a struct of layers. [`Module`] names its parameters (`fc1.weight`) as PyTorch does, and [`Forward`]
//! computes its output. Nothing is global or hidden: random numbers come from a [`Generator`] that the caller passes,
//! `backward` returns the gradients that [`Optimizer::step`] takes, and the learning rate is a function of the step
//! ([`Schedule`]).
//!
//! [`Generator`]: gradus_tensor::Generator
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// The code that the derive macro generates refers to this crate as `::gradus_nn`. This alias makes that path work for
// the layers in here as well.
extern crate self as gradus_nn;

mod averaged_model;
mod division;
mod failed_layer;
pub mod init;
mod item;
pub mod layers;
mod load_report;
pub mod loss;
mod module;
mod normal_quantile;
mod optim;
mod parameter;
mod places;
mod reduce_lr_on_plateau;
mod route;
mod safetensors_file;
mod schedule;
mod state_dict;
mod std_modules;
mod summary;
mod tree;
mod update_bn;
mod watch;

pub use averaged_model::AveragedModel;
pub use division::{Division, Split, divisions};
pub use gradus_nn_derive::Module;
pub use init::Init;
pub use item::Item;
pub use layers::*;
pub use load_report::{LoadReport, Strict};
pub use loss::{
    BceLoss, BceWithLogitsLoss, CosineEmbeddingLoss, CrossEntropyLoss, CtcLoss, GaussianNllLoss, HingeEmbeddingLoss,
    HuberLoss, KlDivLoss, KlDivReduction, L1Loss, MarginRankingLoss, MseLoss, MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss, MultiMarginLoss, NllLoss, PoissonNllLoss, SmoothL1Loss, SoftMarginLoss,
    TripletMarginLoss, TripletMarginWithDistanceLoss,
};
pub use module::{Forward, ForwardPass, ItemMut, Module, Visitor, VisitorMut};
pub use optim::*;
pub use parameter::{Buffer, Mode, Parameter, RandomDraw, RandomState};
pub use reduce_lr_on_plateau::{PlateauConfig, PlateauMode, ReduceLrOnPlateau, ThresholdMode};
pub use safetensors_file::{SafetensorsIndex, StoredElements, StoredTensor};
pub use schedule::{Anneal, CyclicConfig, CyclicMode, OneCycleConfig, Schedule};
pub use state_dict::StateDict;
pub use summary::{LayerSummary, StepMemory, Summary, step_memory, summary};
pub use tree::Tree;
pub use update_bn::update_bn;
