//! [`Operand`], an operand of an elementwise operation, and [`AsOperand`], the types that can be passed for one.

use std::borrow::Borrow;

use gradus_backend::{Result, Scalar};

use crate::Tensor;

/// An operand of an elementwise operation.
#[derive(Debug, Clone, Copy)]
pub enum Operand<'a> {
    /// A tensor, which is broadcast with the other operands.
    Tensor(&'a Tensor),
    /// A number. It takes the dtype of the tensors, but a float used with integers makes the result a float.
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(t: &'a Tensor) -> Self {
        Operand::Tensor(t)
    }
}
impl<S: Into<Scalar>> From<S> for Operand<'_> {
    fn from(s: S) -> Self {
        Operand::Scalar(s.into())
    }
}

/// A type that can be passed as an operand: a tensor, a number, or a `Result` with a tensor, each owned or borrowed.
///
/// Methods and operators accept all of these: `x.maximum(0)`, `x.maximum(&y)`, `x.maximum(y.exp())`. An `Err` is passed
/// on.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an operand of a tensor operation",
    label = "neither a tensor nor a number that a tensor computes with",
    note = "an operand is a `Tensor`, a `Result` with one, or a `bool`, `u8`, `u32`, `i32`, `i64`, `f32` or `f64`",
    note = "another number is converted by hand: `n as f64`"
)]
pub trait AsOperand {
    /// Returns the operand, or the error that takes its place.
    ///
    /// # Errors
    /// Fails with the error of a `Result` that is an `Err`.
    fn as_operand(&self) -> Result<Operand<'_>>;
}

impl AsOperand for Tensor {
    #[inline]
    fn as_operand(&self) -> Result<Operand<'_>> {
        Ok(Operand::Tensor(self))
    }
}
impl<T: Borrow<Tensor>> AsOperand for Result<T> {
    fn as_operand(&self) -> Result<Operand<'_>> {
        match self {
            Ok(t) => Ok(Operand::Tensor(t.borrow())),
            Err(e) => Err(e.clone()),
        }
    }
}
impl AsOperand for Operand<'_> {
    #[inline]
    fn as_operand(&self) -> Result<Operand<'_>> {
        Ok(*self)
    }
}
impl<T: AsOperand + ?Sized> AsOperand for &T {
    #[inline]
    fn as_operand(&self) -> Result<Operand<'_>> {
        (**self).as_operand()
    }
}

macro_rules! numbers {
    ($($t:ty)*) => {$(
        impl AsOperand for $t {
            #[inline]
            fn as_operand(&self) -> Result<Operand<'_>> {
                Ok(Operand::Scalar(Scalar::from(*self)))
            }
        }
    )*};
}
numbers! { bool u8 u32 i32 i64 f32 f64 Scalar }
