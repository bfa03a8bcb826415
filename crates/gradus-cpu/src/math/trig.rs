//! Circular functions and their inverses, in f64 with one rounding to f32 at the end.
//!
//! No f32 other than 0 is closer than about `2^-31` to a multiple of `pi/2`, so the remainder `r` needs an absolute
//! error of at most `2^-60`. Two reductions achieve this, both without branches:
//! - For `|x| <= 2^40`, `x - n (P1 + P2)` is computed with two fused products. `P1 + P2` equals `pi/2` to 106 bits.
//! - For larger `x`, `x / 2 pi` is computed piece by piece. `1 / 2 pi` is divided into 29-bit pieces, whose products
//!   with the 24 bits of `x` are exact. Only the fraction of each product is kept. `x` is a multiple of `2^17`, so the
//!   bits of `1 / 2 pi` above `2^-17` only add whole turns, and six pieces reach `2^-191`, enough for `x < 2^128`.
//!
//! `sin`, `cos` and `tan` compute both reductions and select one. The `*_slice` functions return the same bits at half
//! the cost: they use only the first reduction, and compute a block again only if it contains an `|x| > 2^40`.

use core::f64::consts::{FRAC_2_PI, FRAC_PI_2, PI};

use super::exp::ROUND64;
use super::{poly64, select, with_sign};

/// `2^40`, the end of the first reduction.
const MODERATE: f32 = 1_099_511_627_776.0;
/// `pi/2 - FRAC_PI_2`.
const FRAC_PI_2_LO: f64 = 6.123233995736766e-17;
/// The bits of `1 / 2 pi` from `2^-18` on, 29 per piece.
const TURNS: [f64; 6] = [
    5.773170016709628e-06,
    3.626141059173845e-15,
    8.135951507965315e-24,
    1.4871367662361868e-32,
    7.85913688470223e-41,
    4.0267819553577653e-50,
];

/// The reduction `x = n pi/2 + r`, as the remainder `r` and an integer whose two low bits are those of `n`.
type Reduced = (f64, u64);

/// Reduces `x` with `|x| <= MODERATE`.
#[inline(always)]
fn reduce_moderate(x: f32) -> Reduced {
    let x = f64::from(x);
    let t = x.mul_add(FRAC_2_PI, ROUND64);
    let n = t - ROUND64;
    (n.mul_add(-FRAC_PI_2_LO, n.mul_add(-FRAC_PI_2, x)), t.to_bits())
}

/// Reduces `x` with `|x| > MODERATE`. Infinity yields NaN.
#[inline(always)]
fn reduce_huge(x: f32) -> Reduced {
    let x = f64::from(x);
    let mut turns = 0.0;
    let mut i = 0;
    while i < TURNS.len() {
        let y = x * TURNS[i];
        turns += y - y.round_ties_even();
        i += 1;
    }
    let quarters = 4.0 * turns;
    let t = quarters + ROUND64;
    ((quarters - (t - ROUND64)) * FRAC_PI_2, t.to_bits())
}

/// Reduces any `x`.
#[inline(always)]
fn reduce(x: f32) -> Reduced {
    let (near, near_n) = reduce_moderate(x);
    let (far, far_n) = reduce_huge(x);
    let huge = x.abs() > MODERATE;
    (select(huge, far, near), select(huge, far_n, near_n))
}

/// Returns `(sin r, cos r)` for `|r| <= pi/4`. The errors of the fits are `2^-37` and `2^-33`.
#[inline(always)]
fn sin_cos_reduced(r: f64) -> (f64, f64) {
    let z = r * r;
    let s = [1.0, -0.16666666641614208, 0.008333329384844936, -0.00019839334569754163, 2.718309384253847e-06];
    let c = [1.0, -0.5, 0.04166664685643136, -0.0013887367101383212, 2.4438410117754927e-05];
    (r * poly64(z, s), poly64(z, c))
}

/// Returns the sine of `r + n pi/2`. Bit 0 of `n` selects the sine or the cosine of `r`, and bit 1 negates it.
#[inline(always)]
fn sin_reduced((r, n): Reduced) -> f32 {
    let (s, c) = sin_cos_reduced(r);
    let y = select(n & 1 == 0, s, c);
    f64::from_bits(y.to_bits() ^ ((n & 2) << 62)) as f32
}

/// Returns the cosine of `r + n pi/2`, which is the sine a quarter turn further on.
#[inline(always)]
fn cos_reduced((r, n): Reduced) -> f32 {
    sin_reduced((r, n.wrapping_add(1)))
}

/// Returns the tangent of `r + n pi/2`: `sin r / cos r` for even `n`, and `-cos r / sin r` for odd `n`.
#[inline(always)]
fn tan_reduced((r, n): Reduced) -> f32 {
    let (s, c) = sin_cos_reduced(r);
    let even = n & 1 == 0;
    (select(even, s, -c) / select(even, c, s)) as f32
}

/// Returns `sin x` for every finite `x`, and NaN for infinity.
#[cfg(test)]
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    sin_reduced(reduce(x))
}

/// Returns `cos x` for every finite `x`, and NaN for infinity.
#[cfg(test)]
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    cos_reduced(reduce(x))
}

/// Returns `tan x` for every finite `x`, and NaN for infinity.
#[cfg(test)]
#[inline(always)]
pub(crate) fn tan(x: f32) -> f32 {
    tan_reduced(reduce(x))
}

/// Applies `finish(reduce(x))` to a slice in blocks. The costly reduction runs only for blocks that need it.
#[inline(always)]
fn map_reduced(x: &[f32], out: &mut [f32], finish: impl Fn(Reduced) -> f32) {
    const BLOCK: usize = 128;
    for (x, out) in x.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let mut largest = 0_u32;
        for (x, out) in x.iter().zip(out.iter_mut()) {
            *out = finish(reduce_moderate(*x));
            largest = largest.max(x.to_bits() & 0x7fff_ffff);
        }
        if largest > MODERATE.to_bits() {
            for (x, out) in x.iter().zip(out.iter_mut()) {
                *out = finish(reduce(*x));
            }
        }
    }
}

/// Sets `out[i] = sin(x[i])`, with the same bits as [`sin`], up to the length of the shorter slice.
#[inline(always)]
pub(crate) fn sin_slice(x: &[f32], out: &mut [f32]) {
    map_reduced(x, out, sin_reduced);
}

/// Sets `out[i] = cos(x[i])`, with the same bits as [`cos`], up to the length of the shorter slice.
#[inline(always)]
pub(crate) fn cos_slice(x: &[f32], out: &mut [f32]) {
    map_reduced(x, out, cos_reduced);
}

/// Sets `out[i] = tan(x[i])`, with the same bits as [`tan`], up to the length of the shorter slice.
#[inline(always)]
pub(crate) fn tan_slice(x: &[f32], out: &mut [f32]) {
    map_reduced(x, out, tan_reduced);
}

/// Returns `atan x`. `atan |x| = t + t^3 P(t^2)` with `t = |x|`. Beyond 1, `atan |x|` is `pi/2` minus this polynomial
/// with `t = 1/|x|`. The result takes the sign of `x`. The error of the fit is `2^-31.4`.
#[inline(always)]
pub(crate) fn atan(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let outer = a > 1.0;
    let t = select(outer, 1.0, a) / select(outer, a, 1.0);
    let c = [
        1.0,
        -0.33333327421925857,
        0.19999692170669908,
        -0.14280124772365385,
        0.11060204482975261,
        -0.0881869546099126,
        0.06759219085216531,
        -0.04494141606186166,
        0.02275602050811892,
        -0.007420586474189121,
        0.0011344649472863014,
    ];
    let y = t * poly64(t * t, c);
    with_sign(select(outer, FRAC_PI_2 - y, y) as f32, x)
}

/// Returns `(a > 1/2, asin t)`, where `t = a` up to 1/2 and `t = sqrt((1 - a) / 2)` above. Above 1/2, `asin a = pi/2 -
/// 2 asin t`.
///
/// `asin t = t + t^3 P(t^2)`, and the error of the fit is `2^-35.8`. The result is NaN for `a > 1`.
#[inline(always)]
fn asin_folded(a: f64) -> (bool, f64) {
    let outer = a > 0.5;
    let half = 0.5 - 0.5 * a;
    let z = select(outer, half, a * a);
    let t = select(outer, half.sqrt(), a);
    let c = [
        1.0,
        0.16666667191559256,
        0.0749994801277225,
        0.044660203688057766,
        0.030109735463674743,
        0.024621723901551734,
        0.007458421241269381,
        0.03470624828841407,
    ];
    (outer, t * poly64(z, c))
}

/// Returns `asin x`, or NaN if `|x| > 1`.
#[inline(always)]
pub(crate) fn asin(x: f32) -> f32 {
    let (outer, y) = asin_folded(f64::from(x.abs()));
    with_sign(select(outer, FRAC_PI_2 - 2.0 * y, y) as f32, x)
}

/// Returns `acos x`, or NaN if `|x| > 1`. It is `pi/2 - asin x` near 0, `2 asin t` near 1 and `pi - 2 asin t` near -1.
#[inline(always)]
pub(crate) fn acos(x: f32) -> f32 {
    let (outer, y) = asin_folded(f64::from(x.abs()));
    let negative = x < 0.0;
    let y = select(outer, 2.0, 1.0) * y;
    let base = select(outer, select(negative, PI, 0.0), FRAC_PI_2);
    // Near 1 the term is added, and near -1 it is subtracted. Near 0 it is subtracted if `x` is positive and added if
    // `x` is negative.
    let signed = select(negative == outer, -y, y);
    (base + signed) as f32
}
