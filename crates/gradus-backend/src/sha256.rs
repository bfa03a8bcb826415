//! SHA-256 (FIPS 180-4). It identifies compute modules, so that a list of allowed modules cannot be circumvented.

use std::array;
use std::sync::LazyLock;

/// The first 32 bits of the fractional parts of the cube roots of the first 64 primes and of the square roots of the
/// first eight.
static CONSTANTS: LazyLock<([u32; 64], [u32; 8])> = LazyLock::new(|| {
    let mut primes = (2u64..).filter(|n| (2..*n).all(|d| n % d != 0));
    let primes: [u64; 64] = array::from_fn(|_| primes.next().unwrap_or_default());
    // floor(root(p) * 2^32) modulo 2^32, by bisection: exact in integers.
    let fraction = |p: u64, power: u32| {
        let fits = |r: u128| r.pow(power) <= u128::from(p) << (32 * power);
        (0..36).rev().fold(0u128, |r, bit| if fits(r | 1 << bit) { r | 1 << bit } else { r }) as u32
    };
    (primes.map(|p| fraction(p, 3)), array::from_fn(|i| fraction(primes[i], 2)))
});

/// The digest of a message.
pub(crate) fn digest(message: &[u8]) -> [u8; 32] {
    let (k, mut state) = *CONSTANTS;
    // The last one or two blocks hold the remaining bytes, a 1 bit, zeros, and the length in bits.
    let blocks = message.chunks_exact(64);
    let rest = blocks.remainder();
    let mut last = [0; 128];
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    let end = if rest.len() < 56 { 64 } else { 128 };
    last[end - 8..end].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    for block in blocks.chain(last[..end].chunks_exact(64)) {
        let mut w = [0u32; 64];
        for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
            *word = bytes.iter().fold(0, |word, &byte| word << 8 | u32::from(byte));
        }
        for i in 16..64 {
            let (a, b) = (w[i - 15], w[i - 2]);
            let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ a >> 3;
            let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ b >> 10;
            w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        for i in 0..64 {
            let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let choice = (e & f) ^ (!e & g);
            let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(k[i]).wrapping_add(w[i]);
            let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let t2 = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
            (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t1), c, b, a, t1.wrapping_add(t2));
        }
        for (s, v) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *s = s.wrapping_add(v);
        }
    }
    let mut out = [0; 32];
    out.chunks_exact_mut(4).zip(state).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_be_bytes()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        let hex = |message: &[u8]| digest(message).map(|b| format!("{b:02x}")).concat();
        assert_eq!(hex(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(two_blocks), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }
}
