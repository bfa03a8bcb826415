//! Normalisation of narrow rows that are adjacent in memory, one block of rows at a time. The narrowest rows are
//! [transposed](crate::transposed). The others are read in whole vectors, and sums leave out the elements beyond a row.
//! Results have the same bits as for one row at a time.

use gradus_backend::composite;

use crate::gemm::Real;
use crate::halve::Halve;
use crate::isa::Isa;
use crate::lanes::{LANES, ROWS};
use crate::rows::{Chunked, Elementary};
use crate::transposed::{Across, size, transpose, transpose_back, tree};
use crate::vectors::{Vectors, per_vectors};

/// The maximum number of elements in a row.
pub(super) const NARROW: usize = 256;
/// The maximum number of elements in a row that is transposed.
pub(super) const NARROWEST: usize = 16;

/// Returns the bound on the mean of an ordinary group.
pub(super) fn limit<T: Elementary>() -> f64 {
    composite::norm::Large::of(T::DTYPE).limit
}

/// Normalises rows of `len` elements. `transposed` has room for [`size`] elements of sixteen rows. Returns false if a
/// sum of squares is not finite or a mean is [large](limit). The results must not be used in that case.
#[inline(always)]
fn forward_transposed<V: Vectors<Number: Elementary>>(
    v: V,
    isa: Isa,
    len: usize,
    (rms, eps): (bool, f64),
    x: &[V::Number],
    [scale, shift]: [&[V::Number]; 2],
    y: &mut [V::Number],
    [mean, rstd]: [&mut [V::Number]; 2],
    transposed: &mut [Across<V::Number>],
) -> bool {
    let (zero, count) = (V::Number::ZERO, len as f64);
    let mut is_ordinary = true;
    for first in (0..mean.len()).step_by(ROWS) {
        let n = ROWS.min(mean.len() - first);
        transpose(isa, &x[first * len..], len, n, transposed);
        let transposed = &mut transposed[..size(len)];
        let [mut means, mut roots] = [[zero; ROWS]; 2];
        if !rms {
            let sums = tree(v, [&transposed[..len]], zero, |[x], s| s + x, |a, b| a + b);
            for (m, sum) in means.iter_mut().zip(sums) {
                *m = V::Number::from_f64(sum.to_f64() / count);
            }
        }
        let m = v.load(&means);
        let squares = tree(v, [&transposed[..len]], zero, |[x], s| v.fused(x - m, x - m, s), |a, b| a + b);
        for (r, square) in roots.iter_mut().zip(squares) {
            *r = V::Number::from_f64(1.0 / (square.to_f64() / count + eps).sqrt());
        }
        is_ordinary &= are_ordinary(&means, &squares);
        let r = v.load(&roots);
        for ((x, &a), &b) in transposed[..len].iter_mut().zip(scale).zip(shift) {
            v.store((v.load(x) - m) * r * v.splat(a) + v.splat(b), x);
        }
        transpose_back(isa, transposed, len, n, &mut y[first * len..]);
        mean[first..first + n].copy_from_slice(&means[..n]);
        rstd[first..first + n].copy_from_slice(&roots[..n]);
    }
    is_ordinary
}

/// Returns whether every sum of squares is finite and no mean is [large](limit).
#[inline(always)]
fn are_ordinary<T: Elementary>(means: &[T], squares: &[T]) -> bool {
    let mut all = true;
    for (m, square) in means.iter().zip(squares) {
        all &= square.is_finite() & (m.to_f64().abs() < limit::<T>());
    }
    all
}

/// Computes the gradient of the input for rows of `len` elements. Both transposed buffers have room for [`size`]
/// elements of sixteen rows.
#[inline(always)]
fn backward_transposed<V: Vectors<Number: Elementary>>(
    v: V,
    isa: Isa,
    len: usize,
    rms: bool,
    [x, g]: [&[V::Number]; 2],
    scale: &[V::Number],
    [mean, rstd]: [&[V::Number]; 2],
    dx: &mut [V::Number],
    [x_transposed, g_transposed]: [&mut [Across<V::Number>]; 2],
) {
    let (zero, count) = (V::Number::ZERO, len as f64);
    for first in (0..mean.len()).step_by(ROWS) {
        let n = ROWS.min(mean.len() - first);
        transpose(isa, &x[first * len..], len, n, x_transposed);
        transpose(isa, &g[first * len..], len, n, g_transposed);
        let [mut means, mut roots] = [[zero; ROWS]; 2];
        means[..n].copy_from_slice(&mean[first..first + n]);
        roots[..n].copy_from_slice(&rstd[first..first + n]);
        let (m, r) = (v.load(&means), v.load(&roots));
        // Turns `g` into `h = g * scale`, the gradient of the normalised elements.
        for (g, &a) in g_transposed[..len].iter_mut().zip(scale) {
            v.store(v.load(g) * v.splat(a), g);
        }
        let both = [&x_transposed[..len], &g_transposed[..len]];
        let mut mean_h = tree(v, [both[1]], zero, |[h], s| s + h, |a, b| a + b);
        let mut mean_hn = tree(v, both, zero, |[x, h], s| v.fused(h, (x - m) * r, s), |a, b| a + b);
        for sum in mean_h.iter_mut().chain(&mut mean_hn) {
            *sum = V::Number::from_f64(sum.to_f64() / count);
        }
        if rms {
            mean_h = [zero; ROWS];
        }
        let (mean_h, mean_hn) = (v.load(&mean_h), v.load(&mean_hn));
        for (x, h) in x_transposed[..len].iter_mut().zip(&g_transposed[..len]) {
            v.store(r * (v.load(h) - mean_h - (v.load(x) - m) * r * mean_hn), x);
        }
        transpose_back(isa, x_transposed, len, n, &mut dx[first * len..]);
    }
}

/// Like [`forward_transposed`], but for rows in chunks. `scale` and `shift` are padded to whole chunks.
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
        // There are always sixteen rows, even if fewer are in use, because LLVM vectorises loops of a known length.
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

/// Like [`backward_transposed`], but for rows in chunks. `scale` is padded to whole chunks.
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

/// The functions of this module for a compute type, on every instruction set.
pub(super) trait Narrow: Elementary {
    fn forward(
        isa: Isa,
        len: usize,
        how: (bool, f64),
        x: &[Self],
        affine: [&[Self]; 2],
        y: &mut [Self],
        stats: [&mut [Self]; 2],
        transposed: &mut [Across<Self>],
    ) -> bool;
    fn backward(
        isa: Isa,
        len: usize,
        rms: bool,
        x_g: [&[Self]; 2],
        scale: &[Self],
        stats: [&[Self]; 2],
        dx: &mut [Self],
        transposed: [&mut [Across<Self>]; 2],
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
                transposed: &mut [Across<$t>],
            ) -> bool {
                per_vectors! {
                    $t: fn narrowest(
                        isa: Isa, len: usize, how: (bool, f64), x: &[$t], affine: [&[$t]; 2], y: &mut [$t],
                        stats: [&mut [$t]; 2], transposed: &mut [Across<$t>],
                    ) -> bool = forward_transposed;
                    fn others(
                        isa: Isa, len: usize, how: (bool, f64), x: &[$t], affine: [&[$t]; 2], y: &mut [$t], stats: [&mut [$t]; 2],
                    ) -> bool = forward_chunked;
                }
                if len <= NARROWEST {
                    narrowest(isa, isa, len, how, x, affine, y, stats, transposed)
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
                transposed: [&mut [Across<$t>]; 2],
            ) {
                per_vectors! {
                    $t: fn narrowest(
                        isa: Isa, len: usize, rms: bool, x_g: [&[$t]; 2], scale: &[$t], stats: [&[$t]; 2], dx: &mut [$t],
                        transposed: [&mut [Across<$t>]; 2],
                    ) = backward_transposed;
                    fn others(
                        isa: Isa, len: usize, rms: bool, x_g: [&[$t]; 2], scale: &[$t], stats: [&[$t]; 2], dx: &mut [$t],
                    ) = backward_chunked;
                }
                if len <= NARROWEST {
                    narrowest(isa, isa, len, rms, x_g, scale, stats, dx, transposed)
                } else {
                    others(isa, isa, len, rms, x_g, scale, stats, dx)
                }
            }
        }
    )*};
}
narrow! { f32 f64 }
