//! Operands that an elementwise kernel computes where they are read, so that they are never stored as a whole.
//!
//! A reader asks for ranges of the row-major order. They are computed in the type in which the operand would
//! otherwise be stored, so that half precision is rounded, and have the bits that [`map`](super::map) gives them.

use std::ops::Range;

use gradus_backend::composite::mapped::output;
use gradus_backend::kernel::MAX_ARGS;
use gradus_backend::{DType, Kernel, Layout, MapArg, Result, Shape};
use smallvec::SmallVec;

use super::program::{ArgMode, Program};
use super::run::{RawOperand, Task, Walk};
use super::{check_arg, fill, raw};
use crate::access::Plain;
use crate::{CpuBackend, scratch};

/// The number of elements that a task should ask for. A piece should stay in the L2 cache until it is read; smaller ones
/// wait for memory more often.
pub(crate) const PIECE: usize = 64 << 10;

/// An operand that a kernel computes.
#[derive(Debug)]
pub(crate) struct Mapped<'a> {
    cpu: &'a CpuBackend,
    task: Task<'a>,
    /// Type of the elements.
    pub(crate) dtype: DType,
    /// The layout of the elements in row-major order: a position is the number of an element.
    pub(crate) layout: Layout,
}

/// Calls `read` with the only output of a kernel, which has this shape. The shape has elements.
pub(crate) fn mapped(
    cpu: &CpuBackend,
    kernel: &Kernel,
    args: &[MapArg<'_>],
    shape: Shape,
    read: impl FnOnce(&Mapped<'_>) -> Result<()>,
) -> Result<()> {
    let (dtype, layout) = (output(kernel, args)?, Layout::contiguous(shape));
    if args.len() != kernel.args().len() {
        return Err(super::arity(kernel, args.len(), 1));
    }
    let mut operands: SmallVec<[RawOperand<'_>; 8]> = SmallVec::new();
    let mut flat = true;
    for (k, (arg, &dtype)) in args.iter().zip(kernel.args()).enumerate() {
        let contiguous = check_arg(cpu, kernel, k, arg, &[], shape.dims())?;
        operands.push(raw(arg, dtype, &[]));
        flat &= contiguous || operands[k].layout.is_none();
    }
    operands.push(RawOperand { base: std::ptr::null_mut(), dtype, layout: Some(&layout) });
    let walk = if flat { Walk::Flat } else { Walk::gather(&operands) };
    let mut modes = [ArgMode::Uniform; MAX_ARGS];
    for (k, mode) in modes.iter_mut().enumerate().take(args.len()) {
        *mode = walk.arg_mode(k, &operands[k]);
    }
    let out = walk.out_mode(args.len(), &operands[args.len()]);
    let (mut program, isa) = (Program::default(), cpu.isa());
    // SAFETY: `check_arg` verified the positions of the views, and the shape has elements.
    let fill = |k: usize, splat: &mut _| unsafe { fill(isa, &args[k], kernel.args()[k], splat) };
    program.compile(isa, kernel, &modes[..args.len()], &[out], |_| None, fill)?;
    let task = Task::new(cpu, &program, &operands, &walk);
    let x = Mapped { cpu, task, dtype, layout };
    let done = read(&x);
    x.task.finished(kernel).and(done)
}

impl Mapped<'_> {
    /// Computes the elements of a range, and writes them to `to`.
    ///
    /// # Safety
    /// `to` is aligned and writable for the elements, which exist.
    pub(crate) unsafe fn write(&self, elements: Range<usize>, to: *mut u8) {
        // SAFETY: `mapped` checked the operands, and the caller vouches for the elements and `to`.
        unsafe { self.task.write(elements, to) }
    }
}

/// What a kernel of rows reads: memory, or what another kernel computes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operand<'a, S> {
    Memory(&'a [S]),
    Mapped(&'a Mapped<'a>),
}

impl<S: Plain> Operand<'_, S> {
    /// The number of elements that a task should process, where it would be `usual` for those in memory.
    pub(crate) fn task(&self, usual: usize) -> usize {
        if let Operand::Mapped(_) = self { PIECE } else { usual }
    }

    /// Calls `f` with the elements at these positions, and with the position of the first element that it is given.
    pub(crate) fn with(&self, positions: Range<usize>, f: impl FnOnce(&[S], usize)) {
        match self {
            Operand::Memory(all) => f(all, 0),
            Operand::Mapped(x) => scratch::large(x.cpu, positions.len(), |to: &mut [S]| {
                assert!(S::holds(x.dtype) && positions.end <= x.layout.numel());
                // SAFETY: there is room for the elements, which exist, in their type.
                unsafe { x.write(positions.clone(), to.as_mut_ptr().cast()) };
                f(to, positions.start);
            }),
        }
    }
}
