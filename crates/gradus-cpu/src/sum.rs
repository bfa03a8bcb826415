//! Types that can be summed, and the types that their sums are computed in.

use gradus_backend::{bf16, f16};

use crate::access::{Float, Plain};

/// A storage type whose elements can be summed. Sums of f16 and bf16 are computed in f32, and other sums in the type
/// itself. Sums of integers wrap.
pub(crate) trait Summable: Plain {
    /// The type that sums are computed in.
    type Acc: Plain;
    /// Converts an element to the type that sums are computed in.
    fn widen(self) -> Self::Acc;
    /// Converts a sum to the storage type.
    fn narrow(x: Self::Acc) -> Self;
    /// Returns `a + b`.
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
integers!(u64 u32 u16 u8);

/// Evaluates the expression with `$t` as the storage type of a float or integer dtype; bool is an error of `$op`.
/// Signed integers are stored as unsigned ones, since their sums have the same bits.
macro_rules! with_sum {
    ($op:expr, $dtype:expr, $t:ident => $body:expr) => {
        $crate::access::match_dtype!(
            $dtype, $t => $body;
            F64: f64, F32: f32, F16: gradus_backend::f16, BF16: gradus_backend::bf16,
            I64 | U64: u64, I32 | U32: u32, I16 | U16: u16, I8 | U8: u8;
            other => Err(gradus_backend::Error::dtype($op, other, "floats and integers"))
        )
    };
}
pub(crate) use with_sum;
