//! Depthwise convolution: each group has one input channel and few output channels. In a product, such a group would be
//! a row or a few.
//!
//! A channel is copied once, with its padding, and with the columns of each phase of the horizontal stride together, so
//! that a tap reads neighbouring elements for neighbouring positions. Each sum is a chain of fused multiply-adds over the
//! taps, as in GEMM, to which the bias is added at the end.

use std::any::TypeId;
use std::ops::Range;

use gradus_backend::{HostVec, Result};

use super::im2col::Fill;
use super::region::copy_line;
use super::sizes::Sizes;
use super::window::Geometry;
use crate::gemm::K_BLOCK;
use crate::lanes::LANES;
use crate::parallel::Disjoint;
use crate::vectors::{Vectors, per_vectors};
use crate::{CpuBackend, scratch};

/// The maximum number of elements of a copied channel.
const COPIED: usize = 1 << 20;
/// The number of multiply-adds that a task should perform.
const TASK: usize = 1 << 16;
/// The number of neighbouring positions of a row that are computed together, if there are more than one vector holds.
const WIDE: usize = 2 * LANES;

/// The f32 elements of a slice; `None` if its elements are of another type.
fn floats<S: 'static>(x: &[S]) -> Option<&[f32]> {
    // SAFETY: the two types are the same.
    (TypeId::of::<S>() == TypeId::of::<f32>())
        .then(|| unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), x.len()) })
}

/// How a channel is copied: as rows of `step` phases, each of `columns` elements.
#[derive(Debug, Clone, Copy)]
struct Copied {
    rows: usize,
    step: usize,
    columns: usize,
}

impl Copied {
    fn new(g: &Geometry) -> Option<Copied> {
        let reach = |i: usize| (g.kernel[i] - 1).checked_mul(g.dilation[i]);
        let rows = ((g.output[1] - 1) * g.stride[1]).checked_add(reach(1)?)?.checked_add(1)?;
        // Along an axis with only one position, the stride does not matter.
        let step = if g.output[2] == 1 { 1 } else { g.stride[2] };
        let width = ((g.output[2] - 1) * step).checked_add(reach(2)?)?.checked_add(1)?;
        let copied = Copied { rows, step, columns: width.div_ceil(step) };
        let elements = rows.checked_mul(step)?.checked_mul(copied.columns)?;
        (elements <= COPIED).then_some(copied)
    }

    fn row(&self) -> usize {
        self.step * self.columns
    }

    /// The number of elements. A row of results may be computed beyond its end.
    fn len(&self) -> usize {
        self.rows * self.row() + WIDE
    }

    /// The offset of the element of each tap under the first position.
    fn tap(&self, g: &Geometry, t: usize) -> usize {
        let [_, y, x] = g.tap(t);
        let x = x * g.dilation[2];
        y * g.dilation[1] * self.row() + x % self.step * self.columns + x / self.step
    }

    /// Copies a channel into a copy whose padding is zero.
    fn fill(&self, g: &Geometry, plane: &[f32], out: &mut [f32]) {
        let [_, height, width] = g.input;
        for r in 0..self.rows {
            let Some(y) = usize::try_from(r as isize - g.pad[1]).ok().filter(|&y| y < height) else { continue };
            let row = &plane[y * width..(y + 1) * width];
            for phase in 0..self.step {
                let out = &mut out[r * self.row() + phase * self.columns..][..self.columns];
                // Column `j` holds the element at `j * step + first`.
                let first = phase as isize - g.pad[2];
                let begin = if first < 0 { first.unsigned_abs().div_ceil(self.step) } else { 0 };
                let Some(from) = usize::try_from(first + (begin * self.step) as isize).ok().filter(|&f| f < width)
                else {
                    continue;
                };
                let Some(out) = out.get_mut(begin..) else { continue };
                if self.step == 1 {
                    let n = out.len().min(width - from);
                    copy_line(&row[from..from + n], &mut out[..n]);
                } else {
                    out.iter_mut().zip(row[from..].iter().step_by(self.step)).for_each(|(to, x)| *to = *x);
                }
            }
        }
    }
}

/// The rows of one output channel.
struct Channel<'a> {
    copied: &'a [f32],
    /// The offset of each tap, and its weight.
    taps: &'a [usize],
    weights: &'a [f32],
    bias: Option<f32>,
    /// The distance of the elements of neighbouring rows of positions.
    down: usize,
    /// The number of positions in a row.
    width: usize,
}

per_vectors! { f32:
    fn rows(c: &Channel<'_>, out: &mut [f32]) = compute;
}

/// Computes the rows of an output channel, in strips of neighbouring positions. Each has six vectors of sums at once, if
/// there are enough rows, because a chain of multiply-adds waits for its own results.
#[inline(always)]
fn compute<V: Vectors<Number = f32>>(v: V, c: &Channel<'_>, out: &mut [f32]) {
    let (height, farthest) = (out.len() / c.width, c.taps.iter().max().copied().unwrap_or(0));
    assert!(out.len() == height * c.width && (height - 1) * c.down + farthest + c.width - 1 + WIDE <= c.copied.len());
    // The last strip comes first: its vectors reach into the beginning of the next row, which the first strip overwrites. Where there is
    // only one strip, they may reach over several rows, which come later.
    let whole = c.width / WIDE * WIDE;
    // SAFETY: the assertion is what each strip needs, and each begins at a position of the row.
    unsafe {
        match c.width - whole {
            0 => {}
            1..=LANES => strip::<V, 6, 1>(v, c, whole, height, out),
            _ => strip::<V, 3, 2>(v, c, whole, height, out),
        }
        for at in (0..whole).step_by(WIDE).rev() {
            strip::<V, 3, 2>(v, c, at, height, out);
        }
    }
}

/// Computes up to `K` vectors of positions of each row, from position `at` on, `ROWS` rows at a time.
///
/// # Safety
/// There are `height` rows, and `at` is a position in them. From the last tap under the first position of the last row on,
/// there are `c.width - 1 + WIDE` elements or more in `c.copied`.
#[inline(always)]
unsafe fn strip<V: Vectors<Number = f32>, const ROWS: usize, const K: usize>(
    v: V,
    c: &Channel<'_>,
    at: usize,
    height: usize,
    out: &mut [f32],
) {
    // The processor overlaps the chains of fewer rows by itself.
    if height < ROWS {
        for row in 0..height {
            // SAFETY: guaranteed by the caller.
            unsafe { block::<V, 1, K>(v, c, row, at, out) };
        }
        return;
    }
    // The last rows may overlap those before.
    for row in (0..height).step_by(ROWS) {
        // SAFETY: guaranteed by the caller.
        unsafe { block::<V, ROWS, K>(v, c, row.min(height - ROWS), at, out) };
    }
}

/// Computes `ROWS` rows from row `row` on: in each, up to `K` vectors of positions from `at` on. A vector that extends past
/// the end of its row overwrites the start of the rows that follow, which is computed later.
///
/// # Safety
/// As for [`strip`]; the rows exist.
#[inline(always)]
unsafe fn block<V: Vectors<Number = f32>, const ROWS: usize, const K: usize>(
    v: V,
    c: &Channel<'_>,
    row: usize,
    at: usize,
    out: &mut [f32],
) {
    let mut sums = [[v.splat(0.0); K]; ROWS];
    for (&tap, &weight) in c.taps.iter().zip(c.weights) {
        let (first, weight) = (row * c.down + tap + at, v.splat(weight));
        for (r, sums) in sums.iter_mut().enumerate() {
            for (k, sum) in sums.iter_mut().enumerate() {
                // SAFETY: row `row + r` is one of the output, `at` is a position in it, and `K` vectors are at most `WIDE`
                // elements, so the caller guarantees that these are inside of the slice.
                let x = v.load(unsafe { &*c.copied.as_ptr().add(first + r * c.down + k * LANES).cast() });
                *sum = v.fused(weight, x, *sum);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let start = (row + r) * c.width + at;
        for (k, &sum) in sums.iter().enumerate() {
            let sum = if let Some(bias) = c.bias { sum + v.splat(bias) } else { sum };
            // Only the vectors of the last rows must end in time.
            let Some(out) = out.get_mut(start + k * LANES..) else { break };
            match out.first_chunk_mut() {
                Some(out) => v.store(sum, out),
                None => {
                    let mut last = [0.0; LANES];
                    v.store(sum, &mut last);
                    copy_line(&last[..out.len()], out);
                }
            }
        }
    }
}

/// Like [`correlate`](super::correlate), for f32 and groups with one input channel, over one or two axes. Returns
/// `false`, and does nothing, for others, and if a channel is too large to copy.
pub(super) fn correlate<S: Fill>(
    cpu: &CpuBackend,
    s: &Sizes,
    x: &[S],
    w: &[S],
    bias: Option<&[S]>,
    out: &mut [S],
) -> Result<bool> {
    let g = &s.geometry;
    let (Some(x), Some(w)) = (floats(x), floats(w)) else { return Ok(false) };
    let flat = g.kernel[0] == 1 && g.input[0] == 1 && g.output[0] == 1 && g.pad[0] == 0;
    if s.cg != 1 || !flat || g.taps() > K_BLOCK || g.taps() < 2 {
        return Ok(false);
    }
    let Some(copied) = Copied::new(g) else { return Ok(false) };
    let bias = bias.and_then(floats);
    // SAFETY: the elements are f32, since those of `x` are.
    let out = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<f32>(), out.len()) };
    let (taps, plane, positions) = (g.taps(), g.plane(), g.positions());
    let offsets = HostVec::collect(cpu, "conv", (0..taps).map(|t| copied.tap(g, t)))?;
    let out = Disjoint::new(out);
    let grain = (TASK / (s.kg * positions * taps).max(1)).max(1);
    cpu.parallel_for(s.n * s.groups, grain, |tasks: Range<usize>| {
        scratch::large(cpu, copied.len(), |work: &mut [f32]| {
            // The padding is in the same places of each channel.
            work.fill(0.0);
            for task in tasks {
                copied.fill(g, &x[task * plane..(task + 1) * plane], work);
                for i in 0..s.kg {
                    let k = task % s.groups * s.kg + i;
                    let channel = Channel {
                        copied: work,
                        taps: &offsets,
                        weights: &w[k * taps..(k + 1) * taps],
                        bias: bias.map(|b| b[k]),
                        down: g.stride[1] * copied.row(),
                        width: g.output[2],
                    };
                    let at = (task * s.kg + i) * positions;
                    // SAFETY: an output channel belongs to one task.
                    rows(cpu.isa(), &channel, unsafe { out.slice(at..at + positions) });
                }
            }
        });
    });
    Ok(true)
}
