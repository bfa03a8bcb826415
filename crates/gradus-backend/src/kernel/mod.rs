//! The elementwise IR: a [`Kernel`] is straight-line SSA code over scalars.
//!
//! A kernel has typed arguments and one or more typed outputs; applied to tensors it is one pass over memory, whatever
//! it computes. Every activation, gated product, comparison, cast and optimiser step is such a kernel, and so is its
//! gradient ([`Kernel::vjp`]). One value serves every backend: the CPU interprets it over blocks, GPUs compile its text.
//!
//! Types: an f16 or bf16 argument is widened to f32 when loaded and an output is rounded once when stored, so that values
//! inside a kernel have one of the compute types only ([`DType::compute`]).
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
mod display;
mod eval;
mod op;
mod verify;
mod vjp;

use std::sync::{Arc, Mutex, OnceLock};

pub use build::{Expr, KernelBuilder};
pub use eval::{floor_div, integer_failure, sigmoid, softplus};
pub use op::{ScalarOp, TypeRule};

use crate::{DType, Result};

/// Number of a value within its kernel: the index of the instruction that makes it.
pub type Value = u16;

/// Most arguments that a kernel can have.
pub const MAX_ARGS: usize = 32;

/// One instruction; it defines the value with its own index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inst {
    /// What it computes.
    pub op: ScalarOp,
    /// Type of the value that it defines: a compute type.
    pub dtype: DType,
    /// Operands, of which the first `op.arity()` count; each is defined earlier.
    pub operands: [Value; 3],
}

impl Inst {
    /// The operands that count.
    pub fn inputs(&self) -> &[Value] {
        &self.operands[..self.op.arity()]
    }
}

/// Straight-line code over scalars; see the [module page](self). Verified when made, immutable afterwards.
#[derive(Debug)]
pub struct Kernel {
    name: String,
    args: Vec<DType>,
    insts: Vec<Inst>,
    outputs: Vec<(Value, DType)>,
    /// Vector-Jacobian products by mask of wanted arguments, made on first use. Masks over the first three arguments
    /// have a slot of their own, reached without a lock.
    vjps: [OnceLock<Arc<Vjp>>; 8],
    more_vjps: Mutex<Vec<(u32, Arc<Vjp>)>>,
}

/// The gradient of a kernel, for a choice of its arguments; made by [`Kernel::vjp`].
#[derive(Debug)]
pub struct Vjp {
    /// The gradient as a kernel. Its arguments are those listed in `args`, its outputs are the gradients of the wanted
    /// arguments, in their order.
    pub kernel: Arc<Kernel>,
    /// What each argument of `kernel` is.
    pub args: Vec<VjpArg>,
    /// The wanted arguments, of which `kernel` gives the gradients.
    pub wanted: Vec<usize>,
    /// Those of them whose gradient is that of an output, unchanged: (argument, output). No kernel has to run for them.
    pub passed: Vec<(usize, usize)>,
}

/// One argument of a gradient kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VjpArg {
    /// Argument `.0` of the original kernel.
    Input(usize),
    /// The gradient of output `.0` of the original kernel.
    Grad(usize),
}

impl Vjp {
    /// Whether the gradient reads argument `i` of the original kernel: what has to be kept for it.
    pub fn reads_input(&self, i: usize) -> bool {
        self.args.contains(&VjpArg::Input(i))
    }
}

impl Kernel {
    /// A kernel of this code: the inverse of [`args`](Kernel::args), [`insts`](Kernel::insts) and
    /// [`outputs`](Kernel::outputs). Errors if it is not well formed.
    #[track_caller]
    pub fn from_parts(name: &str, args: &[DType], insts: Vec<Inst>, outputs: Vec<(Value, DType)>) -> Result<Kernel> {
        let (name, args) = (name.to_owned(), args.to_vec());
        let kernel = Kernel { name, args, insts, outputs, vjps: Default::default(), more_vjps: Default::default() };
        kernel.verify()?;
        Ok(kernel)
    }

    /// The name that errors, graphs and logs show.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Storage dtypes of the arguments.
    pub fn args(&self) -> &[DType] {
        &self.args
    }

    /// The code: instruction `i` defines value `i`.
    pub fn insts(&self) -> &[Inst] {
        &self.insts
    }

    /// Value and storage dtype of each output.
    pub fn outputs(&self) -> &[(Value, DType)] {
        &self.outputs
    }

    /// [`vjp`](Kernel::vjp) if it was asked for before and `wanted` is of the first three arguments: without a lock, or a
    /// count of handles.
    #[inline]
    pub fn made_vjp(&self, wanted: u32) -> Option<&Vjp> {
        self.vjps.get(wanted as usize)?.get().map(|vjp| &**vjp)
    }

    /// The gradient for the arguments in `wanted` (bit `i` for argument `i`), made once and kept.
    ///
    /// Arguments that are not float have no gradient and are left out. An argument that no output depends on smoothly
    /// has gradient zero. The result is a kernel again, so gradients of any order follow.
    ///
    /// # Errors
    /// The gradient of a very long kernel has more instructions or arguments than a kernel can have.
    #[track_caller]
    pub fn vjp(&self, wanted: u32) -> Result<Arc<Vjp>> {
        if let Some(slot) = self.vjps.get(wanted as usize) {
            if let Some(v) = slot.get() {
                return Ok(v.clone());
            }
            let v = Arc::new(vjp::make(self, wanted)?);
            return Ok(slot.get_or_init(|| v).clone());
        }
        let mut more = self.more_vjps.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, v)) = more.iter().find(|(m, _)| *m == wanted) {
            return Ok(v.clone());
        }
        let v = Arc::new(vjp::make(self, wanted)?);
        more.push((wanted, v.clone()));
        Ok(v)
    }
}

/// Equality of the code, whatever the name.
impl PartialEq for Kernel {
    fn eq(&self, other: &Self) -> bool {
        self.args == other.args && self.insts == other.insts && self.outputs == other.outputs
    }
}
impl Eq for Kernel {}
impl std::hash::Hash for Kernel {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.args.hash(state);
        self.insts.hash(state);
        self.outputs.hash(state);
    }
}

#[cfg(test)]
mod tests;
