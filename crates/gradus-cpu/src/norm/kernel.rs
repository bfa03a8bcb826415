//! The arithmetic of normalisation over a run of elements.

use crate::access::Float;
use crate::isa::{Isa, per_isa};
use crate::rows::{Elementary, Rows, sum, tree};

/// `sum (x - m)^2`.
#[inline(always)]
fn squares<T: Elementary>(x: &[T], m: T) -> T {
    let add = |i: usize, s: T| {
        let d = x[i] - m;
        d.fused(d, s)
    };
    tree(x.len(), T::ZERO, add, |a, b| a + b)
}

/// `x = (x - m) * r * scale + shift`.
#[inline(always)]
fn apply<T: Elementary>(x: &mut [T], m: T, r: T, scale: Option<&[T]>, shift: Option<&[T]>) {
    match (scale, shift) {
        (None, None) => x.iter_mut().for_each(|x| *x = (*x - m) * r),
        (Some(a), None) => x.iter_mut().zip(a).for_each(|(x, &a)| *x = (*x - m) * r * a),
        (None, Some(b)) => x.iter_mut().zip(b).for_each(|(x, &b)| *x = (*x - m) * r + b),
        (Some(a), Some(b)) => x.iter_mut().zip(a).zip(b).for_each(|((x, &a), &b)| *x = (*x - m) * r * a + b),
    }
}

/// `x` becomes `n = (x - m) * r` and `h` is scaled; the sums of `h` and of `h * n`.
#[inline(always)]
fn moments<T: Elementary>(x: &mut [T], h: &mut [T], scale: Option<&[T]>, m: T, r: T) -> (T, T) {
    x.iter_mut().for_each(|x| *x = (*x - m) * r);
    if let Some(a) = scale {
        h.iter_mut().zip(a).for_each(|(h, &a)| *h = *h * a);
    }
    let (x, h) = (&*x, &h[..x.len()]);
    (sum(h), tree(x.len(), T::ZERO, |i, s| h[i].fused(x[i], s), |a, b| a + b))
}

/// `h = r * (h - mean_h - n * mean_hn)`.
#[inline(always)]
fn gradient<T: Elementary>(n: &[T], h: &mut [T], r: T, mean_h: T, mean_hn: T) {
    h.iter_mut().zip(n).for_each(|(h, &n)| *h = r * (*h - mean_h - n * mean_hn));
}

/// These of one storage type, for every instruction set.
pub(super) trait Kernel: Rows {
    fn sum(isa: Isa, x: &[Self::Compute]) -> Self::Compute;
    fn squares(isa: Isa, x: &[Self::Compute], m: Self::Compute) -> Self::Compute;
    fn apply(
        isa: Isa,
        x: &mut [Self::Compute],
        m: Self::Compute,
        r: Self::Compute,
        scale: Option<&[Self::Compute]>,
        shift: Option<&[Self::Compute]>,
    );
    fn moments(
        isa: Isa,
        x: &mut [Self::Compute],
        h: &mut [Self::Compute],
        scale: Option<&[Self::Compute]>,
        m: Self::Compute,
        r: Self::Compute,
    ) -> (Self::Compute, Self::Compute);
    fn gradient(
        isa: Isa,
        n: &[Self::Compute],
        h: &mut [Self::Compute],
        r: Self::Compute,
        mh: Self::Compute,
        mhn: Self::Compute,
    );
}

macro_rules! instances {
    ($($module:ident: $t:ty;)*) => {$(
        mod $module {
            use super::*;
            per_isa! {
                pub(super) fn sum_(x: &[$t]) -> $t = sum;
                pub(super) fn squares_(x: &[$t], m: $t) -> $t = squares;
                pub(super) fn apply_(x: &mut [$t], m: $t, r: $t, scale: Option<&[$t]>, shift: Option<&[$t]>) = apply;
                pub(super) fn moments_(x: &mut [$t], h: &mut [$t], scale: Option<&[$t]>, m: $t, r: $t) -> ($t, $t) = moments;
                pub(super) fn gradient_(n: &[$t], h: &mut [$t], r: $t, mh: $t, mhn: $t) = gradient;
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
                x: &mut [Self::Compute],
                m: Self::Compute,
                r: Self::Compute,
                scale: Option<&[Self::Compute]>,
                shift: Option<&[Self::Compute]>,
            ) {
                $m::apply_(isa, x, m, r, scale, shift)
            }
            fn moments(
                isa: Isa,
                x: &mut [Self::Compute],
                h: &mut [Self::Compute],
                scale: Option<&[Self::Compute]>,
                m: Self::Compute,
                r: Self::Compute,
            ) -> (Self::Compute, Self::Compute) {
                $m::moments_(isa, x, h, scale, m, r)
            }
            fn gradient(
                isa: Isa,
                n: &[Self::Compute],
                h: &mut [Self::Compute],
                r: Self::Compute,
                mh: Self::Compute,
                mhn: Self::Compute,
            ) {
                $m::gradient_(isa, n, h, r, mh, mhn)
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
