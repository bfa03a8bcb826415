//! [`Words`]: divides a text into the words that GPT-2 encodes one by one.
//!
//! They are the matches of `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.

use super::letters::is_letter;

/// Iterates over the words of a text, which together make up the whole text.
pub(super) struct Words<'a>(pub(super) &'a str);

/// The kind of characters that a word consists of.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

fn class(c: char) -> Class {
    match c {
        _ if is_letter(c) => Class::Letter,
        _ if c.is_numeric() => Class::Number,
        _ if c.is_whitespace() => Class::Space,
        _ => Class::Other,
    }
}

/// The length of the run of characters of one class with which a text begins.
fn run(text: &str, wanted: Class) -> usize {
    text.find(|c| class(c) != wanted).unwrap_or(text.len())
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0;
        let first = text.chars().next()?;
        let suffix = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"].into_iter().find(|s| text.starts_with(s));
        // A space before a word belongs to it.
        let after = text.strip_prefix(' ').and_then(|rest| rest.chars().next()).filter(|&c| class(c) != Class::Space);
        let length = match (suffix, after) {
            (Some(suffix), _) => suffix.len(),
            (None, Some(c)) => 1 + run(&text[1..], class(c)),
            (None, None) => {
                let length = run(text, class(first));
                let last = text[..length].chars().next_back().map_or(0, char::len_utf8);
                // Of several spaces before a word, the last belongs to the word.
                let several = class(first) == Class::Space && length < text.len() && length > last;
                if several { length - last } else { length }
            }
        };
        let (word, rest) = text.split_at(length);
        self.0 = rest;
        Some(word)
    }
}
