//! The scalar instructions and what types they take.

use crate::Scalar;

/// Which types an instruction takes and gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeRule {
    /// Loads an argument, widened to its compute type.
    Arg,
    /// A constant of any compute type.
    Const,
    /// Floats in, the same float type out.
    Float,
    /// Numbers of one type in, the same out.
    Number,
    /// Signed numbers of one type in, the same out.
    Signed,
    /// A number in, bool out.
    Test,
    /// Two of one type (bool too) in, bool out.
    Compare,
    /// Booleans in, bool out.
    Logic,
    /// A bool and two of one type in, that type out.
    Select,
    /// Anything in, the instruction's type out.
    Cast,
}

macro_rules! scalar_ops {
    ($($(#[doc = $doc:literal])* $name:ident, $text:literal, $arity:literal, $rule:ident;)*) => {
        /// A scalar instruction. Integer arithmetic wraps; float arithmetic is IEEE; NaN propagates.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ScalarOp {
            /// Argument number `.0`, widened to its compute type.
            Arg(u8),
            /// A constant.
            Const(Scalar),
            $($(#[doc = $doc])* $name,)*
        }

        impl ScalarOp {
            /// Every instruction but `Arg` and `Const`.
            pub const ALL: &[ScalarOp] = &[$(ScalarOp::$name,)*];

            /// The name in printed kernels.
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

            /// Which types it takes and gives.
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
    /// `|x|`; the lowest integer wraps to itself.
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
    /// `e^x - 1`, exact near 0.
    Expm1, "expm1", 1, Float;
    /// Natural logarithm; -inf at 0, NaN below.
    Log, "log", 1, Float;
    /// Logarithm to base 2.
    Log2, "log2", 1, Float;
    /// Logarithm to base 10.
    Log10, "log10", 1, Float;
    /// `ln(1 + x)`, exact near 0.
    Log1p, "log1p", 1, Float;
    /// Sine of radians, right for every finite x.
    Sin, "sin", 1, Float;
    /// Cosine of radians.
    Cos, "cos", 1, Float;
    /// Tangent of radians.
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
    /// `1 / (1 + e^x)`, which is `1 - sigmoid(x)` and `sigmoid(-x)`, exact for large x.
    SigmoidNeg, "sigmoid_neg", 1, Float;
    /// `ln(1 + e^x)`
    Softplus, "softplus", 1, Float;
    /// Error function.
    Erf, "erf", 1, Float;
    /// `1 - erf(x)`, exact for large x.
    Erfc, "erfc", 1, Float;
    /// Largest integer not above x; integers stay.
    Floor, "floor", 1, Number;
    /// Smallest integer not below x; integers stay.
    Ceil, "ceil", 1, Number;
    /// Nearest integer, ties to even; integers stay.
    Round, "round", 1, Number;
    /// Integer part; integers stay.
    Trunc, "trunc", 1, Number;
    /// Whether x is NaN; never for an integer.
    IsNan, "isnan", 1, Test;
    /// Whether x is neither NaN nor infinite; always for an integer.
    IsFinite, "isfinite", 1, Test;
    /// Logical not.
    Not, "not", 1, Logic;
    /// `a + b`
    Add, "add", 2, Number;
    /// `a - b`
    Sub, "sub", 2, Number;
    /// `a * b`
    Mul, "mul", 2, Number;
    /// `a / b` for floats; integers round towards zero, and a zero divisor is an error.
    Div, "div", 2, Number;
    /// `a / b` rounded down; an integer zero divisor is an error.
    FloorDiv, "floor_div", 2, Number;
    /// `a - trunc(a / b) * b`: the sign of a; an integer zero divisor is an error.
    Fmod, "fmod", 2, Number;
    /// `a - floor(a / b) * b`: the sign of b; an integer zero divisor is an error.
    Remainder, "remainder", 2, Number;
    /// `a^b`; C99's special cases for floats. Integers wrap, and a negative exponent is an error.
    Pow, "pow", 2, Number;
    /// The larger; NaN if either is.
    Max, "max", 2, Number;
    /// The smaller; NaN if either is.
    Min, "min", 2, Number;
    /// `a == b`
    Eq, "eq", 2, Compare;
    /// `a != b`; true if either is NaN.
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
    /// The second operand where the first is true, else the third.
    Select, "select", 3, Select;
    /// Conversion: between floats rounds to nearest; float to integer truncates and saturates, NaN gives 0; integer to
    /// integer wraps; anything to bool is `!= 0`.
    Cast, "cast", 1, Cast;
}
