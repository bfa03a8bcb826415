//! The programs that a thread has compiled most recently.

use std::cell::Cell;

use gradus_backend::kernel::{Inst, Value};
use gradus_backend::{DType, Kernel, Result};

use super::convert::Splat;
use super::program::{ArgMode, OutMode, Program};
use crate::isa::Isa;

/// The largest number of programs that a thread keeps, and of the instructions of each.
const KEPT: usize = 16;
const LONGEST: usize = 1024;

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
    /// The number of the oldest program, which is the next to be replaced, once there are [`KEPT`].
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
    if kernel.insts().len() > LONGEST {
        let mut program = Program::default();
        return program.compile(isa, kernel, arg_modes, out_modes, alias, fill).and_then(|()| run(&program));
    }
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
                let at = kept.oldest;
                kept.oldest = (at + 1) % KEPT;
                at
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

#[cfg(test)]
mod tests {
    use gradus_backend::kernel::Expr;
    use gradus_backend::{Backend, MapArg, Scalar};

    use super::*;
    use crate::CpuBackend;
    use crate::testing::{Lie, Tensor};

    fn build(f: impl for<'k> Fn(Expr<'k>) -> Expr<'k>) -> Kernel {
        Kernel::build("k", &[DType::F32], |x| vec![f(x[0])]).unwrap()
    }

    /// The kernel `(x + number) / 2`, which has several instructions.
    fn half(number: usize) -> Kernel {
        build(|x| (x + number as f64) / 2.0)
    }

    fn is_kept(kernel: &Kernel) -> bool {
        let kept = PROGRAMS.take();
        let found = kept.all.iter().any(|ready| ready.insts == kernel.insts());
        PROGRAMS.set(kept);
        found
    }

    fn tensor(cpu: &CpuBackend, from: f64) -> Tensor {
        Tensor::new(cpu, DType::F32, &[300], Lie::Contiguous, |i| from + i as f64)
    }

    /// Asserts that the kernel of `number` is right.
    fn check(cpu: &CpuBackend, number: usize) {
        let (x, mut y) = (tensor(cpu, 1.0), tensor(cpu, 0.0));
        cpu.map(&half(number), &[MapArg::View(x.view())], &mut [y.view_mut()]).unwrap();
        assert!(y.values(cpu).iter().enumerate().all(|(i, &v)| v == (1 + i + number) as f64 / 2.0), "{number}");
    }

    #[test]
    fn the_oldest_program_makes_room_for_a_new_one() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        for number in 1..=3 * KEPT {
            check(&cpu, number);
            for earlier in 1..=number {
                assert_eq!(is_kept(&half(earlier)), earlier + KEPT > number, "{earlier} after {number}");
            }
        }
        // In turn, none is found again.
        (0..3 * KEPT).for_each(|i| check(&cpu, 1 + i % (KEPT + 1)));
    }

    #[test]
    fn an_argument_that_is_an_output_is_another_program() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        // If the argument is the first output, its old values must outlive that output.
        let kernel = Kernel::build("k", &[DType::F32], |x| vec![x[0] + 3.0, x[0] * 2.0]).unwrap();
        let (x, mut z) = (tensor(&cpu, 1.0), tensor(&cpu, 0.0));
        for is_output in [false, true, false, true] {
            let mut y = tensor(&cpu, 1.0);
            let arg = if is_output { MapArg::Output(0) } else { MapArg::View(x.view()) };
            cpu.map(&kernel, &[arg], &mut [y.view_mut(), z.view_mut()]).unwrap();
            assert!(y.values(&cpu).iter().enumerate().all(|(i, &v)| v == (4 + i) as f64), "{is_output}");
            assert!(z.values(&cpu).iter().enumerate().all(|(i, &v)| v == (2 + 2 * i) as f64), "{is_output}");
        }
    }

    #[test]
    fn a_kept_program_that_fails_on_numbers_is_right_with_others() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let kernel = Kernel::build("k", &[DType::I64; 3], |x| vec![x[0] + x[1] / x[2]]).unwrap();
        let x = Tensor::new(&cpu, DType::I64, &[300], Lie::Contiguous, |i| i as f64);
        for (divisor, want) in [(0, None), (2, Some(3)), (0, None), (3, Some(2)), (1, Some(6))] {
            let mut y = Tensor::canary(&cpu, DType::I64, &[300], Lie::Contiguous);
            let numbers = [6, divisor].map(|n| MapArg::Scalar(Scalar::Int(n)));
            let done = cpu.map(&kernel, &[MapArg::View(x.view()), numbers[0], numbers[1]], &mut [y.view_mut()]);
            assert_eq!(done.is_ok(), want.is_some(), "{divisor}");
            if let Some(want) = want {
                assert!(y.values(&cpu).iter().enumerate().all(|(i, &v)| v == (i + want) as f64), "{divisor}");
                assert!(is_kept(&kernel));
            }
        }
    }

    #[test]
    fn a_very_long_program_runs_and_is_not_kept() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let x = tensor(&cpu, 1.0);
        for (additions, is) in [(LONGEST / 4, true), (LONGEST, false)] {
            let kernel = build(|x| (0..additions).fold(x, |y, i| y + i as f64));
            assert_eq!(kernel.insts().len() <= LONGEST, is, "{} instructions", kernel.insts().len());
            let mut y = tensor(&cpu, 0.0);
            cpu.map(&kernel, &[MapArg::View(x.view())], &mut [y.view_mut()]).unwrap();
            let sum: usize = (0..additions).sum();
            assert!(y.values(&cpu).iter().enumerate().all(|(i, &v)| v == (1 + i + sum) as f64));
            assert_eq!(is_kept(&kernel), is);
        }
    }
}
