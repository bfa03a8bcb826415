//! Kernels as text: `silu_mul(f32, f32) { v0 = arg 0 : f32; ... } -> (v4 : f32)`.

use std::fmt;

use super::{Kernel, ScalarOp};

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let args: Vec<_> = self.args().iter().map(|d| d.name()).collect();
        writeln!(f, "{}({}) {{", self.name(), args.join(", "))?;
        for (i, inst) in self.insts().iter().enumerate() {
            write!(f, "  v{i} = {}", inst.op.name())?;
            match inst.op {
                ScalarOp::Arg(a) => write!(f, " {a}")?,
                ScalarOp::Const(c) => write!(f, " {c}")?,
                _ => {
                    for (k, v) in inst.inputs().iter().enumerate() {
                        write!(f, "{} v{v}", if k == 0 { "" } else { "," })?;
                    }
                }
            }
            writeln!(f, " : {}", inst.dtype)?;
        }
        let outs: Vec<_> = self.outputs().iter().map(|(v, d)| format!("v{v} : {d}")).collect();
        write!(f, "}} -> ({})", outs.join(", "))
    }
}
