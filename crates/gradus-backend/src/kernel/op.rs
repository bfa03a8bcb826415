//! The scalar instructions and their dtypes.

use crate::Scalar;

/// The operand and result dtypes of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeRule {
    /// Loads an argument, widened to its compute dtype.
    Arg,
    /// A constant of any compute dtype.
    Const,
    /// Floats in, the same float dtype out.
    Float,
    /// Numbers of one dtype in, the same dtype out.
    Number,
    /// Signed numbers of one dtype in, the same dtype out.
    Signed,
    /// A number in, bool out.
    Test,
    /// Two values of one dtype (bool included) in, bool out.
    Compare,
    /// Booleans in, bool out.
    Logic,
    /// A bool and two values of one dtype in, that dtype out.
    Select,
    /// Any dtype in, the instruction's dtype out.
    Cast,
}

macro_rules! scalar_ops {
    ($($(#[doc = $doc:literal])* $name:ident, $text:literal, $arity:literal, $rule:ident;)*) => {
        /// A scalar instruction. Integer arithmetic wraps; float arithmetic is IEEE; NaN propagates.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ScalarOp {
            /// Argument number `.0`, widened to its compute dtype.
            Arg(u8),
            /// A constant.
            Const(Scalar),
            $($(#[doc = $doc])* $name,)*
        }

        impl ScalarOp {
            /// Every instruction except `Arg` and `Const`.
            pub const ALL: &[ScalarOp] = &[$(ScalarOp::$name,)*];

            /// The instruction's name in printed kernels.
            pub const fn name(self) -> &'static str {
                match self {
                    ScalarOp::Arg(_) => "arg",
                    ScalarOp::Const(_) => "const",
                    $(ScalarOp::$name => $text,)*
                }
            }

            /// Number of operands.
            #[inline]
            pub const fn arity(self) -> usize {
                match self {
                    ScalarOp::Arg(_) | ScalarOp::Const(_) => 0,
                    $(ScalarOp::$name => $arity,)*
                }
            }

            /// The instruction's operand and result dtypes.
            pub const fn rule(self) -> TypeRule {
                match self {
                    ScalarOp::Arg(_) => TypeRule::Arg,
                    ScalarOp::Const(_) => TypeRule::Const,
                    $(ScalarOp::$name => TypeRule::$rule,)*
                }
            }
        }
    };
}

scalar_ops! {
    /// `-x`
    Neg, "neg", 1, Signed;
    /// `|x|`; the most negative integer wraps to itself.
    Abs, "abs", 1, Number;
    /// -1, 0 or 1; keeps NaN and -0.
    Sign, "sign", 1, Number;
    /// Square root; NaN below 0.
    Sqrt, "sqrt", 1, Float;
    /// `1 / sqrt(x)`
    Rsqrt, "rsqrt", 1, Float;
    /// `1 / x`
    Recip, "recip", 1, Float;
    /// `e^x`
    Exp, "exp", 1, Float;
    /// `2^x`
    Exp2, "exp2", 1, Float;
    /// `e^x - 1`, accurate near 0.
    Expm1, "expm1", 1, Float;
    /// Natural logarithm; -inf at 0 and NaN below 0.
    Log, "log", 1, Float;
    /// Logarithm to base 2.
    Log2, "log2", 1, Float;
    /// Logarithm to base 10.
    Log10, "log10", 1, Float;
    /// `ln(1 + x)`, accurate near 0.
    Log1p, "log1p", 1, Float;
    /// Sine of x in radians, accurate for every finite x.
    Sin, "sin", 1, Float;
    /// Cosine of x in radians.
    Cos, "cos", 1, Float;
    /// Tangent of x in radians.
    Tan, "tan", 1, Float;
    /// Arc sine.
    Asin, "asin", 1, Float;
    /// Arc cosine.
    Acos, "acos", 1, Float;
    /// Arc tangent.
    Atan, "atan", 1, Float;
    /// Hyperbolic sine.
    Sinh, "sinh", 1, Float;
    /// Hyperbolic cosine.
    Cosh, "cosh", 1, Float;
    /// Hyperbolic tangent.
    Tanh, "tanh", 1, Float;
    /// Inverse hyperbolic sine.
    Asinh, "asinh", 1, Float;
    /// Inverse hyperbolic cosine.
    Acosh, "acosh", 1, Float;
    /// Inverse hyperbolic tangent.
    Atanh, "atanh", 1, Float;
    /// `1 / (1 + e^-x)`
    Sigmoid, "sigmoid", 1, Float;
    /// `1 / (1 + e^x)`, which equals `1 - sigmoid(x)` and `sigmoid(-x)`; accurate for large x.
    SigmoidNeg, "sigmoid_neg", 1, Float;
    /// `ln(1 + e^x)`
    Softplus, "softplus", 1, Float;
    /// Error function.
    Erf, "erf", 1, Float;
    /// `1 - erf(x)`, accurate for large x.
    Erfc, "erfc", 1, Float;
    /// The nearest f16, with ties to even, as the dtype of x: what storing x as f16 and loading it gives.
    RoundF16, "round_f16", 1, Float;
    /// The nearest bf16, with ties to even, as the dtype of x: what storing x as bf16 and loading it gives.
    RoundBf16, "round_bf16", 1, Float;
    /// Largest integer not above x; leaves integers unchanged.
    Floor, "floor", 1, Number;
    /// Smallest integer not below x; leaves integers unchanged.
    Ceil, "ceil", 1, Number;
    /// Nearest integer, with ties to even; leaves integers unchanged.
    Round, "round", 1, Number;
    /// Integer part; leaves integers unchanged.
    Trunc, "trunc", 1, Number;
    /// Whether x is NaN; always false for an integer.
    IsNan, "isnan", 1, Test;
    /// Whether x is neither NaN nor infinite; always true for an integer.
    IsFinite, "isfinite", 1, Test;
    /// Logical not.
    Not, "not", 1, Logic;
    /// `a + b`
    Add, "add", 2, Number;
    /// `a - b`
    Sub, "sub", 2, Number;
    /// `a * b`
    Mul, "mul", 2, Number;
    /// `a / b`. Integer quotients are rounded towards zero, and an integer zero divisor is an error.
    Div, "div", 2, Number;
    /// `a / b` rounded down; an integer zero divisor is an error.
    FloorDiv, "floor_div", 2, Number;
    /// `a - trunc(a / b) * b`, which has the sign of a; an integer zero divisor is an error.
    Fmod, "fmod", 2, Number;
    /// `a - floor(a / b) * b`, which has the sign of b; an integer zero divisor is an error.
    Remainder, "remainder", 2, Number;
    /// `a^b`, with the special cases of C99 for floats. Integers wrap, and a negative integer exponent is an error.
    Pow, "pow", 2, Number;
    /// The larger operand; NaN if either operand is NaN.
    Max, "max", 2, Number;
    /// The smaller operand; NaN if either operand is NaN.
    Min, "min", 2, Number;
    /// `a == b`
    Eq, "eq", 2, Compare;
    /// `a != b`; true if either operand is NaN.
    Ne, "ne", 2, Compare;
    /// `a < b`
    Lt, "lt", 2, Compare;
    /// `a <= b`
    Le, "le", 2, Compare;
    /// `a > b`
    Gt, "gt", 2, Compare;
    /// `a >= b`
    Ge, "ge", 2, Compare;
    /// Logical and.
    And, "and", 2, Logic;
    /// Logical or.
    Or, "or", 2, Logic;
    /// Logical exclusive or.
    Xor, "xor", 2, Logic;
    /// The second operand if the first is true, otherwise the third.
    Select, "select", 3, Select;
    /// Conversion to another dtype. Float to float rounds to nearest. Float to integer truncates and saturates, and NaN
    /// becomes 0. Integer to integer wraps. Conversion to bool is `!= 0`.
    Cast, "cast", 1, Cast;
}
