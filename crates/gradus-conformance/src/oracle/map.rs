//! Elementwise kernels: [`Kernel::eval`] at every element.

use gradus_backend::host::converted;
use gradus_backend::{Kernel, MapArg, Result, Scalar, ViewMut, check};

use super::OracleBackend;

enum Values {
    Each(Vec<Scalar>),
    One(Scalar),
}

pub(super) fn map(o: &OracleBackend, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
    check::map(kernel, args, outs)?;
    let op = kernel.name();
    let mut inputs = Vec::new();
    for (arg, &dtype) in args.iter().zip(kernel.args()) {
        inputs.push(match *arg {
            MapArg::View(x) => Values::Each(o.memory.read(op, x)?),
            MapArg::Output(i) => Values::Each(o.memory.read(op, outs[i].as_view())?),
            MapArg::Scalar(s) => Values::One(converted(s, dtype)),
        });
    }
    let n = outs[0].layout.numel();
    let mut results = vec![Vec::with_capacity(n); outs.len()];
    let mut values = Vec::with_capacity(args.len());
    for i in 0..n {
        values.clear();
        values.extend(inputs.iter().map(|v| match v {
            Values::Each(all) => all[i],
            Values::One(one) => *one,
        }));
        for (result, value) in results.iter_mut().zip(kernel.eval(&values)?) {
            result.push(value);
        }
    }
    for (out, result) in outs.iter_mut().zip(results) {
        o.memory.write(op, out, &result)?;
    }
    Ok(())
}
