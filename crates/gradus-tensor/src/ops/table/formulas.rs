//! Formulas that several entries of the table share or that are too long for an entry, and the rules for scalar
//! operands. A rule returns what is wrong with the scalars of a call, or `None`.

use gradus_backend::Expr;

pub(super) fn finite(v: &[f64]) -> Option<&'static str> {
    v.iter().any(|v| !v.is_finite()).then_some("it must be finite")
}

pub(super) fn not_zero(v: &[f64]) -> Option<&'static str> {
    v.contains(&0.0).then_some("it must not be 0")
}

pub(super) fn not_negative(v: &[f64]) -> Option<&'static str> {
    (!v.iter().all(|&v| v >= 0.0)).then_some("it must be at least 0")
}

pub(super) fn in_order(v: &[f64]) -> Option<&'static str> {
    (!v.is_sorted()).then_some("the first must not be above the second")
}

/// Whether x is below 0, or is the float -0.
pub(super) fn negative<'k>(x: Expr<'k>) -> Expr<'k> {
    let below = x.lt(x.constant(0i64));
    if x.dtype().is_float() { below.or(x.eq(0.0).and(x.recip().lt(0.0))) } else { below }
}

/// `x` up to 0, and 0 above it. The left branch of a function reads this instead of `x`, so that its slope cannot
/// overflow on the right.
pub(super) fn left<'k>(x: Expr<'k>) -> Expr<'k> {
    x.gt(0.0).select(0.0, x)
}

/// `x` clamped to the range from `lo` to `hi`, with slope 0 at the ends.
pub(super) fn flat_ends<'k>(x: Expr<'k>, lo: Expr<'k>, hi: Expr<'k>) -> Expr<'k> {
    x.le(lo).select(lo, x.ge(hi).select(hi, x))
}

/// The absolute value, with the slope of the side that the sign bit selects. Unlike the slope of `abs`, it is not 0 at
/// 0.
pub(super) fn magnitude<'k>(x: Expr<'k>) -> Expr<'k> {
    negative(x).select(-x, x)
}

pub(super) fn atan2<'k>(y: Expr<'k>, x: Expr<'k>) -> Expr<'k> {
    let (ay, ax) = (magnitude(y), magnitude(x));
    // Reduces the angle to the octant where the quotient is at most 1. A tie belongs to one octant, whose slopes are
    // right.
    let steep = ay.gt(ax);
    let (small, large) = (steep.select(ax, ay), steep.select(ay, ax));
    let zero = ay.eq(0.0).and(ax.eq(0.0));
    let infinite = ay.eq(f64::INFINITY).and(ax.eq(f64::INFINITY));
    let t = infinite.select(1.0, zero.select(0.0, small / zero.or(infinite).select(1.0, large)));
    let r = t.atan();
    let r = steep.select(std::f64::consts::FRAC_PI_2 - r, r);
    let r = negative(x).select(std::f64::consts::PI - r, r);
    negative(y).select(-r, r)
}

pub(super) fn hypot<'k>(a: Expr<'k>, b: Expr<'k>) -> Expr<'k> {
    let (ma, mb) = (magnitude(a), magnitude(b));
    let swap = mb.gt(ma);
    // The smaller operand keeps its sign. The square hides the sign, and the second derivative at 0 is right only with
    // it.
    let (large, small) = (swap.select(mb, ma), swap.select(a, b));
    let infinite = ma.eq(f64::INFINITY).or(mb.eq(f64::INFINITY));
    let zero = ma.eq(0.0).and(mb.eq(0.0));
    let plain = infinite.or(zero).not();
    let t = plain.select(small / plain.select(large, 1.0), 0.0);
    infinite.select(f64::INFINITY, zero.select(0.0, large * (t * t + 1.0).sqrt()))
}

pub(super) fn logaddexp<'k>(a: Expr<'k>, b: Expr<'k>) -> Expr<'k> {
    let first = a.gt(b);
    let (hi, lo) = (first.select(a, b), first.select(b, a));
    // Equal infinities have no difference. Two operands of +inf share the gradient; two of -inf have gradient 0.
    let (top, none) = (lo.eq(f64::INFINITY), hi.eq(f64::NEG_INFINITY).and(lo.eq(f64::NEG_INFINITY)));
    let finite = hi + top.or(none).select(0.0, lo - hi).softplus();
    none.select(f64::NEG_INFINITY, top.select(a * 0.5 + b * 0.5, finite))
}
