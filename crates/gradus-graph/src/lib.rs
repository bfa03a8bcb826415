//! Captured steps: trace once, replay the same bits.
//!
//! Part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
//!
//! [`capture`] wraps a function of tensors: a training step, an evaluation or a step of a generation. The first calls
//! run normally and are traced. Once two traces agree, later calls replay the trace. On the CPU, a replay computes the
//! same bits, except that a NaN may be another NaN, without recording a graph, allocating temporary memory or running the function.
//!
//! ```
//! # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
//! # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
//! use gradus_graph::capture;
//!
//! let mut step = capture(|x| Ok(vec![x[0].exp()?.sum_all()?]));
//! for i in 0..4 {
//!     let x = Tensor::full([3], i as f64, DType::F32, &device)?;
//!     let eager = x.exp()?.sum_all()?.to_vec::<f32>()?;
//!     assert_eq!(step.call(&[&x])?[0].to_vec::<f32>()?, eager);
//! }
//! assert_eq!(step.replays(), 2);
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod assign;
mod blocks;
mod capture;
mod captured;
mod check;
mod compare;
mod graph;
mod key;
pub mod passes;
mod plan;
mod print;
mod record;
mod text;
mod verify;

pub use capture::{Step, capture};
pub use captured::Captured;
pub use graph::{Graph, Memory, Node, Origin, Place};
pub use passes::MemoryLimit;
pub use text::{Line, Text, Value};
