//! Reads, inspects, runs and trains ONNX models.
//!
//! A part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
//!
//! An [`OnnxModel`] is a function of tensors that eager operations compute, so it has gradients: its initialisers can
//! become leaves, and what was imported can be trained further. The file is read without a library for Protocol
//! Buffers, and nothing in it can make the program panic or take much more memory than the file has.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod decode;
mod elem;
mod graph;
mod inspect;
mod model;
mod ops;
mod plan;
mod proto;
mod run;
mod small_float;
mod value;
mod wire;

pub use elem::Elem;
pub use inspect::{OnnxOperator, OnnxPort, OnnxReport};
pub use model::OnnxModel;
pub use value::{Array, OnnxValue, Strings};
