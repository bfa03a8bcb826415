//! [`Tokenizer`]: converts text to tokens and back.

use gradus_tensor::{Error, Result};

/// Converts text to tokens, which are numbers from 0 to [`vocabulary_size`](Tokenizer::vocabulary_size) - 1, and back.
pub trait Tokenizer: Send + Sync {
    /// The number of different tokens: the size of an embedding.
    fn vocabulary_size(&self) -> usize;

    /// The tokens of a text. Errors if a part of the text has no token; the error states the byte offset of that part.
    fn encode(&self, text: &str) -> Result<Vec<i64>>;

    /// The bytes of the text of tokens. A character may be several tokens, so the bytes of some of them need not be
    /// UTF-8. Errors if a token is out of range.
    fn decode_bytes(&self, tokens: &[i64]) -> Result<Vec<u8>>;

    /// The text of tokens. Bytes that are not UTF-8, such as a part of a character, become `U+FFFD`. Errors if a token
    /// is out of range.
    #[track_caller]
    fn decode(&self, tokens: &[i64]) -> Result<String> {
        let bytes = self.decode_bytes(tokens)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }
}

#[track_caller]
pub(super) fn unknown(at: usize, token: i64, size: usize) -> Error {
    let m = format!("token {at} is {token}; the vocabulary has {size}");
    Error::argument("decode", m).help("decode with the tokeniser that the tokens were encoded with")
}
