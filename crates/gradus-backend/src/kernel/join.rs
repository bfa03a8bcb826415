//! [`Kernel::joined`]: two kernels in one.

use super::{Expr, Kernel, KernelBuilder, ScalarOp, Value};
use crate::{DType, Error, Result};

/// Where an argument of one of two joined kernels comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinArg {
    /// Argument number `.0` of the joined kernel.
    Arg(usize),
    /// The value of the first kernel's only output.
    First,
}

impl Kernel {
    /// The kernel that computes `second` with the output of `first` in place of some of its arguments. Its own arguments
    /// have the dtypes `args`; `first_args` and `second_args` say which of these each kernel reads. Its values are those
    /// of the two kernels run one after the other, to the bit: a result in half precision is rounded. If `keeps`, its last
    /// output is that of `first`.
    ///
    /// # Errors
    /// Fails if `first` has several outputs, if the arguments do not match, or if the joined kernel would have too many.
    #[track_caller]
    pub fn joined(
        first: &Kernel,
        second: &Kernel,
        args: &[DType],
        first_args: &[usize],
        second_args: &[JoinArg],
        keeps: bool,
    ) -> Result<Kernel> {
        let [(value, stored)] = first.outputs[..] else {
            return Err(Error::argument("kernel", "only a kernel with one output is joined into another"));
        };
        let builder = KernelBuilder::new(args);
        let exprs = builder.args();
        let arg = |i: usize, dtype: DType| match exprs.get(i) {
            Some(&e) if args[i] == dtype => Ok(e),
            _ => Err(Error::argument("kernel", format!("argument {i} of the joined kernel is not a {dtype}"))),
        };
        let matched = first_args.len() == first.args.len() && second_args.len() == second.args.len();
        if !matched {
            return Err(Error::argument("kernel", "an argument of a joined kernel is missing"));
        }
        let operands = first_args.iter().zip(&first.args).map(|(&i, &d)| arg(i, d)).collect::<Result<Vec<_>>>()?;
        let values = inlined(&builder, first, &operands);
        // What an argument of the second kernel would have loaded.
        let result = values[usize::from(value)].stored_as(stored).cast(stored);
        let operand = |(from, &dtype): (&JoinArg, &DType)| match *from {
            JoinArg::Arg(i) => arg(i, dtype),
            JoinArg::First if dtype == stored => Ok(result),
            JoinArg::First => {
                Err(Error::argument("kernel", format!("{} reads a {dtype}, not a {stored}", second.name)))
            }
        };
        let operands = second_args.iter().zip(&second.args).map(operand).collect::<Result<Vec<_>>>()?;
        let values = inlined(&builder, second, &operands);
        let kept = keeps.then_some((result, stored));
        let outputs: Vec<_> = second.outputs.iter().map(|&(v, d)| (values[usize::from(v)], d)).chain(kept).collect();
        let name =
            if first.name == second.name { first.name.clone() } else { format!("{}+{}", first.name, second.name) };
        builder.finish(&name, &outputs)
    }
}

/// Adds the code of `kernel` with these arguments, and returns its values.
fn inlined<'k>(builder: &'k KernelBuilder, kernel: &Kernel, args: &[Expr<'k>]) -> Vec<Expr<'k>> {
    // At most one value for each instruction of the kernel.
    let mut values: Vec<Expr<'k>> = Vec::with_capacity(kernel.insts.len());
    for inst in &kernel.insts {
        values.push(match inst.op {
            ScalarOp::Arg(i) => args[usize::from(i)],
            op => {
                let operands: Vec<Value> = inst.inputs().iter().map(|&v| values[usize::from(v)].value()).collect();
                builder.push(op, inst.dtype, &operands)
            }
        });
    }
    values
}
