//! The built-in elementwise operations: one entry each, and nothing else.
//!
//! An entry gives the method on [`Tensor`], all dtypes, broadcasting, promotion, the gradient to any order, and the rows
//! of the tests. To add an operation, add an entry (`docs/add-an-op.md`).
//!
//! Slopes at kinks: `abs` 0 at 0; `relu` 0 at 0; `leaky_relu` alpha at 0; `clamp` 1 at both ends; `maximum` and `minimum`
//! half to each at a tie; `floor`, `ceil`, `round`, `trunc`, `sign` 0 everywhere. `sqrt` has slope infinity at 0.

use gradus_backend::{Result, Scalar};

use super::elementwise::{Class, Elementwise, Operand};
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
    ($($(#[doc = $doc:literal])* $const:ident $method:ident($($operand:ident),*; $($scalar:ident = $sample:literal),*) $class:ident $mask:literal $smooth:expr, $body:expr;)*) => {
        impl Tensor {
            $(
                $(#[doc = $doc])*
                #[track_caller]
                #[allow(clippy::needless_lifetimes)] // needed where there are further operands
                pub fn $method<'a>(&'a self $(, $operand: impl Into<Operand<'a>>)* $(, $scalar: impl Into<Scalar>)*) -> Result<Tensor> {
                    $const.apply(&[Operand::Tensor(self) $(, $operand.into())* $(, Operand::Scalar($scalar.into()))*])
                }
            )*
        }

        $(
            #[doc = concat!("See [`Tensor::", stringify!($method), "`].")]
            pub static $const: Elementwise =
                Elementwise::new(stringify!($method), Class::$class, count!($($operand)* $($scalar)*), $body).conditions($mask);
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
/// Nowhere: the gradient is zero or does not exist.
const NONE: &[f64] = &[];

table! {
    /// `-x`. Errors for unsigned integers.
    NEG neg(;) Signed 0 ANY, |x| vec![-x[0]];
    /// `|x|`; the lowest integer wraps to itself.
    ABS abs(;) Number 0 ANY, |x| vec![x[0].abs()];
    /// -1, 0 or 1 by the sign; NaN and -0 stay.
    SIGN sign(;) Number 0 NONE, |x| vec![x[0].sign()];
    /// Square root; NaN below 0.
    SQRT sqrt(;) Float 0 POSITIVE, |x| vec![x[0].sqrt()];
    /// `1 / sqrt(x)`
    RSQRT rsqrt(;) Float 0 POSITIVE, |x| vec![x[0].rsqrt()];
    /// `1 / x`
    RECIP recip(;) Float 0 ANY, |x| vec![x[0].recip()];
    /// `x * x`
    SQUARE square(;) Number 0 ANY, |x| vec![x[0] * x[0]];
    /// `e^x`
    EXP exp(;) Float 0 ANY, |x| vec![x[0].exp()];
    /// `e^x - 1`, exact near 0.
    EXPM1 expm1(;) Float 0 ANY, |x| vec![x[0].expm1()];
    /// Natural logarithm; -inf at 0, NaN below.
    LOG log(;) Float 0 POSITIVE, |x| vec![x[0].log()];
    /// `ln(1 + x)`, exact near 0.
    LOG1P log1p(;) Float 0 POSITIVE, |x| vec![x[0].log1p()];
    /// Sine of radians.
    SIN sin(;) Float 0 ANY, |x| vec![x[0].sin()];
    /// Cosine of radians.
    COS cos(;) Float 0 ANY, |x| vec![x[0].cos()];
    /// Tangent of radians.
    TAN tan(;) Float 0 ANY, |x| vec![x[0].tan()];
    /// Error function.
    ERF erf(;) Float 0 ANY, |x| vec![x[0].erf()];
    /// Largest integer not above x, in the dtype of x.
    FLOOR floor(;) Number 0 NONE, |x| vec![x[0].floor()];
    /// Smallest integer not below x, in the dtype of x.
    CEIL ceil(;) Number 0 NONE, |x| vec![x[0].ceil()];
    /// Nearest integer, ties to even, in the dtype of x.
    ROUND round(;) Number 0 NONE, |x| vec![x[0].round()];
    /// Integer part, in the dtype of x.
    TRUNC trunc(;) Number 0 NONE, |x| vec![x[0].trunc()];
    /// Whether x is NaN.
    ISNAN isnan(;) Number 0 NONE, |x| vec![x[0].isnan()];
    /// Whether x is neither NaN nor infinite.
    ISFINITE isfinite(;) Number 0 NONE, |x| vec![x[0].isfinite()];
    /// `max(x, 0)`; NaN stays NaN.
    RELU relu(;) Number 0 ANY, |x| vec![x[0].relu()];
    /// `x` above 0, else `alpha * x`.
    LEAKY_RELU leaky_relu(; alpha = 0.1) Float 0 ANY, |x| vec![x[0].gt(0.0).select(x[0], x[0] * x[1])];
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
    /// `lo` below `lo`, `hi` above `hi`, else x; NaN stays.
    CLAMP clamp(; lo = -1.5, hi = 1.0) Number 0 ANY,
        |x| vec![x[0].lt(x[1]).select(x[1], x[0].gt(x[2]).select(x[2], x[0]))];
    /// `self + other`
    ADD add(other;) Number 0 ANY, |x| vec![x[0] + x[1]];
    /// `self - other`
    SUB sub(other;) Number 0 ANY, |x| vec![x[0] - x[1]];
    /// `self * other`
    MUL mul(other;) Number 0 ANY, |x| vec![x[0] * x[1]];
    /// True division: integers give floats.
    DIV div(other;) Float 0 ANY, |x| vec![x[0] / x[1]];
    /// Division rounded down. An integer zero divisor is an error.
    FLOOR_DIV floor_div(other;) Number 0 NONE, |x| vec![x[0].floor_div(x[1])];
    /// Remainder with the sign of `self`. An integer zero divisor is an error.
    FMOD fmod(other;) Number 0 ANY, |x| vec![x[0].fmod(x[1])];
    /// Remainder with the sign of `other`. An integer zero divisor is an error.
    REMAINDER remainder(other;) Number 0 ANY, |x| vec![x[0].remainder(x[1])];
    /// `self^other`; `0^0` is 1. A negative integer exponent of an integer is an error.
    POW pow(other;) Number 0 POSITIVE, |x| vec![x[0].pow(x[1])];
    /// The larger; NaN if either is.
    MAXIMUM maximum(other;) Number 0 ANY, |x| vec![x[0].max(x[1])];
    /// The smaller; NaN if either is.
    MINIMUM minimum(other;) Number 0 ANY, |x| vec![x[0].min(x[1])];
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
    /// `relu(self) * other`, in one pass.
    RELU_MUL relu_mul(other;) Number 0 ANY, |x| vec![x[0].relu() * x[1]];
    /// `sigmoid(self) * other`, in one pass.
    SIGMOID_MUL sigmoid_mul(other;) Float 0 ANY, |x| vec![x[0].sigmoid() * x[1]];
}
