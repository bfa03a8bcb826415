//! Exponentials, and functions that need one exponential: `exp`, `exp2`, `expm1`, `sigmoid`, `sigmoid_neg`, `softplus`.
//!
//! All of them are based on `e^x = 2^n e^r` with `n = round(x / ln 2)` and `|r| <= ln 2 / 2`. Adding a number such as
//! `1.5 * 2^23` rounds `x / ln 2` to an integer and leaves this integer in the low bits of the sum. A shift then turns
//! it into an exponent, so that no conversion to an integer type is needed.

use core::f64::consts::{LN_2, LOG2_E};

use super::{at_least, at_most, poly32, poly64, select, with_sign};

/// `1.5 * 2^23 + 254`. Once it is added to `n`, the low bits hold `n + 254`, the sum of two biased exponents for
/// exponents that add up to `n`.
const ROUND32: f32 = 12_582_912.0 + 254.0;
/// `1.5 * 2^52`. Once it is added to `n`, the low bits hold `n`.
pub(super) const ROUND64: f64 = 6_755_399_441_055_744.0;

/// The first 15 bits of `ln 2`, so that `n * LN2_HI` is exact for every `n` of 8 bits. [`LN2_LO`] is the remainder.
pub(super) const LN2_HI: f32 = 0.693_145_75;
/// `ln 2 - LN2_HI`.
pub(super) const LN2_LO: f32 = (LN_2 - LN2_HI as f64) as f32;

/// Returns `p * 2^n`, where `t = ROUND32 + n` and `-150 <= n <= 128`. The power is split into two factors, so that only
/// the last product can round.
#[inline(always)]
fn scale(p: f32, t: f32) -> f32 {
    let sum = t.to_bits() << 23;
    let half = (t.to_bits() << 22) & 0xff80_0000;
    p * f32::from_bits(half) * f32::from_bits(sum.wrapping_sub(half))
}

/// The coefficients of `(e^r - 1) / r` for `|r| <= ln 2 / 2`. The error of the fit is `2^-28.2`, relative to `e^r`.
const EXPM1: [f32; 6] = [1.0, 0.49999994, 0.16666521, 0.04166827, 0.008368685, 0.0013820466];

/// Returns `e^x`. The reduction uses `ln 2` in two parts, of which the first has an exact product with `n`. The
/// polynomial for `e^r` has degree 6.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = at_least(at_most(x, 89.0), -104.0);
    let t = x.mul_add(LOG2_E as f32, ROUND32);
    let n = t - ROUND32;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, x));
    scale(r.mul_add(poly32(r, EXPM1), 1.0), t)
}

/// Returns `1 - e^(-x g)` for `x g` from 1 to 20, where it is near 1.
///
/// The product is fused into the reduction and `1 - 2^n` into the last step, so that neither the rounding of a large
/// `x g` nor that of `e^r` near 1 reaches the result.
#[inline(always)]
pub(super) fn one_minus_exp_neg(x: f32, g: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0 + 127.0;
    let t = (x * g).mul_add(-LOG2_E as f32, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-LN2_LO, x.mul_add(-g, n * -LN2_HI));
    let power = f32::from_bits(t.to_bits() << 23);
    (-power).mul_add(r * poly32(r, EXPM1), 1.0 - power)
}

/// Returns `2^x`. The reduction is exact. `2^r = 1 + r P(r)`, and the error of the fit is `2^-28.3`.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let x = at_least(at_most(x, 129.0), -151.0);
    let t = x + ROUND32;
    let r = x - (t - ROUND32);
    let c = [1.0, LN_2 as f32, 0.24022648, 0.055503596, 0.0096185, 0.0013390972, 0.00015328925];
    scale(poly32(r, c), t)
}

/// Returns `(e^r - 1, 2^n)` in f64, where `e^x = 2^n e^r`, for `|x| < 700`. The relative error is `2^-32`.
#[inline(always)]
pub(super) fn exp_parts(x: f64) -> (f64, f64) {
    let t = x.mul_add(LOG2_E, ROUND64);
    let r = (t - ROUND64).mul_add(-LN_2, x);
    let c = [
        0.9999999999910031,
        0.500000004739508,
        0.16666666853876003,
        0.04166635167776042,
        0.0083332685284514,
        0.001394120926786183,
        0.0001991590573058963,
    ];
    let power = f64::from_bits((t.to_bits() << 52).wrapping_add(1.0_f64.to_bits()));
    (r * poly64(r, c), power)
}

/// Returns `e^x` in f64 with an accuracy of 32 bits, for `|x| < 700`.
#[inline(always)]
pub(super) fn exp64(x: f64) -> f64 {
    let (q, s) = exp_parts(x);
    s.mul_add(q, s)
}

/// Returns `e^x - 1 = 2^n (e^r - 1) + (2^n - 1)`, computed in f64. The result takes the sign of `x`, which preserves
/// `-0`.
#[inline(always)]
pub(crate) fn expm1(x: f32) -> f32 {
    let (q, s) = exp_parts(f64::from(at_least(at_most(x, 90.0), -20.0)));
    with_sign(s.mul_add(q, s - 1.0) as f32, x)
}

/// The parts that the logistic function is computed from. They represent `e^-x = 2^n (1 + q)`, with `n` in the low bits
/// of `t`.
#[derive(Clone, Copy)]
pub(crate) struct Logistic {
    pub(crate) q: f32,
    pub(crate) t: f32,
}

impl Logistic {
    /// `2^-64`. Multiplied by this factor, `e^-x` and its inverse both stay within the range of f32.
    const SCALE: f32 = 1.0 / 18_446_744_073_709_551_616.0;
    /// `1.5 * 2^23 + 127 - 64`. Once it is added to `n`, the low bits hold the biased exponent of `2^n` times `SCALE`.
    const ROUND: f32 = 12_582_912.0 + (127.0 - 64.0);

    /// Computes `q = r + r^2 P(r)` in an order that lets its steps overlap. The error of the fit is `2^-32`.
    #[inline(always)]
    pub(crate) fn new(x: f32) -> Logistic {
        let x = at_least(at_most(x, 104.0), -104.0);
        let t = x.mul_add(-LOG2_E as f32, Self::ROUND);
        let n = t - Self::ROUND;
        let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, -x));
        let [c2, c3, c4, c5, c6, c7] = [0.5, 0.16666664, 0.041666426, 0.008333846, 0.0013938702, 0.00019618637];
        let z = r * r;
        let high = f32::mul_add(c7, r, c6).mul_add(z, f32::mul_add(c5, r, c4));
        Logistic { q: z.mul_add(high.mul_add(z, f32::mul_add(c3, r, c2)), r), t }
    }

    /// Returns `(y, error, unit)`, where `y + error * unit` is `1 / (1 + e^-x)`. With `s = 2^n`, the sum `1 + s + s q`
    /// is kept in two parts, `d + low`, and `y = 1 / d` is corrected to `1 / (d + low)`. An `s` below `2^-30` does not
    /// change the result.
    #[inline(always)]
    fn parts(self) -> (f32, f32, f32) {
        let s = f32::from_bits(at_least(self.t, Self::ROUND - 30.0).to_bits() << 23);
        let sum = Self::SCALE + s;
        let lost = at_most(s, Self::SCALE) - (sum - at_least(s, Self::SCALE));
        let d = s.mul_add(self.q, sum);
        let low = s.mul_add(self.q, (sum - d) + lost);
        let y = Self::SCALE / d;
        let error = (-low).mul_add(y, (-d).mul_add(y, Self::SCALE));
        (y, error, y * (1.0 / Self::SCALE))
    }

    /// Returns `1 / (1 + e^-x)`.
    #[inline(always)]
    pub(crate) fn sigmoid(self) -> f32 {
        let (y, error, unit) = self.parts();
        error.mul_add(unit, y)
    }

    /// Returns `1 / (1 + e^x)` for the `x` that was passed to [`new`](Self::new). It is `e^-x = 2^n (1 + q)` times
    /// [`sigmoid`](Self::sigmoid), with `1 + q` in two parts. Below -17.4, the result is 1 without this product,
    /// because `sigmoid` may be too small to be exact.
    #[inline(always)]
    pub(crate) fn sigmoid_neg(self, x: f32) -> f32 {
        const MOVE: u32 = 254 - (127 - 64);
        let (y, error, unit) = self.parts();
        let high = 1.0 + self.q;
        let low = self.q - (high - 1.0);
        let p = high.mul_add(y, low.mul_add(y, high * (error * unit)));
        select(x < -17.4, 1.0, scale(p, f32::from_bits(self.t.to_bits().wrapping_add(MOVE))))
    }
}

/// Returns the logistic function `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    Logistic::new(x).sigmoid()
}

/// Returns `1 / (1 + e^x)`.
#[inline(always)]
pub(crate) fn sigmoid_neg(x: f32) -> f32 {
    Logistic::new(x).sigmoid_neg(x)
}

/// Returns `ln(1 + e^x) = max(x, 0) + ln(1 + y)` with `y = e^-|x|` in `[0, 1]`, computed in f64.
///
/// `ln(1 + y) = y P(y)`, with a relative error of `2^-30.3`.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let y = exp64(f64::from(at_least(-x.abs(), -110.0)));
    let c = [
        0.999999999255495,
        -0.4999998140754839,
        0.333325587712483,
        -0.24987260001983988,
        0.1989067741026833,
        -0.16105429987000797,
        0.12417843484151164,
        -0.08243343912103102,
        0.04147117703736467,
        -0.013404219174114997,
        0.0020295803848040172,
    ];
    let relu = select(x > 0.0, x, 0.0);
    y.mul_add(poly64(y, c), f64::from(relu)) as f32
}
