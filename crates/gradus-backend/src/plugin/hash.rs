//! FNV-1a hashing of numbers and texts at compile time, for the [`FINGERPRINT`](super::FINGERPRINT).

const fn byte(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x100_0000_01b3)
}

pub(super) const fn number(mut hash: u64, n: usize) -> u64 {
    let bytes = (n as u64).to_le_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = byte(hash, bytes[i]);
        i += 1;
    }
    hash
}

pub(super) const fn text(hash: u64, s: &str) -> u64 {
    let mut hash = number(hash, s.len());
    let mut i = 0;
    while i < s.len() {
        hash = byte(hash, s.as_bytes()[i]);
        i += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_tells_texts_and_numbers_apart() {
        assert_ne!(text(text(1, "ab"), "c"), text(text(1, "a"), "bc"));
        assert_ne!(number(1, 2), number(1, 3));
    }
}
