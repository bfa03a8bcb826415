//! The programs that a thread has compiled most recently.

use std::cell::Cell;

use gradus_backend::kernel::{Inst, Value};
use gradus_backend::{DType, Kernel, Result};

use super::convert::Splat;
use super::program::{ArgMode, OutMode, Program};
use crate::isa::Isa;

/// The largest number of programs that a thread keeps.
const KEPT: usize = 16;

/// A program, and all that it depends on besides the values of arguments that are uniform.
#[derive(Debug, Default)]
struct Ready {
    insts: Vec<Inst>,
    outputs: Vec<(Value, DType)>,
    args: Vec<(ArgMode, Option<usize>)>,
    outs: Vec<OutMode>,
    program: Program,
}

#[derive(Debug, Default)]
struct Kept {
    all: Vec<Ready>,
    /// The number of the oldest program, once there are [`KEPT`].
    oldest: usize,
}

thread_local!(static PROGRAMS: Cell<Kept> = const { Cell::new(Kept { all: Vec::new(), oldest: 0 }) });

/// Calls `run` with the program that [`Program::compile`] makes of these arguments.
pub(super) fn with(
    isa: Isa,
    kernel: &Kernel,
    arg_modes: &[ArgMode],
    out_modes: &[OutMode],
    alias: impl Fn(usize) -> Option<usize>,
    fill: impl FnMut(usize, &mut Splat),
    run: impl FnOnce(&Program) -> Result<()>,
) -> Result<()> {
    let args = || arg_modes.iter().enumerate().map(|(k, &mode)| (mode, alias(k)));
    let is = |ready: &Ready| {
        ready.insts == kernel.insts()
            && ready.outputs == kernel.outputs()
            && ready.outs == out_modes
            && ready.args.iter().copied().eq(args())
    };
    let mut kept = PROGRAMS.try_with(Cell::take).unwrap_or_default();
    let made = match kept.all.iter().position(is) {
        Some(at) => {
            let program = &mut kept.all[at].program;
            program.refill(isa, kernel, fill).map(|()| &*program)
        }
        None => {
            let at = if kept.all.len() < KEPT {
                kept.all.push(Ready::default());
                kept.all.len() - 1
            } else {
                kept.oldest = (kept.oldest + 1) % KEPT;
                kept.oldest
            };
            let ready = &mut kept.all[at];
            // Until it is compiled, this is the program of no kernel.
            ready.insts.clear();
            ready.program.compile(isa, kernel, arg_modes, out_modes, &alias, fill).map(|()| {
                (ready.insts, ready.outputs) = (kernel.insts().to_vec(), kernel.outputs().to_vec());
                (ready.args, ready.outs) = (args().collect(), out_modes.to_vec());
                &ready.program
            })
        }
    };
    let done = made.and_then(run);
    let _ = PROGRAMS.try_with(|programs| programs.set(kept));
    done
}
