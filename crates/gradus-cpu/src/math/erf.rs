//! The error function and its complement.

use super::exp::{exp64, one_minus_exp_neg};
use super::{at_most, poly32, poly64, select, with_sign};

/// Returns `erf x`, which is `erf |x|` with the sign of `x`. Below 1, `erf x = x + x P(x^2)`. Above 1,
/// `erf x = 1 - e^(-x G(x))` with `G(x) = -ln(erfc x) / x`.
///
/// Above 1, the exponential is at most 0.16, so only about a sixth of its error reaches the result. From 4 on, the
/// result rounds to 1. The errors of the fits are `2^-29.5` for `erf x / x` and `2^-31.3` for `erfc x`.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let p = [0.12837917, -0.3761263, 0.11283618, -0.026855126, 0.005190734, -0.00080307614, 7.920368e-5];
    let small = a.mul_add(poly32(a * a, p), a);
    let g = [1.1286974, 0.6349573, 0.10655077, -0.024026975, 0.0037653684, -0.00035250993, 1.4151954e-5];
    let b = at_most(a, 4.0);
    let large = one_minus_exp_neg(b, poly32(b, g));
    with_sign(select(a < 1.0, small, large), x)
}

/// Returns `erfc x`, computed in f64. `erfc |x| = e^(-x^2) u P(1 - 2 k u)` with `u = 1 / (|x| + k)` and `k = 3`. For
/// negative arguments, `erfc(-x) = 2 - erfc x`.
///
/// The relative error of the fit is `2^-34` on `[0, 10.1]`, beyond which the result rounds to 0.
#[inline(always)]
pub(crate) fn erfc(x: f32) -> f32 {
    let a = f64::from(at_most(x.abs(), 10.1));
    let u = 1.0 / (a + 3.0);
    let t = u.mul_add(-6.0, 1.0);
    let c = [
        1.0740069070835538,
        -0.8833944538031628,
        0.5902283582395438,
        -0.3104672275332024,
        0.11952773777924595,
        -0.026827772697029597,
        -0.0012124193080474228,
        0.0030376132784686355,
        -0.0005463502464183981,
        -0.0002871003369446655,
        9.680299947836357e-05,
        3.997772875813463e-05,
    ];
    let y = exp64(-a * a) * (u * poly64(t, c));
    select(x < 0.0, 2.0 - y, y) as f32
}
