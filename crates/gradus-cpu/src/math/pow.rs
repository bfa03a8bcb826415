//! `pow` and `rsqrt`.

use super::exp::exp64;
use super::log::ln64;
use super::select;

/// Returns whether `a >= 0` is an integer. Infinity counts as one. Below `2^23`, an integer is unchanged if `2^23` is
/// added and subtracted again.
#[inline(always)]
fn is_integer(a: f32) -> bool {
    const TWO_23: f32 = 8_388_608.0;
    (a >= TWO_23) | ((a + TWO_23) - TWO_23 == a)
}

/// Returns `x^y = e^(y ln|x|)`, computed in f64, with the sign and the special values of C99's `powf`.
#[inline(always)]
pub(crate) fn pow(x: f32, y: f32) -> f32 {
    let a = f64::from(x.abs());
    let l = select(a < f64::INFINITY, ln64(a), a);
    let l = select(a == 0.0, f64::NEG_INFINITY, l);
    let t = f64::from(y) * l;
    let t = select(t > 90.0, 90.0, t);
    let p = exp64(select(t < -110.0, -110.0, t)) as f32;
    // The magnitude of (+-1)^y is 1, even if `y` is infinite. The last line handles 1^y and x^0, which are 1 even if
    // the other operand is NaN.
    let p = select((a == 1.0) & !y.is_nan(), 1.0, p);
    let b = y.abs();
    let integer = is_integer(b);
    let odd = integer & !is_integer(0.5 * b);
    let sign = select(odd, x.to_bits() & 0x8000_0000, 0);
    let p = f32::from_bits(p.to_bits() | sign);
    let p = select((x < 0.0) & (a < f64::INFINITY) & !integer & !y.is_nan(), f32::NAN, p);
    select((x == 1.0) | (y == 0.0), 1.0, p)
}

/// Returns `1 / sqrt(x)`. A rounded square root and a rounded division are followed by one Newton step, whose residual
/// `1 - x y^2` is computed accurately enough with two fused products. For `+-0`, the result is `+-inf`.
#[inline(always)]
pub(crate) fn rsqrt(x: f32) -> f32 {
    let y = 1.0 / x.sqrt();
    let h = x * y;
    let h_lo = x.mul_add(y, -h);
    let residual = h_lo.mul_add(-y, h.mul_add(-y, 1.0));
    let refined = (0.5 * y).mul_add(residual, y);
    select((x > 0.0) & (x < f32::INFINITY), refined, y)
}
