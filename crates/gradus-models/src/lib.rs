//! Well-known networks, with the parameter names of PyTorch, timm and transformers.
//!
//! Part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod generate;
mod gpt2;
mod sampling;

pub use generate::{CausalLm, GenerateOptions, Generation, generate};
pub use gpt2::{Conv1D, Gpt2, Gpt2Activation, Gpt2Attention, Gpt2Block, Gpt2Config, Gpt2Mlp, Gpt2Model};
pub use sampling::Sampling;
