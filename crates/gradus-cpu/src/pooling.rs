//! Pooling: the largest element or the mean under each position of a window, and the mean's adjoint.
//!
//! A channel at a time, and in it a tap at a time, over runs of positions: elements in the padding are never looked at.

use gradus_backend::{DType, Error, Result, View, ViewMut, Window};

use crate::access::{Float, Plain, check_dtype, check_shape, with_float};
use crate::conv::window::{Geometry, split};
use crate::gemm::Real;
use crate::isa::{Isa, per_isa};
use crate::parallel::Disjoint;
use crate::rows::Rows;
use crate::sum::with_number;
use crate::temp::{contiguous_output, copy_if_strided, pick};
use crate::{CpuBackend, scratch};

/// Products of positions and taps that are worth a task of their own.
const TASK: usize = 1 << 13;

/// Channels (with the batch) and geometry of `x [n, c, spatial..]` and `y [n, c, positions..]`.
fn sizes(op: &str, window: &Window, x: View<'_>, name: &str, y: View<'_>) -> Result<(usize, Geometry)> {
    if !(1..=3).contains(&window.rank) {
        return Err(Error::argument(op, format!("a window over {} axes; it has 1 to 3", window.rank)));
    }
    let (n, c, spatial) = split(op, "the input", x.layout, window.rank)?;
    let g = Geometry::new(op, window, spatial)?;
    g.check(op)?;
    check_dtype(op, name, y.dtype, x.dtype)?;
    let mut dims = vec![n, c];
    dims.extend_from_slice(&g.output[3 - window.rank..]);
    check_shape(op, name, y.layout.dims(), &dims)?;
    Ok((n * c, g))
}

/// Channels a task.
fn grain(g: &Geometry) -> usize {
    (TASK / (g.positions() * g.taps()).max(1)).max(1)
}

/// A number that has an order.
trait Ordered: Plain {
    /// Whether this takes the place of `best`, which came first: it is larger, or NaN where `best` is not.
    fn beats(self, best: Self) -> bool;
}

macro_rules! ordered {
    ($($t:ty: |$a:ident, $b:ident| $beats:expr;)*) => {$(
        impl Ordered for $t {
            #[inline(always)]
            fn beats(self, best: Self) -> bool {
                let ($a, $b) = (self, best);
                $beats
            }
        }
    )*};
}
ordered! {
    f64: |a, b| (a > b) | (a.is_nan() & !b.is_nan());
    f32: |a, b| (a > b) | (a.is_nan() & !b.is_nan());
    gradus_backend::f16: |a, b| Float::widen(a).beats(Float::widen(b));
    gradus_backend::bf16: |a, b| Float::widen(a).beats(Float::widen(b));
    i64: |a, b| a > b;
    i32: |a, b| a > b;
    i16: |a, b| a > b;
    i8: |a, b| a > b;
    u64: |a, b| a > b;
    u32: |a, b| a > b;
    u16: |a, b| a > b;
    u8: |a, b| a > b;
}

/// See [`Backend::max_pool`](gradus_backend::Backend::max_pool).
pub(crate) fn max_pool(
    cpu: &CpuBackend,
    window: &Window,
    x: View<'_>,
    out: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "max_pool";
    let (channels, g) = sizes(OP, window, x, "out", out.as_view())?;
    check_dtype(OP, "indices", indices.dtype, DType::I64)?;
    check_shape(OP, "indices", indices.layout.dims(), out.layout.dims())?;
    window.check_pool(OP, &x.layout.dims()[2..])?;
    let copy = copy_if_strided(cpu, OP, x)?;
    let x = pick(&copy, x);
    contiguous_output(cpu, OP, out, |out| {
        contiguous_output(cpu, OP, indices, |indices| {
            with_number!(OP, x.dtype, T => {
                let Some(x) = cpu.contiguous::<T>(OP, x)? else { return Ok(()) };
                let Some(out) = cpu.contiguous_mut::<T>(OP, out)? else { return Ok(()) };
                let Some(indices) = cpu.contiguous_mut::<i64>(OP, indices)? else { return Ok(()) };
                let (plane, p) = (g.plane(), g.positions());
                let (out, indices) = (Disjoint::new(out), Disjoint::new(indices));
                cpu.parallel_for(channels, grain(&g), |range| {
                    for c in range {
                        // SAFETY: channels are apart, and each is one task's.
                        let (out, indices) = unsafe { (out.slice(c * p..(c + 1) * p), indices.slice(c * p..(c + 1) * p)) };
                        largest(&g, &x[c * plane..(c + 1) * plane], out, indices);
                    }
                });
                Ok(())
            })
        })
    })
}

/// The largest elements of one channel.
fn largest<T: Ordered>(g: &Geometry, x: &[T], out: &mut [T], indices: &mut [i64]) {
    indices.fill(-1);
    let step = g.stride[2];
    for tap in 0..g.taps() {
        g.runs(g.tap(tap), 0..out.len(), |run, src| {
            let elements = x[src..].iter().step_by(step).zip((src as i64..).step_by(step));
            for ((best, index), (&v, i)) in out[run.clone()].iter_mut().zip(&mut indices[run]).zip(elements) {
                let take = (*index < 0) | v.beats(*best);
                *best = std::hint::select_unpredictable(take, v, *best);
                *index = std::hint::select_unpredictable(take, i, *index);
            }
        });
    }
}

/// The number of elements that the mean at each position counts.
fn counts(g: &Geometry, count_include_pad: bool) -> Vec<u32> {
    let mut counts = vec![if count_include_pad { g.taps() as u32 } else { 0 }; g.positions()];
    if !count_include_pad {
        for tap in 0..g.taps() {
            let all = 0..counts.len();
            g.runs(g.tap(tap), all, |run, _| counts[run].iter_mut().for_each(|c| *c += 1));
        }
    }
    counts
}

/// The sums and means of one channel, in the compute type.
trait Kernel: Rows {
    /// The means under the window.
    fn mean(isa: Isa, g: &Geometry, counts: &[u32], x: &[Self], sums: &mut [Self::Compute], out: &mut [Self]);
    /// The adjoint: shares of `g` summed where they came from; `shares` has room for the positions.
    fn spread(isa: Isa, g: &Geometry, counts: &[u32], from: &[Self], work: &mut [Self::Compute], dx: &mut [Self]);
}

#[inline(always)]
fn mean<S: Rows>(g: &Geometry, counts: &[u32], x: &[S], sums: &mut [S::Compute], out: &mut [S]) {
    let step = g.stride[2];
    sums.fill(S::Compute::default());
    for tap in 0..g.taps() {
        g.runs(g.tap(tap), 0..out.len(), |run, src| {
            let sums = sums[run].iter_mut();
            if step == 1 {
                sums.zip(&x[src..]).for_each(|(s, &v)| *s = *s + v.widen());
            } else {
                sums.zip(x[src..].iter().step_by(step)).for_each(|(s, &v)| *s = *s + v.widen());
            }
        });
    }
    for ((o, &mut s), &n) in out.iter_mut().zip(sums).zip(counts) {
        *o = S::narrow(s / S::Compute::from_f64(f64::from(n)));
    }
}

#[inline(always)]
fn spread<S: Rows>(g: &Geometry, counts: &[u32], from: &[S], work: &mut [S::Compute], dx: &mut [S]) {
    let (shares, sums) = work.split_at_mut(from.len());
    for ((s, &v), &n) in shares.iter_mut().zip(from).zip(counts) {
        *s = v.widen() / S::Compute::from_f64(f64::from(n));
    }
    sums.fill(S::Compute::default());
    let step = g.stride[2];
    for tap in 0..g.taps() {
        g.runs(g.tap(tap), 0..from.len(), |run, src| {
            let shares = shares[run].iter();
            if step == 1 {
                sums[src..].iter_mut().zip(shares).for_each(|(s, &v)| *s = *s + v);
            } else {
                sums[src..].iter_mut().step_by(step).zip(shares).for_each(|(s, &v)| *s = *s + v);
            }
        });
    }
    dx.iter_mut().zip(sums).for_each(|(d, &mut s)| *d = S::narrow(s));
}

macro_rules! kernel {
    ($($s:ty, $mean:ident, $spread:ident;)*) => {$(
        per_isa! {
            fn $mean(g: &Geometry, counts: &[u32], x: &[$s], sums: &mut [<$s as Float>::Compute], out: &mut [$s]) = mean::<$s>;
            fn $spread(g: &Geometry, counts: &[u32], x: &[$s], work: &mut [<$s as Float>::Compute], dx: &mut [$s]) = spread::<$s>;
        }
        impl Kernel for $s {
            fn mean(isa: Isa, g: &Geometry, counts: &[u32], x: &[$s], sums: &mut [Self::Compute], out: &mut [$s]) {
                $mean(isa, g, counts, x, sums, out)
            }
            fn spread(isa: Isa, g: &Geometry, counts: &[u32], from: &[$s], work: &mut [Self::Compute], dx: &mut [$s]) {
                $spread(isa, g, counts, from, work, dx)
            }
        }
    )*};
}
kernel! {
    f32, mean_f32, spread_f32;
    f64, mean_f64, spread_f64;
    gradus_backend::f16, mean_f16, spread_f16;
    gradus_backend::bf16, mean_bf16, spread_bf16;
}

/// See [`Backend::avg_pool`](gradus_backend::Backend::avg_pool).
pub(crate) fn avg_pool(
    cpu: &CpuBackend,
    window: &Window,
    count_include_pad: bool,
    x: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool";
    let (channels, g) = sizes(OP, window, x, "out", out.as_view())?;
    let copy = copy_if_strided(cpu, OP, x)?;
    let x = pick(&copy, x);
    contiguous_output(cpu, OP, out, |out| {
        with_float!(OP, x.dtype, T => {
            let Some(x) = cpu.contiguous::<T>(OP, x)? else { return Ok(()) };
            let Some(out) = cpu.contiguous_mut::<T>(OP, out)? else { return Ok(()) };
            pool_means::<T>(cpu, channels, &g, count_include_pad, x, out);
            Ok(())
        })
    })
}

fn pool_means<S: Kernel>(cpu: &CpuBackend, channels: usize, g: &Geometry, pad: bool, x: &[S], out: &mut [S]) {
    let (plane, p, counts) = (g.plane(), g.positions(), counts(g, pad));
    let out = Disjoint::new(out);
    cpu.parallel_for(channels, grain(g), |range| {
        scratch::with(p, |sums: &mut [S::Compute]| {
            for c in range {
                // SAFETY: channels are apart, and each is one task's.
                let out = unsafe { out.slice(c * p..(c + 1) * p) };
                S::mean(cpu.isa(), g, &counts, &x[c * plane..(c + 1) * plane], sums, out);
            }
        });
    });
}

/// See [`Backend::avg_pool_backward`](gradus_backend::Backend::avg_pool_backward).
pub(crate) fn avg_pool_backward(
    cpu: &CpuBackend,
    window: &Window,
    count_include_pad: bool,
    g: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool_backward";
    let (channels, geometry) = sizes(OP, window, dx.as_view(), "g", g)?;
    let copy = copy_if_strided(cpu, OP, g)?;
    let g = pick(&copy, g);
    contiguous_output(cpu, OP, dx, |dx| {
        with_float!(OP, g.dtype, T => {
            let Some(g) = cpu.contiguous::<T>(OP, g)? else { return Ok(()) };
            let Some(dx) = cpu.contiguous_mut::<T>(OP, dx)? else { return Ok(()) };
            spread_means::<T>(cpu, channels, &geometry, count_include_pad, g, dx);
            Ok(())
        })
    })
}

fn spread_means<S: Kernel>(cpu: &CpuBackend, channels: usize, g: &Geometry, pad: bool, from: &[S], dx: &mut [S]) {
    let (plane, p, counts) = (g.plane(), g.positions(), counts(g, pad));
    let dx = Disjoint::new(dx);
    cpu.parallel_for(channels, grain(g), |range| {
        scratch::with(p + plane, |work: &mut [S::Compute]| {
            for c in range {
                // SAFETY: channels are apart, and each is one task's.
                let dx = unsafe { dx.slice(c * plane..(c + 1) * plane) };
                S::spread(cpu.isa(), g, &counts, &from[c * p..(c + 1) * p], work, dx);
            }
        });
    });
}

#[cfg(test)]
#[path = "pooling_tests.rs"]
mod tests;
