//! The verifier, which checks the conditions that every kernel must meet before a backend sees it. Kernels can be
//! created only here.

use super::op::TypeRule;
use super::{Inst, Kernel, Value};
use crate::{DType, Error, ErrorKind, Result};

/// Checks one instruction, given the instructions before it.
#[track_caller]
pub(super) fn inst(inst: &Inst, before: &[Inst], args: &[DType]) -> Result<()> {
    let name = inst.op.name();
    let mut operands = [DType::Bool; 3];
    for (to, &v) in operands.iter_mut().zip(inst.inputs()) {
        let def = before.get(usize::from(v));
        *to = def.ok_or_else(|| Error::argument("kernel", format!("{name} uses v{v} before it is defined")))?.dtype;
    }
    let (d, [a, b, c]) = (inst.dtype, operands);
    let same = |types: &[DType]| types.iter().all(|&t| t == d);
    let typed = |ok: bool, wanted: &str| {
        if ok {
            return Ok(());
        }
        let given: Vec<_> = operands[..inst.op.arity()].iter().map(|t| t.name()).collect();
        let m = format!("{name} of ({}) gives no {d}; it takes {wanted}", given.join(", "));
        Err(Error::new(ErrorKind::DTypeMismatch, "kernel", m))
    };
    if d.compute() != d {
        return typed(false, "a type that kernels compute in");
    }
    let all = &operands[..inst.op.arity()];
    match inst.op.rule() {
        TypeRule::Arg => {
            let super::ScalarOp::Arg(i) = inst.op else { return typed(false, "an argument") };
            typed(args.get(usize::from(i)).is_some_and(|t| t.compute() == d), "an argument of that type")
        }
        TypeRule::Const => {
            let super::ScalarOp::Const(value) = inst.op else { return typed(false, "a constant") };
            value.check(d)
        }
        TypeRule::Float => typed(d.is_float() && same(all), "floats of one type"),
        TypeRule::Number => typed(d != DType::Bool && same(all), "numbers of one type"),
        TypeRule::Signed => typed(d.is_signed() && same(all), "signed numbers of one type"),
        TypeRule::Test => typed(d == DType::Bool && a != DType::Bool, "a number"),
        TypeRule::Compare => typed(d == DType::Bool && a == b, "two values of one type"),
        TypeRule::Logic => typed(d == DType::Bool && same(all), "booleans"),
        TypeRule::Select => typed(a == DType::Bool && b == d && c == d, "a bool and two values of one type"),
        TypeRule::Cast => Ok(()),
    }
}

impl Kernel {
    /// Creates a kernel from its code; the inverse of [`args`](Kernel::args), [`insts`](Kernel::insts) and
    /// [`outputs`](Kernel::outputs). Returns an error if the code is not well formed.
    #[track_caller]
    pub fn from_parts(name: &str, args: &[DType], insts: Vec<Inst>, outputs: Vec<(Value, DType)>) -> Result<Kernel> {
        let (name, args) = (name.to_owned(), args.to_vec());
        let kernel = Kernel { name, args, insts, outputs, vjps: Default::default(), more_vjps: Default::default() };
        kernel.verify()?;
        Ok(kernel)
    }

    /// Checks that the code is well formed: every operand is defined before its use, dtypes agree, and each output is
    /// stored in its own dtype or, for f32 and f64, in half precision. Every way to create a kernel ends with this
    /// check.
    #[track_caller]
    pub fn verify(&self) -> Result<()> {
        for (i, one) in self.insts().iter().enumerate() {
            inst(one, &self.insts()[..i], self.args())?;
        }
        if self.outputs().is_empty() {
            return Err(Error::argument("kernel", format!("{:?} has no output", self.name())));
        }
        for &(v, d) in self.outputs() {
            let value = self.insts().get(usize::from(v));
            let half = d.compute() != d;
            if value.is_none_or(|i| i.dtype != d.compute() && !(half && i.dtype == DType::F64)) {
                let m = format!("output v{v} of {:?} cannot be stored as {d}", self.name());
                return Err(Error::new(ErrorKind::DTypeMismatch, "kernel", m));
            }
        }
        Ok(())
    }
}
