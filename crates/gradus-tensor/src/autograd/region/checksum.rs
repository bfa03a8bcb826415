//! A checksum of a tensor's bytes. It shows whether a recomputed value equals the original, which need not be saved.

use gradus_backend::{HostVec, Result};

use crate::Tensor;
use crate::autograd::mode::beside;
use crate::locks::with_read;

/// The number of bytes that are read at a time.
const PIECE: usize = 1 << 18;

/// The checksum of the elements' bytes in row-major order, so NaNs with the same bits count as equal. Reads the tensor
/// once and needs a quarter of a megabyte of memory. A tensor that is not contiguous is copied first.
#[track_caller]
pub(in crate::autograd) fn checksum(t: &Tensor) -> Result<u64> {
    let _quiet = beside();
    let mut sum = Sum::default();
    if t.numel() == 0 {
        return Ok(sum.finish());
    }
    let dense = t.detach().contiguous()?;
    let (span, backend) = (dense.byte_span(), dense.device().backend());
    let mut piece = HostVec::filled(backend, "checkpoint", 0, PIECE.min(span.len()))?;
    with_read(&[&dense], |views| {
        for start in span.clone().step_by(PIECE) {
            let bytes = &mut piece[..PIECE.min(span.end - start)];
            backend.download(views[0].buffer, start, bytes)?;
            sum.add(bytes);
        }
        Ok(sum.finish())
    })
}

/// Computes the checksum in four lanes, so that the multiplications overlap. Each step is a bijection of its lane, so a
/// single word that differs always changes the result.
#[derive(Default)]
struct Sum {
    lanes: [u64; 4],
    bytes: u64,
}

const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

fn step(lane: u64, word: u64) -> u64 {
    let x = (lane ^ word).wrapping_mul(FACTOR);
    x ^ x >> 29
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.wrapping_add(bytes.len() as u64);
        let (blocks, rest) = bytes.as_chunks::<32>();
        for block in blocks {
            for (lane, word) in self.lanes.iter_mut().zip(block.as_chunks::<8>().0) {
                *lane = step(*lane, u64::from_le_bytes(*word));
            }
        }
        for (i, &byte) in rest.iter().enumerate() {
            self.lanes[i % 4] = step(self.lanes[i % 4], u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        self.lanes.iter().fold(self.bytes, |sum, &lane| step(sum, lane).rotate_left(17))
    }
}

#[cfg(test)]
mod tests {
    use super::Sum;

    fn of(pieces: &[&[u8]]) -> u64 {
        let mut sum = Sum::default();
        pieces.iter().for_each(|p| sum.add(p));
        sum.finish()
    }

    #[test]
    fn every_bit_the_order_and_the_length_count() {
        let bytes: Vec<u8> = (0..150u8).map(|i| i.wrapping_mul(37)).collect();
        let whole = of(&[&bytes]);
        assert_eq!(whole, of(&[&bytes[..64], &bytes[64..]]));
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(&[&other]), whole, "{bit}");
        }
        let mut swapped = bytes.clone();
        swapped.swap(3, 40);
        assert_ne!(of(&[&swapped]), whole);
        assert_ne!(of(&[&[0; 8]]), of(&[&[0; 16]]));
    }
}
