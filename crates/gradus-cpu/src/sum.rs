//! Types that can be summed, and what they are summed in.

use gradus_backend::{bf16, f16};

use crate::access::{Float, Plain};

/// A stored type with a type that its sums are formed in: f32 for f16 and bf16, otherwise itself; integers wrap.
pub(crate) trait Summable: Plain {
    /// What sums are formed in.
    type Acc: Plain;
    /// The value as a summand.
    fn widen(self) -> Self::Acc;
    /// The sum as it is stored.
    fn narrow(x: Self::Acc) -> Self;
    /// `a + b`.
    fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc;
}

macro_rules! floats {
    ($($t:ty)*) => {$(
        impl Summable for $t {
            type Acc = <$t as Float>::Compute;
            #[inline(always)]
            fn widen(self) -> Self::Acc {
                Float::widen(self)
            }
            #[inline(always)]
            fn narrow(x: Self::Acc) -> Self {
                <$t as Float>::narrow(x)
            }
            #[inline(always)]
            fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc {
                a + b
            }
        }
    )*};
}
floats!(f64 f32 f16 bf16);

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Summable for $t {
            type Acc = $t;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(x: $t) -> $t {
                x
            }
            #[inline(always)]
            fn add(a: $t, b: $t) -> $t {
                a.wrapping_add(b)
            }
        }
    )*};
}
integers!(i64 i32 i16 i8 u64 u32 u16 u8);

/// Runs the expression with `$t` the storage type of a float or integer dtype; bool is an error of `$op`.
macro_rules! with_number {
    ($op:expr, $dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            gradus_backend::DType::Bool => Err(gradus_backend::Error::dtype($op, $dtype, "floats and integers")),
            d => $crate::access::with_any!(d, $t => $body),
        }
    };
}
pub(crate) use with_number;
