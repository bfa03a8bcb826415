//! Philox 4x32-10, the counter-based random number generator of every backend.
//!
//! Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The stream of a seed is a
//! sequence of 32-bit words; word `w` is lane `w % 4` of the block with counter `w / 4`. Each element of a draw
//! consumes a fixed number of words ([`words_per_element`]). Any element of a draw can therefore be computed without
//! its neighbours, and the numbers do not depend on threads, blocks or the device.

use crate::{DType, Distribution, Scalar};

const M0: u32 = 0xD251_1F53;
const M1: u32 = 0xCD9E_8D57;
const W0: u32 = 0x9E37_79B9;
const W1: u32 = 0xBB67_AE85;

/// The four words of one block.
#[inline]
pub fn block(seed: u64, counter: u64) -> [u32; 4] {
    let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut k = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let p0 = u64::from(M0) * u64::from(c[0]);
        let p1 = u64::from(M1) * u64::from(c[2]);
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(W0), k[1].wrapping_add(W1)];
    }
    c
}

/// Word `w` of the stream of `seed`.
#[inline]
pub fn word(seed: u64, w: u64) -> u32 {
    block(seed, w / 4)[(w % 4) as usize]
}

/// Number of words that one element of a draw consumes: 1 for Bernoulli and for a uniform float of at most 32 bits,
/// otherwise 2.
pub fn words_per_element(dist: Distribution, dtype: DType) -> u64 {
    match dist {
        Distribution::Bernoulli { .. } => 1,
        Distribution::Uniform { .. } if dtype != DType::F64 => 1,
        _ => 2,
    }
}

/// The uniform number in `[0, 1)` given by the top 24 bits of a word.
#[inline]
pub fn unit_f32(w: u32) -> f32 {
    (w >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// The uniform number in `[0, 1)` given by the top 53 bits of two words.
#[inline]
pub fn unit_f64(hi: u32, lo: u32) -> f64 {
    let bits = (u64::from(hi) << 32) | u64::from(lo);
    (bits >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

/// Element `i` of the draw that starts at position `offset` of the stream. Every backend follows this definition:
///
/// * uniform: `lo + u * (hi - lo)`, kept below `hi`;
/// * normal: `mean + std * sqrt(-2 ln(1 - u1)) * cos(2 pi u2)`, with 32-bit `u1` and `u2`, in f64;
/// * Bernoulli: 1 if the word, as a fraction of 2^32, is below `p`;
/// * integer: `lo + floor(v * (hi - lo) / 2^64)` with a 64-bit `v`.
pub fn element(dist: Distribution, dtype: DType, seed: u64, offset: u64, i: u64) -> Scalar {
    let at = offset.wrapping_add(i.wrapping_mul(words_per_element(dist, dtype)));
    let first = word(seed, at);
    let second = || word(seed, at.wrapping_add(1));
    match dist {
        Distribution::Uniform { lo, hi } => {
            let u = if dtype == DType::F64 { unit_f64(first, second()) } else { f64::from(unit_f32(first)) };
            Scalar::Float(below(lo + u * (hi - lo), lo, hi, dtype))
        }
        Distribution::Normal { mean, std } => {
            let u1 = f64::from(first) * (1.0 / 4_294_967_296.0);
            let u2 = f64::from(second()) * (1.0 / 4_294_967_296.0);
            let r = libm::sqrt(-2.0 * libm::log1p(-u1));
            Scalar::Float(mean + std * r * libm::cos(std::f64::consts::TAU * u2))
        }
        Distribution::Bernoulli { p } => {
            let one = f64::from(first) * (1.0 / 4_294_967_296.0) < p;
            if dtype.is_float() { Scalar::Float(f64::from(u8::from(one))) } else { Scalar::Int(i64::from(one)) }
        }
        Distribution::Int { lo, hi } => {
            let v = (u128::from(first) << 32) | u128::from(second());
            let range = (i128::from(hi) - i128::from(lo)) as u128;
            Scalar::Int((i128::from(lo) + ((v * range) >> 64) as i128) as i64)
        }
    }
}

/// Rounds a uniform draw to the dtype. If this reaches `hi`, the draw becomes `lo`, which has the same probability up
/// to rounding.
fn below(v: f64, lo: f64, hi: f64, dtype: DType) -> f64 {
    let rounded = match dtype {
        DType::F32 => f64::from(v as f32),
        DType::F16 => crate::f16_from_f64(v).to_f64(),
        DType::BF16 => crate::bf16_from_f64(v).to_f64(),
        _ => v,
    };
    if rounded >= hi && hi > lo { lo } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers from the Random123 distribution (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        assert_eq!(block(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }

    #[test]
    fn draws_have_their_moments_and_ranges() {
        let n = 100_000u64;
        let mean = |d: Distribution| (0..n).map(|i| element(d, DType::F64, 7, 11, i).to_f64()).sum::<f64>() / n as f64;
        assert!((mean(Distribution::Uniform { lo: 2.0, hi: 4.0 }) - 3.0).abs() < 0.01);
        assert!(mean(Distribution::Normal { mean: 0.0, std: 1.0 }).abs() < 0.02);
        assert!((mean(Distribution::Bernoulli { p: 0.3 }) - 0.3).abs() < 0.01);
        assert!((mean(Distribution::Int { lo: -2, hi: 3 })).abs() < 0.02);
        let var: f64 = (0..n)
            .map(|i| element(Distribution::Normal { mean: 0.0, std: 1.0 }, DType::F32, 7, 0, i).to_f64().powi(2))
            .sum();
        assert!((var / n as f64 - 1.0).abs() < 0.02);
        for i in 0..1000 {
            let v = element(Distribution::Int { lo: i64::MIN, hi: i64::MAX }, DType::I64, 1, 0, i);
            assert!(matches!(v, Scalar::Int(_)));
            let u = element(Distribution::Uniform { lo: 1.0, hi: 2.0 }, DType::BF16, 1, 0, i).to_f64();
            assert!((1.0..2.0).contains(&u));
        }
    }
}
