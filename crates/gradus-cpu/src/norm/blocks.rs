//! Normalises narrow, contiguous rows one block at a time, as long as their statistics are ordinary.

use std::ops::Range;

use super::groups::Groups;
use super::kernel::NormElement;
use super::narrow::{NARROW, NARROWEST, Narrow};
use crate::gemm::Real;
use crate::isa::Isa;
use crate::lanes::{LANES, ROWS};
use crate::parallel::Disjoint;
use crate::transposed::size;
use crate::{CpuBackend, scratch};

/// The maximum number of elements in a block of rows.
const BLOCK: usize = 1 << 11;

/// Returns whether the groups are narrow rows that lie one after the other in the first `own` layouts. The layouts
/// after these (scale and shift) must be the same for all rows, and the last two (statistics) must have one element per
/// row.
fn are_narrow(groups: &Groups<6>, own: usize) -> bool {
    let (len, own) = (groups.count, 0..own);
    let strides = std::array::from_fn(|k| if own.contains(&k) { len as isize } else { isize::from(k > 3) });
    (2..=NARROW).contains(&len)
        && groups.len == len
        && groups.starts.dims().len() == 1
        && groups.starts.strides(0) == strides
        && groups.steps[own].iter().all(|&step| step == 1)
}

/// Calls `f` with the positions of the first row of each block and its number of rows, until one call returns false.
/// Returns the rest of the range.
fn for_each_block(
    groups: &Groups<6>,
    range: Range<usize>,
    mut f: impl FnMut([usize; 6], usize) -> bool,
) -> Range<usize> {
    let rows = BLOCK / groups.count;
    let is_left = |&i: &usize| !f(groups.starts.at(i), rows.min(range.end - i));
    range.clone().step_by(rows).find(is_left).unwrap_or(range.end)..range.end
}

/// Normalises the groups of a range in order, as long as they are narrow rows with ordinary statistics. Returns the
/// rest of the range.
pub(super) fn forward<S: NormElement>(
    cpu: &CpuBackend,
    groups: &Groups<6>,
    how: (bool, f64),
    (x, affine): (&[S], [Option<&[S]>; 2]),
    out: &Disjoint<'_, S>,
    stats: [&Disjoint<'_, S::Compute>; 2],
    mut range: Range<usize>,
) -> Range<usize> {
    if !are_narrow(groups, 2) {
        return range;
    }
    let (isa, len) = (cpu.isa(), groups.count);
    let reach = len.next_multiple_of(LANES);
    scratch::split(cpu, [BLOCK, BLOCK, reach, reach, room(len)], |[x_rows, y_rows, scale, shift, transposed]| {
        let [.., sa, sb, _, _] = groups.steps;
        let [.., at_a, at_b, _, _] = groups.starts.at(range.start);
        // -0 is the neutral shift, because adding it to a number does not change the number.
        fill(isa, affine[0], (at_a, sa), <S::Compute as Real>::ONE, len, scale);
        fill(isa, affine[1], (at_b, sb), -<S::Compute as Real>::ZERO, len, shift);
        range = for_each_block(groups, range.clone(), |at, rows| {
            let n = rows * len;
            let x = S::read(isa, x, at[0], 1, &mut x_rows[..n]);
            let mut is_ordinary = true;
            // SAFETY: each group belongs to one task, and the elements that are written for different groups do not
            // overlap.
            unsafe {
                let stats = [stats[0].slice(at[4]..at[4] + rows), stats[1].slice(at[5]..at[5] + rows)];
                S::write(isa, out, at[1], 1, &mut y_rows[..n], |y| {
                    let transposed = transposed.as_chunks_mut().0;
                    is_ordinary = Narrow::forward(isa, len, how, x, [scale, shift], y, stats, transposed);
                });
            }
            is_ordinary
        });
    });
    range
}

/// Computes the gradient of the input for the groups of a range, if they are narrow rows. Returns the rest of the
/// range.
pub(super) fn backward<S: NormElement>(
    cpu: &CpuBackend,
    groups: &Groups<6>,
    rms: bool,
    ([x, g], scale): ([&[S]; 2], Option<&[S]>),
    stats: [&[S::Compute]; 2],
    dx: &Disjoint<'_, S>,
    mut range: Range<usize>,
) -> Range<usize> {
    if !are_narrow(groups, 3) {
        return range;
    }
    let (isa, len) = (cpu.isa(), groups.count);
    let lens = [BLOCK, BLOCK, BLOCK, len.next_multiple_of(LANES), room(len), room(len)];
    scratch::split(cpu, lens, |[x_rows, g_rows, d_rows, factors, x_transposed, g_transposed]| {
        let at = groups.starts.at(range.start)[3];
        fill(isa, scale, (at, groups.steps[3]), <S::Compute as Real>::ONE, len, factors);
        range = for_each_block(groups, range.clone(), |at, rows| {
            let n = rows * len;
            let x = S::read(isa, x, at[0], 1, &mut x_rows[..n]);
            let g = S::read(isa, g, at[1], 1, &mut g_rows[..n]);
            let stats = [&stats[0][at[4]..at[4] + rows], &stats[1][at[5]..at[5] + rows]];
            let transposed = [&mut *x_transposed, &mut *g_transposed].map(|t| t.as_chunks_mut().0);
            let make = |d: &mut [S::Compute]| Narrow::backward(isa, len, rms, [x, g], factors, stats, d, transposed);
            // SAFETY: each group belongs to one task, and no two elements of the output share a position.
            unsafe { S::write(isa, dx, at[2], 1, &mut d_rows[..n], make) };
            true
        });
    });
    range
}

/// Returns the length of a buffer for sixteen transposed rows, or 0 if rows are too long to be transposed.
fn room(len: usize) -> usize {
    if len > NARROWEST { 0 } else { size(len) * ROWS }
}

/// Sets `to` to the values of a scale or shift, padded to whole chunks. If there is no scale or shift, `to` is filled
/// with the neutral value `none`.
fn fill<S: NormElement>(
    isa: Isa,
    from: Option<&[S]>,
    (at, step): (usize, isize),
    none: S::Compute,
    len: usize,
    to: &mut [S::Compute],
) {
    to.fill(none);
    if let Some(from) = from {
        S::load(isa, from, at, step, &mut to[..len]);
    }
}
