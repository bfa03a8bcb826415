//! Direct convolution, which does not unfold its input. Each vector holds neighbouring output channels.
//!
//! A tile is a box of output positions of an image. Unless the input can be read in place, the input under a tile is
//! copied once, with its padding (see [`Region`]). Each step of a sum is one element under the window. For each step, a
//! kernel reads the input of a few neighbouring positions as scalars, at any stride, and the weights of many output
//! channels as a row of a panel. The panels are packed once for all tiles, unless the output channels of each step are
//! adjacent in the weight itself. Sums are computed as `[positions, channels]` and transposed when they are stored. They
//! are added in the same chains as in GEMM.

use std::any::TypeId;
use std::ops::Range;

use gradus_backend::{HostVec, Layout, Result};

use super::im2col::Fill;
use super::region::{Region, TRANSPOSED};
use super::sizes::Sizes;
use crate::access::{Float, as_computed};
use crate::gemm::{FREE_ROWS, L2, Mat, Micro, Pack, Real, Store, THIN_ROWS, k_step, prefetch, thin_vectors};
use crate::isa::Isa;
use crate::parallel::Disjoint;
use crate::temp::Temp;
use crate::{CpuBackend, scratch};

/// The minimum number of output channels per group for which this method is used.
pub(super) const CHANNELS: usize = 8;
/// The maximum number of positions in a tile.
const POSITIONS: usize = 512;
/// The approximate number of f32 elements of input and sums in a tile. They should stay in the L2 cache.
const TILE: usize = 96 << 10;
/// The number of output channels whose weights are applied to all positions of a tile before those of the next
/// channels.
pub(super) const TOGETHER: usize = 128;
/// The minimum number of tiles for which a task computes all output channels of its tile. If there are fewer tiles,
/// each task computes only a part of the output channels.
const TASKS: usize = 8;

/// The arrangement of the packed weights. The panels `[steps][width]` of each group and block of steps lie one after
/// the other.
#[derive(Debug)]
pub(super) struct Panels {
    /// The number of output channels of a group, rounded up to whole vectors.
    pub(super) columns: usize,
    /// The width of every panel except the last, which may be half as wide.
    pub(super) width: usize,
    /// The number of steps in a block.
    pub(super) step: usize,
}

impl Panels {
    pub(super) fn new<T: Real>(isa: Isa, channels: usize, steps: usize) -> Panels {
        let width = T::panel(isa);
        Panels { columns: channels.next_multiple_of(width / 2), width, step: k_step(steps) }
    }

    /// Returns the first column and the width of each panel from column `begin` up to column `end`.
    pub(super) fn panels(&self, begin: usize, end: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (width, end) = (self.width, end.min(self.columns));
        (begin..end).step_by(width).map(move |j| (j, width.min(end - j)))
    }
}

/// The weights of a convolution.
#[derive(Debug, Clone, Copy)]
pub(super) enum Weights<'a, S> {
    /// `[groups][channels][steps]`.
    Plain(&'a [S]),
    /// Output channel `k` of step `s` is element `s * apart + k`.
    Adjacent(&'a [S], usize),
}

impl<'a, S: Float> Weights<'a, S> {
    /// Returns the weights that lie so in `data`, if they can be read in place: they are stored in the type in which they
    /// are computed, the output channels of each step are adjacent, and there are enough of them for this method.
    pub(super) fn adjacent(isa: Isa, s: &Sizes, data: &'a [S], layout: &Layout) -> Option<Self>
    where
        S::Compute: Real,
    {
        let (&[1, ref steps @ ..], &[_, ref dims @ ..]) = (layout.strides(), layout.dims()) else { return None };
        let (&apart, mut next) = (steps.last()?, *steps.last()?);
        for (&dim, &stride) in dims.iter().zip(steps).rev() {
            if dim != 1 && stride != next {
                return None;
            }
            next = next.checked_mul(dim as isize)?;
        }
        let apart = usize::try_from(apart).ok()?;
        let panels = Panels::new::<S::Compute>(isa, s.kg, s.taps());
        let last = s.taps().checked_sub(1)?.checked_mul(apart)?.checked_add((s.groups - 1) * s.kg + panels.columns)?;
        let data = data.get(layout.offset()..)?;
        let same = TypeId::of::<S>() == TypeId::of::<S::Compute>();
        (same && s.kg >= CHANNELS && apart >= s.k() && last <= data.len()).then_some(Weights::Adjacent(data, apart))
    }
}

/// Packs a matrix `[columns, steps]` as a panel `[steps][width]`, with zeros beyond the last column.
///
/// # Safety
/// `m` has `columns` rows of `steps` elements, and `out` has `steps * width` elements.
pub(super) unsafe fn pack<S: Pack>(
    isa: Isa,
    m: Mat<'_, S>,
    columns: usize,
    steps: usize,
    width: usize,
    out: &mut [S::Compute],
) {
    // SAFETY: guaranteed by the caller.
    unsafe { S::panel(isa, m.transposed(), steps, columns, width, out) }
}

/// Splits a line of positions into pieces of nearly equal length, which have at most `most` positions each.
pub(super) fn pieces(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = len.div_ceil(most);
    (0..count).map(move |i| i * len / count..(i + 1) * len / count)
}

/// Splits the positions of some lines into pieces for a kernel with this many rows. A piece covers at most two lines.
fn pieces_of_lines(lines: usize, width: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let joined = if rows <= FREE_ROWS.min(width + 1) {
        lines
    } else if 2 * width <= rows {
        2
    } else {
        1
    };
    (0..lines).step_by(joined).flat_map(move |line| {
        let start = line * width;
        pieces(joined.min(lines - line) * width, rows).map(move |piece| start + piece.start..start + piece.end)
    })
}

/// Returns the number of positions of a tile along each axis. A tile consists of whole lines or of a part of one line.
fn tile_size<T>(s: &Sizes, columns: usize) -> [usize; 3] {
    let [_, height, width] = s.geometry.output;
    let [_, down, across] = s.geometry.stride;
    // Along an axis with only one position, the stride does not matter.
    let [down, across] = [down.min(height), across.min(width)];
    let elements = s.cg.saturating_mul(down).saturating_mul(across).saturating_add(columns);
    let most = (TILE * 4 / size_of::<T>() / elements).clamp(32, POSITIONS);
    if width > most {
        return [1, 1, width.div_ceil(width.div_ceil(most))];
    }
    let lines = (most / width).clamp(1, height);
    [1, height.div_ceil(height.div_ceil(lines)), width]
}

/// Like [`correlate`](super::correlate), but for at least [`CHANNELS`] output channels per group. Returns `false`, and
/// does nothing, if the input under a tile is too large to copy.
pub(super) fn correlate<S: Fill>(
    cpu: &CpuBackend,
    s: &Sizes,
    x: &[S],
    w: Weights<'_, S>,
    bias: Option<&[S]>,
    out: &mut [S],
) -> Result<bool> {
    type T<S> = <S as Float>::Compute;
    let mut sizes = *s;
    if s.geometry.is_identity() {
        // The window has only one element, so all positions can form one line.
        let plane = [1, 1, s.geometry.plane()];
        (sizes.geometry.input, sizes.geometry.output) = (plane, plane);
    }
    let s = &sizes;
    let (isa, g, taps) = (cpu.isa(), &s.geometry, s.taps());
    let (positions, plane) = (g.positions(), g.plane());
    let panels = Panels::new::<T<S>>(isa, s.kg, taps);
    let columns = panels.columns;
    let tile = tile_size::<T<S>>(s, columns);
    let in_place = Region::in_place::<S>(g);
    let Some(region) = in_place.or_else(|| Region::new(g, tile, s.cg, size_of::<T<S>>())) else { return Ok(false) };
    let (size, apart) = match w {
        Weights::Plain(_) => (s.groups * taps * columns, None),
        Weights::Adjacent(_, apart) => (0, Some(apart)),
    };
    let mut temp = Temp::new(cpu, T::<S>::DTYPE, &[size])?;
    let mut view = temp.view_mut();
    let Some(packed) = cpu.contiguous_mut::<T<S>>("conv", &mut view)? else { return Ok(true) };
    let (weights, group_by) = match w {
        Weights::Plain(w) => {
            pack_weights(cpu, s, &panels, w, packed);
            (&*packed, taps * columns)
        }
        Weights::Adjacent(w, _) => (as_computed(w), s.kg),
    };

    let copied = if in_place.is_some() { 0 } else { region.len(s.cg) };
    let step = |i: usize| ((i / g.taps()) * region.channel + region.tap(g, i % g.taps())) as isize;
    let steps = HostVec::collect(cpu, "conv", (0..taps).map(step))?;
    let count: [usize; 3] = std::array::from_fn(|i| g.output[i].div_ceil(tile[i]));
    let tiles: usize = count.iter().product();
    let out = Disjoint::new(out);
    let part = if s.n * s.groups * tiles < TASKS { TOGETHER } else { columns };
    let parts = columns.div_ceil(part);
    cpu.parallel_for(s.n * s.groups * tiles * parts, 1, |tasks| {
        for task in tasks {
            let (task, begin) = (task / parts, task % parts * part);
            let channels = begin..columns.min(begin + part);
            let stored = s.kg.min(channels.end) - begin;
            let (product, t) = (task / tiles, task % tiles);
            let group = product % s.groups;
            let index = [t / (count[1] * count[2]), t / count[2] % count[1], t % count[2]];
            let first: [usize; 3] = std::array::from_fn(|i| index[i] * tile[i]);
            let [_, lines, width] = std::array::from_fn(|i| tile[i].min(g.output[i] - first[i]));
            let input = &x[product * s.cg * plane..(product + 1) * s.cg * plane];
            let weight = &weights[group * group_by..];
            let bias = bias.map(|b| &b[group * s.kg + begin..][..stored]);
            scratch::large(cpu, copied + lines * width * channels.len(), |block: &mut [T<S>]| {
                let (elements, sums) = block.split_at_mut(copied);
                let elements = if in_place.is_some() {
                    &as_computed(input)[region.position(g, first)..]
                } else {
                    S::copy(isa, &region, g, input, first, elements);
                    elements
                };
                if let Some(bias) = bias {
                    for sums in sums.chunks_exact_mut(channels.len()) {
                        for (sum, b) in sums.iter_mut().zip(bias) {
                            *sum = b.widen();
                        }
                        sums[stored..].fill(T::<S>::ZERO);
                    }
                }
                let channels = channels.clone();
                let row = channels.len();
                let job = Tile { lines, width, elements, weight, apart, steps: &steps, channels, add: bias.is_some() };
                job.run(isa, s, &region, &panels, sums);
                let at = (first[0] * g.output[1] + first[1]) * g.output[2] + first[2];
                for k in (0..stored).step_by(TRANSPOSED) {
                    let rows = std::array::from_fn(|r| {
                        let to = (product * s.kg + begin + k + r) * positions + at;
                        // SAFETY: only this task writes to this channel of this image and group at the positions of
                        // this tile.
                        unsafe { out.slice(if k + r < stored { to..to + lines * width } else { 0..0 }) }
                    });
                    S::transpose(isa, &sums[k..], row, rows);
                }
            });
        }
    });
    Ok(true)
}

/// The operands from which the sums of a tile are computed.
struct Tile<'a, T> {
    lines: usize,
    width: usize,
    elements: &'a [T],
    /// The panels of the group, or its weights with adjacent output channels, `apart` elements from one step to the next.
    weight: &'a [T],
    apart: Option<usize>,
    steps: &'a [isize],
    /// The output channels, as columns of the panels.
    channels: Range<usize>,
    /// Whether to add to the numbers that `sums` already holds.
    add: bool,
}

impl<T: Real> Tile<'_, T> {
    /// Computes the sums as `[positions][channels]`.
    fn run(&self, isa: Isa, s: &Sizes, region: &Region, panels: &Panels, sums: &mut [T]) {
        let (rows, row, columns) = (T::rows(isa), s.geometry.stride[2], panels.columns);
        let Range { start, end } = self.channels;
        let across = end - start;
        assert!(end <= columns && sums.len() == self.lines * self.width * across);
        // The last step needs no more than the columns.
        assert!(self.weight.len() >= (self.steps.len() - 1) * self.apart.unwrap_or(columns) + columns);
        let last = region.position(&s.geometry, [0, self.lines - 1, self.width - 1]);
        assert!(last + region.reach(&s.geometry, s.cg) < self.elements.len());
        for k0 in (0..self.steps.len()).step_by(panels.step) {
            let steps = &self.steps[k0..self.steps.len().min(k0 + panels.step)];
            let store = if k0 > 0 || self.add { Store::Add } else { Store::Set };
            for begin in (start..end).step_by(TOGETHER) {
                if let Some(apart) = self.apart {
                    // The first piece would wait for each step, because they are too far apart for the processor to foresee.
                    for step in 0..steps.len() {
                        let channels = &self.weight[(k0 + step) * apart + begin..];
                        prefetch::<L2, T>(channels.as_ptr(), TOGETHER.min(end - begin));
                    }
                }
                for piece in pieces_of_lines(self.lines, self.width, rows) {
                    let (line, x) = (piece.start / self.width, piece.start % self.width);
                    let from = region.position(&s.geometry, [0, line, x]);
                    // The positions after the end of the line lie in the next one.
                    let split = self.width - x;
                    let next_line = region.position(&s.geometry, [0, 1, 0]) as isize - (self.width * row) as isize;
                    let (end, half) = (end.min(begin + TOGETHER), panels.width / 2);
                    let mut j = begin;
                    while j < end {
                        let left = (end - j) / half;
                        // Few positions are computed for many adjacent channels at once.
                        let vectors = match thin_vectors(piece.len()) {
                            most if self.apart.is_some() && piece.len() <= THIN_ROWS && left >= most => most,
                            _ => left.min(2),
                        };
                        let width = vectors * half;
                        let (b, ldb) = match self.apart {
                            None => (k0 * columns + j * steps.len(), width),
                            Some(apart) => (k0 * apart + j, apart),
                        };
                        let b = self.weight[b..].as_ptr();
                        let micro = Micro {
                            rows: piece.len(),
                            vectors,
                            k: steps.len(),
                            a: self.elements[from..].as_ptr(),
                            row: row as isize,
                            split,
                            gap: if split < piece.len() { next_line } else { 0 },
                            steps: steps.as_ptr(),
                            b,
                            ldb: ldb as isize,
                            next: b,
                            next_by: 0,
                            c: sums[piece.start * across + j - start..].as_mut_ptr(),
                            ldc: across as isize,
                            store,
                            alpha: T::ONE,
                            beta: T::ZERO,
                        };
                        // SAFETY: the steps lead from the first to the last element under the windows of this piece,
                        // which covers one or two lines. These elements, the panel and the rows of the sums lie inside
                        // their slices, as asserted above.
                        unsafe { T::run(isa, &micro) };
                        j += width;
                    }
                }
            }
        }
    }
}

/// Packs the weights `[groups][channels][steps]` in the arrangement of `panels`.
fn pack_weights<S: Fill>(cpu: &CpuBackend, s: &Sizes, panels: &Panels, w: &[S], packed: &mut [S::Compute]) {
    let (isa, taps, columns) = (cpu.isa(), s.taps(), panels.columns);
    assert!(packed.len() == s.groups * taps * columns && w.len() == s.k() * taps);
    let (blocks, across) = (taps.div_ceil(panels.step), columns.div_ceil(panels.width));
    let packed = Disjoint::new(packed);
    cpu.parallel_for(s.groups * blocks * across, 1, |tasks| {
        for task in tasks {
            let (group, block, panel) = (task / (blocks * across), task / across % blocks, task % across);
            let (k0, j) = (block * panels.step, panel * panels.width);
            let (steps, width) = (panels.step.min(taps - k0), panels.width.min(columns - j));
            let at = (group * taps + k0) * columns + j * steps;
            // SAFETY: each panel belongs to one task, and the rows of the group's weights from row `j` on have `taps`
            // elements each.
            unsafe {
                let m = Mat::new(w, (group * s.kg + j) * taps + k0, taps as isize, 1);
                pack(isa, m, width.min(s.kg - j), steps, width, packed.slice(at..at + steps * width));
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_positions_and_at_most_two_lines() {
        for (lines, width, rows) in (1..5).flat_map(|l| (1..20).flat_map(move |w| [4, 6, 14].map(|r| (l, w, r)))) {
            let mut next = 0;
            for piece in pieces_of_lines(lines, width, rows) {
                assert_eq!(piece.start, next);
                next = piece.end;
                assert!((1..=rows).contains(&piece.len()), "{lines} {width} {rows}: {piece:?}");
                let split = width - piece.start % width;
                assert!(piece.len() <= split + width, "{lines} {width} {rows}: {piece:?}");
                if rows > FREE_ROWS && split < piece.len() {
                    assert_eq!(2 * split, piece.len(), "{lines} {width} {rows}: {piece:?}");
                }
            }
            assert_eq!(next, lines * width);
        }
    }
}
