//! The entries of the table, and the macro that generates everything from them.

use gradus_backend::Result;

use crate::Tensor;
use crate::ops::{Class, Elementwise};

/// An operation of the table, with everything that tests and generated pages need to know about it.
#[derive(Debug)]
pub struct Entry {
    /// The operation.
    pub op: &'static Elementwise,
    /// The class of dtypes in which the operation computes.
    pub class: Class,
    /// The documentation of its method, line by line.
    pub doc: &'static [&'static str],
    /// The number of tensor operands.
    pub tensors: usize,
    /// Scalar operands, which come after the tensors: their names, and values to test with.
    pub scalars: &'static [(&'static str, f64)],
    /// Whether operand 0 is a condition.
    pub condition: bool,
    /// Values at which the operation is smooth; tests compare its gradient with finite differences there.
    pub smooth: &'static [f64],
    /// The same function in PyTorch: a Python expression of the tensors `a`, `b`, `c` and of the scalars by name. It is
    /// empty if PyTorch has no such function; the gradient is then checked only against finite differences.
    pub torch: &'static str,
    /// The points where the operation has no slope, or an infinite one.
    pub kinks: &'static [Kink],
    /// Calls the method on as many tensors as it has tensor operands, with the scalars above, and returns its only
    /// output. The recorded operation has a location in the table.
    pub call: fn(&[Tensor]) -> Result<Vec<Tensor>>,
}

/// A point at which an operation has a corner, a step or an infinite slope, so that its gradient there is a choice.
#[derive(Debug)]
pub struct Kink {
    /// The point, in words.
    pub at: &'static str,
    /// The operands, with one list for each.
    pub inputs: &'static [&'static [f64]],
    /// The slopes for each operand, to four decimal places: `"0, 1; 2, 3"`.
    pub slopes: &'static str,
    /// Why these slopes were chosen.
    pub why: &'static str,
}

/// One more than the number of names.
macro_rules! count {
    ($($name:ident)*) => { 1 $(+ { let _ = stringify!($name); 1 })* };
}

/// Defines the methods, the statics and the [`Entry`]s of a table. `conditions` is a mask of the operands that are
/// conditions. `needs` is a function that checks the scalar operands and returns what is wrong with them.
macro_rules! table {
    ($(
        $(#[doc = $doc:literal])*
        $const:ident $method:ident($($operand:ident),*) $class:ident {
            $(scalars: [$($scalar:ident = $sample:literal),*],)? $(needs: $rule:ident,)? $(conditions: $mask:literal,)?
            smooth: $smooth:expr, torch: $torch:literal,
            $(kinks: [$({ at: $at:literal, inputs: [$([$($input:expr),*]),*], slopes: $slopes:literal, why: $why:literal }),* $(,)?],)?
            formula: |$x:ident| $body:expr $(,)?
        }
    )*) => {
        impl Tensor {
            $(
                $(#[doc = $doc])*
                #[track_caller]
                pub fn $method(&self $(, $operand: impl AsOperand)* $($(, $scalar: impl Into<Scalar>)*)?) -> Result<Tensor> {
                    $const.apply(&[
                        Operand::Tensor(self) $(, $operand.as_operand()?)* $($(, Operand::Scalar($scalar.into()))*)?
                    ])
                }
            )*
        }

        $(
            #[doc = concat!("See [`Tensor::", stringify!($method), "`].")]
            pub static $const: Elementwise = Elementwise::new(
                stringify!($method), Class::$class, count!($($operand)* $($($scalar)*)?), |$x| vec![$body],
            )$(.conditions($mask))?$(.numbers($rule))?;
        )*

        /// Every entry of the table.
        pub static TABLE: &[Entry] = &[$(
            Entry {
                op: &$const,
                class: Class::$class,
                doc: &[$($doc),*],
                tensors: count!($($operand)*),
                scalars: &[$($((stringify!($scalar), $sample)),*)?],
                condition: false $(|| $mask != 0)?,
                smooth: $smooth,
                torch: $torch,
                kinks: &[$($(Kink { at: $at, inputs: &[$(&[$($input),*]),*], slopes: $slopes, why: $why }),*)?],
                call: |x| match x {
                    [this $(, $operand)*] => Ok(vec![this.$method($($operand,)* $($($sample),*)?)?]),
                    _ => Err(Error::new(ErrorKind::InvalidArgument, stringify!($method), "another number of tensors")),
                },
            },
        )*];
    };
}

pub(super) use {count, table};
