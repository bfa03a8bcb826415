//! Tensors, operations and gradients.
//!
//! A part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
//!
//! A [`Tensor`] is a storage, a layout and an edge into the recorded graph. Each operation has its own file in [`ops`]
//! and runs through `bind`, which checks its inputs, allocates the outputs, runs it and records it.
//! [`Tensor::backward`] and [`grad`] compute gradients. This crate is independent of hardware: a [`Device`] wraps any
//! [`Backend`].
#![warn(missing_docs)]
// This crate also runs in a browser, so it uses no threads, files or network.
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
mod limit;
mod locks;
pub mod ops;
mod random;
mod storage;
mod supply;
mod tensor;
mod write_log;

pub use attempt::{Attempt, State, StateGuard, WeakState, all_or_nothing};
pub use autograd::{
    BackwardOptions, CustomOp, GradModeGuard, Gradients, Hook, Node, apply_custom, autocast, autocast_dtype,
    autocast_guard, checkpoint, checkpoint_with, enable_grad, enable_grad_guard, explain_grad, find_nan,
    find_nonfinite, grad, hessian, hvp, inference, inference_guard, is_grad_enabled, is_inference, jacobian, jvp,
    no_autocast, no_autocast_guard, no_grad, no_grad_guard, vjp, vmap,
};
pub use compute::Bound;
pub use device::Device;
pub use generator::Generator;
pub use limit::limit_results;
pub use ops::{
    AsOperand, AttentionOptions, Causal, ConvOptions, Elementwise, Ellipsis, Gemm, GridPadding, GridSample, INFER,
    Index, Indexing, Interpolate, Interpolation, IntoIndex, NewAxis, Operand, PadMode, PoolOptions, Reduction, Resized,
    Sampling, ScatterReduction, Strided, Unique, UpdateFn,
};
pub use storage::Storage;
pub use supply::{Supply, with_supply};
pub use tensor::Tensor;

pub use gradus_backend as backend;
pub use gradus_backend::{
    Axes, Backend, DType, Element, Error, ErrorKind, Expr, FailedLayer, FailedOperand, Here, Kernel, Layout,
    MismatchLines, Result, Scalar, Shape, VersionMismatch, bf16, f16,
};
