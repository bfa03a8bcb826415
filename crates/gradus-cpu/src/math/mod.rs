//! Elementary functions in f32, written once in safe scalar Rust that LLVM can vectorise in a loop.
//!
//! Every function is `#[inline(always)]` and free of branches, tables and calls. Inlined into a loop inside a
//! function that carries `#[target_feature(enable = "avx2,fma")]` (or the AVX-512 set), it becomes straight vector
//! code; inlined into a portable function it is the same arithmetic, one lane at a time.
//!
//! **Same bits everywhere.** Each step is an IEEE operation with one rounding: `+ - * /`, `sqrt`, an explicit
//! `mul_add`, a conversion, or integer arithmetic on the bits. Rust never contracts `a * b + c`, so AVX-512,
//! AVX2 and portable builds give the same bits (a NaN may differ in payload). On a machine without FMA `mul_add` is
//! a call to `fma`, slow and right.
//!
//! **Accuracy.** At most 1 ULP over all 2^32 inputs, no flush to zero, C99 special values. There are two recipes:
//! - in f32 with compensated steps (`exp`, `exp2`, `sigmoid`, `log*`, `log1p`, `erf`, `rsqrt`): twice the lanes;
//! - in f64 with a polynomial accurate to 30-odd bits and one rounding at the end (all the others): f32 would need so
//!   many compensated steps that half the lanes are cheaper. Cancellation, overflow and subnormal results then need no
//!   special care, because f64 has 29 bits and 900 binades to spare.
//!
//! **Coefficients** are our own: weighted minimax fits (Lawson's iteration on Chebyshev nodes in 50-digit arithmetic).
//! In f32 each coefficient is rounded in turn and those above it are fitted again. The weighted error of the fit is
//! given beside each.

mod erf;
mod exp;
mod hyperbolic;
mod log;
mod pow;
mod trig;

#[cfg(test)]
mod tests;

pub(crate) use erf::{erf, erfc};
pub(crate) use exp::{Logistic, exp, exp2, expm1, sigmoid, sigmoid_neg, softplus};
pub(crate) use hyperbolic::{acosh, asinh, atanh, cosh, sinh, tanh};
pub(crate) use log::{log, log1p, log2, log10};
pub(crate) use pow::{pow, rsqrt};
pub(crate) use trig::{acos, asin, atan, cos_slice, sin_slice, tan_slice};
#[cfg(test)]
pub(crate) use trig::{cos, sin, tan};

use core::hint::select_unpredictable as select;

/// `if above { hi } else { x }` without a branch; a NaN passes through.
#[inline(always)]
fn at_most(x: f32, hi: f32) -> f32 {
    select(x > hi, hi, x)
}

/// Like [`at_most`], from below.
#[inline(always)]
fn at_least(x: f32, lo: f32) -> f32 {
    select(x < lo, lo, x)
}

/// Gives the non-negative `y` the sign of `x`.
#[inline(always)]
fn with_sign(y: f32, x: f32) -> f32 {
    f32::from_bits(y.to_bits() | (x.to_bits() & 0x8000_0000))
}

/// `c[0] + c[1] x + ...` by Horner's rule.
#[inline(always)]
fn poly32<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        y = y.mul_add(x, c[i]);
    }
    y
}

/// [`poly32`] in f64.
#[inline(always)]
fn poly64<const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut y = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        y = y.mul_add(x, c[i]);
    }
    y
}
