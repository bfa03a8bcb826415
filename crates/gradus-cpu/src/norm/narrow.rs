//! Normalisation of narrow rows that are adjacent in memory, a block of rows at a time. The narrowest are
//! [transposed](crate::turned); the others are read in whole vectors, and sums leave out what lies beyond a row. Results are
//! the same, bit for bit, as for one row at a time.

use std::ops::Range;

use super::Groups;
use super::kernel::Kernel;
use super::large::limit;
use crate::gemm::Real;
use crate::halve::Halve;
use crate::isa::Isa;
use crate::parallel::Disjoint;
use crate::rows::{Chunked, Elementary, LANES, ROWS};
use crate::turned::{Across, size, tree, turn, turn_back};
use crate::vectors::{Vectors, per_vectors};
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
fn forward_turned<V: Vectors<Number: Elementary>>(
    v: V,
    isa: Isa,
    len: usize,
    (rms, eps): (bool, f64),
    x: &[V::Number],
    [scale, shift]: [&[V::Number]; 2],
    y: &mut [V::Number],
    [mean, rstd]: [&mut [V::Number]; 2],
    turned: &mut [Across<V::Number>],
) -> bool {
    let (zero, count) = (V::Number::ZERO, len as f64);
    let mut is_ordinary = true;
    for first in (0..mean.len()).step_by(ROWS) {
        let n = ROWS.min(mean.len() - first);
        turn(isa, &x[first * len..], len, n, turned);
        let turned = &mut turned[..size(len)];
        let [mut means, mut roots] = [[zero; ROWS]; 2];
        if !rms {
            let sums = tree(v, [&turned[..len]], zero, |[x], s| s + x, |a, b| a + b);
            for (m, sum) in means.iter_mut().zip(sums) {
                *m = V::Number::from_f64(sum.to_f64() / count);
            }
        }
        let m = v.load(&means);
        let squares = tree(v, [&turned[..len]], zero, |[x], s| v.fused(x - m, x - m, s), |a, b| a + b);
        for (r, square) in roots.iter_mut().zip(squares) {
            *r = V::Number::from_f64(1.0 / (square.to_f64() / count + eps).sqrt());
        }
        is_ordinary &= are_ordinary(&means, &squares);
        let r = v.load(&roots);
        for ((x, &a), &b) in turned[..len].iter_mut().zip(scale).zip(shift) {
            v.store((v.load(x) - m) * r * v.splat(a) + v.splat(b), x);
        }
        turn_back(isa, turned, len, n, &mut y[first * len..]);
        mean[first..first + n].copy_from_slice(&means[..n]);
        rstd[first..first + n].copy_from_slice(&roots[..n]);
    }
    is_ordinary
}

/// Whether every sum of squares is finite, and no mean [large](limit).
#[inline(always)]
fn are_ordinary<T: Elementary>(means: &[T], squares: &[T]) -> bool {
    let mut all = true;
    for (m, square) in means.iter().zip(squares) {
        all &= square.is_finite() & (m.to_f64().abs() < limit::<T>());
    }
    all
}

/// The gradient for the input of rows of `len` elements; each of `turned` has [`room`] for them.
#[inline(always)]
fn backward_turned<V: Vectors<Number: Elementary>>(
    v: V,
    isa: Isa,
    len: usize,
    rms: bool,
    [x, g]: [&[V::Number]; 2],
    scale: &[V::Number],
    [mean, rstd]: [&[V::Number]; 2],
    dx: &mut [V::Number],
    [x_turned, g_turned]: [&mut [Across<V::Number>]; 2],
) {
    let (zero, count) = (V::Number::ZERO, len as f64);
    for first in (0..mean.len()).step_by(ROWS) {
        let n = ROWS.min(mean.len() - first);
        turn(isa, &x[first * len..], len, n, x_turned);
        turn(isa, &g[first * len..], len, n, g_turned);
        let [mut means, mut roots] = [[zero; ROWS]; 2];
        means[..n].copy_from_slice(&mean[first..first + n]);
        roots[..n].copy_from_slice(&rstd[first..first + n]);
        let (m, r) = (v.load(&means), v.load(&roots));
        // The gradient for what was scaled.
        for (g, &a) in g_turned[..len].iter_mut().zip(scale) {
            v.store(v.load(g) * v.splat(a), g);
        }
        let both = [&x_turned[..len], &g_turned[..len]];
        let mut mean_h = tree(v, [both[1]], zero, |[h], s| s + h, |a, b| a + b);
        let mut mean_hn = tree(v, both, zero, |[x, h], s| v.fused(h, (x - m) * r, s), |a, b| a + b);
        for sum in mean_h.iter_mut().chain(&mut mean_hn) {
            *sum = V::Number::from_f64(sum.to_f64() / count);
        }
        if rms {
            mean_h = [zero; ROWS];
        }
        let (mean_h, mean_hn) = (v.load(&mean_h), v.load(&mean_hn));
        for (x, h) in x_turned[..len].iter_mut().zip(&g_turned[..len]) {
            v.store(r * (v.load(h) - mean_h - (v.load(x) - m) * r * mean_hn), x);
        }
        turn_back(isa, x_turned, len, n, &mut dx[first * len..]);
    }
}

/// See [`forward_turned`]; scale and shift are whole chunks.
#[inline(always)]
fn forward_chunked<V: Vectors<Number: Elementary>>(
    v: V,
    isa: Isa,
    len: usize,
    (rms, eps): (bool, f64),
    x: &[V::Number],
    [scale, shift]: [&[V::Number]; 2],
    y: &mut [V::Number],
    [mean, rstd]: [&mut [V::Number]; 2],
) -> bool {
    let zero = V::Number::ZERO;
    let (rows, count) = (Chunked::new(len), len as f64);
    let (scale, shift) = (rows.padded(scale), rows.padded(shift));
    let [mut x_spare, mut y_spare] = [[zero; LANES]; 2];
    let mut lanes = [[zero; LANES]; ROWS];
    let mut is_ordinary = true;
    for first in (0..mean.len()).step_by(ROWS) {
        let group = first..mean.len().min(first + ROWS);
        // Always sixteen rows, even if fewer are in use: loops of a known length become vectors.
        let [mut means, mut roots] = [[zero; ROWS]; 2];
        if !rms {
            for i in group.clone() {
                lanes[i - first] = rows.lanes(v, [rows.row(x, i, &mut x_spare)], zero, |[x], s| s + x);
            }
            for (m, sum) in means.iter_mut().zip(Halve::sums(isa, &lanes, group.len())) {
                *m = V::Number::from_f64(sum.to_f64() / count);
            }
        }
        for i in group.clone() {
            let m = v.splat(means[i - first]);
            let square = |[x]: [V::Vector; 1], s| v.fused(x - m, x - m, s);
            lanes[i - first] = rows.lanes(v, [rows.row(x, i, &mut x_spare)], zero, square);
        }
        let squares = Halve::sums(isa, &lanes, group.len());
        for (r, square) in roots.iter_mut().zip(squares) {
            *r = V::Number::from_f64(1.0 / (square.to_f64() / count + eps).sqrt());
        }
        is_ordinary &= are_ordinary(&means[..group.len()], &squares[..group.len()]);
        mean[group.clone()].copy_from_slice(&means[..group.len()]);
        rstd[group.clone()].copy_from_slice(&roots[..group.len()]);
        for i in group {
            let (m, r) = (v.splat(means[i - first]), v.splat(roots[i - first]));
            let mut to = rows.row_mut(y, i, &mut y_spare);
            let from = rows.row(x, i, &mut x_spare);
            rows.map(v, [from, scale, shift], &mut to, |[x, a, b]| (x - m) * r * a + b);
            rows.written(y, i, &y_spare);
        }
    }
    is_ordinary
}

/// See [`backward_turned`]; the scale is whole chunks.
#[inline(always)]
fn backward_chunked<V: Vectors<Number: Elementary>>(
    v: V,
    isa: Isa,
    len: usize,
    rms: bool,
    [x, g]: [&[V::Number]; 2],
    scale: &[V::Number],
    [mean, rstd]: [&[V::Number]; 2],
    dx: &mut [V::Number],
) {
    let zero = V::Number::ZERO;
    let (rows, count) = (Chunked::new(len), len as f64);
    let scale = rows.padded(scale);
    let [mut x_spare, mut g_spare, mut d_spare] = [[zero; LANES]; 3];
    let [mut of_h, mut of_hn] = [[[zero; LANES]; ROWS]; 2];
    for first in (0..mean.len()).step_by(ROWS) {
        let group = first..mean.len().min(first + ROWS);
        for i in group.clone() {
            let (m, r) = (v.splat(mean[i]), v.splat(rstd[i]));
            let (x, g) = (rows.row(x, i, &mut x_spare), rows.row(g, i, &mut g_spare));
            of_h[i - first] = rows.lanes(v, [g, scale], zero, |[g, a], s| s + g * a);
            of_hn[i - first] = rows.lanes(v, [x, g, scale], zero, |[x, g, a], s| v.fused(g * a, (x - m) * r, s));
        }
        let [mut mean_h, mut mean_hn]: [[V::Number; ROWS]; 2] =
            [Halve::sums(isa, &of_h, group.len()), Halve::sums(isa, &of_hn, group.len())];
        for sum in mean_h.iter_mut().chain(&mut mean_hn) {
            *sum = V::Number::from_f64(sum.to_f64() / count);
        }
        if rms {
            mean_h = [zero; ROWS];
        }
        for i in group {
            let (m, r) = (v.splat(mean[i]), v.splat(rstd[i]));
            let (mean_h, mean_hn) = (v.splat(mean_h[i - first]), v.splat(mean_hn[i - first]));
            let (x, g) = (rows.row(x, i, &mut x_spare), rows.row(g, i, &mut g_spare));
            let mut to = rows.row_mut(dx, i, &mut d_spare);
            rows.map(v, [x, g, scale], &mut to, |[x, g, a]| r * (g * a - mean_h - (x - m) * r * mean_hn));
            rows.written(dx, i, &d_spare);
        }
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
                per_vectors! {
                    $t: fn narrowest(
                        isa: Isa, len: usize, how: (bool, f64), x: &[$t], affine: [&[$t]; 2], y: &mut [$t],
                        stats: [&mut [$t]; 2], turned: &mut [Across<$t>],
                    ) -> bool = forward_turned;
                    fn others(
                        isa: Isa, len: usize, how: (bool, f64), x: &[$t], affine: [&[$t]; 2], y: &mut [$t], stats: [&mut [$t]; 2],
                    ) -> bool = forward_chunked;
                }
                if len <= NARROWEST {
                    narrowest(isa, isa, len, how, x, affine, y, stats, turned)
                } else {
                    others(isa, isa, len, how, x, affine, y, stats)
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
                per_vectors! {
                    $t: fn narrowest(
                        isa: Isa, len: usize, rms: bool, x_g: [&[$t]; 2], scale: &[$t], stats: [&[$t]; 2], dx: &mut [$t],
                        turned: [&mut [Across<$t>]; 2],
                    ) = backward_turned;
                    fn others(
                        isa: Isa, len: usize, rms: bool, x_g: [&[$t]; 2], scale: &[$t], stats: [&[$t]; 2], dx: &mut [$t],
                    ) = backward_chunked;
                }
                if len <= NARROWEST {
                    narrowest(isa, isa, len, rms, x_g, scale, stats, dx, turned)
                } else {
                    others(isa, isa, len, rms, x_g, scale, stats, dx)
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

/// Length of a buffer that holds sixteen transposed rows, if they are so narrow.
fn room(len: usize) -> usize {
    if len > NARROWEST { 0 } else { size(len) * ROWS }
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
