//! Damages bytes at random, regardless of their format.

use crate::random::Random;

impl Random {
    /// A length, usually small and sometimes large.
    pub(super) fn length(&mut self, most: usize) -> usize {
        let bits = self.below(most.max(1).ilog2() as usize + 1);
        self.below((2 << bits).min(most + 1))
    }

    /// A boundary value, where programs tend to fail.
    pub(super) fn extreme(&mut self) -> u64 {
        let edge = 1u64 << self.of(&[0, 1, 3, 7, 8, 15, 16, 24, 31, 32, 40, 47, 53, 62, 63]);
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => edge - 1,
            3 => edge + 1,
            4 => edge.wrapping_neg(),
            5 => self.below(1000) as u64,
            6 => self.bits() >> self.below(64),
            _ => edge,
        }
    }

    /// Random bytes.
    pub(super) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits() as u8).collect()
    }

    /// A range of `bytes`, usually short.
    fn range(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let from = self.below(bytes.len() + 1);
        from..from + self.length(bytes.len() - from)
    }
}

/// Writes the low `size` bytes of `number` at `at`, in big-endian order if `big`. Drops the bytes beyond the end.
pub(super) fn put(bytes: &mut [u8], at: usize, size: usize, number: u64, big: bool) {
    let mut number = number.to_le_bytes()[..size].to_vec();
    if big {
        number.reverse();
    }
    bytes.iter_mut().skip(at).zip(number).for_each(|(byte, new)| *byte = new);
}

/// Damages the bytes in one way.
pub(super) fn edit(bytes: &mut Vec<u8>, d: &mut Random) {
    if bytes.is_empty() {
        bytes.extend(d.bytes(1));
    }
    let at = d.below(bytes.len());
    match d.below(13) {
        0 | 1 => bytes[at] ^= 1 << d.below(8),
        2 => bytes[at] = d.of(&[0, 1, 0x7f, 0x80, 0xfe, 0xff]),
        3 => bytes[at] = d.bits() as u8,
        4 | 5 => {
            let (size, number, big) = (d.of(&[2, 4, 4, 8]), d.extreme(), d.once_in(2));
            put(bytes, at, size, number, big);
        }
        6 => bytes.truncate(at),
        7 => drop(bytes.drain(d.range(bytes))),
        8 => {
            let copy = bytes[d.range(bytes)].to_vec();
            drop(bytes.splice(at..at, copy));
        }
        9 => {
            let count = d.length(64);
            let new = d.bytes(count);
            drop(bytes.splice(at..at, new));
        }
        10 => {
            let value = d.of(&[0, 0xff, 0x20, 0x30]);
            let range = d.range(bytes);
            bytes[range].fill(value);
        }
        11 => {
            let range = d.range(bytes);
            bytes[range].reverse();
        }
        _ => {
            let (count, value) = (d.length(1 << 16), d.of(&[0, 0xff, b'[', b'9']));
            bytes.extend(std::iter::repeat_n(value, count));
        }
    }
}

/// Damages a list of parts: removes or duplicates one, or swaps two.
pub(super) fn rearrange<T: Clone>(parts: &mut Vec<T>, d: &mut Random) {
    if parts.is_empty() {
        return;
    }
    let (at, to) = (d.below(parts.len()), d.below(parts.len()));
    match d.below(3) {
        0 => drop(parts.remove(at)),
        1 => parts.insert(to, parts[at].clone()),
        _ => parts.swap(at, to),
    }
}
