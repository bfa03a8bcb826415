//! [`write_on`]: text from a model, piece by piece.

use gradus_data::text::Tokenizer;
use gradus_models::{CausalLm, GenerateOptions, Generation, generate};
use gradus_tensor::{Device, Error, Here, Result};

/// Writes on from a prompt. Each item of the iterator is the next piece of text: a token, or several that are one
/// character together. See [`generate`] for what the model sees.
///
/// # Errors
/// Fails if the prompt is empty, if a character of it is not in the vocabulary, if it is longer than the context of the
/// model, or if an option is out of its range.
#[track_caller]
pub fn write_on<'m, M: CausalLm + ?Sized>(
    model: &'m mut M,
    tokenizer: &'m dyn Tokenizer,
    prompt: &str,
    device: &Device,
    options: GenerateOptions,
) -> Result<Writing<'m, M>> {
    if prompt.is_empty() {
        let e = Error::argument("generate", "the prompt is empty");
        return Err(e.help("give a few words of the kind that the model has learned"));
    }
    let tokens = tokenizer.encode(prompt).map_err(|e| {
        e.note("in the prompt")
            .help("the model knows only the characters of the text that it has learned; leave this one out")
    });
    let tokens = tokens.here()?;
    Ok(Writing { generation: generate(model, &tokens, device, options)?, tokenizer, pending: Vec::new() })
}

/// The text that a model writes, as an iterator. [`write_on`] makes it.
pub struct Writing<'m, M: ?Sized> {
    generation: Generation<'m, M>,
    tokenizer: &'m dyn Tokenizer,
    /// The bytes of a character that is not complete yet.
    pending: Vec<u8>,
}

impl<M: CausalLm + ?Sized> Iterator for Writing<'_, M> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        loop {
            match self.generation.next() {
                Some(Ok(token)) => match self.tokenizer.decode_bytes(&[token]) {
                    Ok(bytes) => self.pending.extend_from_slice(&bytes),
                    Err(e) => return Some(Err(e)),
                },
                Some(Err(e)) => return Some(Err(e)),
                None if self.pending.is_empty() => return None,
                None => return Some(Ok(String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned())),
            }
            let piece = complete(&mut self.pending);
            if !piece.is_empty() {
                return Some(Ok(piece));
            }
        }
    }
}

/// Takes the text at the start of the bytes and leaves an incomplete character at their end. Bytes that no text begins
/// with become `U+FFFD`.
fn complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    loop {
        match std::str::from_utf8(bytes) {
            Ok(rest) => {
                text.push_str(rest);
                bytes.clear();
                return text;
            }
            Err(e) => {
                let valid = e.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[..valid]));
                let Some(wrong) = e.error_len() else {
                    bytes.drain(..valid);
                    return text;
                };
                text.push(char::REPLACEMENT_CHARACTER);
                bytes.drain(..valid + wrong);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::complete;

    #[test]
    fn characters_are_complete() {
        let mut pending = Vec::new();
        let mut pieces = Vec::new();
        for byte in "aé€😀".bytes().chain([0xff, b'b', 0xe2, b'c']) {
            pending.push(byte);
            pieces.push(complete(&mut pending));
        }
        let want = ["a", "", "é", "", "", "€", "", "", "", "😀", "\u{fffd}", "b", "", "\u{fffd}c"];
        assert_eq!(pieces, want);
        assert!(pending.is_empty());
    }
}
