//! The built-in elementwise operations, with one entry for each.
//!
//! An entry defines the method on [`Tensor`] with all dtypes, broadcasting, promotion and the gradient to any order,
//! and the rows of every test and page that covers the operations. To add an operation, add an entry
//! (`docs/add-an-op.md`).

mod entry;
mod formulas;

use gradus_backend::{DType, Error, ErrorKind, Result, Scalar};

use super::elementwise::{Class, Elementwise};
use super::operand::{AsOperand, Operand};
use crate::Tensor;
pub use entry::{Entry, Kink};
use entry::{count, table};
use formulas::{atan2, finite, flat_ends, hypot, in_order, left, logaddexp, negative, not_negative, not_zero};

const INF: f64 = f64::INFINITY;
/// Points at which most operations are smooth.
const ANY: &[f64] = &[-2.3, -0.7, 0.4, 1.9];
/// Points in the domain of logarithms and roots.
const POSITIVE: &[f64] = &[0.2, 0.9, 1.7, 3.1];
/// Points between -1 and 1.
const UNIT: &[f64] = &[-0.7, -0.2, 0.3, 0.8];
/// Points above 1.
const ABOVE_ONE: &[f64] = &[1.2, 1.7, 2.5, 4.0];
/// No points: the gradient is zero or does not exist.
const NONE: &[f64] = &[];

table! {
    /// `-x`. Fails for unsigned integers.
    NEG neg() Signed { smooth: ANY, torch: "torch.neg(a)", formula: |x| -x[0] }
    /// `|x|`; the lowest integer wraps to itself. The slope at 0 is 0.
    ABS abs() Number {
        smooth: ANY, torch: "torch.abs(a)",
        kinks: [{ at: "0, -0", inputs: [[0.0, -0.0]], slopes: "0, 0", why: "the middle of -1 and 1" }],
        formula: |x| x[0].abs(),
    }
    /// -1, 0 or 1, depending on the sign; NaN and -0 stay as they are. The slope is 0 everywhere.
    SIGN sign() Number {
        smooth: NONE, torch: "torch.sign(a)",
        kinks: [{ at: "0 and elsewhere", inputs: [[0.0, 1.5]], slopes: "0, 0", why: "a step is flat on both sides" }],
        formula: |x| x[0].sign(),
    }
    /// Square root; NaN below 0. The slope at 0 is infinite.
    SQRT sqrt() Float {
        smooth: POSITIVE, torch: "torch.sqrt(a)",
        kinks: [{ at: "0", inputs: [[0.0]], slopes: "inf", why: "the limit from the right" }],
        formula: |x| x[0].sqrt(),
    }
    /// `1 / sqrt(x)`. The slope at 0 is -inf.
    RSQRT rsqrt() Float {
        smooth: POSITIVE, torch: "torch.rsqrt(a)",
        kinks: [{ at: "0", inputs: [[0.0]], slopes: "-inf", why: "the limit from the right" }],
        formula: |x| x[0].rsqrt(),
    }
    /// `1 / x`. The slope at 0 is -inf.
    RECIP recip() Float {
        smooth: ANY, torch: "torch.reciprocal(a)",
        kinks: [{ at: "0, -0", inputs: [[0.0, -0.0]], slopes: "-inf, -inf", why: "the limit from either side" }],
        formula: |x| x[0].recip(),
    }
    /// `x * x`
    SQUARE square() Number { smooth: ANY, torch: "torch.square(a)", formula: |x| x[0] * x[0] }
    /// `e^x`
    EXP exp() Float { smooth: ANY, torch: "torch.exp(a)", formula: |x| x[0].exp() }
    /// `e^x - 1`, accurate near 0.
    EXPM1 expm1() Float { smooth: ANY, torch: "torch.expm1(a)", formula: |x| x[0].expm1() }
    /// Natural logarithm; -inf at 0, NaN below. The slope at 0 is infinite.
    LOG log() Float {
        smooth: POSITIVE, torch: "torch.log(a)",
        kinks: [{ at: "0", inputs: [[0.0]], slopes: "inf", why: "the limit from the right" }],
        formula: |x| x[0].log(),
    }
    /// `ln(1 + x)`, accurate near 0. The slope at -1 is infinite.
    LOG1P log1p() Float {
        smooth: POSITIVE, torch: "torch.log1p(a)",
        kinks: [{ at: "-1", inputs: [[-1.0]], slopes: "inf", why: "the limit from the right" }],
        formula: |x| x[0].log1p(),
    }
    /// Sine of radians.
    SIN sin() Float { smooth: ANY, torch: "torch.sin(a)", formula: |x| x[0].sin() }
    /// Cosine of radians.
    COS cos() Float { smooth: ANY, torch: "torch.cos(a)", formula: |x| x[0].cos() }
    /// Tangent of radians.
    TAN tan() Float { smooth: ANY, torch: "torch.tan(a)", formula: |x| x[0].tan() }
    /// Error function.
    ERF erf() Float { smooth: ANY, torch: "torch.erf(a)", formula: |x| x[0].bounded(60.0).erf() }
    /// `1 - erf(x)`, accurate for large x.
    ERFC erfc() Float { smooth: ANY, torch: "torch.erfc(a)", formula: |x| x[0].bounded(60.0).erfc() }
    /// `2^x`
    EXP2 exp2() Float { smooth: ANY, torch: "torch.exp2(a)", formula: |x| x[0].exp2() }
    /// Logarithm to base 2; -inf at 0, NaN below. The slope at 0 is infinite.
    LOG2 log2() Float {
        smooth: POSITIVE, torch: "torch.log2(a)",
        kinks: [{ at: "0", inputs: [[0.0]], slopes: "inf", why: "the limit from the right" }],
        formula: |x| x[0].log2(),
    }
    /// Logarithm to base 10; -inf at 0, NaN below. The slope at 0 is infinite.
    LOG10 log10() Float {
        smooth: POSITIVE, torch: "torch.log10(a)",
        kinks: [{ at: "0", inputs: [[0.0]], slopes: "inf", why: "the limit from the right" }],
        formula: |x| x[0].log10(),
    }
    /// Arc sine, in radians; NaN outside -1 to 1. The slope at -1 and 1 is infinite.
    ASIN asin() Float {
        smooth: UNIT, torch: "torch.asin(a)",
        kinks: [{ at: "-1, 1", inputs: [[-1.0, 1.0]], slopes: "inf, inf", why: "the limit from inside" }],
        formula: |x| x[0].asin(),
    }
    /// Arc cosine, in radians; NaN outside -1 to 1. The slope at -1 and 1 is -inf.
    ACOS acos() Float {
        smooth: UNIT, torch: "torch.acos(a)",
        kinks: [{ at: "-1, 1", inputs: [[-1.0, 1.0]], slopes: "-inf, -inf", why: "the limit from inside" }],
        formula: |x| x[0].acos(),
    }
    /// Arc tangent, in radians.
    ATAN atan() Float { smooth: ANY, torch: "torch.atan(a)", formula: |x| x[0].atan() }
    /// Hyperbolic sine.
    SINH sinh() Float { smooth: ANY, torch: "torch.sinh(a)", formula: |x| x[0].sinh() }
    /// Hyperbolic cosine.
    COSH cosh() Float { smooth: ANY, torch: "torch.cosh(a)", formula: |x| x[0].cosh() }
    /// Inverse hyperbolic sine.
    ASINH asinh() Float { smooth: ANY, torch: "torch.asinh(a)", formula: |x| x[0].asinh() }
    /// Inverse hyperbolic cosine; NaN below 1. The slope at 1 is infinite.
    ACOSH acosh() Float {
        smooth: ABOVE_ONE, torch: "torch.acosh(a)",
        kinks: [{ at: "1", inputs: [[1.0]], slopes: "inf", why: "the limit from the right" }],
        formula: |x| x[0].acosh(),
    }
    /// Inverse hyperbolic tangent; infinite at -1 and 1, NaN outside. The slope at -1 and 1 is infinite.
    ATANH atanh() Float {
        smooth: UNIT, torch: "torch.atanh(a)",
        kinks: [{ at: "-1, 1", inputs: [[-1.0, 1.0]], slopes: "inf, inf", why: "the limit from inside" }],
        formula: |x| x[0].atanh(),
    }
    /// Largest integer not above x, in the dtype of x. The slope is 0 everywhere.
    FLOOR floor() Number {
        smooth: NONE, torch: "torch.floor(a)",
        kinks: [{ at: "1 and elsewhere", inputs: [[1.0, 1.5]], slopes: "0, 0", why: "flat on both sides" }],
        formula: |x| x[0].floor(),
    }
    /// Smallest integer not below x, in the dtype of x. The slope is 0 everywhere.
    CEIL ceil() Number {
        smooth: NONE, torch: "torch.ceil(a)",
        kinks: [{ at: "1 and elsewhere", inputs: [[1.0, 1.5]], slopes: "0, 0", why: "flat on both sides" }],
        formula: |x| x[0].ceil(),
    }
    /// Nearest integer, ties to even, in the dtype of x. The slope is 0 everywhere.
    ROUND round() Number {
        smooth: NONE, torch: "torch.round(a)",
        kinks: [{ at: "0.5 and elsewhere", inputs: [[0.5, 1.2]], slopes: "0, 0", why: "flat on both sides" }],
        formula: |x| x[0].round(),
    }
    /// Integer part, in the dtype of x. The slope is 0 everywhere.
    TRUNC trunc() Number {
        smooth: NONE, torch: "torch.trunc(a)",
        kinks: [{ at: "1 and elsewhere", inputs: [[1.0, 1.5]], slopes: "0, 0", why: "flat on both sides" }],
        formula: |x| x[0].trunc(),
    }
    /// Nearest integer, ties away from zero, in the dtype of x. The slope is 0 everywhere.
    ROUND_HALF_AWAY round_half_away() Number {
        smooth: NONE, torch: "torch.trunc(a + torch.copysign(torch.tensor(0.5), a))",
        kinks: [{ at: "0.5 and elsewhere", inputs: [[0.5, 1.2]], slopes: "0, 0", why: "flat on both sides" }],
        formula: |x| {
            let whole = x[0].trunc();
            let float = x[0].dtype().is_float();
            if float { (x[0] - whole).abs().ge(0.5).select(whole + x[0].sign(), whole) } else { whole }
        },
    }
    /// `x - trunc(x)`, with the sign of x. The slope is 1 everywhere.
    FRAC frac() Float {
        smooth: ANY, torch: "torch.frac(a)",
        kinks: [{ at: "1 and elsewhere", inputs: [[1.0, 1.5]], slopes: "1, 1", why: "x less a step" }],
        formula: |x| x[0] - x[0].trunc(),
    }
    /// Whether x is below 0 or is -0. False for NaN.
    SIGNBIT signbit() Number { smooth: NONE, torch: "torch.signbit(a)", formula: |x| negative(x[0]) }
    /// Whether x is inf or -inf.
    ISINF isinf() Number { smooth: NONE, torch: "torch.isinf(a)", formula: |x| x[0].isfinite().or(x[0].isnan()).not() }
    /// Whether x is NaN.
    ISNAN isnan() Number { smooth: NONE, torch: "torch.isnan(a)", formula: |x| x[0].isnan() }
    /// Whether x is neither NaN nor infinite.
    ISFINITE isfinite() Number { smooth: NONE, torch: "torch.isfinite(a)", formula: |x| x[0].isfinite() }
    /// `max(x, 0)`; NaN stays NaN. The slope at 0 is 0.
    RELU relu() Number {
        smooth: ANY, torch: "F.relu(a)",
        kinks: [{ at: "0, -0", inputs: [[0.0, -0.0]], slopes: "0, 0", why: "a dead unit stays dead" }],
        formula: |x| x[0].relu(),
    }
    /// `x` above 0, and `alpha * x` elsewhere. Fails unless alpha is finite. The slope at 0 is alpha.
    LEAKY_RELU leaky_relu() Float {
        scalars: [alpha = 0.1], needs: finite, smooth: ANY, torch: "F.leaky_relu(a, alpha)",
        kinks: [
            { at: "0, alpha 0.1", inputs: [[0.0]], slopes: "0.1", why: "x > 0 takes the right side, all else the left" },
        ],
        formula: |x| x[0].gt(0.0).select(x[0], x[0] * x[1]),
    }
    /// `1 / (1 + e^-x)`
    SIGMOID sigmoid() Float { smooth: ANY, torch: "torch.sigmoid(a)", formula: |x| x[0].sigmoid() }
    /// Hyperbolic tangent.
    TANH tanh() Float { smooth: ANY, torch: "torch.tanh(a)", formula: |x| x[0].tanh() }
    /// `ln(1 + e^x)`
    SOFTPLUS softplus() Float { smooth: ANY, torch: "F.softplus(a)", formula: |x| x[0].softplus() }
    /// `x / (1 + e^-x)`, also called swish.
    SILU silu() Float { smooth: ANY, torch: "F.silu(a)", formula: |x| x[0].silu() }
    /// `x * Phi(x)`, where `Phi` is the normal distribution function: the exact GELU.
    GELU gelu() Float { smooth: ANY, torch: "F.gelu(a)", formula: |x| x[0].gelu() }
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`: the approximation of GELU by tanh.
    GELU_TANH gelu_tanh() Float { smooth: ANY, torch: "F.gelu(a, approximate=\"tanh\")", formula: |x| x[0].gelu_tanh() }
    /// `x` above 0, and `alpha (e^x - 1)` elsewhere. The slope at 0 is alpha.
    ELU elu() Float {
        scalars: [alpha = 0.7], smooth: ANY, torch: "F.elu(a, alpha)",
        kinks: [{ at: "0, alpha 0.7", inputs: [[0.0]], slopes: "0.7", why: "the left side, as leaky_relu" }],
        formula: |x| x[0].gt(0.0).select(x[0], x[1] * left(x[0]).expm1()),
    }
    /// `elu` with the scale and alpha that keep mean 0 and variance 1 (Klambauer et al., 2017). The slope at 0 is that
    /// of the left side.
    SELU selu() Float {
        smooth: ANY, torch: "F.selu(a)",
        kinks: [{ at: "0", inputs: [[0.0]], slopes: "1.7581", why: "the left side, as leaky_relu" }],
        formula: |x| {
            let (scale, alpha) = (1.050_700_987_355_480_5, 1.673_263_242_354_377_2);
            x[0].gt(0.0).select(x[0] * scale, left(x[0]).expm1() * (scale * alpha))
        },
    }
    /// `x` above 0, and `alpha (e^(x / alpha) - 1)` elsewhere. Fails if alpha is 0. The slope at 0 is 1.
    CELU celu() Float {
        scalars: [alpha = 0.7], needs: not_zero, smooth: ANY, torch: "F.celu(a, alpha)",
        kinks: [
            { at: "0, alpha 0.7: the second derivative jumps", inputs: [[0.0]], slopes: "1", why: "both sides have slope 1" },
        ],
        formula: |x| x[0].gt(0.0).select(x[0], x[1] * (left(x[0]) / x[1]).expm1()),
    }
    /// `x / (1 + |x|)`. The slope at 0 is 1, and the second derivative there is 0.
    SOFTSIGN softsign() Float {
        smooth: ANY, torch: "F.softsign(a)",
        kinks: [{ at: "0: the second derivative jumps", inputs: [[0.0]], slopes: "1", why: "both sides have slope 1" }],
        formula: |x| {
            let c = x[0].bounded(if x[0].dtype() == DType::F64 { 1e300 } else { 1e30 });
            c / (c.abs() + 1.0)
        },
    }
    /// `-ln(1 + e^-x)`, the logarithm of the sigmoid.
    LOG_SIGMOID log_sigmoid() Float { smooth: ANY, torch: "F.logsigmoid(a)", formula: |x| -(-x[0]).softplus() }
    /// `x tanh(ln(1 + e^x))`
    MISH mish() Float {
        smooth: ANY, torch: "F.mish(a)",
        formula: |x| x[0].gated(x[0].bounded(1000.0).softplus().tanh()),
    }
    /// `min(max(x, 0), 6)`; NaN stays NaN. The slope at 0 and 6 is 0.
    RELU6 relu6() Number {
        smooth: ANY, torch: "F.relu6(a)",
        kinks: [{ at: "0, 6", inputs: [[0.0, 6.0]], slopes: "0, 0", why: "flat at the ends, as relu" }],
        formula: |x| flat_ends(x[0], x[0].constant(0.0), x[0].constant(6.0)),
    }
    /// `x` limited to the range from `lo` to `hi`; NaN stays NaN. Fails if `lo` is above `hi`. Like `clamp`, but with
    /// slope 0 at the ends.
    HARDTANH hardtanh() Number {
        scalars: [lo = -1.5, hi = 1.0], needs: in_order, smooth: ANY, torch: "F.hardtanh(a, lo, hi)",
        kinks: [{ at: "the ends -1.5, 1", inputs: [[-1.5, 1.0]], slopes: "0, 0", why: "flat at the ends, as relu" }],
        formula: |x| flat_ends(x[0], x[1], x[2]),
    }
    /// `relu6(x + 3) / 6`. The slope at -3 and 3 is 0.
    HARDSIGMOID hardsigmoid() Float {
        smooth: ANY, torch: "F.hardsigmoid(a)",
        kinks: [{ at: "-3, 3", inputs: [[-3.0, 3.0]], slopes: "0, 0", why: "flat at the ends" }],
        formula: |x| flat_ends(x[0] / 6.0 + 0.5, x[0].constant(0.0), x[0].constant(1.0)),
    }
    /// `x relu6(x + 3) / 6`. The slope is 0 at -3 and 1 at 3.
    HARDSWISH hardswish() Float {
        smooth: ANY, torch: "F.hardswish(a)",
        kinks: [{ at: "-3, 3", inputs: [[-3.0, 3.0]], slopes: "0, 1", why: "the outer side" }],
        formula: |x| {
            let c = x[0].bounded(3.0);
            x[0].le(-3.0).select(0.0, x[0].ge(3.0).select(x[0], c * (c + 3.0) / 6.0))
        },
    }
    /// 0 from `-lambda` to `lambda`, and x elsewhere; NaN stays NaN. The slope at both ends is 0.
    HARDSHRINK hardshrink() Float {
        scalars: [lambda = 0.5], smooth: ANY, torch: "F.hardshrink(a, lambda_)",
        kinks: [{ at: "-0.5, 0.5 (a step)", inputs: [[-0.5, 0.5]], slopes: "0, 0", why: "the value there is 0" }],
        formula: |x| x[0].abs().le(x[1]).select(0.0, x[0]),
    }
    /// `x - lambda` above `lambda`, `x + lambda` below `-lambda`, and 0 in between; NaN stays NaN. Fails unless
    /// `lambda` is at least 0. The slope at both ends is 0.
    SOFTSHRINK softshrink() Float {
        scalars: [lambda = 0.5], needs: not_negative, smooth: ANY, torch: "F.softshrink(a, lambda_)",
        kinks: [{ at: "-0.5, 0.5", inputs: [[-0.5, 0.5]], slopes: "0, 0", why: "the value there is 0" }],
        formula: |x| {
            let inner = x[0].isnan().select(x[0], 0.0);
            x[0].gt(x[1]).select(x[0] - x[1], x[0].lt(-x[1]).select(x[0] + x[1], inner))
        },
    }
    /// `x` above `threshold`, and `value` elsewhere; NaN stays NaN. The slope at the threshold is 0.
    THRESHOLD threshold() Number {
        scalars: [threshold = 0.1, value = 20.0], smooth: ANY, torch: "F.threshold(a, threshold, value)",
        kinks: [
            { at: "at the threshold 0.1 (a step)", inputs: [[0.1]], slopes: "0", why: "the value there is the constant" },
        ],
        formula: |x| x[0].le(x[1]).select(x[2], x[0]),
    }
    /// `min(max(x, lo), hi)`, which is `hi` everywhere if `lo > hi`; NaN stays NaN. The slope at both ends is 1.
    CLAMP clamp() Number {
        scalars: [lo = -1.5, hi = 1.0], smooth: ANY, torch: "a.clamp(lo, hi)",
        kinks: [
            { at: "the ends -1.5, 1", inputs: [[-1.5, 1.0]], slopes: "1, 1", why: "the value there is still x: a parameter at its bound can leave it" },
        ],
        formula: |x| x[0].gt(x[2]).select(x[2], x[0].lt(x[1]).select(x[1].gt(x[2]).select(x[2], x[1]), x[0])),
    }
    /// `self + other`
    ADD add(other) Number { smooth: ANY, torch: "torch.add(a, b)", formula: |x| x[0] + x[1] }
    /// `self - other`
    SUB sub(other) Number { smooth: ANY, torch: "torch.sub(a, b)", formula: |x| x[0] - x[1] }
    /// `self * other`
    MUL mul(other) Number { smooth: ANY, torch: "torch.mul(a, b)", formula: |x| x[0] * x[1] }
    /// True division: the quotient of integers is a float. Where `other` is 0, the slopes are infinite or NaN.
    DIV div(other) Float {
        smooth: ANY, torch: "torch.div(a, b)",
        kinks: [{ at: "1 by 0", inputs: [[1.0], [0.0]], slopes: "inf; -inf", why: "IEEE division" }],
        formula: |x| x[0] / x[1],
    }
    /// Division rounded towards zero, in the operands' dtype. Division of integers by zero is an error. The slopes are
    /// 0.
    TRUNC_DIV trunc_div(other) Number {
        smooth: NONE, torch: "torch.div(a, b, rounding_mode=\"trunc\")",
        kinks: [{ at: "6 by 3", inputs: [[6.0], [3.0]], slopes: "0; 0", why: "flat on both sides" }],
        formula: |x| {
            let q = x[0] / x[1];
            if q.dtype().is_float() { q.trunc() } else { q }
        },
    }
    /// Division rounded down: the floor of the exact quotient, so `1 // 0.1` is 9. Division of integers by zero is an
    /// error. The slopes are 0.
    FLOOR_DIV floor_div(other) Number {
        smooth: NONE, torch: "torch.floor_divide(a, b)",
        kinks: [{ at: "6 by 3", inputs: [[6.0], [3.0]], slopes: "0; 0", why: "flat on both sides" }],
        formula: |x| x[0].floor_div(x[1]),
    }
    /// Remainder with the sign of `self`. Division of integers by zero is an error. The slope in `self` is 1. The slope
    /// in `other` is minus the quotient rounded towards zero, also where that quotient steps.
    FMOD fmod(other) Number {
        smooth: ANY, torch: "torch.fmod(a, b)",
        kinks: [
            { at: "6 by 3, -7 by 3", inputs: [[6.0, -7.0], [3.0, 3.0]], slopes: "1, 1; -2, 2", why: "1, and less the whole quotient" },
        ],
        formula: |x| x[0].fmod(x[1]),
    }
    /// Remainder with the sign of `other`. Division of integers by zero is an error. The slope in `self` is 1. The
    /// slope in `other` is minus the quotient rounded down, also where that quotient steps.
    REMAINDER remainder(other) Number {
        smooth: ANY, torch: "torch.remainder(a, b)",
        kinks: [
            { at: "6 by 3, -7 by 3", inputs: [[6.0, -7.0], [3.0, 3.0]], slopes: "1, 1; -2, 3", why: "1, and less the floored quotient" },
        ],
        formula: |x| x[0].remainder(x[1]),
    }
    /// `self^other`, with `0^0` equal to 1. A negative integer exponent of an integer is an error. The slope in the
    /// exponent is 0 where the base is 0 (also at `0^0`), and NaN where the base is negative.
    POW pow(other) Number {
        smooth: POSITIVE, torch: "torch.pow(a, b)",
        kinks: [
            { at: "0^2", inputs: [[0.0], [2.0]], slopes: "0; 0", why: "smooth in the base; 0^y is flat in y" },
            { at: "0^1", inputs: [[0.0], [1.0]], slopes: "1; 0", why: "smooth in the base; 0^y is flat in y" },
            { at: "0^0.5", inputs: [[0.0], [0.5]], slopes: "inf; 0", why: "as sqrt; 0^y is flat in y" },
            { at: "0^0", inputs: [[0.0], [0.0]], slopes: "0; 0", why: "1 for every base; the step in y counts as flat" },
            { at: "(-2)^2", inputs: [[-2.0], [2.0]], slopes: "-4; NaN", why: "no power of a negative base beside whole exponents" },
        ],
        formula: |x| x[0].pow(x[1]),
    }
    /// The larger of the two; NaN if either is NaN. Equal operands share the gradient.
    MAXIMUM maximum(other) Number {
        smooth: ANY, torch: "torch.maximum(a, b)",
        kinks: [{ at: "equal operands", inputs: [[2.0], [2.0]], slopes: "0.5; 0.5", why: "half to each: symmetric" }],
        formula: |x| x[0].max(x[1]),
    }
    /// The smaller of the two; NaN if either is NaN. Equal operands share the gradient.
    MINIMUM minimum(other) Number {
        smooth: ANY, torch: "torch.minimum(a, b)",
        kinks: [{ at: "equal operands", inputs: [[2.0], [2.0]], slopes: "0.5; 0.5", why: "half to each: symmetric" }],
        formula: |x| x[0].min(x[1]),
    }
    /// The larger of the two; if one is NaN, the other. Equal operands share the gradient.
    FMAX fmax(other) Number {
        smooth: ANY, torch: "torch.fmax(a, b)",
        kinks: [{ at: "equal operands", inputs: [[2.0], [2.0]], slopes: "0.5; 0.5", why: "half to each, as maximum" }],
        formula: |x| x[1].isnan().select(x[0], x[0].isnan().select(x[1], x[0].max(x[1]))),
    }
    /// The smaller of the two; if one is NaN, the other. Equal operands share the gradient.
    FMIN fmin(other) Number {
        smooth: ANY, torch: "torch.fmin(a, b)",
        kinks: [{ at: "equal operands", inputs: [[2.0], [2.0]], slopes: "0.5; 0.5", why: "half to each, as minimum" }],
        formula: |x| x[1].isnan().select(x[0], x[0].isnan().select(x[1], x[0].min(x[1]))),
    }
    /// The angle of the point `(other, self)`, as in `y.atan2(x)`, from -pi to pi. The signs of both operands count,
    /// even those of zeros. The slopes at the origin are 0.
    ATAN2 atan2(other) Float {
        smooth: ANY, torch: "torch.atan2(a, b)",
        kinks: [{ at: "the origin", inputs: [[0.0], [0.0]], slopes: "0; 0", why: "no direction, so no turn" }],
        formula: |x| atan2(x[0], x[1]),
    }
    /// `sqrt(self^2 + other^2)`, computed without overflow; infinite if either is. The slopes at the origin are 0.
    HYPOT hypot(other) Float {
        smooth: ANY, torch: "torch.hypot(a, b)",
        kinks: [{ at: "the origin", inputs: [[0.0], [0.0]], slopes: "0; 0", why: "a length of 0, as norm" }],
        formula: |x| hypot(x[0], x[1]),
    }
    /// The magnitude of `self` with the sign of `other`; -0 counts as negative, and NaN as positive. The slope is 0
    /// where `self` is 0, and the slope in `other` is 0 everywhere.
    COPYSIGN copysign(other) Float {
        smooth: ANY, torch: "torch.copysign(a, b.detach())",
        kinks: [
            { at: "a zero, signs + and -", inputs: [[0.0, 0.0], [1.0, -1.0]], slopes: "0, 0; 0, 0", why: "that of abs" },
        ],
        formula: |x| negative(x[1]).select(-x[0].abs(), x[0].abs()),
    }
    /// `self * ln(other)`, but 0 where `self` is 0 and `other` is not NaN. Where both are 0, the slopes are 0.
    XLOGY xlogy(other) Float {
        smooth: POSITIVE, torch: "torch.xlogy(a, b)",
        kinks: [
            { at: "0 ln 0", inputs: [[0.0], [0.0]], slopes: "0; 0", why: "the value is a constant 0 there" },
            { at: "0 ln 2", inputs: [[0.0], [2.0]], slopes: "0.6931; 0", why: "smooth: the slope is ln 2" },
        ],
        formula: |x| {
            // If the logarithm is finite, the product is smooth at 0 too, and its slope is the logarithm.
            let positive = x[1].gt(0.0).and(x[1].isfinite());
            let zero = x[0].eq(0.0).and(x[1].isnan().or(positive).not());
            zero.select(0.0, x[0] * zero.select(1.0, x[1]).log())
        },
    }
    /// `ln(e^self + e^other)`, computed without overflow. Two of inf share the gradient; two of -inf have gradient 0.
    LOGADDEXP logaddexp(other) Float {
        smooth: ANY, torch: "torch.logaddexp(a, b)",
        kinks: [
            { at: "-inf and -inf", inputs: [[-INF], [-INF]], slopes: "0; 0", why: "nothing there to share" },
            { at: "inf and inf", inputs: [[INF], [INF]], slopes: "0.5; 0.5", why: "shared by the infinite ones" },
            { at: "-inf and 0", inputs: [[-INF], [0.0]], slopes: "0; 1", why: "all to the one that counts" },
        ],
        formula: |x| logaddexp(x[0], x[1]),
    }
    /// `self == other`
    EQ eq(other) Compare { smooth: NONE, torch: "torch.eq(a, b)", formula: |x| x[0].eq(x[1]) }
    /// `self != other`
    NE ne(other) Compare { smooth: NONE, torch: "torch.ne(a, b)", formula: |x| x[0].ne(x[1]) }
    /// `self < other`
    LT lt(other) Compare { smooth: NONE, torch: "torch.lt(a, b)", formula: |x| x[0].lt(x[1]) }
    /// `self <= other`
    LE le(other) Compare { smooth: NONE, torch: "torch.le(a, b)", formula: |x| x[0].le(x[1]) }
    /// `self > other`
    GT gt(other) Compare { smooth: NONE, torch: "torch.gt(a, b)", formula: |x| x[0].gt(x[1]) }
    /// `self >= other`
    GE ge(other) Compare { smooth: NONE, torch: "torch.ge(a, b)", formula: |x| x[0].ge(x[1]) }
    /// Logical and of booleans.
    LOGICAL_AND logical_and(other) Bool { smooth: NONE, torch: "torch.logical_and(a, b)", formula: |x| x[0].and(x[1]) }
    /// Logical or of booleans.
    LOGICAL_OR logical_or(other) Bool { smooth: NONE, torch: "torch.logical_or(a, b)", formula: |x| x[0].or(x[1]) }
    /// Logical exclusive or of booleans.
    LOGICAL_XOR logical_xor(other) Bool { smooth: NONE, torch: "torch.logical_xor(a, b)", formula: |x| x[0].xor(x[1]) }
    /// Logical not of booleans.
    LOGICAL_NOT logical_not() Bool { smooth: NONE, torch: "torch.logical_not(a)", formula: |x| x[0].not() }
    /// `a` where this condition (bool) is true, and `b` elsewhere. The branch not taken gets an exact zero gradient.
    WHERE where_(a, b) Any {
        conditions: 1, smooth: ANY, torch: "torch.where(a, b, c)",
        formula: |x| x[0].select(x[1], x[2]),
    }
    /// `silu(self) * other`, in one pass.
    SILU_MUL silu_mul(other) Float { smooth: ANY, torch: "F.silu(a) * b", formula: |x| x[0].silu() * x[1] }
    /// `gelu(self) * other` with the exact GELU, in one pass.
    GELU_MUL gelu_mul(other) Float { smooth: ANY, torch: "F.gelu(a) * b", formula: |x| x[0].gelu() * x[1] }
    /// `gelu_tanh(self) * other` with the approximation by tanh, in one pass.
    GELU_TANH_MUL gelu_tanh_mul(other) Float {
        smooth: ANY, torch: "F.gelu(a, approximate=\"tanh\") * b",
        formula: |x| x[0].gelu_tanh() * x[1],
    }
    /// `relu(self) * other`, in one pass. Where `self` is 0, the slopes are 0.
    RELU_MUL relu_mul(other) Number {
        smooth: ANY, torch: "F.relu(a) * b",
        kinks: [{ at: "first factor 0", inputs: [[0.0], [3.0]], slopes: "0; 0", why: "as relu" }],
        formula: |x| x[0].relu() * x[1],
    }
    /// `sigmoid(self) * other`, in one pass.
    SIGMOID_MUL sigmoid_mul(other) Float {
        smooth: ANY, torch: "torch.sigmoid(a) * b",
        formula: |x| x[0].sigmoid() * x[1],
    }
}
