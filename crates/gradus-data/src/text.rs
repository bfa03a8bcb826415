//! Text for language models: tokenisers, and windows of tokens.
//!
//! ```
//! use gradus_data::text::{Bpe, Tokenizer};
//! let text = "the cat sat on the mat, and the cat saw the rat";
//! let bpe = Bpe::train([text], 280, &["<|endoftext|>"])?;
//! let tokens = bpe.encode("the cat")?;
//! assert!(tokens.len() < 7);
//! assert_eq!(bpe.decode(&tokens)?, "the cat");
//! # Ok::<(), gradus_tensor::Error>(())
//! ```

mod bpe;
mod byte_symbols;
mod characters;
mod letters;
mod merges;
mod read;
mod tokenizer;
mod train;
mod windows;
mod words;

pub use bpe::Bpe;
pub use characters::{Bytes, Characters};
pub use read::read_text;
pub use tokenizer::Tokenizer;
pub use windows::{TokenWidth, TokenWindows, save_tokens};
