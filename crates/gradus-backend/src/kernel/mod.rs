//! The elementwise IR: a [`Kernel`] is straight-line SSA code over scalars.
//!
//! A kernel has typed arguments and one or more typed outputs; applied to tensors it is one pass over memory, whatever
//! it computes. Every activation, gated product, comparison, cast and optimiser step is such a kernel, and so is its
//! gradient ([`Kernel::vjp`]). One value serves every backend: the CPU interprets it over blocks, GPUs compile its text.
//!
//! Types: an f16 or bf16 argument is widened to f32 when loaded and an output is rounded once when stored, so that values
//! inside a kernel have one of the compute types only ([`DType::compute`](crate::DType::compute)).
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
mod op;
mod verify;
mod vjp;

pub use build::{Expr, KernelBuilder};
pub use code::{Inst, Kernel, MAX_ARGS, Value, Vjp, VjpArg};
pub use eval::{floor_div, integer_failure, sigmoid, softplus};
pub use op::{ScalarOp, TypeRule};

#[cfg(test)]
mod tests;
