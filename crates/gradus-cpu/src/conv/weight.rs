//! The gradient of the weight, with vectors along the output channels.
//!
//! A sum runs over the positions of all images, one block at a time. A block is a part of one image, or several small
//! images. Unless the input can be read in place, the input under a block is copied once, with its padding. The
//! gradient of the output is packed in panels, and each tap and channel of the input is multiplied by them. Sums are
//! laid out as `[channels, taps, output channels]`, and transposed when they are stored.

use std::ops::Range;

use gradus_backend::{HostVec, Result};

use super::direct::{Panels, TOGETHER, pack, pieces};
use super::im2col::Fill;
use super::region::{Region, TRANSPOSED};
use super::sizes::Sizes;
use crate::access::{Float, as_computed};
use crate::gemm::{K_BLOCK, Mat, MatMut, Micro, Real, Store};
use crate::parallel::Disjoint;
use crate::temp::Temp;
use crate::{CpuBackend, scratch};

/// The minimum number of tasks that a long sum is divided into.
const PARTS: usize = 16;
/// The approximate number of taps, over all channels, in a part of the gradient.
const TAPS: usize = 576;
/// The maximum number of elements that are copied for images that share a sum.
const COPIED: usize = 1 << 16;
/// The number of elements whose terms are added by one task.
const ADD: usize = 1 << 14;

/// A block of positions, with the first position of the box around them and the region of the input under this box.
struct Block {
    range: Range<usize>,
    first: [usize; 3],
    region: Region,
}

const OP: &str = "conv_backward_weight";

/// Returns the blocks of an image, and for each position the offset of the first element under its window in the region
/// of its block. Returns `None` if the input under a block is too large to copy for this many channels.
fn blocks<S: Float>(
    cpu: &CpuBackend,
    s: &Sizes,
    step: usize,
    channels: usize,
    in_place: Option<Region>,
) -> Result<Option<(HostVec<Block>, HostVec<isize>)>> {
    let g = &s.geometry;
    let index = |p: usize| [p / (g.output[1] * g.output[2]), p / g.output[2] % g.output[1], p % g.output[2]];
    let mut blocks = HostVec::with_capacity(cpu, OP, g.positions().div_ceil(step))?;
    let mut steps = HostVec::with_capacity(cpu, OP, g.positions())?;
    for begin in (0..g.positions()).step_by(step) {
        let range = begin..g.positions().min(begin + step);
        let (mut first, mut last) = (index(begin), index(range.end - 1));
        for axis in 1..3 {
            // If the block spans several indices of an outer axis, its box covers the inner axes completely.
            if first[axis - 1] != last[axis - 1] || (axis == 2 && first[0] != last[0]) {
                (first[axis], last[axis]) = (0, g.output[axis] - 1);
            }
        }
        let region = in_place.or_else(|| {
            Region::new(g, std::array::from_fn(|i| last[i] - first[i] + 1), channels, size_of::<S::Compute>())
        });
        let Some(region) = region else { return Ok(None) };
        let places = range.clone().map(|p| {
            let p = index(p);
            region.position(g, std::array::from_fn(|i| p[i] - first[i])) as isize
        });
        steps.extend(OP, places)?;
        blocks.push(OP, Block { range, first, region })?;
    }
    Ok(Some((blocks, steps)))
}

/// Computes `dw`, the sum over images and positions of the output's gradient `g` times the input under the windows, for
/// at least [`CHANNELS`](super::direct::CHANNELS) output channels per group.
///
/// Returns `false`, and does nothing, if the input under a block of positions is too large to copy. Only the sizes
/// determine how the sum is divided into parts. Each part is summed in order, and then the parts are added in order.
pub(super) fn weight<S: Fill>(cpu: &CpuBackend, s: &Sizes, x: &[S], g: &[S], dw: &mut [S]) -> Result<bool> {
    type T<S> = <S as Float>::Compute;
    let (isa, geometry) = (cpu.isa(), &s.geometry);
    let (positions, plane, taps) = (geometry.positions(), geometry.plane(), geometry.taps());
    assert!(x.len() == s.n * s.c() * plane && g.len() == s.n * s.k() * positions && dw.len() == s.k() * s.taps());
    let panels = Panels::new::<T<S>>(isa, s.kg, positions);
    let in_place = Region::in_place::<S>(geometry);
    // The gradient is divided into parts by input channels (`across`) and by output channels (`down`).
    let channels = TAPS.div_ceil(taps).min(s.cg);
    let Some((blocks, mut steps)) = blocks::<S>(cpu, s, panels.step, channels, in_place)? else { return Ok(false) };
    let (across, down) = (s.cg.div_ceil(channels), s.kg.div_ceil(TOGETHER));
    let parts = s.groups * across * down;
    // The number of images that one sum of the kernel covers (`together`), and their distance (`apart`).
    let apart = if in_place.is_some() { s.c() * plane } else { blocks[0].region.len(channels) };
    let together = if blocks.len() > 1 {
        1
    } else {
        let copied = if in_place.is_some() { 0 } else { apart };
        (K_BLOCK / positions).min(COPIED / copied.max(1)).min(s.n / PARTS.div_ceil(parts)).max(1)
    };
    for i in positions..together * positions {
        let step = steps[i - positions] + apart as isize;
        steps.push(OP, step)?;
    }
    let items = s.n.div_ceil(together) * blocks.len();
    let terms = PARTS.div_ceil(parts).min(items);
    let (columns, rows) = (panels.columns, T::<S>::rows(isa));
    let size = s.groups * s.taps() * columns;
    let mut temp = Temp::new(cpu, T::<S>::DTYPE, &[terms, size])?;
    let mut view = temp.view_mut();
    let Some(sums) = cpu.contiguous_mut::<T<S>>(OP, &mut view)? else { return Ok(true) };
    // SAFETY: `sums` stays borrowed until the tasks are done, and each task writes only its own channels of one term.
    let out = unsafe { MatMut::new(sums.as_mut_ptr(), 0, 1, 1) };
    // The rows of a kernel are channels, or the taps of a line if there are more taps than channels.
    let along = s.cg < geometry.kernel[2];
    cpu.parallel_for(terms * parts, 1, |tasks| {
        for task in tasks {
            let (term, part) = (task / parts, task % parts);
            let (group, c0) = (part / (across * down), part / down % across * channels);
            let (channels, begin) = (channels.min(s.cg - c0), part % down * TOGETHER);
            let end = columns.min(begin + TOGETHER);
            let first = term * items / terms;
            for item in first..(term + 1) * items / terms {
                let (image, block) = (item / blocks.len() * together, &blocks[item % blocks.len()]);
                let images = image..s.n.min(image + together);
                let (region, len) = (&block.region, block.range.len());
                let all = images.len() * len;
                let steps = &steps[block.range.start..][..all];
                let store = if item == first { Store::Set } else { Store::Add };
                // If a block covers several images, their regions lie one after the other.
                let copied = (images.len() - 1) * apart + region.len(channels);
                let copied = if in_place.is_some() { 0 } else { copied };
                scratch::with(copied + (end - begin) * all, |scratch: &mut [T<S>]| {
                    let (elements, packed) = scratch.split_at_mut(copied);
                    let at = |image: usize| (image * s.c() + group * s.cg + c0) * plane;
                    for (i, image) in images.clone().enumerate() {
                        if in_place.is_none() {
                            let input = &x[at(image)..][..channels * plane];
                            let to = &mut elements[i * apart..][..region.len(channels)];
                            S::copy(isa, region, geometry, input, block.first, to);
                        }
                        for (j, width) in panels.panels(begin, end) {
                            let row = image * s.k() + group * s.kg + j;
                            let out = &mut packed[(j - begin) * all + i * len * width..][..width * len];
                            // SAFETY: rows of `g` have `positions` elements, and the panel has room for its columns.
                            unsafe {
                                let m = Mat::new(g, row * positions + block.range.start, positions as isize, 1);
                                pack(isa, m, width.min(s.kg - j), len, width, out);
                            }
                        }
                    }
                    let elements = match in_place {
                        Some(_) => {
                            let input = &x[at(image)..at(images.end - 1) + channels * plane];
                            &as_computed(input)[region.position(geometry, block.first)..]
                        }
                        None => &*elements,
                    };
                    let last = steps.iter().max().map_or(0, |&s| s as usize);
                    assert!(last + region.reach(geometry, channels) < elements.len());
                    // Computes `count` rows from channel `c` and tap `t` on, one panel after another.
                    let run = |c: usize, t: usize, count: usize| {
                        let from = &elements[c * region.channel + region.tap(geometry, t)..];
                        let (row, ldc) = match along {
                            true => (geometry.dilation[2], columns),
                            false => (region.channel, taps * columns),
                        };
                        let to = term * size + ((group * s.cg + c0 + c) * taps + t) * columns;
                        for (j, width) in panels.panels(begin, end) {
                            let micro = Micro {
                                rows: count,
                                vectors: if width == panels.width { 2 } else { 1 },
                                k: all,
                                a: from.as_ptr(),
                                row: row as isize,
                                split: 0,
                                gap: 0,
                                steps: steps.as_ptr(),
                                b: packed[(j - begin) * all..].as_ptr(),
                                ldb: width as isize,
                                next: packed[(j - begin) * all..].as_ptr(),
                                next_by: 0,
                                c: out.from(to + j, 0).as_ptr(),
                                ldc: ldc as isize,
                                store,
                                alpha: T::<S>::ONE,
                                beta: T::<S>::ZERO,
                            };
                            // SAFETY: the steps lead from an element under the first position of the block to the
                            // elements under the other positions, all of which exist as asserted above. The panel holds
                            // `all` steps, and the rows lie inside the sums.
                            unsafe { T::<S>::run(isa, &micro) };
                        }
                    };
                    if along {
                        for (c, line) in (0..channels).flat_map(|c| (0..taps / geometry.kernel[2]).map(move |l| (c, l)))
                        {
                            pieces(geometry.kernel[2], rows)
                                .for_each(|p| run(c, line * geometry.kernel[2] + p.start, p.len()));
                        }
                    } else {
                        for piece in pieces(channels, rows) {
                            (0..taps).for_each(|t| run(piece.start, t, piece.len()));
                        }
                    }
                });
            }
        }
    });
    let (sums, others) = sums.split_at_mut(size);
    if !others.is_empty() {
        cpu.parallel_chunks(sums, ADD, |i, sums| {
            for term in others.chunks_exact(size) {
                sums.iter_mut().zip(&term[i * ADD..]).for_each(|(sum, &more)| *sum = *sum + more);
            }
        });
    }
    let (sums, dw) = (&*sums, Disjoint::new(dw));
    let (across, group_size) = (s.kg.div_ceil(TRANSPOSED), s.taps() * columns);
    cpu.parallel_for(s.groups * across, 1, |tasks| {
        for task in tasks {
            let (group, k) = (task / across, task % across * TRANSPOSED);
            let rows = std::array::from_fn(|r| {
                let at = (group * s.kg + k + r) * s.taps();
                // SAFETY: these rows belong to this task.
                unsafe { dw.slice(if k + r < s.kg { at..at + s.taps() } else { 0..0 }) }
            });
            S::transpose(isa, &sums[group * group_size + k..(group + 1) * group_size], columns, rows);
        }
    });
    Ok(true)
}
