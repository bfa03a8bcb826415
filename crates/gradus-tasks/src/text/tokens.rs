//! [`Tokens`]: what a token is. [`Vocabulary`]: a tokeniser as a model file keeps it.

use std::fmt;
use std::str::FromStr;

use gradus_data::text::{Bpe, Bytes, Characters, Tokenizer};
use gradus_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// What a token is. It is written `chars`, `bytes` or `bpe:N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tokens {
    /// A character of the text.
    #[default]
    Characters,
    /// A byte of the text in UTF-8.
    Bytes,
    /// A byte pair encoding with a vocabulary of at most this many tokens, learned from the text.
    Bpe(usize),
}

/// The largest vocabulary that a byte pair encoding may be asked for.
const MOST_TOKENS: usize = 1 << 20;

impl FromStr for Tokens {
    type Err = Error;

    #[track_caller]
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |m: String| {
            Error::argument("tokenizer", m).help("write chars, bytes, or bpe:N with N tokens, such as bpe:1000")
        };
        match (text, text.strip_prefix("bpe:")) {
            ("chars", _) => Ok(Tokens::Characters),
            ("bytes", _) => Ok(Tokens::Bytes),
            (_, Some(size)) => match size.parse() {
                Ok(size @ 257..=MOST_TOKENS) => Ok(Tokens::Bpe(size)),
                _ => Err(wrong(format!("{size:?} is no vocabulary of 257 to {MOST_TOKENS} tokens"))),
            },
            _ => Err(wrong(format!("{text:?} is no tokeniser"))),
        }
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tokens::Characters => write!(f, "chars"),
            Tokens::Bytes => write!(f, "bytes"),
            Tokens::Bpe(size) => write!(f, "bpe:{size}"),
        }
    }
}

/// Everything that makes a tokeniser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Vocabulary {
    /// A token for each of these characters.
    Characters {
        /// The characters, in order of code points.
        characters: String,
    },
    /// A token for each byte.
    Bytes,
    /// The contents of the files `vocab.json` and `merges.txt` of GPT-2.
    Bpe {
        /// The contents of `vocab.json`.
        vocabulary: String,
        /// The contents of `merges.txt`.
        merges: String,
    },
}

impl Vocabulary {
    /// The vocabulary for a text: the characters are those of `all` of it, and byte pairs are learned from its part
    /// `training`.
    #[track_caller]
    pub(super) fn learn(tokens: Tokens, all: &str, training: &str) -> Result<Vocabulary> {
        Ok(match tokens {
            Tokens::Characters => {
                Vocabulary::Characters { characters: Characters::of(all).characters().iter().collect() }
            }
            Tokens::Bytes => Vocabulary::Bytes,
            Tokens::Bpe(size) => {
                let [vocabulary, merges] = Bpe::train([training], size, &[])?.to_texts()?;
                Vocabulary::Bpe { vocabulary, merges }
            }
        })
    }

    /// The tokeniser. Errors if the texts of a byte pair encoding do not fit together.
    #[track_caller]
    pub fn tokenizer(&self) -> Result<Box<dyn Tokenizer>> {
        Ok(match self {
            Vocabulary::Characters { characters } => Box::new(Characters::of(characters)),
            Vocabulary::Bytes => Box::new(Bytes),
            Vocabulary::Bpe { vocabulary, merges } => Box::new(Bpe::from_texts(vocabulary, merges)?),
        })
    }
}
