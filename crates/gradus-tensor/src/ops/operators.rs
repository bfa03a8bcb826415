//! The operators `+`, `-`, `*`, `/`, `%` and unary `-`. The documentation of [`Tensor`] says what they accept and
//! return.
//!
//! A number on the left is an `f64` or an `i64`. If `f32` were allowed too, `2.0 * &x` would be ambiguous, and the
//! compiler would ask for the type of the result. On the right, any [`AsOperand`](crate::AsOperand) is accepted, since
//! one implementation covers them all. Rust does not allow implementations of `Result + Result` and `Result + 1.0`,
//! where neither side is a type of this crate.

/// Implements the operators for a type that has an [`AsOperand`](crate::AsOperand). The arguments are the forms in
/// which it is passed: `operators!(Tensor, &Tensor)`.
#[doc(hidden)]
#[macro_export]
macro_rules! operators {
    ($($t:ty),+) => {$(
        $crate::operators!(each $t: Add add ADD, Sub sub SUB, Mul mul MUL, Div div DIV, Rem rem FMOD);
        impl ::std::ops::Neg for $t {
            type Output = $crate::Result<$crate::Tensor>;
            #[track_caller]
            fn neg(self) -> Self::Output {
                $crate::ops::table::NEG.apply(&[$crate::AsOperand::as_operand(&self)?])
            }
        }
    )+};
    (each $t:ty: $($trait:ident $method:ident $op:ident),*) => {$(
        impl<R: $crate::AsOperand> ::std::ops::$trait<R> for $t {
            $crate::operators!(method $method $op R);
        }
        impl<L: ::std::borrow::Borrow<$crate::Tensor>> ::std::ops::$trait<$t> for $crate::Result<L> {
            $crate::operators!(method $method $op $t);
        }
        impl ::std::ops::$trait<$t> for f64 {
            $crate::operators!(method $method $op $t);
        }
        impl ::std::ops::$trait<$t> for i64 {
            $crate::operators!(method $method $op $t);
        }
    )*};
    (method $method:ident $op:ident $other:ty) => {
        type Output = $crate::Result<$crate::Tensor>;
        #[track_caller]
        fn $method(self, other: $other) -> Self::Output {
            $crate::ops::table::$op.apply(&[$crate::AsOperand::as_operand(&self)?, $crate::AsOperand::as_operand(&other)?])
        }
    };
}

use crate::Tensor;

operators!(Tensor, &Tensor);
