//! A deep-learning framework: eager tensors, gradients to any order, one backend contract for every kind of hardware.
//!
//! ```
//! use gradus::prelude::*;
//!
//! #[derive(Module)]
//! struct Mlp {
//!     hidden: Linear,
//!     output: Linear,
//! }
//!
//! impl Forward for Mlp {
//!     fn compute(&self, x: &Tensor) -> Result<Tensor> {
//!         self.output.forward(&self.hidden.forward(&x.flatten(1, -1)?)?.relu()?)
//!     }
//! }
//!
//! fn main() -> Result<()> {
//!     let (device, mut generator) = (Device::cpu()?, Generator::new(0));
//!     let mut init = Init::new(DType::F32, &device, &mut generator);
//!     let mut model = Mlp { hidden: Linear::new(64, 32, &mut init)?, output: Linear::new(32, 10, &mut init)? };
//!     let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 1e-2, ..Default::default() })?;
//!     let digits = DataLoader::new(gradus::data::digits::load()?, &device).batch_size(64).shuffle(0).build()?;
//!     for epoch in 0..3 {
//!         for batch in digits.epoch(epoch)? {
//!             let (images, labels) = batch?;
//!             let loss = model.forward(&images)?.cross_entropy(&labels)?;
//!             optimizer.step(&loss.backward()?)?;
//!         }
//!     }
//!     let result = evaluate(&mut model, &digits, &Classification::default())?;
//!     println!("{result:?}");
//!     assert!(result.accuracy > Some(0.9));
//!     Ok(())
//! }
//! ```
//!
//! The framework consists of these modules: [`tensor`] (operations and gradients), [`nn`] (layers, optimisers),
//! [`data`] (datasets, loaders, tables, tokenisers, files of NumPy and PyTorch), [`graph`] (captured steps), [`image`]
//! (filters, PNG and JPEG files), [`train`] (a trainer, checkpoints, metrics), [`models`] (well-known networks), [`tasks`]
//! (training without code, and models that are saved with all they need), [`backend`] (the contract that backends
//! implement), `cpu` (the CPU backend), `plugin` (backends loaded at run time) and, with the features `cuda`, `wgpu` and
//! `onnx`, `cuda` (NVIDIA's GPUs), `wgpu` (GPUs through WebGPU) and `onnx` (ONNX models). The feature `parquet` adds
//! Parquet and Arrow files to [`data::Table`]. The [`prelude`] exports what most programs use.
//!
//! [The book](https://github.com/gradus-rs/gradus/blob/main/docs/book/src/SUMMARY.md) teaches Gradus step by step: a first
//! network, your data, layers and operations, gradients, devices, training, saving, and a gallery of errors. It has a
//! chapter for those who [come from
//! PyTorch](https://github.com/gradus-rs/gradus/blob/main/docs/book/src/from-pytorch.md).
//! When you depend on Gradus, add `[profile.dev.package."*"]` with `opt-level = 3` to your `Cargo.toml`. The README
//! explains why.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(doctest)]
mod book;
mod compiled;
mod devices;
pub mod prelude;
pub mod testing;

pub use compiled::{Compile, Compiled};
pub use devices::{DeviceExt, devices};

pub use gradus_backend as backend;
#[cfg(feature = "cpu")]
pub use gradus_cpu as cpu;
#[cfg(feature = "cuda")]
pub use gradus_cuda as cuda;
pub use gradus_data as data;
#[cfg(feature = "dist")]
pub use gradus_dist as dist;
pub use gradus_graph as graph;
pub use gradus_image as image;
pub use gradus_models as models;
pub use gradus_nn as nn;
#[cfg(feature = "onnx")]
pub use gradus_onnx as onnx;
#[cfg(feature = "plugin")]
pub use gradus_plugin as plugin;
pub use gradus_tasks as tasks;
pub use gradus_tensor as tensor;
pub use gradus_train as train;
#[cfg(feature = "wgpu")]
pub use gradus_wgpu as wgpu;

pub use gradus_tensor::{
    AsOperand, AttentionOptions, BackwardOptions, Bound, Causal, ConvOptions, CustomOp, DType, Device, Elementwise,
    Ellipsis, Error, ErrorKind, FailedLayer, FailedOperand, Gemm, Generator, Gradients, Here, Hook, INFER, Index,
    Indexing, Interpolate, Interpolation, IntoIndex, MismatchLines, NewAxis, Operand, PadMode, PoolOptions, Reduction,
    Resized, Result, Scalar, ScatterReduction, Strided, Tensor, Unique, UpdateFn, VersionMismatch, all_or_nothing,
    apply_custom, autocast, autocast_dtype, autocast_guard, autograd, checkpoint, checkpoint_with, enable_grad,
    enable_grad_guard, explain_grad, find_nan, find_nonfinite, fused, grad, hessian, hvp, inference, inference_guard,
    jacobian, jvp, no_autocast, no_autocast_guard, no_grad, no_grad_guard, ops, vjp, vmap,
};

pub use gradus_tensor::autograd::{
    Dependence, GradModeGuard, NonFiniteReport, SavedTensorsHooksGuard, allow_mutation_on_saved_tensors,
    allow_mutation_on_saved_tensors_guard, is_grad_enabled, is_inference, saved_tensors_hooks,
    saved_tensors_hooks_guard, strict, strict_guard, strict_inplace, strict_inplace_guard,
};

pub use gradus_backend::ComputeModule;
