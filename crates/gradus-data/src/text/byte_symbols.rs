//! The characters that stand for bytes in the vocabulary of GPT-2. A printable byte stands for itself, and the others
//! are mapped to characters from 256 on.

/// The character of each byte.
pub(super) fn symbols() -> [char; 256] {
    let mut symbols = ['\0'; 256];
    let mut next = 256;
    for (byte, symbol) in symbols.iter_mut().enumerate() {
        let seen = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if seen { byte as u32 } else { next };
        next += u32::from(!seen);
        *symbol = char::from_u32(code).unwrap_or_default();
    }
    symbols
}

/// The bytes that the characters of a token stand for. A character that stands for no byte is encoded as UTF-8.
pub(super) fn bytes_of(token: &str, symbols: &[char; 256]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(token.len());
    for c in token.chars() {
        match symbols.iter().position(|&s| s == c) {
            Some(byte) => bytes.push(byte as u8),
            None => bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}
