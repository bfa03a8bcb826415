//! Elementary functions in f32, written once in safe scalar Rust that LLVM can vectorise in a loop.
//!
//! Every function is `#[inline(always)]` and free of branches, tables and calls. Inlined into a loop in a function with
//! `#[target_feature(enable = "avx2,fma")]` (or the AVX-512 features), it becomes straight vector code. Inlined into a
//! portable function, it does the same arithmetic one lane at a time.
//!
//! **Same bits everywhere.** Each step is an IEEE operation with one rounding: `+ - * /`, `sqrt`, an explicit
//! `mul_add`, a conversion, or integer arithmetic on the bits. Rust never contracts `a * b + c`, so the AVX-512, AVX2
//! and portable code return the same bits, except that a NaN may differ in its payload. On a machine without FMA,
//! `mul_add` is a call to `fma`, which is slow but correct.
//!
//! **Accuracy.** The error is at most 1 ULP over all 2^32 inputs. Subnormal results are not flushed to zero, and
//! special values are those of C99. There are two approaches:
//! - f32 with compensated steps (`exp`, `exp2`, `sigmoid`, `log*`, `log1p`, `erf`, `rsqrt`), which has twice as many
//!   lanes;
//! - f64 with a polynomial that is accurate to 30-odd bits, and one rounding at the end (all other functions). In f32,
//!   these functions would need so many compensated steps that f64 with half the lanes is cheaper. Cancellation,
//!   overflow and subnormal results then need no special care, because f64 has 29 bits and 900 binades to spare.
//!
//! **Coefficients** are our own: weighted minimax fits (Lawson's iteration on Chebyshev nodes in 50-digit arithmetic).
//! In f32, the coefficients are rounded one after the other, and after each rounding the higher ones are fitted again.
//! The weighted error of each fit is given next to its coefficients.

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

/// Returns the smaller of `x` and `hi`, without a branch. A NaN in `x` passes through.
#[inline(always)]
fn at_most(x: f32, hi: f32) -> f32 {
    select(x > hi, hi, x)
}

/// Returns the larger of `x` and `lo`, without a branch. A NaN in `x` passes through.
#[inline(always)]
fn at_least(x: f32, lo: f32) -> f32 {
    select(x < lo, lo, x)
}

/// Gives the non-negative `y` the sign of `x`.
#[inline(always)]
fn with_sign(y: f32, x: f32) -> f32 {
    f32::from_bits(y.to_bits() | (x.to_bits() & 0x8000_0000))
}

/// Returns `c[0] + c[1] x + ...`, computed by Horner's rule.
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

/// Like [`poly32`], but in f64.
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
