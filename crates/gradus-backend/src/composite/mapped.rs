//! An elementwise kernel, and the operation that reads its output.

use super::Temp;
use crate::{Backend, Error, Kernel, MapArg, Reader, Result, Shape, ViewMut};

/// See [`Backend::map_into`].
pub fn map_into<B: Backend + ?Sized>(
    b: &B,
    kernel: &Kernel,
    args: &[MapArg<'_>],
    shape: Shape,
    reader: Reader,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dtype = output(kernel, args)?;
    let mut x = Temp::new(b, dtype, shape)?;
    b.map(kernel, args, &mut [x.view_mut()])?;
    let x = x.view();
    match reader {
        Reader::Reduce(op, axes) => b.reduce(op, x, axes, out),
        Reader::Softmax { log, axis } => b.softmax(log, x, axis, out),
    }
}

/// The dtype of the only output of a kernel that [`map_into`] runs with these arguments.
pub fn output(kernel: &Kernel, args: &[MapArg<'_>]) -> Result<crate::DType> {
    let [(_, dtype)] = kernel.outputs() else {
        return Err(Error::argument(
            kernel.name(),
            "a kernel whose output is read where it is computed has one output",
        ));
    };
    if args.iter().any(|arg| matches!(arg, MapArg::Output(_))) {
        return Err(Error::argument(kernel.name(), "an argument is an output, which is not stored here"));
    }
    Ok(*dtype)
}
