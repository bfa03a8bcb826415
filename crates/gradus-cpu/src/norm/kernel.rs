//! The arithmetic of normalisation over a run of elements.

use super::narrow::Narrow;
use crate::access::Float;
use crate::isa::{Isa, per_isa};
use crate::rows::{Elementary, Rows, sum, tree};

/// `sum (x - m)^2`.
#[inline(always)]
fn squares<T: Elementary>(x: &[T], m: T) -> T {
    let add = |[x]: [T; 1], s: T| {
        let d = x - m;
        d.fused(d, s)
    };
    tree([x], T::ZERO, add, |a, b| a + b)
}

/// `y = (x - m) * r * scale + shift`.
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

/// The sums of `h = g * scale` and of `h * n` with `n = (x - m) * r`.
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

/// `dx = r * (h - mean_h - n * mean_hn)` with `h` and `n` as above, from `m`, `r` and the two means.
#[inline(always)]
fn gradient<T: Elementary>(x: &[T], g: &[T], scale: Option<&[T]>, [m, r, mean_h, mean_hn]: [T; 4], dx: &mut [T]) {
    let all = dx.iter_mut().zip(x).zip(g);
    match scale {
        None => all.for_each(|((d, &x), &g)| *d = r * (g - mean_h - (x - m) * r * mean_hn)),
        Some(a) => all.zip(a).for_each(|(((d, &x), &g), &a)| *d = r * (g * a - mean_h - (x - m) * r * mean_hn)),
    }
}

/// These of one storage type, for every instruction set.
pub(super) trait Kernel: Rows<Compute: Narrow> {
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
}

macro_rules! instances {
    ($($module:ident: $t:ty;)*) => {$(
        mod $module {
            use super::*;
            per_isa! {
                pub(super) fn sum_(x: &[$t]) -> $t = sum;
                pub(super) fn squares_(x: &[$t], m: $t) -> $t = squares;
                pub(super) fn apply_(x: &[$t], y: &mut [$t], m: $t, r: $t, scale: Option<&[$t]>, shift: Option<&[$t]>) = apply;
                pub(super) fn moments_(x: &[$t], g: &[$t], scale: Option<&[$t]>, m: $t, r: $t) -> ($t, $t) = moments;
                pub(super) fn gradient_(x: &[$t], g: &[$t], scale: Option<&[$t]>, stats: [$t; 4], dx: &mut [$t]) =
                    gradient;
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
        impl Kernel for $s {
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
        }
    )*};
}
kernel! {
    f32 => single;
    f64 => double;
    gradus_backend::f16 => single;
    gradus_backend::bf16 => single;
}
