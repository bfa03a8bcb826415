//! Rounding to a format with fewer bits.

/// How a result is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To the nearest; between two, to the even one.
    Near,
    /// To the nearest; between two, away from zero.
    Away,
    Zero,
    Down,
    Up,
}

/// A floating-point format with a sign, exponents of all ones for infinity and NaN, and subnormal numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    exponent: u32,
    mantissa: u32,
}

impl Format {
    pub(crate) const F16: Self = Self { exponent: 5, mantissa: 10 };
    pub(crate) const BF16: Self = Self { exponent: 8, mantissa: 7 };
    /// Its bits are the upper 19 of an f32's.
    pub(crate) const TF32: Self = Self { exponent: 8, mantissa: 10 };
    pub(crate) const F32: Self = Self { exponent: 8, mantissa: 23 };

    fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.mantissa
    }

    /// The canonical NaN: all bits but the sign.
    pub(crate) fn nan(self) -> u32 {
        (1 << (self.exponent + self.mantissa)) - 1
    }
}

/// The bits of a number in a format.
#[inline]
pub(crate) fn round(x: f64, format: Format, mode: Mode) -> u32 {
    if x.is_nan() {
        return format.nan();
    }
    let bits = x.to_bits();
    let sign = (bits >> 63) as u32;
    let sign_bit = sign << (format.exponent + format.mantissa);
    let field = (bits >> 52 & 0x7ff) as i32;
    if field == 0x7ff {
        return sign_bit | format.infinity() as u32;
    }
    if bits << 1 == 0 {
        return sign_bit;
    }
    let significand = bits & ((1 << 52) - 1) | u64::from(field != 0) << 52;
    let exponent = field.max(1) - 1023;
    let bias = (1 << (format.exponent - 1)) - 1;
    let lowest = 1 - bias;
    let lost = (52 - format.mantissa as i32 + (lowest - exponent).max(0)).min(55) as u32;
    let (kept, rest, half) = (significand >> lost, significand & ((1 << lost) - 1), 1u64 << (lost - 1));
    let up = match mode {
        Mode::Near => rest > half || (rest == half && kept & 1 == 1),
        Mode::Away => rest >= half,
        Mode::Zero => false,
        Mode::Down => sign == 1 && rest > 0,
        Mode::Up => sign == 0 && rest > 0,
    };
    let start = ((exponent - lowest).max(0) as u64) << format.mantissa;
    // A carry out of the mantissa raises the exponent, as it should.
    let result = start + kept + u64::from(up);
    if result < format.infinity() {
        return sign_bit | result as u32;
    }
    let to_infinity = match mode {
        Mode::Near | Mode::Away => true,
        Mode::Zero => false,
        Mode::Down => sign == 1,
        Mode::Up => sign == 0,
    };
    sign_bit | (format.infinity() - u64::from(!to_infinity)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every f16 number is its own rounding, and what lies between two goes to the one that the mode names.
    #[test]
    fn rounds_between_all_neighbours() {
        for bits in 0..0x7bff_u32 {
            let (low, high) = (super::super::f16_in(bits), super::super::f16_in(bits + 1));
            assert_eq!(round(low, Format::F16, Mode::Near), bits);
            let middle = (low + high) / 2.0;
            let even = bits + (bits & 1);
            let cases = [
                (Mode::Near, even),
                (Mode::Away, bits + 1),
                (Mode::Zero, bits),
                (Mode::Down, bits),
                (Mode::Up, bits + 1),
            ];
            for (mode, expected) in cases {
                assert_eq!(round(middle, Format::F16, mode), expected, "{mode:?} {bits:#x}");
                let opposite = match mode {
                    Mode::Down => Mode::Up,
                    Mode::Up => Mode::Down,
                    same => same,
                };
                assert_eq!(round(-middle, Format::F16, opposite), expected | 0x8000, "{mode:?} -{bits:#x}");
            }
            assert_eq!(round(middle.next_down(), Format::F16, Mode::Near), bits);
            assert_eq!(round(middle.next_up(), Format::F16, Mode::Near), bits + 1);
        }
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(round(65519.0, Format::F16, Mode::Near), 0x7bff);
        assert_eq!(round(65520.0, Format::F16, Mode::Near), 0x7c00);
        assert_eq!(round(1e300, Format::F32, Mode::Zero), 0x7f7f_ffff);
        assert_eq!(round(-1e300, Format::F32, Mode::Down), 0xff80_0000);
        assert_eq!(round(-1e300, Format::F32, Mode::Up), 0xff7f_ffff);
        assert_eq!(round(5e-324, Format::F32, Mode::Up), 1);
        assert_eq!(round(f64::NAN, Format::BF16, Mode::Near), 0x7fff);
        for bits in [0x3f80_1000_u32, 0x3f80_3000, 0x3f80_2fff] {
            let near = round(f64::from(f32::from_bits(bits)), Format::TF32, Mode::Away);
            assert_eq!(near, (bits + 0x1000) >> 13);
        }
    }

    /// Odd rounding before the real one gives the f32 that the host's fused operation gives.
    #[test]
    fn narrow_results_are_rounded_once() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            f32::from_bits((state >> 32) as u32)
        };
        for _ in 0..1_000_000 {
            let (x, y, z) = (next(), next(), next());
            let [a, b, c] = [x, y, z].map(f64::from);
            let same = |found: f32, expected: f32| {
                found.to_bits() == expected.to_bits() || expected.is_nan() && found.is_nan()
            };
            let near = |value: f64| f32::from_bits(round(value, Format::F32, Mode::Near));
            assert!(same(super::super::fma_odd(a, b, c) as f32, x.mul_add(y, z)), "{x:e} {y:e} {z:e}");
            assert!(same(near(super::super::fma_odd(a, b, c)), x.mul_add(y, z)), "{x:e} {y:e} {z:e}");
            assert!(same(near(super::super::div_odd(a, b)), x / y), "{x:e} / {y:e}");
            assert!(same(near(super::super::sqrt_odd(a)), x.sqrt()), "{x:e}");
            let down = f32::from_bits(round(super::super::add_odd(a, b), Format::F32, Mode::Down));
            let up = f32::from_bits(round(super::super::add_odd(a, b), Format::F32, Mode::Up));
            if (x + y).is_finite() {
                assert!(f64::from(down) <= a + b && a + b <= f64::from(up) && (down == up || down.next_up() == up));
            }
        }
    }
}
