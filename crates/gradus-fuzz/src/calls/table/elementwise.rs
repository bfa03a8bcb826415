//! Elementwise operations.

use gradus::fused;

use super::{LONG, Row, rows};

/// Rows of methods without arguments, with another operand, and with numbers.
macro_rules! methods {
    (unary: $($one:ident)*; binary: $($two:ident)*; numbers: $($other:ident($($number:ident),*))*) => {
        rows! { LONG any;
            $($one |x, _d| x.$one();)*
            $($two |x, d| if d.once_in(3) { x.$two(d.scalar()) } else { x.$two(&d.like(&x)?) };)*
            $($other |x, d| x.$other($(d.$number()),*);)*
        }
    };
}

const TABLE: &[Row] = methods! {
    unary: neg abs sign sqrt rsqrt recip square exp expm1 log log1p sin cos tan erf erfc exp2 log2 log10 asin acos atan sinh
        cosh asinh acosh atanh floor ceil round trunc round_half_away frac signbit isinf isnan isfinite relu sigmoid tanh
        softplus silu gelu gelu_tanh selu softsign log_sigmoid mish relu6 hardsigmoid hardswish logical_not;
    binary: add sub mul div trunc_div floor_div fmod remainder pow maximum minimum fmax fmin atan2 hypot copysign xlogy
        logaddexp eq ne lt le gt ge logical_and logical_or logical_xor silu_mul gelu_mul gelu_tanh_mul relu_mul sigmoid_mul;
    numbers: leaky_relu(number) elu(number) celu(number) hardtanh(scalar, scalar) hardshrink(number) softshrink(number)
        threshold(scalar, scalar) clamp(scalar, scalar)
};

const OTHERS: &[Row] = rows! { LONG any;
    where_ |x, d| d.mask(&x)?.where_(&x, &d.like(&x)?);
    lerp |x, d| if d.flag() { x.lerp(&d.like(&x)?, d.number()) } else { x.lerp(&d.like(&x)?, &d.like(&x)?) };
    round_decimals |x, d| x.round_decimals(d.int() as i32);
    nan_to_num |x, d| x.nan_to_num(d.number(), Some(d.number()), None);
    prelu |x, d| x.prelu(&d.sized(&[x.shape().get(1).copied().unwrap_or(1)], x.dtype())?);
    glu |x, d| x.glu(d.axis(x.rank()));
    masked_fill |x, d| x.masked_fill(&d.mask(&x)?, d.scalar());
    to_dtype |x, d| x.to_dtype(d.dtype());
    dropout |x, d| { let p = d.fraction(); x.dropout(p, &mut d.generator) };
    operators::all |x, d| {
        let y = d.like(&x)?;
        (&(&x + &y)? - &(&x * &y)?).and_then(|z| &z / &y)
    };
    fused::three |x, d| fused!(|a, b, c| (a * b).silu() + c.tanh())(&x, &d.like(&x)?, d.number());
};

pub(super) const ROWS: &[&[Row]] = &[TABLE, OTHERS];
