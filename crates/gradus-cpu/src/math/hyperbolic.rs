//! Hyperbolic functions and their inverses, in f64 with one rounding to f32 at the end.

use super::exp::{ROUND64, exp_parts};
use super::log::ln64;
use super::{at_most, poly64, select, with_sign};

/// Returns `tanh x`. `tanh |x| = E / (E + 2)` with `E = e^(2|x|) - 1`, and the result takes the sign of `x`. This needs
/// one exponential and one division.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = f64::from(at_most(x.abs(), 10.0));
    let (q, s) = exp_parts(a + a);
    let e = s.mul_add(q, s - 1.0);
    with_sign((e / (e + 2.0)) as f32, x)
}

/// Returns `(cosh r, sinh r, 2^n, 2^-n)`, where `x = n ln 2 + r`. One even and one odd polynomial suffice for both
/// `e^r` and `e^-r`.
#[inline(always)]
fn cosh_sinh_parts(x: f64) -> (f64, f64, f64, f64) {
    use core::f64::consts::{LN_2, LOG2_E};
    const ONE: u64 = 1.0_f64.to_bits();
    let t = x.mul_add(LOG2_E, ROUND64);
    let r = (t - ROUND64).mul_add(-LN_2, x);
    let n = t.to_bits() << 52;
    let z = r * r;
    // The errors of the fits are 2^-34 for cosh and 2^-37 for sinh.
    let c = poly64(z, [1.0, 0.500000007956986, 0.0416662656490627, 0.0013946331146728443]);
    let o = r * poly64(z, [1.0, 0.16666666755030599, 0.008333288796381058, 0.00019905072840570884]);
    (c, o, f64::from_bits(ONE.wrapping_add(n)), f64::from_bits(ONE.wrapping_sub(n)))
}

/// Returns `sinh x`. `sinh |x| = ((2^n - 2^-n) cosh r + (2^n + 2^-n) sinh r) / 2`, and the result takes the sign of
/// `x`. For small `x`, this is `sinh r` alone.
#[inline(always)]
pub(crate) fn sinh(x: f32) -> f32 {
    let (c, o, s, i) = cosh_sinh_parts(f64::from(at_most(x.abs(), 91.0)));
    with_sign((0.5 * (s - i).mul_add(c, (s + i) * o)) as f32, x)
}

/// Returns `cosh x = ((2^n + 2^-n) cosh r + (2^n - 2^-n) sinh r) / 2`.
#[inline(always)]
pub(crate) fn cosh(x: f32) -> f32 {
    let (c, o, s, i) = cosh_sinh_parts(f64::from(at_most(x.abs(), 91.0)));
    (0.5 * (s + i).mul_add(c, (s - i) * o)) as f32
}

/// Returns `asinh x`. `asinh |x| = ln(|x| + sqrt(x^2 + 1))`, or the series `|x| - |x|^3/6` below `2^-8`. The result
/// takes the sign of `x`.
#[inline(always)]
pub(crate) fn asinh(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let large = ln64(a + a.mul_add(a, 1.0).sqrt());
    let small = a * (a * a).mul_add(-1.0 / 6.0, 1.0);
    let y = select(a < 1.0 / 256.0, small, large);
    with_sign(select(a < f64::INFINITY, y, a) as f32, x)
}

/// Returns `acosh x = ln(x + sqrt(x^2 - 1))`, or NaN below 1. `x^2 - 1` is rounded only once in f64, so no accuracy is
/// lost near 1.
#[inline(always)]
pub(crate) fn acosh(x: f32) -> f32 {
    let a = f64::from(x);
    let y = ln64(a + a.mul_add(a, -1.0).sqrt());
    let y = select(a >= 1.0, y, f64::NAN);
    select(a < f64::INFINITY, y, a) as f32
}

/// Returns `atanh x`. `atanh |x| = ln((1 + |x|) / (1 - |x|)) / 2`, or the series `|x| + |x|^3/3` below `2^-8`. The
/// result takes the sign of `x`. Beyond 1, it is NaN.
#[inline(always)]
pub(crate) fn atanh(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let large = 0.5 * ln64((1.0 + a) / (1.0 - a));
    let small = a * (a * a).mul_add(1.0 / 3.0, 1.0);
    let edge = select(a == 1.0, f64::INFINITY, f64::NAN);
    let y = select(a < 1.0 / 256.0, small, large);
    with_sign(select(a < 1.0, y, edge) as f32, x)
}
