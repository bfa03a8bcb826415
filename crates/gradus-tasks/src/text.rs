//! Language models that learn a text and write more of it.
//!
//! ```
//! # use std::sync::Arc;
//! use gradus_models::{GenerateOptions, Gpt2};
//! use gradus_nn::Init;
//! use gradus_tasks::text::{Corpus, Sizes, Tokens, write_on};
//! # use gradus_tensor::{DType, Device, Generator, Result};
//! # let device = Device::from_backend(Arc::new(gradus_cpu::CpuBackend::new()?));
//! let corpus = Corpus::new(&"To be, or not to be: that is the question.\n".repeat(20), Tokens::Characters)?;
//! let sizes = Sizes { layers: 1, heads: 2, width: 16, context: 32 };
//! let config = sizes.config(corpus.vocabulary_size(), 0.0);
//! let mut model = Gpt2::new(config, &mut Init::new(DType::F32, &device, &mut Generator::new(0)))?;
//! // Train it on `corpus.windows(32)?` here.
//! let options = GenerateOptions { max_new_tokens: 10, ..Default::default() };
//! let written: String = write_on(&mut model, corpus.tokenizer(), "To be", &device, options)?.collect::<Result<_>>()?;
//! assert_eq!(written.chars().count(), 10);
//! # Ok::<(), gradus_tensor::Error>(())
//! ```

mod corpus;
mod model;
mod tokens;
mod writing;

pub use corpus::{Corpus, once_in_each_epoch};
pub use model::{Sizes, Spec, Text, loss_metrics, next_token_loss};
pub use tokens::{Tokens, Vocabulary};
pub use writing::{Writing, write_on};
