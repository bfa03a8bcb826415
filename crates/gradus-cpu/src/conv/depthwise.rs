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
use super::sizes::Sizes;
use super::window::Geometry;
use crate::gemm::K_BLOCK;
use crate::isa::per_isa;
use crate::parallel::Disjoint;
use crate::{CpuBackend, scratch};

/// The maximum number of elements of a copied channel.
const COPIED: usize = 1 << 20;
/// The number of multiply-adds that a task should perform.
const TASK: usize = 1 << 16;
/// The number of positions of a row that are computed together, and of the last ones in a row.
const WIDE: usize = 32;
const NARROW: usize = 8;

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

    /// Copies a channel, with zeros in the padding.
    fn fill(&self, g: &Geometry, plane: &[f32], out: &mut [f32]) {
        out.fill(0.0);
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
                    out[..n].copy_from_slice(&row[from..from + n]);
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

per_isa! {
    fn rows(c: &Channel<'_>, out: &mut [f32]) = compute;
}

/// Computes the rows of an output channel, two at a time.
#[inline(always)]
fn compute(c: &Channel<'_>, out: &mut [f32]) {
    for (pair, out) in out.chunks_mut(2 * c.width).enumerate() {
        let first = 2 * pair * c.down;
        if out.len() == 2 * c.width {
            across::<2>(c, first, out);
        } else {
            across::<1>(c, first, out);
        }
    }
}

#[inline(always)]
fn across<const ROWS: usize>(c: &Channel<'_>, first: usize, out: &mut [f32]) {
    let mut at = 0;
    while c.width - at >= WIDE {
        block::<ROWS, WIDE>(c, first, at, WIDE, out);
        at += WIDE;
    }
    while at < c.width {
        let count = NARROW.min(c.width - at);
        block::<ROWS, NARROW>(c, first, at, count, out);
        at += count;
    }
}

/// Computes `count` of `COLUMNS` neighbouring positions of each of `ROWS` rows.
#[inline(always)]
fn block<const ROWS: usize, const COLUMNS: usize>(
    c: &Channel<'_>,
    first: usize,
    at: usize,
    count: usize,
    out: &mut [f32],
) {
    let mut sums = [[0.0f32; COLUMNS]; ROWS];
    for (&tap, &weight) in c.taps.iter().zip(c.weights) {
        for (r, sums) in sums.iter_mut().enumerate() {
            let x = &c.copied[first + r * c.down + tap + at..][..COLUMNS];
            for (sum, &x) in sums.iter_mut().zip(x) {
                *sum = weight.mul_add(x, *sum);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let out = &mut out[r * c.width + at..][..count];
        match c.bias {
            Some(bias) => out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum + bias),
            None => out.copy_from_slice(&sums[..count]),
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
