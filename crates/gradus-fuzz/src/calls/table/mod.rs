//! The table of entry points. Each has a row, which contains the code that draws the arguments.
//!
//! The row of a `Tensor` method has the method's name, so a test can list the methods without a row. Other functions
//! have names with `::`. To fuzz a new method, add a row to the file of its family.

mod all;
mod autograd;
mod create;
mod elementwise;
mod index;
mod inplace;
mod loss;
mod nn;
mod picture;
mod planted;
mod product;
mod reduce;
mod shape;
mod window;

use gradus::prelude::*;
use gradus::{Gradients, Unique};

use crate::calls::Draw;

pub use all::{all, planted};

/// One entry point.
pub struct Row {
    /// The name of the method, or the path of another function.
    pub name: &'static str,
    /// Whether its inputs may have absurdly long broadcast axes, because its time depends only on the size of its
    /// output.
    pub huge: bool,
    call: Call,
}

/// How a row draws its arguments and calls the entry point.
enum Call {
    Plain(fn(&mut Draw) -> Result<Vec<Tensor>>),
    /// Calls an entry of the table of elementwise operations, or another sample.
    Of(Box<Drawn>),
}

type Drawn = dyn Fn(&mut Draw) -> Result<Vec<Tensor>> + Sync;

impl Row {
    /// Draws arguments and calls the entry point.
    pub fn call(&self, d: &mut Draw) -> Result<Vec<Tensor>> {
        match &self.call {
            Call::Plain(call) => call(d),
            Call::Of(call) => call(d),
        }
    }
}

/// Rows whose time also depends on the size of their inputs.
const SHORT: bool = false;
/// Rows that return quickly, or fail, however long a broadcast axis is.
const LONG: bool = true;

/// A list of rows. If a method of `Draw` is named, it draws the first argument of every row.
macro_rules! rows {
    ($huge:ident; $($name:ident $(:: $part:ident)* |$d:ident| $call:expr;)*) => {
        &[$($crate::calls::table::Row {
            name: concat!(stringify!($name) $(, "::", stringify!($part))*),
            huge: $huge,
            call: $crate::calls::table::Call::Plain(|$d: &mut $crate::calls::Draw| {
                Ok($crate::calls::table::Give::give($call?))
            }),
        }),*]
    };
    ($huge:ident $first:ident; $($name:ident $(:: $part:ident)* |$x:ident, $d:ident| $call:expr;)*) => {
        &[$($crate::calls::table::Row {
            name: concat!(stringify!($name) $(, "::", stringify!($part))*),
            huge: $huge,
            call: $crate::calls::table::Call::Plain(|$d: &mut $crate::calls::Draw| {
                let $x = $d.$first()?;
                Ok($crate::calls::table::Give::give($call?))
            }),
        }),*]
    };
}
use rows;

/// Converts the result of a call to the tensors that are then inspected.
trait Give {
    fn give(self) -> Vec<Tensor>;
}

impl Give for Tensor {
    fn give(self) -> Vec<Tensor> {
        vec![self]
    }
}

impl Give for (Tensor, Tensor) {
    fn give(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }
}

impl Give for Vec<Tensor> {
    fn give(mut self) -> Vec<Tensor> {
        // A result may consist of thousands of tensors; inspecting a few is enough.
        self.truncate(8);
        self
    }
}

impl<T: Give> Give for Option<T> {
    fn give(self) -> Vec<Tensor> {
        self.map_or(vec![], T::give)
    }
}

impl Give for Unique {
    fn give(self) -> Vec<Tensor> {
        [Some(self.values), self.inverse, self.counts].into_iter().flatten().collect()
    }
}

/// Results of which no tensors are inspected.
macro_rules! nothing {
    ($($t:ty)*) => {$(impl Give for $t {
        fn give(self) -> Vec<Tensor> {
            vec![]
        }
    })*};
}
nothing! { () bool usize f64 u64 String DType Gradients Vec<u8> Vec<usize> Vec<f64> Vec<i64> Vec<bool> }
