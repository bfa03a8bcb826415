//! [`Corpus`]: a text as tokens, with a part for training and a part for validation.

use std::path::Path;
use std::sync::Arc;

use gradus_data::text::{TokenWindows, Tokenizer, read_text};
use gradus_data::{Dataset, Sampler};
use gradus_tensor::{Error, Generator, Here, Result};

use super::tokens::{Tokens, Vocabulary};

const OP: &str = "corpus";

/// One in this many bytes of a text, at its end, is for validation.
const HELD_OUT: usize = 10;

/// A text as tokens: its last tenth is for validation, the rest for training.
pub struct Corpus {
    vocabulary: Vocabulary,
    tokenizer: Box<dyn Tokenizer>,
    /// Those of training and validation.
    tokens: [Arc<Vec<i64>>; 2],
    /// The text for validation.
    held_out: String,
    start: String,
    bytes: usize,
}

impl Corpus {
    /// Reads a text file, which must be UTF-8.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not UTF-8 (the error states the byte), and for the reasons of
    /// [`new`](Corpus::new).
    #[track_caller]
    pub fn read(path: impl AsRef<Path>, tokens: Tokens) -> Result<Corpus> {
        let path = path.as_ref();
        let text = read_text(path)?;
        Corpus::new(&text, tokens).map_err(|e| e.note(format!("in the file {}", path.display()))).here()
    }

    /// The tokens of a text. Errors if it is empty, or consists of a single character, however often.
    #[track_caller]
    pub fn new(text: &str, tokens: Tokens) -> Result<Corpus> {
        let Some(first) = text.chars().next() else {
            return Err(
                Error::argument(OP, "the text is empty").help("give a text of a few thousand characters or more")
            );
        };
        if text.chars().all(|c| c == first) {
            let m = format!("the text consists of the character {first:?} only");
            return Err(Error::argument(OP, m).help("give a text of different characters; there is nothing to learn"));
        }
        let (training, held_out) = text.split_at(text.floor_char_boundary(text.len() - text.len() / HELD_OUT));
        let vocabulary = Vocabulary::learn(tokens, text, training)?;
        let tokenizer = vocabulary.tokenizer()?;
        let tokens = [Arc::new(tokenizer.encode(training)?), Arc::new(tokenizer.encode(held_out)?)];
        let start = if text.contains('\n') { '\n' } else { first }.to_string();
        Ok(Corpus { vocabulary, tokenizer, tokens, held_out: held_out.to_owned(), start, bytes: text.len() })
    }

    /// Everything that makes the tokeniser.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The tokeniser.
    pub fn tokenizer(&self) -> &dyn Tokenizer {
        &*self.tokenizer
    }

    /// The number of different tokens.
    pub fn vocabulary_size(&self) -> usize {
        self.tokenizer.vocabulary_size()
    }

    /// The number of tokens for training and for validation.
    pub fn lengths(&self) -> [usize; 2] {
        [self.tokens[0].len(), self.tokens[1].len()]
    }

    /// The text for validation.
    pub fn held_out(&self) -> &str {
        &self.held_out
    }

    /// What a text like this begins with: a new line if it has lines, otherwise its first character.
    pub fn start(&self) -> &str {
        &self.start
    }

    /// The number of bytes of the text.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The mean number of bytes of a token for validation. The loss of a token divided by it is that of a byte, which
    /// models with different tokenisers share.
    pub fn bytes_per_token(&self) -> f64 {
        self.held_out.len() as f64 / self.tokens[1].len().max(1) as f64
    }

    /// Sections of `context` tokens with the token after each: for training at any place, for validation one after the
    /// other. A rest of the validation that fills no section is left out.
    ///
    /// # Errors
    /// Fails if `context` is 0, or if a part has not more tokens than that.
    #[track_caller]
    pub fn windows(&self, context: usize) -> Result<[TokenWindows; 2]> {
        for (part, tokens) in ["training", "validation, the last tenth of the text,"].into_iter().zip(&self.tokens) {
            if tokens.len() <= context {
                let m =
                    format!("{part} has {} tokens, and a context of {context} needs one more than that", tokens.len());
                return Err(Error::argument(OP, m).help("give a longer text or a smaller context"));
            }
        }
        let [training, validation] = &self.tokens;
        let training = TokenWindows::shared(training.clone(), context, 1)?;
        Ok([training, TokenWindows::shared(validation.clone(), context, context)?])
    }
}

/// A sampler that covers the tokens once in each epoch: with sections of `context` tokens that lie side by side, in
/// random order and from a random token on. `training` has the sections at all places.
pub fn once_in_each_epoch(training: &TokenWindows, context: usize) -> Sampler {
    let places = training.len();
    let context = context.max(1);
    // With one section less than there is room for, the first may begin anywhere in that room.
    let samples = places.div_ceil(context).saturating_sub(1).max(1);
    let order = move |_: u64, generator: &mut Generator| {
        let first = generator.below(places - (samples - 1) * context);
        let sections = generator.permutation(samples)?;
        Ok(sections.into_iter().map(|section| first + section * context).collect())
    };
    Sampler::Custom { samples, order: Arc::new(order) }
}
