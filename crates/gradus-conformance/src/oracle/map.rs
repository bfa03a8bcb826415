//! Elementwise kernels: [`Kernel::eval`] at every element.

use gradus_backend::{Error, Kernel, MapArg, Result, Scalar, ViewMut};

use super::OracleBackend;
use super::access::same;
use super::value::converted;

enum Values {
    Each(Vec<Scalar>),
    One(Scalar),
}

pub(super) fn map(o: &OracleBackend, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
    let op = kernel.name();
    if args.len() != kernel.args().len() || outs.len() != kernel.outputs().len() {
        let (a, n) = (kernel.args().len(), kernel.outputs().len());
        let m = format!("the kernel has {a} arguments and {n} outputs, not {} and {}", args.len(), outs.len());
        return Err(Error::argument(op, m));
    }
    let shape = *outs[0].layout.shape();
    for (out, &(_, dtype)) in outs.iter().zip(kernel.outputs()) {
        same(op, "an output", &out.as_view(), dtype, &shape)?;
        o.writable(op, "an output", &out.as_view())?;
    }
    let mut inputs = Vec::new();
    for (arg, &dtype) in args.iter().zip(kernel.args()) {
        inputs.push(match arg {
            MapArg::View(v) => {
                same(op, "an argument", v, dtype, &shape)?;
                Values::Each(o.read(op, "an argument", *v)?)
            }
            MapArg::Output(i) => {
                let out = outs.get(*i).ok_or_else(|| Error::argument(op, format!("there is no output {i}")))?;
                same(op, "an output that is read", &out.as_view(), dtype, &shape)?;
                Values::Each(o.read(op, "an output", out.as_view())?)
            }
            MapArg::Scalar(s) => {
                s.check(dtype).map_err(|e| Error::argument(op, e.message()))?;
                Values::One(converted(*s, dtype))
            }
        });
    }
    let mut results = vec![Vec::with_capacity(shape.numel()); outs.len()];
    let mut values = Vec::with_capacity(args.len());
    for i in 0..shape.numel() {
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
        o.write(op, "an output", out, &result)?;
    }
    Ok(())
}
