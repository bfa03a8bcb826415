//! Reads, inspects, runs, trains and writes ONNX models.
//!
//! A part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
//!
//! An [`OnnxModel`] is a function of tensors that runs as eager operations, so gradients flow through it: its
//! initialisers can be made parameters, and an imported model can be trained further. The file is read without a
//! Protocol Buffers library. No file, however damaged, makes the program panic or allocate much more memory than its
//! own size. [`export_onnx`] writes a model of layers as such a file.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod decode;
mod elem;
mod export;
mod graph;
mod inspect;
mod model;
mod ops;
mod optimise;
mod plan;
mod profile;
mod proto;
mod replay;
mod run;
mod small_float;
mod value;
mod wire;

pub use elem::Elem;
pub use export::{OnnxExport, OnnxExportOptions, export_onnx, export_onnx_with};
pub use inspect::{OnnxOperator, OnnxPort, OnnxReport};
pub use model::OnnxModel;
pub use profile::{OnnxTime, by_operator};
pub use value::{Array, OnnxMap, OnnxValue, Strings};
