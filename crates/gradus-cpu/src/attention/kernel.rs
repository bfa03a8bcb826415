//! What is done to rows of scores between the products.

use crate::gemm::Pack;
use crate::isa::{Isa, per_isa};
use crate::rows::{Elementary, largest, sum, tree};

/// A type that attention computes in.
pub(super) trait Kernel: Elementary + Pack {
    /// Turns scores into their weights relative to the largest score so far. Gives that one, given the largest of the spans
    /// before, the factor that brings sums of those spans to it, and the sum of the weights.
    fn weigh(isa: Isa, scores: &mut [Self], before: Self) -> [Self; 3];
    /// `x *= factor`.
    fn rescale(isa: Isa, x: &mut [Self], factor: Self);
    /// `y = x / total`, or 0 if nothing was summed.
    fn divide(isa: Isa, x: &[Self], total: Self, y: &mut [Self]);
    /// The sum of products.
    fn dot(isa: Isa, a: &[Self], b: &[Self]) -> Self;
    /// Turns scores into weights `p`, given their log-sum-exp; the sum of `p * (dp - shift)`.
    fn weights(isa: Isa, scores: &mut [Self], lse: Self, dp: &[Self], shift: Self) -> Self;
    /// `dp` becomes `p * (dp - shift - rest)`.
    fn slopes(isa: Isa, p: &[Self], dp: &mut [Self], shift: Self, rest: Self);
}

#[inline(always)]
fn weigh<T: Elementary>(scores: &mut [T], before: T) -> [T; 3] {
    let here = largest(scores);
    let top = if here > before { here } else { before };
    // A row of which nothing is seen so far.
    let shift = if top == T::NEG_INFINITY { T::ZERO } else { top };
    scores.iter_mut().for_each(|s| *s = (*s - shift).exp());
    [top, (before - shift).exp(), sum(scores)]
}

#[inline(always)]
fn rescale<T: Elementary>(x: &mut [T], factor: T) {
    x.iter_mut().for_each(|x| *x = *x * factor);
}

#[inline(always)]
fn divide<T: Elementary>(x: &[T], total: T, y: &mut [T]) {
    let total = if total == T::ZERO { T::ONE } else { total };
    y.iter_mut().zip(x).for_each(|(y, &x)| *y = x / total);
}

#[inline(always)]
fn dot<T: Elementary>(a: &[T], b: &[T]) -> T {
    tree([a, b], T::ZERO, |[a, b], s| a.fused(b, s), |a, b| a + b)
}

#[inline(always)]
fn weights<T: Elementary>(scores: &mut [T], lse: T, dp: &[T], shift: T) -> T {
    if lse == T::NEG_INFINITY {
        scores.fill(T::ZERO);
    } else {
        scores.iter_mut().for_each(|s| *s = (*s - lse).exp());
    }
    tree([scores, dp], T::ZERO, |[p, dp], s| p.fused(dp - shift, s), |a, b| a + b)
}

#[inline(always)]
fn slopes<T: Elementary>(p: &[T], dp: &mut [T], shift: T, rest: T) {
    dp.iter_mut().zip(p).for_each(|(d, &p)| *d = p * (*d - shift - rest));
}

macro_rules! kernel {
    ($($t:ty, $weigh:ident, $rescale:ident, $divide:ident, $dot:ident, $weights:ident, $slopes:ident;)*) => {$(
        per_isa! {
            fn $weigh(scores: &mut [$t], before: $t) -> [$t; 3] = weigh;
            fn $rescale(x: &mut [$t], factor: $t) = rescale;
            fn $divide(x: &[$t], total: $t, y: &mut [$t]) = divide;
            fn $dot(a: &[$t], b: &[$t]) -> $t = dot;
            fn $weights(scores: &mut [$t], lse: $t, dp: &[$t], shift: $t) -> $t = weights;
            fn $slopes(p: &[$t], dp: &mut [$t], shift: $t, rest: $t) = slopes;
        }
        impl Kernel for $t {
            fn weigh(isa: Isa, scores: &mut [$t], before: $t) -> [$t; 3] {
                $weigh(isa, scores, before)
            }
            fn rescale(isa: Isa, x: &mut [$t], factor: $t) {
                $rescale(isa, x, factor)
            }
            fn divide(isa: Isa, x: &[$t], total: $t, y: &mut [$t]) {
                $divide(isa, x, total, y)
            }
            fn dot(isa: Isa, a: &[$t], b: &[$t]) -> $t {
                $dot(isa, a, b)
            }
            fn weights(isa: Isa, scores: &mut [$t], lse: $t, dp: &[$t], shift: $t) -> $t {
                $weights(isa, scores, lse, dp, shift)
            }
            fn slopes(isa: Isa, p: &[$t], dp: &mut [$t], shift: $t, rest: $t) {
                $slopes(isa, p, dp, shift, rest)
            }
        }
    )*};
}
kernel! {
    f32, weigh_f32, rescale_f32, divide_f32, dot_f32, weights_f32, slopes_f32;
    f64, weigh_f64, rescale_f64, divide_f64, dot_f64, weights_f64, slopes_f64;
}
