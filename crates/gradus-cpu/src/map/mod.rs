//! The elementwise engine: kernels over strided, broadcast views.
//!
//! [`map`] checks its operands once and takes one of two paths. A single float instruction on contiguous memory runs as
//! one loop ([`direct`]). Everything else becomes a [`program`] of loops over blocks that stay in the L1 cache
//! ([`run`](mod@run)). The interpreter costs one dispatch per instruction and block, and intermediate values never
//! reach memory. Each thread keeps its latest [programs](ready), because compiling one takes longer than a small call.

mod chain;
mod compiled;
mod convert;
mod direct;
mod float;
mod int;
mod mapped;
mod program;
mod ready;
mod run;
mod step;

use gradus_backend::kernel::MAX_ARGS;
use gradus_backend::{DType, Error, ErrorKind, Kernel, MapArg, Result, ViewMut};
use smallvec::SmallVec;

use crate::CpuBackend;
use crate::access::{check_dtype, check_shape};
use crate::isa::Isa;
use convert::{Splat, load, splat_scalar};
use float::LANES;
use program::{ArgMode, OutMode};
use run::{RawOperand, Walk, is_uniform};

pub(crate) use convert::{load_raw, to_u8};
pub(crate) use mapped::{Mapped, Operand, PIECE, mapped};
pub(crate) use run::runs;

/// See [`Backend::map`](gradus_backend::Backend::map).
pub(crate) fn map(cpu: &CpuBackend, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
    if direct::small(cpu, kernel, args, outs) {
        return Ok(());
    }
    let (contiguous, all_outs) = check(cpu, kernel, args, outs)?;
    if outs[0].layout.dims().contains(&0) || all_outs && direct::run(cpu, kernel, args, contiguous, outs) {
        return Ok(());
    }
    general(cpu, kernel, args, contiguous, outs, all_outs)
}

/// Checks the number of operands, and the dtype, shape, owner and span of each. Returns which arguments are contiguous,
/// as a bit mask, and whether all outputs are contiguous.
#[inline]
fn check(cpu: &CpuBackend, kernel: &Kernel, args: &[MapArg<'_>], outs: &[ViewMut<'_>]) -> Result<(u32, bool)> {
    let op = kernel.name();
    if args.len() != kernel.args().len() || outs.len() != kernel.outputs().len() || outs.is_empty() {
        return Err(arity(kernel, args.len(), outs.len()));
    }
    let shape = outs[0].layout.dims();
    let (mut contiguous, mut all_outs) = (0, true);
    for (out, &(_, dtype)) in outs.iter().zip(kernel.outputs()) {
        check_dtype(op, "an output", out.dtype, dtype)?;
        check_shape(op, "an output", out.layout.dims(), shape)?;
        all_outs &= cpu.check_out(op, out)?;
    }
    for (k, arg) in args.iter().enumerate() {
        contiguous |= u32::from(check_arg(cpu, kernel, k, arg, outs, shape)?) << k;
    }
    Ok((contiguous, all_outs))
}

/// Checks argument `k`, and returns whether it is contiguous.
#[inline]
fn check_arg(
    cpu: &CpuBackend,
    kernel: &Kernel,
    k: usize,
    arg: &MapArg<'_>,
    outs: &[ViewMut<'_>],
    shape: &[usize],
) -> Result<bool> {
    let (op, dtype) = (kernel.name(), kernel.args()[k]);
    match arg {
        MapArg::View(v) => {
            check_dtype(op, "an argument", v.dtype, dtype)?;
            check_shape(op, "an argument", v.layout.dims(), shape)?;
            cpu.check_view(op, v.buffer, v.dtype, v.layout)
        }
        MapArg::Output(k) => {
            let Some(out) = outs.get(*k) else {
                return Err(Error::argument(op, format!("an argument is output {k} of {}", outs.len())));
            };
            check_dtype(op, "an argument that is an output", out.dtype, dtype)?;
            Ok(false)
        }
        MapArg::Scalar(s) => {
            s.check(dtype).map_err(|e| e.note(format!("as argument {k} of {op}")))?;
            Ok(false)
        }
    }
}

#[cold]
fn arity(kernel: &Kernel, args: usize, outs: usize) -> Error {
    let (a, o) = (kernel.args().len(), kernel.outputs().len());
    let m = format!("{args} arguments and {outs} outputs, where the kernel has {a} and {o}");
    Error::new(ErrorKind::InvalidArgument, kernel.name(), m)
}

/// Returns whether a kernel is compiled ahead of time for calls in which the arguments from number `numbers` on are
/// single numbers.
pub fn is_compiled(kernel: &Kernel, numbers: usize) -> bool {
    compiled::find(kernel, |k| k >= numbers).is_some()
}

/// An argument as an operand.
fn raw<'a>(arg: &MapArg<'a>, dtype: DType, outs: &'a [ViewMut<'_>]) -> RawOperand<'a> {
    match arg {
        MapArg::View(v) => {
            let layout = (!is_uniform(v.layout)).then_some(v.layout);
            RawOperand { base: v.buffer.as_ptr().as_ptr(), dtype, layout }
        }
        MapArg::Output(k) => {
            RawOperand { base: outs[*k].buffer.as_ptr().as_ptr(), dtype, layout: Some(outs[*k].layout) }
        }
        MapArg::Scalar(_) => RawOperand { base: std::ptr::null_mut(), dtype, layout: None },
    }
}

/// Writes the value of a uniform argument.
///
/// # Safety
/// A view was checked to lie in its buffer, and is uniform and not empty.
unsafe fn fill(isa: Isa, arg: &MapArg<'_>, dtype: DType, splat: &mut Splat) {
    match arg {
        MapArg::Scalar(s) => splat_scalar(dtype, *s, splat),
        MapArg::View(v) => {
            let x = v.buffer.as_ptr().as_ptr().wrapping_add(v.layout.offset() * v.dtype.size());
            // SAFETY: all elements of the view share one position in its buffer, and a splat has room for `LANES`
            // elements of any type.
            unsafe { load(isa, v.dtype, x, 0, splat.0.as_mut_ptr(), LANES) }
        }
        MapArg::Output(_) => {}
    }
}

/// Compiles the kernel for these operands and runs it.
fn general(
    cpu: &CpuBackend,
    kernel: &Kernel,
    args: &[MapArg<'_>],
    contiguous: u32,
    outs: &mut [ViewMut<'_>],
    all_outs: bool,
) -> Result<()> {
    let numel = outs[0].layout.numel();
    let outs: &[ViewMut<'_>] = outs;
    let mut operands: SmallVec<[RawOperand<'_>; 8]> = SmallVec::new();
    let mut flat = all_outs;
    for (k, (arg, &dtype)) in args.iter().zip(kernel.args()).enumerate() {
        operands.push(raw(arg, dtype, outs));
        let uniform = matches!(arg, MapArg::View(_)) && operands[k].layout.is_none();
        flat &= !matches!(arg, MapArg::View(_)) || uniform || contiguous >> k & 1 == 1;
    }
    operands.extend(outs.iter().map(|o| RawOperand {
        base: o.buffer.as_ptr().as_ptr(),
        dtype: o.dtype,
        layout: Some(o.layout),
    }));
    let walk = if flat { Walk::Flat } else { Walk::choose(&operands) };
    let mut arg_modes = [ArgMode::Uniform; MAX_ARGS];
    let mut out_modes: SmallVec<[OutMode; 8]> = SmallVec::new();
    for (k, mode) in arg_modes.iter_mut().enumerate().take(args.len()) {
        *mode = walk.arg_mode(k, &operands[k]);
    }
    out_modes.extend((0..outs.len()).map(|k| -> OutMode { walk.out_mode(args.len() + k, &operands[args.len() + k]) }));
    let alias = |k: usize| match args[k] {
        MapArg::Output(o) => Some(o),
        _ => None,
    };
    let isa = cpu.isa();
    // SAFETY: `check` verified the positions of the views, which are not empty.
    let fill = |k: usize, splat: &mut Splat| unsafe { fill(isa, &args[k], kernel.args()[k], splat) };
    ready::with(isa, kernel, &arg_modes[..args.len()], &out_modes, alias, fill, |program| {
        // SAFETY: `check` verified the positions, dtype and shape of every operand, and that no two elements of an
        // output share a position. Outputs are borrowed mutably, so no view shares their memory. Only the arguments
        // that `alias` reports do.
        unsafe { run::run(cpu, kernel, program, &operands, &walk, numel) }
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
