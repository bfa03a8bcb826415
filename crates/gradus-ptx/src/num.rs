//! Arithmetic as PTX defines it where the host's differs: rounding modes, narrow formats, NaNs.
//!
//! Narrow results are computed in f64, rounded to odd, and then rounded to their format. A number that is rounded to odd
//! has its last bit set wherever bits were lost; with at least two more bits than the format has, the second rounding then
//! gives what one rounding of the exact value gives, in every mode.

mod format;
#[allow(unsafe_code)]
mod fused;

pub(crate) use format::{Format, Mode, round};
pub(crate) use fused::fma_row;

/// The NaN that every f32 instruction gives.
pub(crate) const NAN32: u32 = 0x7fff_ffff;

/// A sum with the last bit set where it is not exact.
pub(crate) fn odd(sum: f64, error: f64) -> f64 {
    let bits = sum.to_bits();
    let inexact = error.abs() > 0.0;
    let away = (error > 0.0) == (sum > 0.0);
    let step = if away { 1 } else { u64::MAX };
    f64::from_bits(if inexact && bits & 1 == 0 { bits.wrapping_add(step) } else { bits })
}

/// The rounded sum and what it lacks.
fn two_sum(x: f64, y: f64) -> (f64, f64) {
    let sum = x + y;
    let part = sum - x;
    (sum, (x - (sum - part)) + (y - part))
}

/// `x + y`, rounded to odd.
pub(crate) fn add_odd(x: f64, y: f64) -> f64 {
    let (sum, error) = two_sum(x, y);
    odd(sum, error)
}

/// `x * y + z` for factors of at most 26 bits, rounded to odd.
pub(crate) fn fma_odd(x: f64, y: f64, z: f64) -> f64 {
    add_odd(x * y, z)
}

/// `x / y` for numbers of at most 24 bits, rounded to odd.
pub(crate) fn div_odd(x: f64, y: f64) -> f64 {
    let quotient = x / y;
    // The remainder tells on which side the quotient lies; y's sign turns it.
    let rest = (-quotient).mul_add(y, x);
    if quotient.is_finite() && quotient != 0.0 { odd(quotient, if y < 0.0 { -rest } else { rest }) } else { quotient }
}

/// The square root of a number of at most 24 bits, rounded to odd.
pub(crate) fn sqrt_odd(x: f64) -> f64 {
    let root = x.sqrt();
    if root.is_finite() { odd(root, (-root).mul_add(root, x)) } else { root }
}

/// An f64 result rounded to nearest, moved to where the mode wants it; only the error's sign counts.
pub(crate) fn directed(result: f64, error: f64, mode: Mode) -> f64 {
    if !result.is_finite() || error == 0.0 || error.is_nan() {
        return result;
    }
    match mode {
        Mode::Near | Mode::Away => result,
        Mode::Up if error > 0.0 => result.next_up(),
        Mode::Down if error < 0.0 => result.next_down(),
        Mode::Zero if result > 0.0 && error < 0.0 => result.next_down(),
        Mode::Zero if result < 0.0 && error > 0.0 => result.next_up(),
        _ => result,
    }
}

/// A result that overflowed to infinity from finite operands, in the mode's place.
fn overflowed(result: f64, finite: bool, mode: Mode) -> f64 {
    let keeps = match mode {
        Mode::Near | Mode::Away => true,
        Mode::Zero => false,
        Mode::Up => result > 0.0,
        Mode::Down => result < 0.0,
    };
    if finite && result.is_infinite() && !keeps { f64::MAX.copysign(result) } else { result }
}

/// A sum of zero from numbers that are not both zero of one sign is negative when rounding down.
fn zero_sum(x: f64, y: f64, result: f64, mode: Mode) -> f64 {
    let mixed = x.is_sign_negative() != y.is_sign_negative();
    if result == 0.0 && mixed && mode == Mode::Down { -0.0 } else { result }
}

pub(crate) fn add64(x: f64, y: f64, mode: Mode) -> f64 {
    let (sum, error) = two_sum(x, y);
    let sum = zero_sum(x, y, sum, mode);
    overflowed(directed(sum, error, mode), x.is_finite() && y.is_finite(), mode)
}

pub(crate) fn mul64(x: f64, y: f64, mode: Mode) -> f64 {
    let product = x * y;
    overflowed(directed(product, product_error(x, y, product), mode), x.is_finite() && y.is_finite(), mode)
}

/// A number with the sign of `x * y - product`. Tiny products are scaled, since their error would round to zero.
fn product_error(x: f64, y: f64, product: f64) -> f64 {
    if product.abs() >= 1e-280 {
        return x.mul_add(y, -product);
    }
    let (big, small) = if x.abs() > y.abs() { (x, y) } else { (y, x) };
    let (up, far) = (2f64.powi(300), 2f64.powi(600));
    if big.abs() < 1.0 {
        (big * up).mul_add(small * up, -(product * far))
    } else {
        big.mul_add(small * far, -(product * far))
    }
}

pub(crate) fn fma64(x: f64, y: f64, z: f64, mode: Mode) -> f64 {
    let result = x.mul_add(y, z);
    if matches!(mode, Mode::Near | Mode::Away) {
        return result;
    }
    // The error of a fused operation, after Boldo and Muller.
    let high = x * y;
    let low = x.mul_add(y, -high);
    let (a, b) = two_sum(z, low);
    let (c, d) = two_sum(high, a);
    let error = ((c - result) + d) + b;
    let result = zero_sum(high, z, result, mode);
    overflowed(directed(result, error, mode), x.is_finite() && y.is_finite() && z.is_finite(), mode)
}

pub(crate) fn div64(x: f64, y: f64, mode: Mode) -> f64 {
    let quotient = x / y;
    let rest = (-quotient).mul_add(y, x);
    let finite = x.is_finite() && y.is_finite() && y != 0.0;
    overflowed(directed(quotient, if y < 0.0 { -rest } else { rest }, mode), finite, mode)
}

pub(crate) fn sqrt64(x: f64, mode: Mode) -> f64 {
    let root = x.sqrt();
    directed(root, (-root).mul_add(root, x), mode)
}

/// The bits of an f32 result: NaN is canonical, and with `ftz` a subnormal number is zero.
#[inline(always)]
pub(crate) fn f32_bits<const FTZ: bool>(x: f32) -> u32 {
    if x.is_nan() { NAN32 } else { flush::<FTZ>(x.to_bits()) }
}

/// An f32 operand; with `ftz` a subnormal number is zero.
#[inline(always)]
pub(crate) fn f32_in<const FTZ: bool>(bits: u32) -> f32 {
    f32::from_bits(flush::<FTZ>(bits))
}

#[inline(always)]
fn flush<const FTZ: bool>(bits: u32) -> u32 {
    if FTZ && bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

/// The f16 number with these bits.
#[inline(always)]
pub(crate) fn f16_in(bits: u32) -> f64 {
    half::f16::from_bits(bits as u16).to_f64()
}

/// The bf16 number with these bits.
#[inline(always)]
pub(crate) fn bf16_in(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits << 16))
}

/// The smaller number. A NaN gives way to a number, or with `NAN` wins; -0 is below +0.
#[inline(always)]
pub(crate) fn min<const NAN: bool>(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() {
        return if NAN || (x.is_nan() && y.is_nan()) {
            f64::NAN
        } else if x.is_nan() {
            y
        } else {
            x
        };
    }
    if x < y || (x == y && x.is_sign_negative()) { x } else { y }
}

/// The larger number, with the rules of [`min`].
#[inline(always)]
pub(crate) fn max<const NAN: bool>(x: f64, y: f64) -> f64 {
    -min::<NAN>(-x, -y)
}
