//! Normalisation of narrow rows that are adjacent in memory, a block of rows at a time. The narrowest are
//! [transposed](crate::turned); the others use whole vectors to their end, with the last one masked. Results are the same, bit
//! for bit, as for one row at a time.

use std::ops::Range;

use super::Groups;
use super::kernel::Kernel;
use super::large::limit;
use crate::gemm::Real;
use crate::isa::{Isa, per_isa};
use crate::parallel::Disjoint;
use crate::rows::{Chunked, Elementary, LANES, map_chunks};
use crate::turned::{Across, ROWS, each, size, tree, turn, turn_back};
use crate::{CpuBackend, scratch};

/// Most elements of a row.
const NARROW: usize = 256;
/// Most elements of a row that is turned.
const NARROWEST: usize = 16;
/// Most elements of a block of rows.
const BLOCK: usize = 1 << 11;

/// Normalises rows of `len` elements; `turned` has [`room`] for them. False if a sum of squares is not finite or a
/// mean is [large](limit); the results must not be used then.
#[inline(always)]
fn forward_turned<T: Elementary>(
    isa: Isa,
    len: usize,
    (rms, eps): (bool, f64),
    x: &[T],
    [scale, shift]: [&[T]; 2],
    y: &mut [T],
    [mean, rstd]: [&mut [T]; 2],
    turned: &mut [Across<T>],
) -> bool {
    let count = len as f64;
    let mut is_ordinary = true;
    for first in (0..mean.len()).step_by(ROWS) {
        let n = ROWS.min(mean.len() - first);
        turn(isa, &x[first * len..], len, n, turned);
        let (mut m, mut r) = ([T::ZERO; ROWS], [T::ZERO; ROWS]);
        if !rms {
            m = tree([&turned[..len]], T::ZERO, |_, [x], s| s + x, |a, b| a + b);
            for m in &mut m {
                *m = T::from_f64(m.to_f64() / count);
                is_ordinary &= m.to_f64().abs() < limit::<T>();
            }
        }
        let squares = tree([&turned[..len]], T::ZERO, |i, [x], s| (x - m[i]).fused(x - m[i], s), |a, b| a + b);
        for (r, square) in r.iter_mut().zip(squares) {
            is_ordinary &= square.is_finite();
            *r = T::from_f64(1.0 / (square.to_f64() / count + eps).sqrt());
        }
        for ((x, &a), &b) in turned[..len].iter_mut().zip(scale).zip(shift) {
            each(x, |i, x| (x - m[i]) * r[i] * a + b);
        }
        turn_back(isa, turned, len, n, &mut y[first * len..]);
        mean[first..first + n].copy_from_slice(&m[..n]);
        rstd[first..first + n].copy_from_slice(&r[..n]);
    }
    is_ordinary
}

/// The gradient for the input of rows of `len` elements; each of `turned` has [`room`] for them.
#[inline(always)]
fn backward_turned<T: Elementary>(
    isa: Isa,
    len: usize,
    rms: bool,
    [x, g]: [&[T]; 2],
    scale: &[T],
    [mean, rstd]: [&[T]; 2],
    dx: &mut [T],
    [x_turned, g_turned]: [&mut [Across<T>]; 2],
) {
    let count = len as f64;
    for first in (0..mean.len()).step_by(ROWS) {
        let n = ROWS.min(mean.len() - first);
        turn(isa, &x[first * len..], len, n, x_turned);
        turn(isa, &g[first * len..], len, n, g_turned);
        let (mut m, mut r) = ([T::ZERO; ROWS], [T::ZERO; ROWS]);
        m[..n].copy_from_slice(&mean[first..first + n]);
        r[..n].copy_from_slice(&rstd[first..first + n]);
        // The gradient for what was scaled.
        for (g, &a) in g_turned[..len].iter_mut().zip(scale) {
            each(g, |_, g| g * a);
        }
        let both = [&x_turned[..len], &g_turned[..len]];
        let mut sum_h = tree([both[1]], T::ZERO, |_, [h], s| s + h, |a, b| a + b);
        let mut sum_hn = tree(both, T::ZERO, |i, [x, h], s| h.fused((x - m[i]) * r[i], s), |a, b| a + b);
        for sum in sum_h.iter_mut().chain(&mut sum_hn) {
            *sum = T::from_f64(sum.to_f64() / count);
        }
        if rms {
            sum_h = [T::ZERO; ROWS];
        }
        for (x, h) in x_turned[..len].iter_mut().zip(&g_turned[..len]) {
            each(x, |i, x| r[i] * (h[i] - sum_h[i] - (x - m[i]) * r[i] * sum_hn[i]));
        }
        turn_back(isa, x_turned, len, n, &mut dx[first * len..]);
    }
}

/// See [`forward_turned`]; scale and shift are whole chunks.
#[inline(always)]
fn forward_chunked<T: Elementary>(
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

/// See [`backward_turned`]; `sums` have an element a row, and the scale is whole chunks.
#[inline(always)]
fn backward_chunked<T: Elementary>(
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
        turned: &mut [Across<Self>],
    ) -> bool;
    fn backward(
        isa: Isa,
        len: usize,
        rms: bool,
        x_g: [&[Self]; 2],
        scale: &[Self],
        stats: [&[Self]; 2],
        dx: &mut [Self],
        turned: [&mut [Across<Self>]; 2],
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
                turned: &mut [Across<$t>],
            ) -> bool {
                per_isa! {
                    fn narrowest(
                        isa: Isa, len: usize, how: (bool, f64), x: &[$t], affine: [&[$t]; 2], y: &mut [$t],
                        stats: [&mut [$t]; 2], turned: &mut [Across<$t>],
                    ) -> bool = forward_turned;
                    fn others(
                        len: usize, how: (bool, f64), x: &[$t], affine: [&[$t]; 2], y: &mut [$t], stats: [&mut [$t]; 2],
                    ) -> bool = forward_chunked;
                }
                if len <= NARROWEST {
                    narrowest(isa, isa, len, how, x, affine, y, stats, turned)
                } else {
                    // A length that LLVM knows nothing of: it makes slower code of one that it knows to be large.
                    others(isa, std::hint::black_box(len), how, x, affine, y, stats)
                }
            }
            fn backward(
                isa: Isa,
                len: usize,
                rms: bool,
                x_g: [&[$t]; 2],
                scale: &[$t],
                stats: [&[$t]; 2],
                dx: &mut [$t],
                turned: [&mut [Across<$t>]; 2],
            ) {
                per_isa! {
                    fn narrowest(
                        isa: Isa, len: usize, rms: bool, x_g: [&[$t]; 2], scale: &[$t], stats: [&[$t]; 2], dx: &mut [$t],
                        turned: [&mut [Across<$t>]; 2],
                    ) = backward_turned;
                    fn others(
                        len: usize, rms: bool, x_g: [&[$t]; 2], scale: &[$t], stats: [&[$t]; 2], dx: &mut [$t],
                        sums: [&mut [$t]; 2],
                    ) = backward_chunked;
                }
                if len <= NARROWEST {
                    narrowest(isa, isa, len, rms, x_g, scale, stats, dx, turned)
                } else {
                    // See `forward`.
                    let rows = stats[0].len();
                    let sums = turned.map(|room| &mut room.as_flattened_mut()[..rows]);
                    others(isa, std::hint::black_box(len), rms, x_g, scale, stats, dx, sums)
                }
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
    scratch::split(cpu, [BLOCK, BLOCK, reach, reach, room(len)], |[x_rows, y_rows, scale, shift, turned]| {
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
                    let turned = turned.as_chunks_mut().0;
                    is_ordinary = Narrow::forward(isa, len, how, x, [scale, shift], y, stats, turned);
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
    let lens = [BLOCK, BLOCK, BLOCK, len.next_multiple_of(LANES), room(len), room(len)];
    scratch::split(cpu, lens, |[x_rows, g_rows, d_rows, factors, x_turned, g_turned]| {
        let at = groups.starts.at(range.start)[3];
        fill(isa, scale, (at, groups.steps[3]), <S::Compute as Real>::ONE, len, factors);
        range = for_each_block(groups, range.clone(), |at, rows| {
            let n = rows * len;
            let x = S::read(isa, x, at[0], 1, &mut x_rows[..n]);
            let g = S::read(isa, g, at[1], 1, &mut g_rows[..n]);
            let stats = [&stats[0][at[4]..at[4] + rows], &stats[1][at[5]..at[5] + rows]];
            let turned = [&mut *x_turned, &mut *g_turned].map(|t| t.as_chunks_mut().0);
            let make = |d: &mut [S::Compute]| Narrow::backward(isa, len, rms, [x, g], factors, stats, d, turned);
            // SAFETY: each group is one task's, and elements of an output that does not overlap itself are apart.
            unsafe { S::write(isa, dx, at[2], 1, &mut d_rows[..n], make) };
            true
        });
    });
    range
}

/// Length of a buffer that holds sixteen transposed rows or, for wider rows, a sum for each row of a block.
fn room(len: usize) -> usize {
    if len > NARROWEST { (BLOCK / len).next_multiple_of(ROWS) } else { size(len) * ROWS }
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
