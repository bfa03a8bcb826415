//! Groups that are narrow rows, one after the other: a block of rows at a time, in vectors to their last elements, the
//! divisions and roots of a block together. The bits are those of rows one by one.

use std::ops::Range;

use super::Groups;
use super::kernel::Kernel;
use super::large::limit;
use crate::gemm::Real;
use crate::isa::{Isa, per_isa};
use crate::parallel::Disjoint;
use crate::rows::{Chunked, Elementary, LANES, map_chunks};
use crate::{CpuBackend, scratch};

/// Most elements of a row.
const NARROW: usize = 256;
/// Most elements of a block of rows.
const BLOCK: usize = 1 << 11;

/// Normalises rows of `len` elements; scale and shift are whole chunks. False if a sum of squares is not finite or a mean is
/// [large](limit): then nothing of the result is to be used.
#[inline(always)]
fn forward_rows<T: Elementary>(
    len: usize,
    (rms, eps): (bool, f64),
    x: &[T],
    [scale, shift]: [&[T]; 2],
    y: &mut [T],
    [mean, rstd]: [&mut [T]; 2],
) -> bool {
    let (rows, count) = (Chunked::new(len), len as f64);
    let (scale, shift) = (rows.padded(scale), rows.padded(shift));
    let [mut x_spare, mut y_spare] = [[T::ZERO; LANES]; 2];
    mean.fill(T::ZERO);
    if !rms {
        for (i, sum) in mean.iter_mut().enumerate() {
            *sum = rows.tree([rows.row(x, i, &mut x_spare)], T::ZERO, |[x], s| s + x, |a, b| a + b);
        }
        for m in mean.iter_mut() {
            *m = T::from_f64(m.to_f64() / count);
        }
    }
    for (i, square) in rstd.iter_mut().enumerate() {
        let m = mean[i];
        *square = rows.tree([rows.row(x, i, &mut x_spare)], T::ZERO, |[x], s| (x - m).fused(x - m, s), |a, b| a + b);
    }
    let mut is_ordinary = mean.iter().all(|m| m.to_f64().abs() < limit::<T>());
    for r in rstd.iter_mut() {
        is_ordinary &= r.is_finite();
        *r = T::from_f64(1.0 / (r.to_f64() / count + eps).sqrt());
    }
    for i in 0..mean.len() {
        let (m, r) = (mean[i], rstd[i]);
        let from = rows.row(x, i, &mut x_spare);
        let mut to = rows.row_mut(y, i, &mut y_spare);
        map_chunks([from, scale, shift], &mut to, |[x, a, b]| (x - m) * r * a + b);
        rows.written(y, i, &y_spare);
    }
    is_ordinary
}

/// The gradient for the input of rows of `len` elements; `sums` have an element a row.
#[inline(always)]
fn backward_rows<T: Elementary>(
    len: usize,
    rms: bool,
    [x, g]: [&[T]; 2],
    scale: &[T],
    [mean, rstd]: [&[T]; 2],
    dx: &mut [T],
    [sum_h, sum_hn]: [&mut [T]; 2],
) {
    let (rows, count) = (Chunked::new(len), len as f64);
    let scale = rows.padded(scale);
    let [mut x_spare, mut g_spare, mut d_spare] = [[T::ZERO; LANES]; 3];
    for i in 0..mean.len() {
        let (m, r) = (mean[i], rstd[i]);
        let (x, g) = (rows.row(x, i, &mut x_spare), rows.row(g, i, &mut g_spare));
        sum_h[i] = rows.tree([g, scale], T::ZERO, |[g, a], s| s + g * a, |a, b| a + b);
        sum_hn[i] = rows.tree([x, g, scale], T::ZERO, |[x, g, a], s| (g * a).fused((x - m) * r, s), |a, b| a + b);
    }
    for sum in sum_h.iter_mut().chain(sum_hn.iter_mut()) {
        *sum = T::from_f64(sum.to_f64() / count);
    }
    if rms {
        sum_h.fill(T::ZERO);
    }
    for i in 0..mean.len() {
        let (m, r, mean_h, mean_hn) = (mean[i], rstd[i], sum_h[i], sum_hn[i]);
        let (x, g) = (rows.row(x, i, &mut x_spare), rows.row(g, i, &mut g_spare));
        let mut to = rows.row_mut(dx, i, &mut d_spare);
        map_chunks([x, g, scale], &mut to, |[x, g, a]| r * (g * a - mean_h - (x - m) * r * mean_hn));
        rows.written(dx, i, &d_spare);
    }
}

/// These of one compute type, for every instruction set.
pub(super) trait Narrow: Elementary {
    fn forward(
        isa: Isa,
        len: usize,
        how: (bool, f64),
        x: &[Self],
        affine: [&[Self]; 2],
        y: &mut [Self],
        stats: [&mut [Self]; 2],
    ) -> bool;
    fn backward(
        isa: Isa,
        len: usize,
        rms: bool,
        x_g: [&[Self]; 2],
        scale: &[Self],
        stats: [&[Self]; 2],
        dx: &mut [Self],
        sums: [&mut [Self]; 2],
    );
}

macro_rules! narrow {
    ($($t:ty)*) => {$(
        impl Narrow for $t {
            fn forward(
                isa: Isa,
                len: usize,
                how: (bool, f64),
                x: &[$t],
                affine: [&[$t]; 2],
                y: &mut [$t],
                stats: [&mut [$t]; 2],
            ) -> bool {
                per_isa! {
                    fn run(
                        len: usize, how: (bool, f64), x: &[$t], affine: [&[$t]; 2], y: &mut [$t], stats: [&mut [$t]; 2],
                    ) -> bool = forward_rows;
                }
                run(isa, len, how, x, affine, y, stats)
            }
            fn backward(
                isa: Isa,
                len: usize,
                rms: bool,
                x_g: [&[$t]; 2],
                scale: &[$t],
                stats: [&[$t]; 2],
                dx: &mut [$t],
                sums: [&mut [$t]; 2],
            ) {
                per_isa! {
                    fn run(
                        len: usize, rms: bool, x_g: [&[$t]; 2], scale: &[$t], stats: [&[$t]; 2], dx: &mut [$t],
                        sums: [&mut [$t]; 2],
                    ) = backward_rows;
                }
                run(isa, len, rms, x_g, scale, stats, dx, sums)
            }
        }
    )*};
}
narrow! { f32 f64 }

/// Whether the groups are narrow rows, one after the other in the first `own` layouts. The next ones, of scale and shift,
/// are the same for all rows, and the last two, of statistics, have an element a row.
fn are_narrow(groups: &Groups<6>, own: usize) -> bool {
    let (len, own) = (groups.count, 0..own);
    let strides = std::array::from_fn(|k| if own.contains(&k) { len as isize } else { isize::from(k > 3) });
    (2..=NARROW).contains(&len)
        && groups.len == len
        && groups.starts.dims().len() == 1
        && groups.starts.strides(0) == strides
        && groups.steps[own].iter().all(|&step| step == 1)
}

/// Calls `f` with the positions of the first row of each block and how many rows it has, until one is false. What is left
/// of the range.
fn for_each_block(
    groups: &Groups<6>,
    range: Range<usize>,
    mut f: impl FnMut([usize; 6], usize) -> bool,
) -> Range<usize> {
    let rows = BLOCK / groups.count;
    let is_left = |&i: &usize| !f(groups.starts.at(i), rows.min(range.end - i));
    range.clone().step_by(rows).find(is_left).unwrap_or(range.end)..range.end
}

/// Normalises the groups of a range from the first one on, as long as they are narrow rows with ordinary statistics.
/// Those that are left.
pub(super) fn forward<S: Kernel>(
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
    scratch::split(cpu, [BLOCK, BLOCK, reach, reach], |[x_rows, y_rows, scale, shift]| {
        let [.., sa, sb, _, _] = groups.steps;
        let [.., at_a, at_b, _, _] = groups.starts.at(range.start);
        // Added to any number, -0 gives that number.
        fill(isa, affine[0], (at_a, sa), <S::Compute as Real>::ONE, len, scale);
        fill(isa, affine[1], (at_b, sb), -<S::Compute as Real>::ZERO, len, shift);
        range = for_each_block(groups, range.clone(), |at, rows| {
            let n = rows * len;
            let x = S::read(isa, x, at[0], 1, &mut x_rows[..n]);
            let mut is_ordinary = true;
            // SAFETY: each group is one task's, and what is written of one is apart from others'.
            unsafe {
                let stats = [stats[0].slice(at[4]..at[4] + rows), stats[1].slice(at[5]..at[5] + rows)];
                S::write(isa, out, at[1], 1, &mut y_rows[..n], |y| {
                    is_ordinary = Narrow::forward(isa, len, how, x, [scale, shift], y, stats);
                });
            }
            is_ordinary
        });
    });
    range
}

/// The gradient for the input of the groups of a range, if they are narrow rows. Those that are left.
pub(super) fn backward<S: Kernel>(
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
    let lens = [BLOCK, BLOCK, BLOCK, len.next_multiple_of(LANES), BLOCK, BLOCK];
    scratch::split(cpu, lens, |[x_rows, g_rows, d_rows, factors, sum_h, sum_hn]| {
        let at = groups.starts.at(range.start)[3];
        fill(isa, scale, (at, groups.steps[3]), <S::Compute as Real>::ONE, len, factors);
        range = for_each_block(groups, range.clone(), |at, rows| {
            let n = rows * len;
            let x = S::read(isa, x, at[0], 1, &mut x_rows[..n]);
            let g = S::read(isa, g, at[1], 1, &mut g_rows[..n]);
            let stats = [&stats[0][at[4]..at[4] + rows], &stats[1][at[5]..at[5] + rows]];
            let sums = [&mut sum_h[..rows], &mut sum_hn[..rows]];
            let make = |d: &mut [S::Compute]| Narrow::backward(isa, len, rms, [x, g], factors, stats, d, sums);
            // SAFETY: each group is one task's, and elements of an output that does not overlap itself are apart.
            unsafe { S::write(isa, dx, at[2], 1, &mut d_rows[..n], make) };
            true
        });
    });
    range
}

/// The values of a scale or shift, or what stands for a missing one, to the end of the chunks.
fn fill<S: Kernel>(
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
