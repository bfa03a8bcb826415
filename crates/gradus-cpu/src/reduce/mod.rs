//! Reductions over any set of axes, and the positions of extrema.
//!
//! Each axis is either kept or reduced. If the innermost kept axis is contiguous, whole rows of up to [`WIDTH`] bytes
//! are accumulated, lane by lane (*columns*). Otherwise, each kept element reduces its elements block by block. If they
//! are not contiguous, they are first copied to the L1 cache (*rows*). Both follow the tree of [`kernels`]. Long
//! reductions are divided at whole subtrees, so that the results have the same bits on any number of threads.

mod arg;
mod cascade;
mod kernels;
mod sums;

use std::ops::Range;

use gradus_backend::{Axes, DType, Error, HostVec, Layout, ReduceOp, Result, View, ViewMut};

use crate::access::{check_dtype, check_shape};
use crate::map::{Mapped, PIECE};
use crate::nest::Nest;
use crate::{CpuBackend, scratch};
use cascade::Cascade;
use kernels::{BLOCK, Kernels, table};
use sums::LANES;

pub(crate) use arg::arg_reduce;

/// The number of blocks in a unit, which is the largest subtree that one task reduces. It is a power of two.
const UNIT_BLOCKS: usize = 16;
/// The number of elements in a unit.
const UNIT: usize = UNIT_BLOCKS * BLOCK;
/// The number of elements that a task should reduce.
const GRAIN: usize = 32 << 10;
/// The number of consecutive rows that are reduced by one call.
const TOGETHER: usize = 64;
/// The maximum number of bytes of accumulators in a row of columns.
const WIDTH: usize = 256;

/// See [`Backend::reduce`](gradus_backend::Backend::reduce).
pub(crate) fn reduce(cpu: &CpuBackend, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()> {
    let from = Source::Memory(x.buffer.as_ptr().as_ptr());
    run(cpu, op, (x.dtype, x.layout), from, axes, out, || cpu.check_view(op.name(), x.buffer, x.dtype, x.layout))
}

/// See [`reduce`]: of elements that a kernel computes. Those that are reduced together are consecutive.
pub(crate) fn reduce_of(
    cpu: &CpuBackend,
    op: ReduceOp,
    x: &Mapped<'_>,
    axes: Axes,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    run(cpu, op, (x.dtype, &x.layout), Source::Mapped(x), axes, out, || Ok(true))
}

/// Reduces elements of a dtype and a layout. `check` checks where they lie.
fn run(
    cpu: &CpuBackend,
    op: ReduceOp,
    (dtype, layout): (DType, &Layout),
    from: Source<'_>,
    axes: Axes,
    out: &mut ViewMut<'_>,
    check: impl FnOnce() -> Result<bool>,
) -> Result<()> {
    let name = op.name();
    let rank = layout.rank();
    if let Some(axis) = axes.iter().find(|&a| a >= rank) {
        crate::access::check_axis(name, axis, layout.dims())?;
    }
    let of_out = match op {
        ReduceOp::Sum | ReduceOp::Prod => dtype.accumulate(),
        ReduceOp::Max | ReduceOp::Min => dtype,
        ReduceOp::Any | ReduceOp::All => DType::Bool,
    };
    check_dtype(name, "the output", out.dtype, of_out)?;
    check_shape(name, "the output", out.layout.dims(), &layout.shape().reduced(axes, true))?;
    check()?;
    cpu.check_out(name, out)?;
    let count: usize = axes.iter().map(|a| layout.dims()[a]).product();
    if out.layout.numel() == 0 {
        return Ok(());
    }
    if count == 0 && matches!(op, ReduceOp::Max | ReduceOp::Min) {
        let m = format!("{} has no elements along axes {axes:?}, so it has no {name} there", layout.shape());
        return Err(Error::argument(name, m));
    }
    let k = table(op, dtype);
    let (kept, reduced) = split(layout, out.layout, axes)?;
    let task = Task { cpu, k, size: dtype.size(), from, out: out.buffer.as_ptr().as_ptr(), reduced, count };
    let inner = kept.dims().len().checked_sub(1).filter(|&i| kept.strides(i)[0] == 1 && kept.dims()[i] >= 8);
    let contiguous = count == 0 || reduced_is_contiguous(&task.reduced);
    let by_columns = inner.is_some() && !contiguous;
    // SAFETY: the layouts were checked to lie in their buffers. The output's positions are all different, and its
    // buffer is borrowed mutably, so it shares no memory with `x`.
    unsafe { if by_columns { task.columns(name, kept) } else { task.rows(name, &kept, contiguous) } }
}

/// Returns the kept axes of both layouts, and the reduced axes of `x`, starting at position 0.
fn split(x: &Layout, out: &Layout, axes: Axes) -> Result<(Nest<2>, Nest<1>)> {
    let (mut kept, mut kept_out, mut reduced) = (*x, *out, *x);
    for axis in (0..x.rank()).rev() {
        if axes.contains(axis) {
            if x.dims()[axis] == 0 {
                kept = squeeze_empty(&kept, axis)?;
            } else {
                kept = kept.select(axis, 0)?;
            }
            kept_out = kept_out.squeeze(axis)?;
        } else {
            reduced = reduced.select(axis, 0)?;
        }
    }
    Ok((Nest::new(&[&kept, &kept_out]), Nest::new(&[&reduced]).at_zero()))
}

/// Returns a layout without an axis of size 0. Nothing is read through it, so only its shape matters.
fn squeeze_empty(l: &Layout, axis: usize) -> Result<Layout> {
    let dims: Vec<_> = l.dims().iter().enumerate().filter(|&(i, _)| i != axis).map(|(_, &d)| d).collect();
    Ok(Layout::contiguous(gradus_backend::Shape::new(&dims)?))
}

fn reduced_is_contiguous(reduced: &Nest<1>) -> bool {
    match reduced.dims().len() {
        0 => true,
        1 => reduced.strides(0)[0] == 1,
        _ => false,
    }
}

/// Where the elements come from.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// From the memory at this address.
    Memory(*const u8),
    /// A kernel computes them, in row-major order.
    Mapped(&'a Mapped<'a>),
}

/// A reduction in progress. The positions of `reduced` are relative to those of the kept elements.
#[derive(Clone)]
struct Task<'a> {
    cpu: &'a CpuBackend,
    k: Kernels,
    size: usize,
    from: Source<'a>,
    out: *mut u8,
    reduced: Nest<1>,
    count: usize,
}

// SAFETY: the elements are only read, and the result of each kept element is written by one thread.
unsafe impl Sync for Task<'_> {}

impl Task<'_> {
    /// The address of an element in memory.
    fn element(&self, position: usize) -> *const u8 {
        let Source::Memory(x) = self.from else { return std::ptr::null() };
        x.wrapping_add(position.wrapping_mul(self.size))
    }

    /// Calls `f` with this reduction of elements in memory, which has at least the `n` elements from `position` on.
    ///
    /// # Safety
    /// These elements exist.
    unsafe fn with_memory(&self, position: usize, n: usize, f: impl FnOnce(&Self)) {
        let Source::Mapped(x) = self.from else { return f(self) };
        scratch::with((n * self.size).div_ceil(8), |memory: &mut [u64]| {
            let to = memory.as_mut_ptr().cast::<u8>();
            // SAFETY: guaranteed by the caller. The memory has room for them.
            unsafe { x.write(position..position + n, to) };
            f(&Task { from: Source::Memory(to.wrapping_sub(position * self.size)), ..self.clone() });
        });
    }

    /// An empty cascade of results with `width` accumulators.
    fn cascade(&self, stack: *mut u8, width: usize) -> Cascade<'_> {
        Cascade { k: &self.k, isa: self.cpu.isa(), stack, width, depth: 0, seen: 0 }
    }

    fn result(&self, position: usize) -> *mut u8 {
        self.out.wrapping_add(position.wrapping_mul(self.k.out_size))
    }

    /// Returns the number of units of the reduced elements.
    fn units(&self) -> usize {
        self.count.div_ceil(UNIT).max(1)
    }

    /// Reduces each kept element on its own.
    ///
    /// # Safety
    /// The positions of both nests lie in the buffers, no two results share a position, and nothing else accesses the
    /// output.
    unsafe fn rows(&self, op: &str, kept: &Nest<2>, contiguous: bool) -> Result<()> {
        let units = self.units();
        let total = kept.numel();
        let size = self.k.acc_size;
        if units == 1 {
            let grain = if matches!(self.from, Source::Mapped(_)) { PIECE } else { GRAIN };
            let together = (grain / self.count.max(1)).max(1);
            let follow = contiguous && self.count <= BLOCK && kept.dims().len() == 1;
            let step = Some(kept).filter(|_| follow).map(|kept| kept.strides(0));
            let step = step.filter(|step| step[0] == self.count as isize).map(|step| step[1]);
            let reduce = |task: &Self, range: Range<usize>| {
                let mut acc = [0u64; TOGETHER];
                let acc = acc.as_mut_ptr().cast::<u8>();
                if let Some(step) = step {
                    for i in range.clone().step_by(TOGETHER) {
                        let ([from, to], n) = (kept.at(i), TOGETHER.min(range.end - i));
                        // SAFETY: guaranteed by the caller. The elements of the `n` rows follow each other, and there
                        // are at least `n` accumulators.
                        unsafe {
                            (self.k.blocks)(self.cpu.isa(), self.k.by, task.element(from), self.count, n, acc);
                            (self.k.finish)(self.k.by, acc, self.result(to), step, n);
                        }
                    }
                    return;
                }
                kept.for_each(range, |_, [from, to]| {
                    // SAFETY: guaranteed by the caller. There is room for an accumulator, which has at most 8 bytes.
                    unsafe {
                        task.unit(from, 0, contiguous, acc);
                        (self.k.finish)(self.k.by, acc, self.result(to), 0, 1);
                    }
                });
            };
            self.cpu.parallel_for(total, together, |range| {
                // SAFETY: guaranteed by the caller. What a kernel computes are contiguous elements for each kept one.
                unsafe {
                    self.with_memory(range.start * self.count, range.len() * self.count, |task| reduce(task, range))
                };
            });
            return Ok(());
        }
        let mut partial = HostVec::filled(self.cpu, op, 0u64, (total * units * size).div_ceil(8))?;
        let parts = Shared(partial.as_mut_ptr().cast::<u8>());
        self.cpu.parallel_for(total * units, 1, |range| {
            for i in range {
                let [from, _] = kept.at(i / units);
                let start = i % units * UNIT;
                // SAFETY: guaranteed by the caller. Partial result `i` belongs to this task.
                unsafe {
                    self.with_memory(from + start, UNIT.min(self.count - start), |task| {
                        task.unit(from, start, contiguous, parts.at(i * size));
                    });
                }
            }
        });
        // SAFETY: all partial results were computed above, and only this thread combines them.
        unsafe { self.combine_units(kept, parts.at(0), units) };
        Ok(())
    }

    /// Combines the units of each kept element and stores the results.
    ///
    /// # Safety
    /// As for [`rows`](Task::rows). `partial` holds every partial result.
    unsafe fn combine_units(&self, kept: &Nest<2>, partial: *const u8, units: usize) {
        let size = self.k.acc_size;
        let mut stack = [0u64; Cascade::LEVELS];
        kept.for_each(0..kept.numel(), |i, [_, to]| {
            let mut cascade = self.cascade(stack.as_mut_ptr().cast(), 1);
            // SAFETY: the partial results of kept element `i`, of which there is at least one, are pushed onto a stack
            // with room for all levels. The result is stored at the position of the element.
            unsafe {
                for u in 0..units {
                    std::ptr::copy_nonoverlapping(partial.add((i * units + u) * size), cascade.top(), size);
                    cascade.push();
                }
                cascade.finish();
                (self.k.finish)(self.k.by, cascade.stack, self.result(to), 0, 1);
            }
        });
    }

    /// Reduces the unit that starts at reduced element `start` for the kept element at `from`.
    ///
    /// # Safety
    /// As for [`rows`](Task::rows). `acc` is writable for one accumulator.
    unsafe fn unit(&self, from: usize, start: usize, contiguous: bool, acc: *mut u8) {
        let (k, isa) = (&self.k, self.cpu.isa());
        let n = UNIT.min(self.count - start);
        if contiguous && n <= BLOCK {
            // SAFETY: the `n` elements are contiguous.
            return unsafe { (k.blocks)(isa, k.by, self.element(from + start), n, 1, acc) };
        }
        let mut stack = [0u64; Cascade::LEVELS];
        let mut cascade = self.cascade(stack.as_mut_ptr().cast(), 1);
        for i in (start..start + n).step_by(BLOCK) {
            let m = BLOCK.min(start + n - i);
            // SAFETY: the positions belong to the layout. The stack has room for all levels, each with one accumulator
            // of at most 8 bytes.
            unsafe {
                if contiguous {
                    (k.blocks)(isa, k.by, self.element(from + i), m, 1, cascade.top());
                } else {
                    let top = cascade.top();
                    scratch::with(BLOCK * self.size / 8, |memory: &mut [u64]| {
                        let memory = memory.as_mut_ptr().cast::<u8>();
                        self.collect(from, i, m, memory);
                        (k.blocks)(isa, k.by, memory, m, 1, top);
                    });
                }
                cascade.push();
            }
        }
        // SAFETY: `finish` leaves one result at the bottom of the stack.
        unsafe {
            cascade.finish();
            std::ptr::copy_nonoverlapping(stack.as_ptr().cast::<u8>(), acc, k.acc_size);
        }
    }

    /// Copies the `m` reduced elements from number `i` on, which belong to the kept element at `from`, to consecutive
    /// places at `to`.
    ///
    /// # Safety
    /// As for [`rows`](Task::rows). `to` is writable for `m` elements.
    unsafe fn collect(&self, from: usize, i: usize, m: usize, to: *mut u8) {
        crate::map::runs(&self.reduced, i, m, |done, position, stride, n| {
            let x = self.element(from.wrapping_add(position));
            // SAFETY: the `n` elements lie along an axis of the layout, and `to` has room for them among the `m`
            // elements.
            unsafe { crate::map::load_raw(self.size, x, stride, to.add(done * self.size), n) };
        });
    }

    /// Reduces rows of neighbouring kept elements together.
    ///
    /// # Safety
    /// As for [`rows`](Task::rows). The innermost kept axis is contiguous in `x`.
    unsafe fn columns(&self, op: &str, kept: Nest<2>) -> Result<()> {
        let (outer, len, [_, step]) = kept.split_inner();
        let size = self.k.acc_size;
        let width = (WIDTH / size.max(self.size)).min(len);
        let (units, strips) = (self.units(), len.div_ceil(width));
        let rows = UNIT.min(self.count);
        let together = (GRAIN / (rows * width)).max(1);
        // The working memory holds accumulators: `LANES` rows of lanes, and then the stack of the cascade.
        let stack_rows = (UNIT_BLOCKS.ilog2() + 2) as usize;
        let words = ((LANES + stack_rows) * width * size).div_ceil(8);
        let tasks = outer.numel() * strips * units;
        let words_of_all = if units > 1 { (tasks * width * size).div_ceil(8) } else { 0 };
        let mut partial = HostVec::filled(self.cpu, op, 0u64, words_of_all)?;
        let parts = Shared(partial.as_mut_ptr().cast::<u8>());
        self.cpu.parallel_for(tasks, together, |range| {
            scratch::with(words, |memory: &mut [u64]| {
                let lanes = memory.as_mut_ptr().cast::<u8>();
                for t in range {
                    let (group, unit) = (t / units, t % units);
                    let [from, to] = outer.at(group / strips);
                    let first = group % strips * width;
                    let w = width.min(len - first);
                    let stack = lanes.wrapping_add(LANES * width * size);
                    // SAFETY: guaranteed by the caller. The results of the strip belong to this task.
                    unsafe {
                        self.strip(from + first, unit * UNIT, w, lanes, stack);
                        if units == 1 {
                            let to = to.wrapping_add_signed(step * first as isize);
                            (self.k.finish)(self.k.by, stack, self.result(to), step, w);
                        } else {
                            std::ptr::copy_nonoverlapping(stack, parts.at(t * width * size), w * size);
                        }
                    }
                }
            });
        });
        if units == 1 {
            return Ok(());
        }
        // Each level has a row of at most `WIDTH` bytes.
        let mut stack = vec![0u64; (Cascade::LEVELS * width * size).div_ceil(8)];
        for group in 0..outer.numel() * strips {
            let [_, to] = outer.at(group / strips);
            let first = group % strips * width;
            let w = width.min(len - first);
            let mut cascade = self.cascade(stack.as_mut_ptr().cast(), w);
            for u in 0..units {
                // SAFETY: the partial results of this strip are pushed onto a stack with room for all levels, and the
                // final results are stored at their positions.
                unsafe {
                    let part = parts.at((group * units + u) * width * size);
                    std::ptr::copy_nonoverlapping(part, cascade.top(), w * size);
                    cascade.push();
                }
            }
            // SAFETY: as above.
            unsafe {
                cascade.finish();
                let to = to.wrapping_add_signed(step * first as isize);
                (self.k.finish)(self.k.by, cascade.stack, self.result(to), step, w);
            }
        }
        Ok(())
    }

    /// Reduces the unit that starts at reduced element `start` for `w` neighbouring kept elements, and leaves the
    /// results at `stack`.
    ///
    /// # Safety
    /// As for [`columns`](Task::columns). `lanes` has room for [`LANES`] times `w` accumulators, and `stack` has room
    /// for the cascade of a unit.
    unsafe fn strip(&self, from: usize, start: usize, w: usize, lanes: *mut u8, stack: *mut u8) {
        let (k, isa) = (&self.k, self.cpu.isa());
        let row = w * k.acc_size;
        let n = UNIT.min(self.count - start);
        let mut cascade = self.cascade(stack, w);
        for first in (start..start + n).step_by(BLOCK) {
            let m = BLOCK.min(start + n - first);
            // Four rows of each lane are combined at a time.
            for group in (first..first + m).step_by(4 * LANES) {
                let rows = (4 * LANES).min(first + m - group);
                let mut x = [std::ptr::null(); 4 * LANES];
                self.reduced.for_each(group..group + rows, |i, [position]| {
                    x[i - group] = self.element(from.wrapping_add(position));
                });
                let fresh = group == first;
                for lane in 0..if rows == 4 * LANES { LANES } else { 0 } {
                    let four = std::array::from_fn(|k| x[lane + k * LANES]);
                    // SAFETY: each of the rows has `w` elements, and the lane has as many accumulators.
                    unsafe { (k.quad)(isa, k.by, four, w, lanes.add(lane * row), fresh) };
                }
                let single = if rows < 4 * LANES { &x[..rows] } else { &[] };
                for (i, &x) in single.iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { (k.row)(isa, k.by, x, w, lanes.add(i % LANES * row), fresh && i < LANES) };
                }
            }
            let mut used = m.min(LANES);
            while used > 1 {
                let half = used.next_power_of_two() / 2;
                // SAFETY: lanes `half..used` are combined into lanes `0..used - half`, which do not overlap them.
                unsafe { (k.merge)(isa, lanes, lanes.add(half * row), (used - half) * w) };
                used = half;
            }
            // SAFETY: lane 0 is copied to the top of the stack, which has room for the cascade of a unit.
            unsafe {
                std::ptr::copy_nonoverlapping(lanes, cascade.top(), row);
                cascade.push();
            }
        }
        // SAFETY: there is at least one block, so there is a result.
        unsafe { cascade.finish() };
    }
}

/// A pointer to partial results, of which each task writes its own.
#[derive(Clone, Copy)]
struct Shared(*mut u8);
// SAFETY: tasks write parts that do not overlap.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(self, bytes: usize) -> *mut u8 {
        self.0.wrapping_add(bytes)
    }
}

#[cfg(test)]
mod tests;
