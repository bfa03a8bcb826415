//! The kernels that process rows of scores between the two matrix products.

use crate::gemm::Pack;
use crate::isa::{Isa, per_isa};
use crate::rows::{Elementary, largest, sum, tree};

/// A type that attention is computed in.
pub(super) trait AttentionNumber: Elementary + Pack {
    /// Turns scores into weights relative to the largest score so far. `before` is the largest score of the previous
    /// spans. Returns the new largest score, the factor that rescales the previous sums to it, and the sum of the
    /// weights.
    fn weigh(isa: Isa, scores: &mut [Self], before: Self) -> [Self; 3];
    /// Multiplies `x` by `factor`.
    fn rescale(isa: Isa, x: &mut [Self], factor: Self);
    /// Sets `y = x / total`, or `y = x` if `total` is 0. In that case nothing was summed, so `x` is 0 as well.
    fn divide(isa: Isa, x: &[Self], total: Self, y: &mut [Self]);
    /// Turns scores into weights, given the largest score of their row and the sum of the exponentials relative to it.
    /// Returns the sum of the weights times their gradients.
    fn weights(isa: Isa, scores: &mut [Self], dp: &[Self], stats: [Self; 2]) -> Self;
    /// Turns `dp`, the gradients of the weights, into the gradients of the scores. `delta` is the sum that `weights`
    /// returns.
    fn slopes(isa: Isa, p: &[Self], dp: &mut [Self], delta: Self);
}

#[inline(always)]
fn weigh<T: Elementary>(scores: &mut [T], before: T) -> [T; 3] {
    let here = largest(scores);
    let top = if here > before { here } else { before };
    // If the largest score is -inf, every key of the row has been hidden so far.
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
fn weights<T: Elementary>(scores: &mut [T], dp: &[T], [top, total]: [T; 2]) -> T {
    // A query that sees no key has the sum 0.
    if total == T::ZERO {
        scores.fill(T::ZERO);
    } else {
        let factor = T::ONE / total;
        scores.iter_mut().for_each(|s| *s = (*s - top).exp() * factor);
    }
    // Products are rounded before they are added, as in the default implementation of the operation. With a fused
    // multiply-add, the results would agree less closely with that implementation where terms of the gradient cancel.
    tree([scores, dp], T::ZERO, |[p, dp], s| s + p * dp, |a, b| a + b)
}

#[inline(always)]
fn slopes<T: Elementary>(p: &[T], dp: &mut [T], delta: T) {
    dp.iter_mut().zip(p).for_each(|(d, &p)| *d = p * (*d - delta));
}

macro_rules! kernel {
    ($($t:ty, $weigh:ident, $rescale:ident, $divide:ident, $weights:ident, $slopes:ident;)*) => {$(
        per_isa! {
            fn $weigh(scores: &mut [$t], before: $t) -> [$t; 3] = weigh;
            fn $rescale(x: &mut [$t], factor: $t) = rescale;
            fn $divide(x: &[$t], total: $t, y: &mut [$t]) = divide;
            fn $weights(scores: &mut [$t], dp: &[$t], stats: [$t; 2]) -> $t = weights;
            fn $slopes(p: &[$t], dp: &mut [$t], delta: $t) = slopes;
        }
        impl AttentionNumber for $t {
            fn weigh(isa: Isa, scores: &mut [$t], before: $t) -> [$t; 3] {
                $weigh(isa, scores, before)
            }
            fn rescale(isa: Isa, x: &mut [$t], factor: $t) {
                $rescale(isa, x, factor)
            }
            fn divide(isa: Isa, x: &[$t], total: $t, y: &mut [$t]) {
                $divide(isa, x, total, y)
            }
            fn weights(isa: Isa, scores: &mut [$t], dp: &[$t], stats: [$t; 2]) -> $t {
                $weights(isa, scores, dp, stats)
            }
            fn slopes(isa: Isa, p: &[$t], dp: &mut [$t], delta: $t) {
                $slopes(isa, p, dp, delta)
            }
        }
    )*};
}
kernel! {
    f32, weigh_f32, rescale_f32, divide_f32, weights_f32, slopes_f32;
    f64, weigh_f64, rescale_f64, divide_f64, weights_f64, slopes_f64;
}
