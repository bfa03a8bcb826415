//! The contract that every Gradus backend implements.
//!
//! This crate is part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus` instead: only its API is kept
//! stable between releases.
//!
//! A backend knows about buffers, strided views and numbers, but not about tensors or gradients. This crate holds the
//! vocabulary that both sides share: [`DType`] and [`Scalar`], [`Shape`] and [`Layout`], [`Error`], the elementwise IR
//! [`Kernel`], the parameter structs of the operations, and the object-safe trait [`Backend`].
//!
//! A new backend is complete once it implements the required primitives of [`Backend`]. The composites (convolution,
//! normalisation, attention, ...) have default implementations built on the primitives, in [`composite`]; a backend
//! overrides them only for speed.
#![warn(missing_docs)]
// This crate also runs in a browser: no threads, files or network.
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

#[macro_use]
mod methods;

pub mod backend;
pub mod buffer;
mod call;
pub mod check;
pub mod composite;
pub mod compute;
pub mod dtype;
pub mod element;
pub mod error;
pub mod host;
pub mod host_vec;
pub mod kernel;
pub mod key;
pub mod late;
pub mod layout;
pub mod log;
mod merged;
pub mod params;
pub mod philox;
pub mod plugin;
mod prepared;
mod promote;
pub mod scalar;
mod scalar_ops;
mod sha256;
pub mod shape;
mod watched;

pub use backend::{Backend, BackendInfo, BackendKind, MemoryStats};
pub use buffer::{Binding, Buffer, BufferOwner, MapArg, MapOperands, View, ViewMut};
pub use call::{Call, CallOperand, Tell};
pub use compute::{ComputeLimits, ComputeModule, ModuleHash, Modules, NativeBinding, NativeCall, NativeFunction};
pub use dtype::DType;
pub use element::{Element, bf16_from_f64, f16_from_f64};
pub use error::{
    Error, ErrorKind, FailedLayer, FailedOperand, Here, MismatchLines, Result, VersionMismatch, line_of_call,
    with_line_of_call,
};
pub use host::HostMemory;
pub use host_vec::{Claim, ClaimCount, HostVec};
pub use kernel::{Expr, Kernel, KernelBuilder, ScalarOp};
pub use layout::Layout;
pub use merged::MergedAxes;
pub use params::*;
pub use prepared::{Prepared, Reclaim};
pub use scalar::Scalar;
pub use shape::{Axes, MAX_RANK, Shape};
pub use watched::{Postponed, Watched, postpone};

pub use half::{bf16, f16};
