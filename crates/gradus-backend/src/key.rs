//! Computes the keys of caches, which are 128-bit hashes, and defines maps from such keys.
//!
//! A cache compares only keys, so two values with the same key would be mistaken for each other. Each of the 128 bits
//! depends on the whole input, so this is less likely than a memory error.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A map whose keys are already hashes.
pub type KeyMap<V> = HashMap<u128, V, BuildHasherDefault<Low>>;

/// The hash of a value.
pub fn key(of: impl Hash) -> u128 {
    let mut halves = Halves(0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F);
    of.hash(&mut halves);
    halves.write_u64(0);
    (u128::from(halves.0) << 64) | u128::from(halves.1)
}

/// Two hashes that are computed side by side. Each step multiplies two words to 128 bits, and combines the halves of
/// the product.
struct Halves(u64, u64);

impl Hasher for Halves {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = |half: u64, by: u64| {
            let product = u128::from(half ^ word) * u128::from(by);
            (product as u64) ^ ((product >> 64) as u64)
        };
        // Each hash also depends on the other one, so that a product of zero does not erase all that came before it.
        let first = mixed(self.0, 0xA076_1D64_78BD_642F).wrapping_add(self.1.rotate_left(23));
        *self = Halves(first, mixed(self.1, 0xE703_7ED1_A0B4_28DB).wrapping_add(self.0.rotate_left(37)));
    }

    fn write_u8(&mut self, i: u8) {
        self.write_u64(u64::from(i));
    }

    fn write_u32(&mut self, i: u32) {
        self.write_u64(u64::from(i));
    }

    fn write_usize(&mut self, i: usize) {
        self.write_u64(i as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A hasher for maps that takes the low half of a key as its hash.
#[derive(Default)]
pub struct Low(u64);

impl Hasher for Low {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.0 = self.0.rotate_left(8) ^ u64::from(b));
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_of_different_values_differ_in_both_halves() {
        let mut seen = [HashSet::new(), HashSet::new()];
        let mut count = 0;
        let mut add = |key: u128| {
            seen[0].insert(key as u64);
            seen[1].insert((key >> 64) as u64);
            count += 1;
        };
        for a in 0..300u64 {
            for b in 0..300u32 {
                add(key(("numbers", a, b)));
                add(key(("high bits", a << 40, u64::from(b) << 32, false)));
            }
            add(key(("text", "a".repeat(a as usize))));
            add(key(("list", (0..a).collect::<Vec<_>>())));
            add(key(("array", [a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x9E37_79B9_7F4A_7C15; 3])));
        }
        assert_eq!([seen[0].len(), seen[1].len()], [count; 2]);
        assert_eq!(key((1u8, "x")), key((1u8, "x")));
    }

    #[test]
    fn every_bit_of_the_input_changes_about_half_of_the_key() {
        for bit in 0..64 {
            let changed = |v: u64| (key((v, 7u8)) ^ key((v ^ (1 << bit), 7u8))).count_ones();
            let mean = (0..200).map(|v| changed(v * 0x1234_5678_9ABC)).sum::<u32>() / 200;
            assert!((58..=70).contains(&mean), "bit {bit}: {mean}");
        }
    }
}
