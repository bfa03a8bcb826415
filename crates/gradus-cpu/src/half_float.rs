//! Conversions between half precision and f32, without branches, so that loops over them are vectorised.
//!
//! f16 and bf16 are only storage types: operations compute in f32 and round the result once, to nearest even. A NaN
//! becomes a quiet NaN.

use std::hint::select_unpredictable as select;

use gradus_backend::{bf16, f16};

/// Converts an f16 exactly.
#[inline(always)]
pub(crate) fn f16_to_f32(h: f16) -> f32 {
    let h = u32::from(h.to_bits());
    let magnitude = (h & 0x7fff) << 13;
    // Read as an f32, the value is too small by a factor of 2^112, because the exponent biases differ by 112. The
    // product is exact, even for subnormals. Infinity and NaN need the largest exponent instead.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = magnitude | (0xff << 23) | select(magnitude > 0x1f << 23, 1 << 22, 0);
    f32::from_bits(select(magnitude >= 0x1f << 23, special, scaled) | (h & 0x8000) << 16)
}

/// Rounds to the nearest f16, with ties to even.
#[inline(always)]
pub(crate) fn f16_from_f32(x: f32) -> f16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // Normal results are rounded by adding the last bit that is kept and just under half of its weight.
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    // For subnormal results, adding 0.5 moves the bits into place and rounds them.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = select(magnitude < 113 << 23, subnormal, normal);
    // 65520 and above round to infinity.
    let special = select(magnitude > 0x7f80_0000, 0x7e00, 0x7c00);
    let h = select(magnitude >= 0x477f_f000, special, finite);
    f16::from_bits((h | (bits >> 16 & 0x8000)) as u16)
}

/// Converts a bf16 exactly.
#[inline(always)]
pub(crate) fn bf16_to_f32(h: bf16) -> f32 {
    f32::from_bits(u32::from(h.to_bits()) << 16)
}

/// Rounds to the nearest bf16, with ties to even.
#[inline(always)]
pub(crate) fn bf16_from_f32(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    bf16::from_bits(select(bits & 0x7fff_ffff > 0x7f80_0000, nan, rounded) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            let (x, y) = (f16_to_f32(h), bf16_to_f32(b));
            assert!(x.to_bits() == h.to_f32().to_bits() || (x.is_nan() && h.is_nan()), "{bits:#x}");
            assert!(y.to_bits() == b.to_f32().to_bits() || (y.is_nan() && b.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        for high in 0..=u16::MAX {
            for low in [0u32, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff, 0x3000, 0x2fff, 0xf000] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let (h, b) = (f16_from_f32(x), bf16_from_f32(x));
                if x.is_nan() {
                    assert!(h.is_nan() && b.is_nan());
                } else {
                    assert_eq!(h.to_bits(), f16::from_f32(x).to_bits(), "{x:?}");
                    assert_eq!(b.to_bits(), bf16::from_f32(x).to_bits(), "{x:?}");
                }
            }
        }
    }
}
