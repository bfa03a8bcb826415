//! The arithmetic of normalisation on a run of elements.

use super::narrow::Narrow;
use crate::access::Float;
use crate::isa::{Isa, per_isa};
use crate::rows::{Elementary, Rows, sum, tree};

/// Returns the sum of `(x - m)^2`.
#[inline(always)]
fn squares<T: Elementary>(x: &[T], m: T) -> T {
    let add = |[x]: [T; 1], s: T| {
        let d = x - m;
        d.fused(d, s)
    };
    tree([x], T::ZERO, add, |a, b| a + b)
}

/// Sets `y = (x - m) * r * scale + shift`.
#[inline(always)]
fn apply<T: Elementary>(x: &[T], y: &mut [T], m: T, r: T, scale: Option<&[T]>, shift: Option<&[T]>) {
    let y = y.iter_mut().zip(x);
    match (scale, shift) {
        (None, None) => y.for_each(|(y, &x)| *y = (x - m) * r),
        (Some(a), None) => y.zip(a).for_each(|((y, &x), &a)| *y = (x - m) * r * a),
        (None, Some(b)) => y.zip(b).for_each(|((y, &x), &b)| *y = (x - m) * r + b),
        (Some(a), Some(b)) => y.zip(a).zip(b).for_each(|(((y, &x), &a), &b)| *y = (x - m) * r * a + b),
    }
}

/// Returns the sums of `h = g * scale` and of `h * n`, with `n = (x - m) * r`.
#[inline(always)]
fn moments<T: Elementary>(x: &[T], g: &[T], scale: Option<&[T]>, m: T, r: T) -> (T, T) {
    let add = |a: T, b: T| a + b;
    let n = |x: T| (x - m) * r;
    match scale {
        None => (sum(g), tree([x, g], T::ZERO, |[x, g], s| g.fused(n(x), s), add)),
        Some(a) => (
            tree([g, a], T::ZERO, |[g, a], s| s + g * a, add),
            tree([x, g, a], T::ZERO, |[x, g, a], s| (g * a).fused(n(x), s), add),
        ),
    }
}

/// Sets `dx = r * (h - mean_h - n * mean_hn)`, with `h` and `n` as in [`moments`].
#[inline(always)]
fn gradient<T: Elementary>(x: &[T], g: &[T], scale: Option<&[T]>, [m, r, mean_h, mean_hn]: [T; 4], dx: &mut [T]) {
    let all = dx.iter_mut().zip(x).zip(g);
    match scale {
        None => all.for_each(|((d, &x), &g)| *d = r * (g - mean_h - (x - m) * r * mean_hn)),
        Some(a) => all.zip(a).for_each(|(((d, &x), &g), &a)| *d = r * (g * a - mean_h - (x - m) * r * mean_hn)),
    }
}

/// Sums each column over all rows: adds `g * n`, with `n` as in [`moments`], to `of_gn`, and `g` to `of_g`. `x_step`
/// and `g_step` are the distances between the starts of the rows. `m` and `r` hold the mean and the reciprocal root of
/// each row.
#[inline(always)]
fn affine<T: Elementary>(
    (x, x_step): (&[T], usize),
    (g, g_step): (&[T], usize),
    [m, r]: [&[T]; 2],
    of_gn: &mut [T],
    of_g: &mut [T],
) {
    let width = of_gn.len();
    let of_g = &mut of_g[..width];
    let mut i = 0;
    while i + 4 <= m.len() {
        let (x, g) = (&x[i * x_step..], &g[i * g_step..]);
        let (x0, x1, x2, x3) =
            (&x[..width], &x[x_step..][..width], &x[2 * x_step..][..width], &x[3 * x_step..][..width]);
        let (g0, g1, g2, g3) =
            (&g[..width], &g[g_step..][..width], &g[2 * g_step..][..width], &g[3 * g_step..][..width]);
        let ([m0, m1, m2, m3], [r0, r1, r2, r3]) =
            ([m[i], m[i + 1], m[i + 2], m[i + 3]], [r[i], r[i + 1], r[i + 2], r[i + 3]]);
        for j in 0..width {
            let a = g1[j].fused((x1[j] - m1) * r1, g0[j] * ((x0[j] - m0) * r0));
            let b = g3[j].fused((x3[j] - m3) * r3, g2[j] * ((x2[j] - m2) * r2));
            of_gn[j] = of_gn[j] + (a + b);
            of_g[j] = of_g[j] + ((g0[j] + g1[j]) + (g2[j] + g3[j]));
        }
        i += 4;
    }
    while i < m.len() {
        let (x, g) = (&x[i * x_step..][..width], &g[i * g_step..][..width]);
        for j in 0..width {
            of_gn[j] = g[j].fused((x[j] - m[i]) * r[i], of_gn[j]);
            of_g[j] = of_g[j] + g[j];
        }
        i += 1;
    }
}

/// The functions of this module for a storage type, on every instruction set.
pub(super) trait NormElement: Rows<Compute: Narrow> {
    fn sum(isa: Isa, x: &[Self::Compute]) -> Self::Compute;
    fn squares(isa: Isa, x: &[Self::Compute], m: Self::Compute) -> Self::Compute;
    fn apply(
        isa: Isa,
        x: &[Self::Compute],
        y: &mut [Self::Compute],
        m: Self::Compute,
        r: Self::Compute,
        scale: Option<&[Self::Compute]>,
        shift: Option<&[Self::Compute]>,
    );
    fn moments(
        isa: Isa,
        x: &[Self::Compute],
        g: &[Self::Compute],
        scale: Option<&[Self::Compute]>,
        m: Self::Compute,
        r: Self::Compute,
    ) -> (Self::Compute, Self::Compute);
    fn gradient(
        isa: Isa,
        x: &[Self::Compute],
        g: &[Self::Compute],
        scale: Option<&[Self::Compute]>,
        stats: [Self::Compute; 4],
        dx: &mut [Self::Compute],
    );
    fn affine(
        isa: Isa,
        x: (&[Self::Compute], usize),
        g: (&[Self::Compute], usize),
        stats: [&[Self::Compute]; 2],
        sums: [&mut [Self::Compute]; 2],
    );
}

macro_rules! instances {
    ($($module:ident: $t:ty;)*) => {$(
        mod $module {
            use crate::norm::kernel::*;
            per_isa! {
                pub(super) fn sum_(x: &[$t]) -> $t = sum;
                pub(super) fn squares_(x: &[$t], m: $t) -> $t = squares;
                pub(super) fn apply_(x: &[$t], y: &mut [$t], m: $t, r: $t, scale: Option<&[$t]>, shift: Option<&[$t]>) = apply;
                pub(super) fn moments_(x: &[$t], g: &[$t], scale: Option<&[$t]>, m: $t, r: $t) -> ($t, $t) = moments;
                pub(super) fn gradient_(x: &[$t], g: &[$t], scale: Option<&[$t]>, stats: [$t; 4], dx: &mut [$t]) =
                    gradient;
                pub(super) fn affine_(
                    x: (&[$t], usize), g: (&[$t], usize), stats: [&[$t]; 2], of_gn: &mut [$t], of_g: &mut [$t],
                ) = affine;
            }
        }
    )*};
}
instances! {
    single: f32;
    double: f64;
}

macro_rules! kernel {
    ($($s:ty => $m:ident;)*) => {$(
        impl NormElement for $s {
            fn sum(isa: Isa, x: &[<$s as Float>::Compute]) -> <$s as Float>::Compute {
                $m::sum_(isa, x)
            }
            fn squares(isa: Isa, x: &[Self::Compute], m: Self::Compute) -> Self::Compute {
                $m::squares_(isa, x, m)
            }
            fn apply(
                isa: Isa,
                x: &[Self::Compute],
                y: &mut [Self::Compute],
                m: Self::Compute,
                r: Self::Compute,
                scale: Option<&[Self::Compute]>,
                shift: Option<&[Self::Compute]>,
            ) {
                $m::apply_(isa, x, y, m, r, scale, shift)
            }
            fn moments(
                isa: Isa,
                x: &[Self::Compute],
                g: &[Self::Compute],
                scale: Option<&[Self::Compute]>,
                m: Self::Compute,
                r: Self::Compute,
            ) -> (Self::Compute, Self::Compute) {
                $m::moments_(isa, x, g, scale, m, r)
            }
            fn gradient(
                isa: Isa,
                x: &[Self::Compute],
                g: &[Self::Compute],
                scale: Option<&[Self::Compute]>,
                stats: [Self::Compute; 4],
                dx: &mut [Self::Compute],
            ) {
                $m::gradient_(isa, x, g, scale, stats, dx)
            }
            fn affine(
                isa: Isa,
                x: (&[Self::Compute], usize),
                g: (&[Self::Compute], usize),
                stats: [&[Self::Compute]; 2],
                [of_gn, of_g]: [&mut [Self::Compute]; 2],
            ) {
                $m::affine_(isa, x, g, stats, of_gn, of_g)
            }
        }
    )*};
}
kernel! {
    f32 => single;
    f64 => double;
    gradus_backend::f16 => single;
    gradus_backend::bf16 => single;
}
