//! `pow` and `rsqrt`.

use super::exp::exp64;
use super::log::ln64;
use super::select;

/// Whether `a >= 0` is an integer (infinity counts): below `2^23` adding and taking away `2^23` must leave it alone.
#[inline(always)]
fn is_integer(a: f32) -> bool {
    const TWO_23: f32 = 8_388_608.0;
    (a >= TWO_23) | ((a + TWO_23) - TWO_23 == a)
}

/// `x^y = e^(y ln|x|)` in f64, with the sign and the special values of C99's `powf`.
#[inline(always)]
pub(crate) fn pow(x: f32, y: f32) -> f32 {
    let a = f64::from(x.abs());
    let l = select(a < f64::INFINITY, ln64(a), a);
    let l = select(a == 0.0, f64::NEG_INFINITY, l);
    let t = f64::from(y) * l;
    let t = select(t > 90.0, 90.0, t);
    let p = exp64(select(t < -110.0, -110.0, t)) as f32;
    // (+-1)^y and x^0 are 1 whatever the other operand is, infinite or NaN.
    let p = select((a == 1.0) & !y.is_nan(), 1.0, p);
    let b = y.abs();
    let integer = is_integer(b);
    let odd = integer & !is_integer(0.5 * b);
    let sign = select(odd, x.to_bits() & 0x8000_0000, 0);
    let p = f32::from_bits(p.to_bits() | sign);
    let p = select((x < 0.0) & (a < f64::INFINITY) & !integer & !y.is_nan(), f32::NAN, p);
    select((x == 1.0) | (y == 0.0), 1.0, p)
}

/// `1 / sqrt(x)`: a rounded square root and a rounded division, then one Newton step whose residual `1 - x y^2` is
/// formed exactly enough with two fused products. `+-0` gives `+-inf`.
#[inline(always)]
pub(crate) fn rsqrt(x: f32) -> f32 {
    let y = 1.0 / x.sqrt();
    let h = x * y;
    let h_lo = x.mul_add(y, -h);
    let residual = h_lo.mul_add(-y, h.mul_add(-y, 1.0));
    let refined = (0.5 * y).mul_add(residual, y);
    select((x > 0.0) & (x < f32::INFINITY), refined, y)
}
