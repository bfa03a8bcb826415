//! [`Tokenizer`]: converts text to tokens and back.

use gradus_tensor::{Error, Result};

/// Converts text to tokens, which are numbers from 0 to [`vocabulary_size`](Tokenizer::vocabulary_size) - 1, and back.
pub trait Tokenizer: Send + Sync {
    /// The number of different tokens: the size of an embedding.
    fn vocabulary_size(&self) -> usize;

    /// The tokens of a text. Errors if a part of the text has no token; the error states the byte offset of that part.
    fn encode(&self, text: &str) -> Result<Vec<i64>>;

    /// The text of tokens. Bytes that are not UTF-8, such as a part of a character, become `U+FFFD`. Errors if a token
    /// is out of range.
    fn decode(&self, tokens: &[i64]) -> Result<String>;
}

#[track_caller]
pub(super) fn unknown(at: usize, token: i64, size: usize) -> Error {
    let m = format!("token {at} is {token}; the vocabulary has {size}");
    Error::argument("decode", m).help("decode with the tokeniser that the tokens were encoded with")
}
