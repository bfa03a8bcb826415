//! [`Kernel`]: its code and its cached gradients.

use std::sync::{Arc, Mutex, OnceLock};

use super::op::ScalarOp;
use crate::DType;

/// The number of a value within its kernel: the index of the instruction that defines it.
pub type Value = u16;

/// The maximum number of arguments of a kernel.
pub const MAX_ARGS: usize = 32;

/// One instruction; it defines the value whose number is its own index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inst {
    /// The operation that it computes.
    pub op: ScalarOp,
    /// The dtype of the value that it defines; always a compute dtype.
    pub dtype: DType,
    /// The operands. Only the first `op.arity()` are used; each must be defined earlier.
    pub operands: [Value; 3],
}

impl Inst {
    /// The operands that are used.
    pub fn inputs(&self) -> &[Value] {
        &self.operands[..self.op.arity()]
    }
}

/// Straight-line code over scalars; see the [module page](super). It is verified on creation and immutable afterwards.
#[derive(Debug)]
pub struct Kernel {
    pub(super) name: String,
    pub(super) args: Vec<DType>,
    pub(super) insts: Vec<Inst>,
    pub(super) outputs: Vec<(Value, DType)>,
    /// Vector-Jacobian products by mask of wanted arguments, built on first use. Masks over the first three arguments
    /// have slots of their own here, which are read without a lock; the others are in `more_vjps`.
    pub(super) vjps: [OnceLock<Arc<Vjp>>; 8],
    pub(super) more_vjps: Mutex<Vec<(u32, Arc<Vjp>)>>,
}

/// The gradient of a kernel with respect to a choice of its arguments, returned by [`Kernel::vjp`].
#[derive(Debug)]
pub struct Vjp {
    /// The gradient as a kernel. Its arguments are listed in `args`. Its outputs are the gradients of the arguments in
    /// `wanted`, in that order.
    pub kernel: Arc<Kernel>,
    /// The meaning of each argument of `kernel`.
    pub args: Vec<VjpArg>,
    /// The arguments whose gradients `kernel` computes.
    pub wanted: Vec<usize>,
    /// Pairs (argument, output) of wanted arguments whose gradient is simply the gradient of an output. They need no
    /// kernel.
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
    /// Whether the gradient reads argument `i` of the original kernel, so that it must be saved for the backward pass.
    pub fn reads_input(&self, i: usize) -> bool {
        self.args.contains(&VjpArg::Input(i))
    }
}

impl Kernel {
    /// The name that errors, graphs and logs show.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The storage dtypes of the arguments.
    pub fn args(&self) -> &[DType] {
        &self.args
    }

    /// The code: instruction `i` defines value `i`.
    pub fn insts(&self) -> &[Inst] {
        &self.insts
    }

    /// Whether the kernel fails on some numbers: it divides integers, which may be zero, or raises them to a power, which
    /// may be negative.
    pub fn can_fail(&self) -> bool {
        use ScalarOp::{Div, FloorDiv, Fmod, Pow, Remainder};
        self.insts.iter().any(|i| matches!(i.op, Div | FloorDiv | Fmod | Pow | Remainder) && !i.dtype.is_float())
    }

    /// The value and the storage dtype of each output.
    pub fn outputs(&self) -> &[(Value, DType)] {
        &self.outputs
    }
}

/// Kernels are equal if their code is equal, regardless of their names.
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
