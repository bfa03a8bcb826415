//! Runs a program on tensors. It divides the elements into blocks, finds each operand's part of a block, and loads and
//! stores elements.
//!
//! There are three walks. *Flat*: every operand is contiguous, so the elements form one long run. *Rows*: the innermost
//! merged axis is long, so a block is a part of a row, along which every operand has one stride. *Gather*: rows are
//! short, so a block is a range of the row-major order, and the elements of every operand that is not contiguous are
//! gathered according to its own layout.

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use gradus_backend::{DType, Kernel, Layout, Result, ScalarOp};

use super::convert::{load, store};
use super::float::LANES;
use super::program::{ArgMode, OutMode, Program, failure};
use crate::nest::Nest;
use crate::{CpuBackend, scratch};

/// The maximum number of operands that can share one nest.
pub(super) const MAX_NEST: usize = 8;
/// Rows of at least this many elements are walked one by one.
const LONG_ROW: usize = 128;
/// The number of bytes in the L1 cache that the registers of a block and the data streamed past them may take up.
const L1: usize = 20 << 10;

/// A tensor operand, with the address of its buffer, which was checked to hold every position of the layout.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawOperand<'a> {
    pub(super) base: *mut u8,
    pub(super) dtype: DType,
    /// `None` for a uniform argument.
    pub(super) layout: Option<&'a Layout>,
}

// SAFETY: arguments are only read, and outputs are written at positions that differ between tasks, by the contract of
// `run`.
unsafe impl Sync for RawOperand<'_> {}

/// Returns whether all elements share one position. The layout must not be empty.
pub(super) fn is_uniform(l: &Layout) -> bool {
    l.dims().iter().zip(l.strides()).all(|(&d, &s)| d == 1 || s == 0)
}

/// How to walk the elements. Entries of the nests are in the order of the operands, arguments first.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // There is one per call, on the stack.
pub(super) enum Walk {
    Flat,
    Rows { outer: Nest<MAX_NEST>, len: usize, strides: [isize; MAX_NEST] },
    Gather(Vec<Option<Nest<1>>>),
}

impl Walk {
    /// Returns the walk for operands that are not all contiguous.
    pub(super) fn choose(operands: &[RawOperand<'_>]) -> Walk {
        let layouts = || operands.iter().filter_map(|o| o.layout);
        if operands.len() <= MAX_NEST {
            let Some(any) = layouts().next() else { return Walk::Flat };
            // Uniform operands may have any layout here, because their positions are not used.
            let mut all = [any; MAX_NEST];
            for (to, o) in all.iter_mut().zip(operands) {
                *to = o.layout.unwrap_or(any);
            }
            let (outer, len, strides) = Nest::new(&all[..operands.len()]).split_inner();
            if len >= LONG_ROW || outer.numel() <= 1 {
                return Walk::Rows { outer, len, strides };
            }
        }
        Walk::gather(operands)
    }

    /// The walk along the row-major order.
    pub(super) fn gather(operands: &[RawOperand<'_>]) -> Walk {
        let nest = |o: &RawOperand<'_>| o.layout.filter(|l| !l.is_contiguous()).map(|l| Nest::new(&[l]));
        Walk::Gather(operands.iter().map(nest).collect())
    }

    /// Returns how argument `k` is read.
    pub(super) fn arg_mode(&self, k: usize, o: &RawOperand<'_>) -> ArgMode {
        let plain = o.dtype.compute() == o.dtype;
        match self {
            _ if o.layout.is_none() => ArgMode::Uniform,
            Walk::Flat if plain => ArgMode::Direct,
            Walk::Rows { strides, .. } if strides[k] == 0 => ArgMode::Row,
            Walk::Rows { strides, .. } if strides[k] == 1 && plain => ArgMode::Direct,
            Walk::Gather(nests) if nests[k].is_none() && plain => ArgMode::Direct,
            _ => ArgMode::Load,
        }
    }

    /// Returns how the output that is operand `k` is written.
    pub(super) fn out_mode(&self, k: usize, o: &RawOperand<'_>) -> OutMode {
        match self.arg_mode(k, o) {
            ArgMode::Direct => OutMode::Direct,
            _ => OutMode::Store,
        }
    }
}

/// A program with its operands.
#[derive(Debug)]
pub(super) struct Task<'a> {
    cpu: &'a CpuBackend,
    program: &'a Program,
    operands: &'a [RawOperand<'a>],
    walk: &'a Walk,
    block: usize,
    failed: AtomicBool,
    failure: Mutex<Option<ScalarOp>>,
}

/// Returns the number of elements per task, given the cost of each.
pub(super) fn grain(cost: usize) -> usize {
    ((128 << 10) / cost.max(1)).clamp(1024, 64 << 10).next_multiple_of(1024)
}

/// Runs a program on `numel` elements.
///
/// # Safety
/// The operands are those that the program was compiled for, in the order of the walk, arguments first. Every position
/// of every layout lies in its buffer. No two elements of an output share a position. An output shares memory only with
/// the arguments that were reported to the program as its aliases.
pub(super) unsafe fn run(
    cpu: &CpuBackend,
    kernel: &Kernel,
    program: &Program,
    operands: &[RawOperand<'_>],
    walk: &Walk,
    numel: usize,
) -> Result<()> {
    let task = Task::new(cpu, program, operands, walk);
    let grain = grain(program.cost);
    match walk {
        Walk::Flat | Walk::Gather(_) => cpu.parallel_for(numel, grain, |range| task.chunk(|t| t.linear(range.clone()))),
        Walk::Rows { outer, len, .. } => {
            // A task is a part of a long row, or several short rows.
            let parts = len.div_ceil(grain);
            let size = len.div_ceil(parts).next_multiple_of(64);
            let together = (grain / size).max(1);
            cpu.parallel_for(outer.numel() * parts, together, |units| {
                task.chunk(|t| t.rows(units.clone(), parts, size))
            });
        }
    }
    task.finished(kernel)
}

/// A thread that works on the task, with its pointer table, which includes its registers.
struct Worker<'a> {
    task: &'a Task<'a>,
    table: &'a mut [*mut u8],
    /// Where the only output is written instead of to its operand, and the number of the element that is written there.
    to: Option<(*mut u8, usize)>,
}

/// Where an operand's part of a block lies.
enum Part<'a> {
    Run(*mut u8, isize),
    Nest(&'a Nest<1>, usize),
}

impl<'a> Task<'a> {
    pub(super) fn new(
        cpu: &'a CpuBackend,
        program: &'a Program,
        operands: &'a [RawOperand<'a>],
        walk: &'a Walk,
    ) -> Task<'a> {
        let block = (L1 / (program.width * (program.registers + 3))).clamp(256, 1024) / 64 * 64;
        Task { cpu, program, operands, walk, block, failed: AtomicBool::new(false), failure: Mutex::new(None) }
    }

    /// The result of the whole run.
    pub(super) fn finished(self, kernel: &Kernel) -> Result<()> {
        let failed = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.cpu.finished(kernel.name(), failed.map_or(Ok(()), |op| Err(failure(kernel, op))))
    }

    /// Computes a range of the row-major order in the flat and gather walks, and writes it to `to`.
    ///
    /// # Safety
    /// As for [`run`], except that the program has one output, whose elements are written to `to` instead of its operand.
    /// `to` has room for the range.
    pub(super) unsafe fn write(&self, range: Range<usize>, to: *mut u8) {
        self.chunk(|worker| {
            worker.to = Some((to, range.start));
            worker.linear(range);
        });
    }

    /// Sets up the registers and calls `f`.
    fn chunk(&self, f: impl FnOnce(&mut Worker<'_>)) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        let p = self.program;
        let register = (self.block * p.width).next_multiple_of(64);
        scratch::with(register * p.registers / 8, |memory: &mut [u64]| {
            let (mut few, mut many) = ([null_mut(); 64], Vec::new());
            let table = if p.slots() <= few.len() {
                &mut few[..p.slots()]
            } else {
                // There is one pointer for each operand, splat and register of a kernel: at most 2^17.
                many.resize(p.slots(), null_mut());
                &mut many[..]
            };
            for (k, s) in p.splats.iter().enumerate() {
                table[p.args + p.outs + k] = s.0.as_ptr().cast_mut();
            }
            let base = memory.as_mut_ptr().cast::<u8>();
            for k in 0..p.registers {
                table[p.first_register() + k] = base.wrapping_add(k * register);
            }
            for &(splat, to, size) in &p.fills {
                let (from, to) = (table[splat as usize], table[to as usize]);
                for i in 0..self.block / LANES {
                    // SAFETY: a splat has `LANES` elements, and the register has `block` elements, which is a multiple
                    // of `LANES`.
                    unsafe { std::ptr::copy_nonoverlapping(from, to.add(i * LANES * size), LANES * size) };
                }
            }
            f(&mut Worker { task: self, table, to: None });
        });
    }
}

impl Worker<'_> {
    /// Runs the program on a range of the row-major order, in the flat and gather walks.
    fn linear(&mut self, range: Range<usize>) {
        let (t, to) = (self.task, self.to);
        for i in range.clone().step_by(t.block) {
            let n = t.block.min(range.end - i);
            let part = |k: usize| {
                let o = &t.operands[k];
                match t.walk {
                    _ if k >= t.program.args
                        && let Some((to, first)) = to =>
                    {
                        Part::Run(to.wrapping_add((i - first) * o.dtype.size()), 1)
                    }
                    Walk::Gather(nests) if let Some(nest) = &nests[k] => Part::Nest(nest, i),
                    _ => Part::Run(at(o, o.layout.map_or(0, |l| l.offset()) + i), 1),
                }
            };
            self.block(n, part);
        }
    }

    /// Runs the program on parts of rows. Unit `u` is part `u % parts` of row `u / parts`. Parts have `size` elements,
    /// except that the last part of a row may have fewer.
    fn rows(&mut self, units: Range<usize>, parts: usize, size: usize) {
        let t = self.task;
        let Walk::Rows { outer, len, strides } = t.walk else { return };
        let p = t.program;
        for u in units {
            let start = outer.at(u / parts);
            let range = u % parts * size..(*len).min((u % parts + 1) * size);
            for &(k, to) in &p.rows {
                let (o, to) = (&t.operands[k], self.table[to as usize]);
                let n = t.block.min(range.len());
                // SAFETY: the only element of the row lies at a checked position, and the register has at least `n`
                // elements.
                unsafe { load(t.cpu.isa(), o.dtype, at(o, start[k]), 0, to, n) };
            }
            for i in range.clone().step_by(t.block) {
                let n = t.block.min(range.end - i);
                self.block(n, |k| {
                    let position = start[k].wrapping_add_signed(strides[k] * i as isize);
                    Part::Run(at(&t.operands[k], position), strides[k])
                });
            }
        }
    }

    /// Runs the program on one block of `n` elements. `part` returns where the elements of each operand lie.
    #[inline]
    fn block<'n>(&mut self, n: usize, part: impl Fn(usize) -> Part<'n>) {
        let t = self.task;
        let (p, isa) = (t.program, t.cpu.isa());
        for k in 0..p.args + p.outs {
            if let Part::Run(ptr, _) = part(k) {
                self.table[k] = ptr;
            }
        }
        for &(k, to) in &p.loads {
            let (dtype, to) = (t.operands[k].dtype, self.table[to as usize]);
            // SAFETY: `part` returns positions of the operand's layout, which were checked to lie in its buffer, and a
            // register holds `n` elements.
            unsafe {
                match part(k) {
                    Part::Run(ptr, stride) => load(isa, dtype, ptr, stride, to, n),
                    Part::Nest(nest, i) => runs(nest, i, n, |done, position, stride, m| {
                        load(
                            isa,
                            dtype,
                            at(&t.operands[k], position),
                            stride,
                            to.add(done * dtype.compute().size()),
                            m,
                        );
                    }),
                }
            }
        }
        if let Some(whole) = &p.whole {
            // SAFETY: as for the steps below. An output that an argument reads is written to a register.
            unsafe { whole.run(isa, self.table, n) };
        }
        for step in &p.steps {
            // SAFETY: the table points to registers of `n` elements, to splats of `LANES` elements and, for operands
            // that are used in place, to `n` consecutive elements. `Program` chooses slots such that no result overlaps
            // an operand, except where a chain allows it.
            if let Err(op) = unsafe { p.run(step, isa, self.table, n) } {
                t.failed.store(true, Ordering::Relaxed);
                *t.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(op);
                return;
            }
        }
        for &(k, from, computed) in &p.stores {
            let (o, from) = (&t.operands[p.args + k], self.table[from as usize]);
            // SAFETY: as for loads. Only this block writes these elements of the output.
            unsafe {
                match part(p.args + k) {
                    Part::Run(ptr, stride) => store(isa, computed, o.dtype, from, ptr, stride, n),
                    Part::Nest(nest, i) => runs(nest, i, n, |done, position, stride, m| {
                        let from = from.add(done * computed.size());
                        store(isa, computed, o.dtype, from, at(o, position), stride, m);
                    }),
                }
            }
        }
    }
}

/// Returns the address of the element at a position.
fn at(o: &RawOperand<'_>, position: usize) -> *mut u8 {
    o.base.wrapping_add(position.wrapping_mul(o.dtype.size()))
}

/// Calls `f(done, position, stride, len)` for each run along the innermost axis in `start..start + n` of the row-major
/// order. `done` is the number of elements before the run.
#[inline]
pub(crate) fn runs(nest: &Nest<1>, start: usize, n: usize, mut f: impl FnMut(usize, usize, isize, usize)) {
    let (outer, len, [stride]) = nest.clone().split_inner();
    let (first, last) = (start / len, (start + n - 1) / len);
    let mut done = 0;
    outer.for_each(first..last + 1, |row, [position]| {
        let skip = if row == first { start - first * len } else { 0 };
        let m = (len - skip).min(n - done);
        f(done, position.wrapping_add_signed(stride * skip as isize), stride, m);
        done += m;
    });
}
