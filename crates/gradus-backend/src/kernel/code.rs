//! [`Kernel`]: its code, and the gradients that it keeps.

use std::sync::{Arc, Mutex, OnceLock};

use super::op::ScalarOp;
use crate::DType;

/// Number of a value within its kernel: the index of the instruction that makes it.
pub type Value = u16;

/// The largest number of arguments of a kernel.
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

/// Straight-line code over scalars; see the [module page](super). Verified when made, immutable afterwards.
#[derive(Debug)]
pub struct Kernel {
    pub(super) name: String,
    pub(super) args: Vec<DType>,
    pub(super) insts: Vec<Inst>,
    pub(super) outputs: Vec<(Value, DType)>,
    /// Vector-Jacobian products by mask of wanted arguments, made on first use. Masks over the first three arguments
    /// have a slot of their own, reached without a lock.
    pub(super) vjps: [OnceLock<Arc<Vjp>>; 8],
    pub(super) more_vjps: Mutex<Vec<(u32, Arc<Vjp>)>>,
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
    /// Wanted arguments whose gradient is the unchanged gradient of an output, as (argument, output). No kernel has to run
    /// for them.
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
    /// Whether the gradient reads argument `i` of the original kernel, which must then be saved for the backward pass.
    pub fn reads_input(&self, i: usize) -> bool {
        self.args.contains(&VjpArg::Input(i))
    }
}

impl Kernel {
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
