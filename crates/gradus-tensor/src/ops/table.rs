//! The built-in elementwise operations: one entry each, and nothing else.
//!
//! An entry gives the method on [`Tensor`], all dtypes, broadcasting, promotion, the gradient to any order, and the rows
//! of the tests. To add an operation, add an entry (`docs/add-an-op.md`).
//!
//! An operation with a kink says its slope there; `docs/kinks.md` has all of them beside each other.

use gradus_backend::{DType, Expr, Result, Scalar};

use super::elementwise::{Class, Elementwise};
use super::operand::{AsOperand, Operand};
use crate::Tensor;

/// An operation of the table, with points to test it at.
#[derive(Debug)]
pub struct Entry {
    /// The operation.
    pub op: &'static Elementwise,
    /// Number of tensor operands.
    pub tensors: usize,
    /// Scalar operands, after the tensors, as tests use them.
    pub scalars: &'static [f64],
    /// Values at which the operation is smooth, and tests compare its gradient with finite differences.
    pub smooth: &'static [f64],
    /// Whether operand 0 is a condition.
    pub condition: bool,
}

/// One more than the number of names.
macro_rules! count {
    ($($name:ident)*) => { 1 $(+ { let _ = stringify!($name); 1 })* };
}

macro_rules! table {
    ($($(#[doc = $doc:literal])* $const:ident $method:ident($($operand:ident),*; $($scalar:ident = $sample:literal),*) $class:ident $(needs $rule:ident)? $mask:literal $smooth:expr, $body:expr;)*) => {
        impl Tensor {
            $(
                $(#[doc = $doc])*
                #[track_caller]
                pub fn $method(&self $(, $operand: impl AsOperand)* $(, $scalar: impl Into<Scalar>)*) -> Result<Tensor> {
                    $const.apply(&[Operand::Tensor(self) $(, $operand.as_operand()?)* $(, Operand::Scalar($scalar.into()))*])
                }
            )*
        }

        $(
            #[doc = concat!("See [`Tensor::", stringify!($method), "`].")]
            pub static $const: Elementwise =
                Elementwise::new(stringify!($method), Class::$class, count!($($operand)* $($scalar)*), $body).conditions($mask)$(.numbers($rule))?;
        )*

        /// Every entry of the table.
        pub static TABLE: &[Entry] = &[$(
            Entry {
                op: &$const,
                tensors: count!($($operand)*),
                scalars: &[$($sample),*],
                smooth: $smooth,
                condition: $mask != 0,
            },
        )*];
    };
}

/// The smooth points of most operations.
const ANY: &[f64] = &[-2.3, -0.7, 0.4, 1.9];
/// Where logarithms and roots live.
const POSITIVE: &[f64] = &[0.2, 0.9, 1.7, 3.1];
/// Within -1 to 1.
const UNIT: &[f64] = &[-0.7, -0.2, 0.3, 0.8];
/// Above 1.
const ABOVE_ONE: &[f64] = &[1.2, 1.7, 2.5, 4.0];
/// Nowhere: the gradient is zero or does not exist.
const NONE: &[f64] = &[];

table! {
    /// `-x`. Errors for unsigned integers.
    NEG neg(;) Signed 0 ANY, |x| vec![-x[0]];
    /// `|x|`; the lowest integer wraps to itself. The slope at 0 is 0.
    ABS abs(;) Number 0 ANY, |x| vec![x[0].abs()];
    /// -1, 0 or 1 by the sign; NaN and -0 stay. The slope is 0 everywhere.
    SIGN sign(;) Number 0 NONE, |x| vec![x[0].sign()];
    /// Square root; NaN below 0. The slope at 0 is infinite.
    SQRT sqrt(;) Float 0 POSITIVE, |x| vec![x[0].sqrt()];
    /// `1 / sqrt(x)`. The slope at 0 is -inf.
    RSQRT rsqrt(;) Float 0 POSITIVE, |x| vec![x[0].rsqrt()];
    /// `1 / x`. The slope at 0 is -inf.
    RECIP recip(;) Float 0 ANY, |x| vec![x[0].recip()];
    /// `x * x`
    SQUARE square(;) Number 0 ANY, |x| vec![x[0] * x[0]];
    /// `e^x`
    EXP exp(;) Float 0 ANY, |x| vec![x[0].exp()];
    /// `e^x - 1`, exact near 0.
    EXPM1 expm1(;) Float 0 ANY, |x| vec![x[0].expm1()];
    /// Natural logarithm; -inf at 0, NaN below. The slope at 0 is infinite.
    LOG log(;) Float 0 POSITIVE, |x| vec![x[0].log()];
    /// `ln(1 + x)`, exact near 0. The slope at -1 is infinite.
    LOG1P log1p(;) Float 0 POSITIVE, |x| vec![x[0].log1p()];
    /// Sine of radians.
    SIN sin(;) Float 0 ANY, |x| vec![x[0].sin()];
    /// Cosine of radians.
    COS cos(;) Float 0 ANY, |x| vec![x[0].cos()];
    /// Tangent of radians.
    TAN tan(;) Float 0 ANY, |x| vec![x[0].tan()];
    /// Error function.
    ERF erf(;) Float 0 ANY, |x| vec![x[0].bounded(60.0).erf()];
    /// `1 - erf(x)`, exact for large x.
    ERFC erfc(;) Float 0 ANY, |x| vec![x[0].bounded(60.0).erfc()];
    /// `2^x`
    EXP2 exp2(;) Float 0 ANY, |x| vec![x[0].exp2()];
    /// Logarithm to base 2; -inf at 0, NaN below. The slope at 0 is infinite.
    LOG2 log2(;) Float 0 POSITIVE, |x| vec![x[0].log2()];
    /// Logarithm to base 10; -inf at 0, NaN below. The slope at 0 is infinite.
    LOG10 log10(;) Float 0 POSITIVE, |x| vec![x[0].log10()];
    /// Arc sine, in radians; NaN outside -1 to 1. The slope at -1 and 1 is infinite.
    ASIN asin(;) Float 0 UNIT, |x| vec![x[0].asin()];
    /// Arc cosine, in radians; NaN outside -1 to 1. The slope at -1 and 1 is -inf.
    ACOS acos(;) Float 0 UNIT, |x| vec![x[0].acos()];
    /// Arc tangent, in radians.
    ATAN atan(;) Float 0 ANY, |x| vec![x[0].atan()];
    /// Hyperbolic sine.
    SINH sinh(;) Float 0 ANY, |x| vec![x[0].sinh()];
    /// Hyperbolic cosine.
    COSH cosh(;) Float 0 ANY, |x| vec![x[0].cosh()];
    /// Inverse hyperbolic sine.
    ASINH asinh(;) Float 0 ANY, |x| vec![x[0].asinh()];
    /// Inverse hyperbolic cosine; NaN below 1. The slope at 1 is infinite.
    ACOSH acosh(;) Float 0 ABOVE_ONE, |x| vec![x[0].acosh()];
    /// Inverse hyperbolic tangent; infinite at -1 and 1, NaN outside. The slope at -1 and 1 is infinite.
    ATANH atanh(;) Float 0 UNIT, |x| vec![x[0].atanh()];
    /// Largest integer not above x, in the dtype of x. The slope is 0 everywhere.
    FLOOR floor(;) Number 0 NONE, |x| vec![x[0].floor()];
    /// Smallest integer not below x, in the dtype of x. The slope is 0 everywhere.
    CEIL ceil(;) Number 0 NONE, |x| vec![x[0].ceil()];
    /// Nearest integer, ties to even, in the dtype of x. The slope is 0 everywhere.
    ROUND round(;) Number 0 NONE, |x| vec![x[0].round()];
    /// Integer part, in the dtype of x. The slope is 0 everywhere.
    TRUNC trunc(;) Number 0 NONE, |x| vec![x[0].trunc()];
    /// Nearest integer, ties away from zero, in the dtype of x. The slope is 0 everywhere.
    ROUND_HALF_AWAY round_half_away(;) Number 0 NONE, |x| {
        let whole = x[0].trunc();
        let float = x[0].dtype().is_float();
        vec![if float { (x[0] - whole).abs().ge(0.5).select(whole + x[0].sign(), whole) } else { whole }]
    };
    /// `x - trunc(x)`, with the sign of x. The slope is 1 everywhere.
    FRAC frac(;) Float 0 ANY, |x| vec![x[0] - x[0].trunc()];
    /// Whether x is below 0 or -0; never for a NaN.
    SIGNBIT signbit(;) Number 0 NONE, |x| vec![negative(x[0])];
    /// Whether x is inf or -inf.
    ISINF isinf(;) Number 0 NONE, |x| vec![x[0].isfinite().or(x[0].isnan()).not()];
    /// Whether x is NaN.
    ISNAN isnan(;) Number 0 NONE, |x| vec![x[0].isnan()];
    /// Whether x is neither NaN nor infinite.
    ISFINITE isfinite(;) Number 0 NONE, |x| vec![x[0].isfinite()];
    /// `max(x, 0)`; NaN stays NaN. The slope at 0 is 0.
    RELU relu(;) Number 0 ANY, |x| vec![x[0].relu()];
    /// `x` above 0, else `alpha * x`. Errors unless alpha is finite. The slope at 0 is alpha.
    LEAKY_RELU leaky_relu(; alpha = 0.1) Float needs finite 0 ANY, |x| vec![x[0].gt(0.0).select(x[0], x[0] * x[1])];
    /// `1 / (1 + e^-x)`
    SIGMOID sigmoid(;) Float 0 ANY, |x| vec![x[0].sigmoid()];
    /// Hyperbolic tangent.
    TANH tanh(;) Float 0 ANY, |x| vec![x[0].tanh()];
    /// `ln(1 + e^x)`
    SOFTPLUS softplus(;) Float 0 ANY, |x| vec![x[0].softplus()];
    /// `x / (1 + e^-x)`, also called swish.
    SILU silu(;) Float 0 ANY, |x| vec![x[0].silu()];
    /// `x * Phi(x)` with the normal distribution function: the exact GELU.
    GELU gelu(;) Float 0 ANY, |x| vec![x[0].gelu()];
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`: the approximation of GELU by tanh.
    GELU_TANH gelu_tanh(;) Float 0 ANY, |x| vec![x[0].gelu_tanh()];
    /// `x` above 0, else `alpha (e^x - 1)`. The slope at 0 is alpha.
    ELU elu(; alpha = 0.7) Float 0 ANY, |x| vec![x[0].gt(0.0).select(x[0], x[1] * left(x[0]).expm1())];
    /// `elu` with the scale and alpha that keep mean 0 and variance 1 (Klambauer et al., 2017). The slope at 0 is that
    /// of the left side.
    SELU selu(;) Float 0 ANY, |x| {
        let (scale, alpha) = (1.050_700_987_355_480_5, 1.673_263_242_354_377_2);
        vec![x[0].gt(0.0).select(x[0] * scale, left(x[0]).expm1() * (scale * alpha))]
    };
    /// `x` above 0, else `alpha (e^(x / alpha) - 1)`. Errors if alpha is 0. The slope at 0 is 1.
    CELU celu(; alpha = 0.7) Float needs not_zero 0 ANY, |x| vec![x[0].gt(0.0).select(x[0], x[1] * (left(x[0]) / x[1]).expm1())];
    /// `x / (1 + |x|)`. The slope at 0 is 1, the second derivative there 0.
    SOFTSIGN softsign(;) Float 0 ANY, |x| {
        let c = x[0].bounded(if x[0].dtype() == DType::F64 { 1e300 } else { 1e30 });
        vec![c / (c.abs() + 1.0)]
    };
    /// `-ln(1 + e^-x)`, the logarithm of the sigmoid.
    LOG_SIGMOID log_sigmoid(;) Float 0 ANY, |x| vec![-(-x[0]).softplus()];
    /// `x tanh(ln(1 + e^x))`
    MISH mish(;) Float 0 ANY, |x| vec![x[0].gated(x[0].bounded(1000.0).softplus().tanh())];
    /// `min(max(x, 0), 6)`; NaN stays. The slope at 0 and 6 is 0.
    RELU6 relu6(;) Number 0 ANY, |x| vec![flat_ends(x[0], x[0].constant(0.0), x[0].constant(6.0))];
    /// `lo` up to `lo`, `hi` from `hi` on, else x; NaN stays. Errors if `lo` is above `hi`. As `clamp`, but with slope 0 at the ends.
    HARDTANH hardtanh(; lo = -1.5, hi = 1.0) Number needs in_order 0 ANY, |x| vec![flat_ends(x[0], x[1], x[2])];
    /// `relu6(x + 3) / 6`. The slope at -3 and 3 is 0.
    HARDSIGMOID hardsigmoid(;) Float 0 ANY, |x| vec![flat_ends(x[0] / 6.0 + 0.5, x[0].constant(0.0), x[0].constant(1.0))];
    /// `x relu6(x + 3) / 6`. The slope at -3 is 0, at 3 it is 1.
    HARDSWISH hardswish(;) Float 0 ANY, |x| {
        let c = x[0].bounded(3.0);
        vec![x[0].le(-3.0).select(0.0, x[0].ge(3.0).select(x[0], c * (c + 3.0) / 6.0))]
    };
    /// 0 from `-lambda` to `lambda`, else x; NaN stays. The slope at both ends is 0.
    HARDSHRINK hardshrink(; lambda = 0.5) Float 0 ANY, |x| vec![x[0].abs().le(x[1]).select(0.0, x[0])];
    /// `x - lambda` above `lambda`, `x + lambda` below `-lambda`, else 0; NaN stays. Errors unless `lambda` is at least 0.
    /// The slope at both ends is 0.
    SOFTSHRINK softshrink(; lambda = 0.5) Float needs not_negative 0 ANY, |x| {
        let inner = x[0].isnan().select(x[0], 0.0);
        vec![x[0].gt(x[1]).select(x[0] - x[1], x[0].lt(-x[1]).select(x[0] + x[1], inner))]
    };
    /// `x` above `threshold`, else `value`; NaN stays. The slope at the threshold is 0.
    THRESHOLD threshold(; threshold = 0.1, value = 20.0) Number 0 ANY, |x| vec![x[0].le(x[1]).select(x[2], x[0])];
    /// `min(max(x, lo), hi)`: `lo` below `lo`, `hi` above `hi`, else x, and `hi` everywhere if `lo > hi`; NaN stays.
    /// The slope at both ends is 1.
    CLAMP clamp(; lo = -1.5, hi = 1.0) Number 0 ANY,
        |x| vec![x[0].gt(x[2]).select(x[2], x[0].lt(x[1]).select(x[1].gt(x[2]).select(x[2], x[1]), x[0]))];
    /// `self + other`
    ADD add(other;) Number 0 ANY, |x| vec![x[0] + x[1]];
    /// `self - other`
    SUB sub(other;) Number 0 ANY, |x| vec![x[0] - x[1]];
    /// `self * other`
    MUL mul(other;) Number 0 ANY, |x| vec![x[0] * x[1]];
    /// True division: integers give floats. By 0 the slopes are infinite or NaN.
    DIV div(other;) Float 0 ANY, |x| vec![x[0] / x[1]];
    /// Division rounded towards zero, in the operands' dtype. An integer zero divisor is an error. The slopes are 0.
    TRUNC_DIV trunc_div(other;) Number 0 NONE, |x| {
        let q = x[0] / x[1];
        vec![if q.dtype().is_float() { q.trunc() } else { q }]
    };
    /// Division rounded down: the floor of the exact quotient, so `1 // 0.1` is 9. An integer zero divisor is an
    /// error. The slopes are 0.
    FLOOR_DIV floor_div(other;) Number 0 NONE, |x| vec![x[0].floor_div(x[1])];
    /// Remainder with the sign of `self`. An integer zero divisor is an error. The slopes are 1 and less the whole
    /// quotient, also where it steps.
    FMOD fmod(other;) Number 0 ANY, |x| vec![x[0].fmod(x[1])];
    /// Remainder with the sign of `other`. An integer zero divisor is an error. The slopes are 1 and less the floored
    /// quotient, also where it steps.
    REMAINDER remainder(other;) Number 0 ANY, |x| vec![x[0].remainder(x[1])];
    /// `self^other`; `0^0` is 1. A negative integer exponent of an integer is an error. The slope in the exponent is 0
    /// where the base is 0 (as at `0^0`, where both are), NaN where it is negative.
    POW pow(other;) Number 0 POSITIVE, |x| vec![x[0].pow(x[1])];
    /// The larger; NaN if either is. Equal operands share the gradient.
    MAXIMUM maximum(other;) Number 0 ANY, |x| vec![x[0].max(x[1])];
    /// The smaller; NaN if either is. Equal operands share the gradient.
    MINIMUM minimum(other;) Number 0 ANY, |x| vec![x[0].min(x[1])];
    /// The larger; if one is NaN, the other. Equal operands share the gradient.
    FMAX fmax(other;) Number 0 ANY, |x| vec![x[1].isnan().select(x[0], x[0].isnan().select(x[1], x[0].max(x[1])))];
    /// The smaller; if one is NaN, the other. Equal operands share the gradient.
    FMIN fmin(other;) Number 0 ANY, |x| vec![x[1].isnan().select(x[0], x[0].isnan().select(x[1], x[0].min(x[1])))];
    /// The angle of the point `(other, self)`, that is of `y.atan2(x)`, in -pi to pi, by the signs of both (zeros
    /// too). Slopes at the origin are 0.
    ATAN2 atan2(other;) Float 0 ANY, |x| vec![atan2(x[0], x[1])];
    /// `sqrt(self^2 + other^2)` without overflow; infinite if either is. Slopes at the origin are 0.
    HYPOT hypot(other;) Float 0 ANY, |x| vec![hypot(x[0], x[1])];
    /// The magnitude of `self` with the sign of `other` (of -0 too; a NaN counts as positive). The slope at 0 is 0,
    /// that for `other` 0 everywhere.
    COPYSIGN copysign(other;) Float 0 ANY, |x| vec![negative(x[1]).select(-x[0].abs(), x[0].abs())];
    /// `self * ln(other)`; 0 where `self` is 0 and `other` is not NaN. Where `self` is 0 and `other` too, slopes are 0.
    XLOGY xlogy(other;) Float 0 POSITIVE, |x| {
        // Where the logarithm is finite the product is smooth at 0 too: its slope is the logarithm.
        let positive = x[1].gt(0.0).and(x[1].isfinite());
        let zero = x[0].eq(0.0).and(x[1].isnan().or(positive).not());
        vec![zero.select(0.0, x[0] * zero.select(1.0, x[1]).log())]
    };
    /// `ln(e^self + e^other)` without overflow. Two of inf share the gradient, two of -inf have gradient 0.
    LOGADDEXP logaddexp(other;) Float 0 ANY, |x| vec![logaddexp(x[0], x[1])];
    /// `self == other`
    EQ eq(other;) Compare 0 NONE, |x| vec![x[0].eq(x[1])];
    /// `self != other`
    NE ne(other;) Compare 0 NONE, |x| vec![x[0].ne(x[1])];
    /// `self < other`
    LT lt(other;) Compare 0 NONE, |x| vec![x[0].lt(x[1])];
    /// `self <= other`
    LE le(other;) Compare 0 NONE, |x| vec![x[0].le(x[1])];
    /// `self > other`
    GT gt(other;) Compare 0 NONE, |x| vec![x[0].gt(x[1])];
    /// `self >= other`
    GE ge(other;) Compare 0 NONE, |x| vec![x[0].ge(x[1])];
    /// Logical and of booleans.
    LOGICAL_AND logical_and(other;) Bool 0 NONE, |x| vec![x[0].and(x[1])];
    /// Logical or of booleans.
    LOGICAL_OR logical_or(other;) Bool 0 NONE, |x| vec![x[0].or(x[1])];
    /// Logical exclusive or of booleans.
    LOGICAL_XOR logical_xor(other;) Bool 0 NONE, |x| vec![x[0].xor(x[1])];
    /// Logical not of booleans.
    LOGICAL_NOT logical_not(;) Bool 0 NONE, |x| vec![x[0].not()];
    /// `a` where this condition (bool) is true, else `b`. The branch not taken gets an exact zero gradient.
    WHERE where_(a, b;) Any 1 ANY, |x| vec![x[0].select(x[1], x[2])];
    /// `silu(self) * other`, in one pass.
    SILU_MUL silu_mul(other;) Float 0 ANY, |x| vec![x[0].silu() * x[1]];
    /// `gelu(self) * other` with the exact GELU, in one pass.
    GELU_MUL gelu_mul(other;) Float 0 ANY, |x| vec![x[0].gelu() * x[1]];
    /// `gelu_tanh(self) * other` with the approximation by tanh, in one pass.
    GELU_TANH_MUL gelu_tanh_mul(other;) Float 0 ANY, |x| vec![x[0].gelu_tanh() * x[1]];
    /// `relu(self) * other`, in one pass. The slopes where `self` is 0 are 0.
    RELU_MUL relu_mul(other;) Number 0 ANY, |x| vec![x[0].relu() * x[1]];
    /// `sigmoid(self) * other`, in one pass.
    SIGMOID_MUL sigmoid_mul(other;) Float 0 ANY, |x| vec![x[0].sigmoid() * x[1]];
}

fn finite(v: &[f64]) -> Option<&'static str> {
    v.iter().any(|v| !v.is_finite()).then_some("it must be finite")
}

fn not_zero(v: &[f64]) -> Option<&'static str> {
    v.contains(&0.0).then_some("it must not be 0")
}

fn not_negative(v: &[f64]) -> Option<&'static str> {
    (!v.iter().all(|&v| v >= 0.0)).then_some("it must be at least 0")
}

fn in_order(v: &[f64]) -> Option<&'static str> {
    (!v.is_sorted()).then_some("the first must not be above the second")
}

/// Whether x is below 0, or the float -0.
fn negative<'k>(x: Expr<'k>) -> Expr<'k> {
    let below = x.lt(x.constant(0i64));
    if x.dtype().is_float() { below.or(x.eq(0.0).and(x.recip().lt(0.0))) } else { below }
}

/// `x` up to 0, else 0: what the left branch of a function reads, so that its slope cannot overflow on the right.
fn left<'k>(x: Expr<'k>) -> Expr<'k> {
    x.gt(0.0).select(0.0, x)
}

/// `x` clamped, with slope 0 at the ends.
fn flat_ends<'k>(x: Expr<'k>, lo: Expr<'k>, hi: Expr<'k>) -> Expr<'k> {
    x.le(lo).select(lo, x.ge(hi).select(hi, x))
}

/// Magnitude with the slope of the side that the sign bit names: unlike that of `abs` it is not 0 at 0.
fn magnitude<'k>(x: Expr<'k>) -> Expr<'k> {
    negative(x).select(-x, x)
}

fn atan2<'k>(y: Expr<'k>, x: Expr<'k>) -> Expr<'k> {
    let (ay, ax) = (magnitude(y), magnitude(x));
    // The octant where the quotient is at most 1; a tie takes one side, whose slopes are right.
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

fn hypot<'k>(a: Expr<'k>, b: Expr<'k>) -> Expr<'k> {
    let (ma, mb) = (magnitude(a), magnitude(b));
    let swap = mb.gt(ma);
    // The smaller keeps its sign: it is squared, and its second derivative at 0 is right.
    let (large, small) = (swap.select(mb, ma), swap.select(a, b));
    let infinite = ma.eq(f64::INFINITY).or(mb.eq(f64::INFINITY));
    let zero = ma.eq(0.0).and(mb.eq(0.0));
    let plain = infinite.or(zero).not();
    let t = plain.select(small / plain.select(large, 1.0), 0.0);
    infinite.select(f64::INFINITY, zero.select(0.0, large * (t * t + 1.0).sqrt()))
}

fn logaddexp<'k>(a: Expr<'k>, b: Expr<'k>) -> Expr<'k> {
    let first = a.gt(b);
    let (hi, lo) = (first.select(a, b), first.select(b, a));
    // Equal infinities have no difference: two of +inf share the gradient, two of -inf have none.
    let (top, none) = (lo.eq(f64::INFINITY), hi.eq(f64::NEG_INFINITY).and(lo.eq(f64::NEG_INFINITY)));
    let finite = hi + top.or(none).select(0.0, lo - hi).softplus();
    none.select(f64::NEG_INFINITY, top.select(a * 0.5 + b * 0.5, finite))
}
