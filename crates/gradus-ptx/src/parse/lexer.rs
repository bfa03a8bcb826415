//! Words, numbers, strings and punctuation.

use super::ParseError;

/// What a token is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// A name, an opcode with its modifiers, or a directive with its dot.
    Word(String),
    /// A literal; a sign before it is a token of its own.
    Number(Number),
    Text(String),
    Sign(char),
    End,
}

/// A literal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Int(u64),
    /// The bits of an f32, written `0f3F800000`.
    F32(u32),
    /// An f64, written with a point or as `0d3FF0000000000000`.
    F64(f64),
}

#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: u32,
}

/// The tokens of a text, with an end.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, ParseError> {
    let bytes = text.as_bytes();
    let (mut at, mut line) = (0, 1);
    let mut tokens = Vec::new();
    while let Some(&byte) = bytes.get(at) {
        let rest = &text[at..];
        let mut push = |kind| tokens.push(Token { kind, line });
        if byte == b'\n' {
            line += 1;
            at += 1;
        } else if byte.is_ascii_whitespace() || byte == 0 {
            at += 1;
        } else if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").ok_or_else(|| ParseError::new(line, "the comment does not end"))?;
            line += rest[..end].matches('\n').count() as u32;
            at += end + 2;
        } else if byte == b'"' {
            let end = rest[1..].find('"').ok_or_else(|| ParseError::new(line, "the string does not end"))?;
            push(Kind::Text(rest[1..1 + end].into()));
            at += end + 2;
        } else if byte.is_ascii_digit() {
            let len = number_len(rest.as_bytes());
            let number = number(&rest[..len]);
            let number = number.ok_or_else(|| ParseError::new(line, format!("not a number: `{}`", &rest[..len])))?;
            push(Kind::Number(number));
            at += len;
        } else if is_word(byte) {
            let len = word_len(rest.as_bytes());
            push(Kind::Word(rest[..len].into()));
            at += len;
        } else if byte.is_ascii_punctuation() {
            push(Kind::Sign(char::from(byte)));
            at += 1;
        } else {
            return Err(ParseError::new(line, format!("unexpected byte {byte:#04x}")));
        }
    }
    tokens.push(Token { kind: Kind::End, line });
    Ok(tokens)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// A word goes on over `::`, as in `.shared::cta`.
fn word_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        match bytes.get(at) {
            Some(byte) if is_word(*byte) => at += 1,
            Some(b':') if bytes.get(at + 1) == Some(&b':') => at += 2,
            _ => return at,
        }
    }
}

fn number_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    let hex = bytes.len() > 1 && bytes[0] == b'0' && matches!(bytes[1], b'x' | b'X' | b'f' | b'F' | b'd' | b'D');
    while let Some(byte) = bytes.get(at) {
        let exponent = at > 0 && !hex && matches!(bytes[at - 1], b'e' | b'E') && matches!(byte, b'+' | b'-');
        if !(byte.is_ascii_alphanumeric() || *byte == b'.' || exponent) {
            break;
        }
        at += 1;
    }
    at
}

fn number(text: &str) -> Option<Number> {
    let lower = text.to_ascii_lowercase();
    let bits = |prefix: &str, len: usize| lower.strip_prefix(prefix).filter(|rest| rest.len() == len);
    if let Some(rest) = bits("0f", 8) {
        return u32::from_str_radix(rest, 16).ok().map(Number::F32);
    }
    if let Some(rest) = bits("0d", 16) {
        return u64::from_str_radix(rest, 16).ok().map(|bits| Number::F64(f64::from_bits(bits)));
    }
    if let Some(rest) = lower.strip_prefix("0x") {
        return u64::from_str_radix(rest.trim_end_matches('u'), 16).ok().map(Number::Int);
    }
    if lower.contains(['.', 'e']) {
        return lower.parse().ok().map(Number::F64);
    }
    let digits = lower.trim_end_matches('u');
    let int = match (digits.strip_prefix("0b"), digits.strip_prefix('0')) {
        (Some(binary), _) => u64::from_str_radix(binary, 2),
        (None, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8),
        _ => digits.parse(),
    };
    int.ok().map(Number::Int)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_signs() {
        let text =
            "@!%p1 ld.shared::cta.v2.f32 {%f1, _}, [a+-4]; // c\n0f3F800000 0d3FF0000000000000 0x1fU 017 1.5e-2 \"s\"";
        let kinds: Vec<Kind> = tokens(text).unwrap().into_iter().map(|token| token.kind).collect();
        let word = |word: &str| Kind::Word(word.into());
        let number = Kind::Number;
        let sign = Kind::Sign;
        let expected = [
            vec![sign('@'), sign('!'), word("%p1"), word("ld.shared::cta.v2.f32"), sign('{'), word("%f1"), sign(',')],
            vec![word("_"), sign('}'), sign(','), sign('['), word("a"), sign('+'), sign('-'), number(Number::Int(4))],
            vec![sign(']'), sign(';'), number(Number::F32(0x3f80_0000)), number(Number::F64(1.0))],
            vec![number(Number::Int(31)), number(Number::Int(15)), number(Number::F64(0.015)), Kind::Text("s".into())],
            vec![Kind::End],
        ];
        assert_eq!(kinds, expected.concat());
        assert_eq!(tokens("a\n/* \n */ 09").unwrap_err().line, 3);
    }
}
