//! The elementwise IR: a [`Kernel`] is straight-line SSA code over scalars.
//!
//! A kernel has typed arguments and one or more typed outputs. Applied to tensors, it makes a single pass over memory,
//! however much it computes. Every activation, gated product, comparison, cast and optimiser step is such a kernel, and
//! so is its gradient ([`Kernel::vjp`]). The same kernel serves every backend: the CPU interprets it block by block,
//! and GPUs compile source text generated from it.
//!
//! An f16 or bf16 argument is widened to f32 when it is loaded, and an output is rounded once when it is stored. Values
//! inside a kernel therefore always have a compute dtype ([`DType::compute`](crate::DType::compute)).
//!
//! ```
//! use gradus_backend::{DType, Kernel, Scalar};
//! let silu_mul = Kernel::build("silu_mul", &[DType::F32, DType::F32], |x| vec![x[0] * x[0].sigmoid() * x[1]])?;
//! let y = silu_mul.eval(&[Scalar::Float(0.7), Scalar::Float(1.3)])?;
//! assert!((y[0].to_f64() - 0.608).abs() < 1e-3);
//! # Ok::<(), gradus_backend::Error>(())
//! ```

mod activations;
mod build;
mod code;
mod display;
mod eval;
mod join;
mod op;
mod verify;
mod vjp;

pub use build::{Expr, KernelBuilder};
pub use code::{Inst, Kernel, MAX_ARGS, Value, Vjp, VjpArg};
pub use eval::{floor_div, integer_failure, sigmoid, softplus};
pub use join::JoinArg;
pub use op::{ScalarOp, TypeRule};

#[cfg(test)]
mod tests;
