//! Tasks that need no code: training on pictures, tables and text, and models that are saved with all they need.
//!
//! Part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
//!
//! The command `gradus train` saves a `model.safetensors`, which holds the weights and, in its metadata under
//! `gradus.task`, everything else that a prediction needs: what the task is, how inputs are prepared, and the names of
//! the classes. [`load`] reads it:
//!
//! ```no_run
//! # fn f(device: gradus_tensor::Device) -> gradus_tensor::Result<()> {
//! let model = gradus_tasks::load("out/digits/model.safetensors", &device)?;
//! let answers = model.predict("out/digits/example.png")?;
//! println!("{}", answers[0]);
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answer;
pub mod digits;
pub mod images;
mod measured;
mod metric;
mod saved;
pub mod tabular;
pub mod text;

pub use answer::Answer;
pub use measured::Measured;
pub use metric::Metric;
pub use saved::{Input, Model, Spec, load, write};
