//! Tasks that need no code: training on pictures, tables and text, and models that are saved with all they need.
//!
//! Part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
