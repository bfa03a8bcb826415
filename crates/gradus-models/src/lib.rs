//! Well-known networks, with the parameter names of PyTorch, timm and transformers.
//!
//! Part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
