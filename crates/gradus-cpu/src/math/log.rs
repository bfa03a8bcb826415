//! Logarithms: `log`, `log2`, `log10`, `log1p`, and the f64 logarithm that the inverse hyperbolic functions share.
//!
//! `x = 2^e (1 + f)` with `1 + f` in `[sqrt 1/2, sqrt 2)`, so `log x = e log 2 + f log e + f^2 Q(f)` in any base. The
//! sum of the first two terms is computed together with its rounding error (Dekker's fast two-sum), so only the last
//! addition rounds visibly.

use core::f64::consts::{LN_2, LOG2_E, LOG10_2, LOG10_E, SQRT_2};

use super::exp::{LN2_HI, LN2_LO};
use super::{poly32, poly64, select};

/// The bits of `sqrt 1/2`. Subtracting them from the bits of `x` leaves `e` in the exponent field.
const SQRT_HALF: u32 = core::f32::consts::FRAC_1_SQRT_2.to_bits();

/// The coefficients of `Q` in base e. Each base has its own list, so that a change of base does not cost a rounding.
/// The errors of the fits are `2^-27.6`, relative to `f log e`.
const Q_E: [f32; 9] =
    [-0.49999988, 0.33333313, -0.2500159, 0.20002769, -0.16609633, 0.14166996, -0.13223101, 0.12989086, -0.07772832];
/// The coefficients of `Q` in base 2.
const Q_2: [f32; 9] =
    [-0.72134733, 0.48089826, -0.3606976, 0.2885691, -0.23960464, 0.20453905, -0.19105905, 0.18663162, -0.110624894];
/// The coefficients of `Q` in base 10.
const Q_10: [f32; 9] = [
    -0.21714719,
    0.14476478,
    -0.10858062,
    0.08686928,
    -0.07213281,
    0.06154939,
    -0.057457343,
    0.056303255,
    -0.033578843,
];

/// Returns `(e, f)` with `x = 2^e (1 + f)`, for positive finite `x`, including subnormal numbers.
#[inline(always)]
fn split(x: f32) -> (f32, f32) {
    let tiny = x < f32::MIN_POSITIVE;
    let bits = select(tiny, x * 8_388_608.0, x).to_bits();
    let offset = bits.wrapping_sub(SQRT_HALF);
    let e = ((offset as i32) >> 23) as f32 - select(tiny, 23.0, 0.0);
    let m = f32::from_bits(bits.wrapping_sub(offset & 0xff80_0000));
    (e, m - 1.0)
}

/// Returns the special value of a logarithm if `x` is zero, negative, infinite or NaN, and otherwise `y`.
#[inline(always)]
fn special(x: f32, y: f32) -> f32 {
    let pole = select(x == 0.0, f32::NEG_INFINITY, f32::NAN);
    let y = select(x < f32::INFINITY, y, f32::INFINITY);
    select(x > 0.0, y, pole)
}

/// Returns `e ln 2 + ln(1 + f) + d`. For `ln(1 + f + c)` with a `c` far below `f`, pass `c / (1 + f)` as `d`.
#[inline(always)]
fn ln_parts(e: f32, f: f32, d: f32) -> f32 {
    let a = e * LN2_HI;
    let hi = a + f;
    let lo = ((a - hi) + f) + d;
    hi + (f * f).mul_add(poly32(f, Q_E), e.mul_add(LN2_LO, lo))
}

/// Returns `e * step + ln(1 + f) * rate`. `step` is given as `(hi, lo)` with an exact `e * hi`, `rate` is given in f64,
/// and `q` holds the coefficients of `Q` for this base.
#[inline(always)]
fn log_parts(e: f32, f: f32, step: (f32, f32), rate: f64, q: [f32; 9]) -> f32 {
    let rate_hi = rate as f32;
    let rate_lo = (rate - f64::from(rate_hi)) as f32;
    let p = f * rate_hi;
    let p_lo = f.mul_add(rate_hi, -p);
    let a = e * step.0;
    let hi = a + p;
    let lo = ((a - hi) + p) + p_lo;
    hi + (f * f).mul_add(poly32(f, q), f.mul_add(rate_lo, e.mul_add(step.1, lo)))
}

/// Returns `ln x`.
#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    let (e, f) = split(x);
    special(x, ln_parts(e, f, 0.0))
}

/// Returns `log2 x`, which is exact for powers of two.
#[inline(always)]
pub(crate) fn log2(x: f32) -> f32 {
    let (e, f) = split(x);
    special(x, log_parts(e, f, (1.0, 0.0), LOG2_E, Q_2))
}

/// Returns `log10 x`.
#[inline(always)]
pub(crate) fn log10(x: f32) -> f32 {
    const HI: f32 = f32::from_bits(0x3e9a_2000); // The first 11 bits of log10 2.
    let (e, f) = split(x);
    special(x, log_parts(e, f, (HI, (LOG10_2 - HI as f64) as f32), LOG10_E, Q_10))
}

/// Returns `ln(1 + x)`. The exponent `e` is that of the rounded `1 + x`, but `f = x 2^-e + (2^-e - 1)` is computed from
/// `x` itself, together with its rounding error `d`, so the rounding of `1 + x` costs no accuracy. `2^-e` is multiplied
/// by `2^64`, because `e` can be as large as 128.
#[inline(always)]
pub(crate) fn log1p(x: f32) -> f32 {
    const UP: u32 = (127 + 64) << 23;
    const DOWN: f32 = 1.0 / 18_446_744_073_709_551_616.0; // 2^-64
    let u = 1.0 + x;
    let offset = u.to_bits().wrapping_sub(SQRT_HALF);
    let e = ((offset as i32) >> 23) as f32;
    let s = f32::from_bits(UP.wrapping_sub(offset & 0xff80_0000));
    let b = s.mul_add(DOWN, -1.0);
    let p = x * DOWN * s;
    let f = b + p;
    let d = p - (f - b);
    let y = special(u, ln_parts(e, f, d.mul_add(-f, d)));
    select(x.abs() < 2.0_f32.powi(-25), x, y)
}

/// Returns `ln w` in f64 with a relative accuracy of about 45 bits, for positive, normal and finite `w`.
///
/// `w = 2^e m` with `m` in `[sqrt 1/2, sqrt 2)`, and `ln m = 2 atanh(s)` with `s = (m - 1) / (m + 1)`. The error of the
/// fit is `2^-45`.
#[inline(always)]
pub(super) fn ln64(w: f64) -> f64 {
    const ONE: u64 = 1.0_f64.to_bits();
    const EXPONENT: u64 = 0xfff0_0000_0000_0000;
    let offset = w.to_bits().wrapping_sub((SQRT_2 / 2.0).to_bits()).wrapping_add(ONE);
    // Converts the biased exponent to f64. It is written into the mantissa of 2^52, and then 2^52 and the bias are
    // subtracted.
    const TWO_52: f64 = 4_503_599_627_370_496.0;
    let e = f64::from_bits((offset >> 52) | TWO_52.to_bits()) - (TWO_52 + 1023.0);
    let m = f64::from_bits(w.to_bits().wrapping_sub(offset & EXPONENT).wrapping_add(ONE));
    let s = (m - 1.0) / (m + 1.0);
    let c = [
        1.9999999999999465,
        0.666666666796959,
        0.39999994860107996,
        0.2857216916515738,
        0.22174132640182895,
        0.19609689667477198,
    ];
    e.mul_add(LN_2, s * poly64(s * s, c))
}
