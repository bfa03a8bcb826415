//! [`Characters`] and [`Bytes`]: one token for each character, or for each byte.

use std::collections::BTreeSet;

use gradus_tensor::backend::host_vec::collect;
use gradus_tensor::{Error, ErrorKind, Here, Result};

use super::tokenizer::{Tokenizer, unknown};

/// One token for each byte of the text in UTF-8. There are 256 tokens, and every text can be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes;

impl Tokenizer for Bytes {
    fn vocabulary_size(&self) -> usize {
        256
    }

    #[track_caller]
    fn encode(&self, text: &str) -> Result<Vec<i64>> {
        collect("encode", text.as_bytes().iter().map(|&b| i64::from(b)))
    }

    #[track_caller]
    fn decode_bytes(&self, tokens: &[i64]) -> Result<Vec<u8>> {
        let byte = |(at, &token)| u8::try_from(token).map_err(|_| unknown(at, token, 256));
        tokens.iter().enumerate().map(byte).collect::<Result<Vec<u8>>>().here()
    }
}

/// One token for each distinct character of a training text, in order of code points.
///
/// ```
/// use gradus_data::text::{Characters, Tokenizer};
/// let characters = Characters::of("hello world");
/// assert_eq!(characters.characters().iter().collect::<String>(), " dehlorw");
/// assert_eq!(characters.encode("hold")?, [3, 5, 4, 1]);
/// assert!(characters.encode("hi").unwrap_err().to_string().contains("byte 1: 'i'"));
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Characters(Vec<char>);

impl Characters {
    /// The tokeniser for the characters of a text. To restore a tokeniser, pass a text of its
    /// [`characters`](Characters::characters).
    pub fn of(text: &str) -> Self {
        Characters(text.chars().collect::<BTreeSet<char>>().into_iter().collect())
    }

    /// The character of each token.
    pub fn characters(&self) -> &[char] {
        &self.0
    }
}

impl Tokenizer for Characters {
    fn vocabulary_size(&self) -> usize {
        self.0.len()
    }

    #[track_caller]
    fn encode(&self, text: &str) -> Result<Vec<i64>> {
        let token = |(at, c): (usize, char)| {
            let place = self.0.binary_search(&c).map_err(|_| {
                let m = format!("byte {at}: {c:?} is none of the {} characters of the vocabulary", self.0.len());
                Error::new(ErrorKind::Format, "encode", m).help("take the characters of all of the text, or use Bytes")
            });
            place.map(|p| p as i64)
        };
        text.char_indices().map(token).collect::<Result<_>>().here()
    }

    #[track_caller]
    fn decode_bytes(&self, tokens: &[i64]) -> Result<Vec<u8>> {
        let character = |(at, &token): (usize, &i64)| {
            let found = usize::try_from(token).ok().and_then(|t| self.0.get(t));
            found.copied().ok_or_else(|| unknown(at, token, self.0.len()))
        };
        let text = tokens.iter().enumerate().map(character).collect::<Result<String>>().here()?;
        Ok(text.into_bytes())
    }
}
