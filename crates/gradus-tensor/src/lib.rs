//! Tensors, operations and gradients.
//!
//! A part of [Gradus](https://docs.rs/gradus): depend on the crate `gradus`, which is what keeps its promises between releases.
//!
//! A [`Tensor`] is a storage, a layout and an edge into the recorded graph. Each operation is one file in [`ops`] and
//! goes through `bind`, which checks, allocates, runs and records it. Gradients are taken with [`Tensor::backward`] or
//! [`grad`]. This crate knows no concrete hardware: a [`Device`] is any [`Backend`].
#![warn(missing_docs)]
// Runs in a browser: no threads, files or network.
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod attempt;
pub mod autograd;
mod compute;
mod create;
mod device;
mod display;
mod footprint;
mod fused;
mod generator;
mod locks;
pub mod ops;
mod random;
mod storage;
mod tensor;
mod write_log;

pub use attempt::{Attempt, State, StateGuard, all_or_nothing};
pub use autograd::{
    BackwardOptions, CustomOp, GradModeGuard, Gradients, Hook, Node, apply_custom, checkpoint, checkpoint_with,
    enable_grad, enable_grad_guard, explain_grad, find_nan, find_nonfinite, grad, hessian, hvp, inference,
    inference_guard, is_grad_enabled, is_inference, jacobian, jvp, no_grad, no_grad_guard, vjp, vmap,
};
pub use compute::Bound;
pub use device::Device;
pub use generator::Generator;
pub use ops::{
    AsOperand, AttentionOptions, Causal, ConvOptions, Elementwise, Ellipsis, Gemm, GridPadding, GridSample, INFER,
    Index, Indexing, Interpolate, Interpolation, IntoIndex, NewAxis, Operand, PadMode, PoolOptions, Reduction, Resized,
    Sampling, ScatterReduction, Strided, Unique, UpdateFn,
};
pub use storage::Storage;
pub use tensor::Tensor;

pub use gradus_backend as backend;
pub use gradus_backend::{
    Axes, Backend, DType, Element, Error, ErrorKind, Expr, FailedLayer, FailedOperand, Here, Kernel, Layout,
    MismatchLines, Result, Scalar, Shape, VersionMismatch, bf16, f16,
};
