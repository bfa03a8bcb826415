//! Max pooling, average pooling, and the gradient of average pooling.
//!
//! Channels are processed one at a time. Within a channel, the outer loop runs over the taps of the window, and the
//! inner loop over runs of positions where the tap lies inside the input. Elements in the padding are therefore never
//! read.

use gradus_backend::{DType, Error, HostVec, Result, View, ViewMut, Window};

use crate::access::{Plain, check_dtype, check_shape, with_float, with_word};
use crate::conv::window::{Geometry, split};
use crate::gemm::Real;
use crate::isa::{Isa, per_isa, per_isa_256};
use crate::order::{Order, Word};
use crate::parallel::Disjoint;
use crate::rows::{Elementary, Rows};
use crate::temp::{contiguous_output, copy_if_strided, pick};
use crate::{CpuBackend, scratch};

/// The number of pairs of a position and a tap that a task should process.
const TASK: usize = 1 << 13;
/// If output rows have fewer positions than this, the elements under a tap are gathered first.
const SHORT: usize = 8;

/// Checks `x [n, c, spatial..]` and `y [n, c, positions..]`, and returns the number of channels in the whole batch (`n
/// * c`) and the geometry.
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

/// Returns the number of channels per task.
fn grain(g: &Geometry) -> usize {
    (TASK / (g.positions() * g.taps()).max(1)).max(1)
}

/// A value that max pooling compares. For f32 and f64 it is the element itself, and for the other dtypes the element's
/// integer key (see [`Order`]).
trait Ordered: Plain {
    /// Whether this value replaces the earlier `best`, because it is larger, or because it is NaN and `best` is not.
    fn beats(self, best: Self) -> bool;
    /// Finds the largest element under each position of the window in one channel, and the tap at which it lies. `work`
    /// has room for one element per position.
    fn largest(isa: Isa, g: &Geometry, x: &[Self], work: &mut [Self], out: &mut [Self], taps: &mut [i32]);
}

macro_rules! ordered {
    ($per_isa:ident: $($t:ty, $largest:ident;)* |$a:ident, $b:ident| $beats:expr) => {$(
        $per_isa! {
            fn $largest(g: &Geometry, x: &[$t], work: &mut [$t], out: &mut [$t], taps: &mut [i32]) = largest::<$t>;
        }
        impl Ordered for $t {
            #[inline(always)]
            fn beats(self, best: Self) -> bool {
                let ($a, $b) = (self, best);
                $beats
            }
            fn largest(isa: Isa, g: &Geometry, x: &[$t], work: &mut [$t], out: &mut [$t], taps: &mut [i32]) {
                $largest(isa, g, x, work, out, taps)
            }
        }
    )*};
}
ordered! {
    per_isa: f64, largest_f64; f32, largest_f32; |a, b| (a > b) | (a.is_nan() & !b.is_nan())
}
ordered! {
    per_isa_256: u64, largest_u64; u32, largest_u32; u16, largest_u16; u8, largest_u8; |a, b| a > b
}

const MAX_POOL: &str = "max_pool";

/// See [`Backend::max_pool`](gradus_backend::Backend::max_pool).
pub(crate) fn max_pool(
    cpu: &CpuBackend,
    window: &Window,
    x: View<'_>,
    out: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = MAX_POOL;
    let (channels, g) = sizes(OP, window, x, "out", out.as_view())?;
    check_dtype(OP, "indices", indices.dtype, DType::I64)?;
    check_shape(OP, "indices", indices.layout.dims(), out.layout.dims())?;
    window.check_pool(OP, &x.layout.dims()[2..])?;
    let copy = copy_if_strided(cpu, OP, x)?;
    let x = pick(&copy, x);
    contiguous_output(cpu, OP, out, |out| {
        contiguous_output(cpu, OP, indices, |indices| match x.dtype {
            DType::F64 => by_value::<f64>(cpu, channels, &g, x, out, indices),
            DType::F32 => by_value::<f32>(cpu, channels, &g, x, out, indices),
            DType::Bool => Err(Error::dtype(OP, x.dtype, "floats and integers")),
            _ => with_word!(x.dtype.size(), W => by_key::<W>(cpu, channels, &g, x, out, indices)),
        })
    })
}

fn by_value<T: Ordered>(
    cpu: &CpuBackend,
    channels: usize,
    g: &Geometry,
    x: View<'_>,
    out: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    let Some(x) = cpu.contiguous::<T>(MAX_POOL, x)? else { return Ok(()) };
    let Some(out) = cpu.contiguous_mut::<T>(MAX_POOL, out)? else { return Ok(()) };
    let Some(indices) = cpu.contiguous_mut::<i64>(MAX_POOL, indices)? else { return Ok(()) };
    let (plane, p, offsets) = (g.plane(), g.positions(), offsets(cpu, MAX_POOL, g)?);
    let (out, indices) = (Disjoint::new(out), Disjoint::new(indices));
    cpu.parallel_for(channels, grain(g), |range| {
        scratch::large(cpu, p, |taps: &mut [i32]| {
            scratch::large(cpu, p, |work: &mut [T]| {
                for c in range {
                    let part = c * p..(c + 1) * p;
                    // SAFETY: channels do not overlap, and each belongs to one task.
                    let (out, indices) = unsafe { (out.slice(part.clone()), indices.slice(part)) };
                    T::largest(cpu.isa(), g, &x[c * plane..(c + 1) * plane], work, out, taps);
                    places(g, &offsets, taps, indices);
                }
            });
        });
    });
    Ok(())
}

/// Max pooling by keys. The key of each element is computed once and then used for all taps.
fn by_key<W: Ordered + Word>(
    cpu: &CpuBackend,
    channels: usize,
    g: &Geometry,
    x: View<'_>,
    out: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    let order = Order::<W>::new(x.dtype);
    let Some(x) = cpu.contiguous_words::<W>(MAX_POOL, x)? else { return Ok(()) };
    let Some(out) = cpu.contiguous_words_mut::<W>(MAX_POOL, out)? else { return Ok(()) };
    let Some(indices) = cpu.contiguous_mut::<i64>(MAX_POOL, indices)? else { return Ok(()) };
    let (plane, p, offsets) = (g.plane(), g.positions(), offsets(cpu, MAX_POOL, g)?);
    let (out, indices) = (Disjoint::new(out), Disjoint::new(indices));
    cpu.parallel_for(channels, grain(g), |range| {
        scratch::large(cpu, p, |taps: &mut [i32]| {
            scratch::large(cpu, plane + 2 * p, |work: &mut [W]| {
                let (keys, rest) = work.split_at_mut(plane);
                let (work, best) = rest.split_at_mut(p);
                for c in range {
                    let part = c * p..(c + 1) * p;
                    let x = &x[c * plane..(c + 1) * plane];
                    keys.iter_mut().zip(x).for_each(|(key, &x)| *key = order.key(x));
                    W::largest(cpu.isa(), g, keys, work, best, taps);
                    // SAFETY: channels do not overlap, and each belongs to one task.
                    let (out, indices) = unsafe { (out.slice(part.clone()), indices.slice(part)) };
                    places(g, &offsets, taps, indices);
                    for (o, &i) in out.iter_mut().zip(&*indices) {
                        *o = x.get(i as usize).copied().unwrap_or_default();
                    }
                }
            });
        });
    });
    Ok(())
}

/// See [`Ordered::largest`]. If a window covers no elements, its tap is -1.
#[inline(always)]
fn largest<T: Ordered>(g: &Geometry, x: &[T], together: &mut [T], out: &mut [T], taps: &mut [i32]) {
    taps.fill(-1);
    if g.output[2] < SHORT && g.is_inside() {
        // Rows are short, so the elements under each tap are gathered and then compared as one run.
        for tap in g.reached() {
            for (run, src) in g.rows(g.tap(tap)) {
                for (element, x) in together[run].iter_mut().zip(x[src..].chunks(g.stride[2])) {
                    *element = x[0];
                }
            }
            larger(together, 1, out, taps, tap as i32);
        }
        return;
    }
    for tap in g.reached() {
        for (run, src) in g.rows(g.tap(tap)) {
            let (best, at) = (&mut out[run.clone()], &mut taps[run]);
            match g.stride[2] {
                1 => larger(&x[src..], 1, best, at, tap as i32),
                2 => larger(&x[src..], 2, best, at, tap as i32),
                step => larger(&x[src..], step, best, at, tap as i32),
            }
        }
    }
}

/// Compares the elements of `x` under this tap, which are `step` apart, with the best so far. An element that beats the
/// best replaces it, and its tap is stored in `at`.
#[inline(always)]
fn larger<T: Ordered>(x: &[T], step: usize, best: &mut [T], at: &mut [i32], tap: i32) {
    let take = |best: &mut T, at: &mut i32, v: T| {
        let take = (*at < 0) | v.beats(*best);
        *best = if take { v } else { *best };
        *at = if take { tap } else { *at };
    };
    // The last element is handled separately, because `x` may end right after it, without a whole chunk of `step`
    // elements.
    let (Some((last, best)), Some((at_last, at))) = (best.split_last_mut(), at.split_last_mut()) else { return };
    for ((best, at), x) in best.iter_mut().zip(at.iter_mut()).zip(x.chunks_exact(step)) {
        take(best, at, x[0]);
    }
    take(last, at_last, x[best.len() * step]);
}

/// Returns the offset of each tap from the first tap of its window, in elements of the channel.
fn offsets(cpu: &CpuBackend, op: &str, g: &Geometry) -> Result<HostVec<i64>> {
    let [_, h, w] = g.input;
    let offset = |[z, y, x]: [usize; 3]| ((z * g.dilation[0] * h + y * g.dilation[1]) * w + x * g.dilation[2]) as i64;
    HostVec::collect(cpu, op, (0..g.taps()).map(|tap| offset(g.tap(tap))))
}

/// Returns the offset of the first window in a row of positions, as if there were no padding.
fn first_in_row(g: &Geometry, row: usize) -> usize {
    let [_, h, w] = g.input;
    let (z, y) = (row / g.output[1] * g.stride[0], row % g.output[1] * g.stride[1]);
    (z * h + y) * w
}

/// Converts `taps`, the tap chosen at each position, to the offsets of the elements in the channel. The offset is -1 if
/// there is no tap.
fn places(g: &Geometry, offsets: &[i64], taps: &[i32], indices: &mut [i64]) {
    let ([_, h, w], ow) = (g.input.map(|n| n as i64), g.output[2]);
    let padding = (g.pad[0] as i64 * h + g.pad[1] as i64) * w + g.pad[2] as i64;
    for (row, (taps, indices)) in taps.chunks_exact(ow).zip(indices.chunks_exact_mut(ow)).enumerate() {
        let first = first_in_row(g, row) as i64 - padding;
        for (x, (&tap, index)) in taps.iter().zip(indices).enumerate() {
            *index = offsets.get(tap as usize).map_or(-1, |offset| first + (x * g.stride[2]) as i64 + offset);
        }
    }
}

/// Returns the number of elements by which the sum at each position is divided.
fn counts(cpu: &CpuBackend, op: &str, g: &Geometry, count_include_pad: bool) -> Result<HostVec<u32>> {
    let all = if count_include_pad { g.taps() as u32 } else { 0 };
    let mut counts = HostVec::filled(cpu, op, all, g.positions())?;
    if !count_include_pad {
        for tap in g.reached() {
            g.rows(g.tap(tap)).for_each(|(run, _)| counts[run].iter_mut().for_each(|c| *c += 1));
        }
    }
    Ok(counts)
}

/// A compute type of average pooling, with the kernels for one channel.
trait PoolNumber: Real {
    /// Computes the mean under each position of the window.
    fn mean(isa: Isa, g: &Geometry, counts: &[u32], x: &[Self], out: &mut [Self]);
    /// The adjoint of `mean`: divides each element of `from` by its count, and sums these shares in `dx` over the
    /// elements under the window. `shares` has room for one element per position.
    fn spread(isa: Isa, g: &Geometry, counts: &[u32], from: &[Self], shares: &mut [Self], dx: &mut [Self]);
}

#[inline(always)]
fn mean<T: Elementary>(g: &Geometry, counts: &[u32], x: &[T], out: &mut [T]) {
    let step = g.stride[2];
    out.fill(T::ZERO);
    for tap in g.reached() {
        for (run, src) in g.rows(g.tap(tap)) {
            let sums = out[run].iter_mut();
            if step == 1 {
                sums.zip(&x[src..]).for_each(|(s, &v)| *s = *s + v);
            } else {
                sums.zip(x[src..].iter().step_by(step)).for_each(|(s, &v)| *s = *s + v);
            }
        }
    }
    for (o, &n) in out.iter_mut().zip(counts) {
        *o = *o / T::from_f64(f64::from(n));
    }
}

#[inline(always)]
fn spread<T: Elementary>(g: &Geometry, counts: &[u32], from: &[T], shares: &mut [T], dx: &mut [T]) {
    for ((s, &v), &n) in shares.iter_mut().zip(from).zip(counts) {
        *s = v / T::from_f64(f64::from(n));
    }
    dx.fill(T::ZERO);
    let step = g.stride[2];
    for tap in g.reached() {
        for (run, src) in g.rows(g.tap(tap)) {
            let shares = shares[run].iter();
            if step == 1 {
                dx[src..].iter_mut().zip(shares).for_each(|(s, &v)| *s = *s + v);
            } else {
                dx[src..].iter_mut().step_by(step).zip(shares).for_each(|(s, &v)| *s = *s + v);
            }
        }
    }
}

macro_rules! kernel {
    ($($t:ty, $mean:ident, $spread:ident;)*) => {$(
        per_isa_256! {
            fn $mean(g: &Geometry, counts: &[u32], x: &[$t], out: &mut [$t]) = mean::<$t>;
            fn $spread(g: &Geometry, counts: &[u32], x: &[$t], shares: &mut [$t], dx: &mut [$t]) = spread::<$t>;
        }
        impl PoolNumber for $t {
            fn mean(isa: Isa, g: &Geometry, counts: &[u32], x: &[$t], out: &mut [$t]) {
                $mean(isa, g, counts, x, out)
            }
            fn spread(isa: Isa, g: &Geometry, counts: &[u32], from: &[$t], shares: &mut [$t], dx: &mut [$t]) {
                $spread(isa, g, counts, from, shares, dx)
            }
        }
    )*};
}
kernel! {
    f32, mean_f32, spread_f32;
    f64, mean_f64, spread_f64;
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
            let counts = counts(cpu, OP, &g, count_include_pad)?;
            pool_means::<T>(cpu, channels, &g, &counts, x, out);
            Ok(())
        })
    })
}

fn pool_means<S: Rows<Compute: PoolNumber>>(
    cpu: &CpuBackend,
    channels: usize,
    g: &Geometry,
    counts: &[u32],
    x: &[S],
    out: &mut [S],
) {
    let (plane, p) = (g.plane(), g.positions());
    let (isa, out) = (cpu.isa(), Disjoint::new(out));
    cpu.parallel_for(channels, grain(g), |range| {
        scratch::large(cpu, plane + p, |work: &mut [S::Compute]| {
            let (elements, means) = work.split_at_mut(plane);
            for c in range {
                let x = S::read(isa, x, c * plane, 1, elements);
                // SAFETY: channels do not overlap, and each belongs to one task.
                unsafe { S::write(isa, &out, c * p, 1, means, |y| S::Compute::mean(isa, g, counts, x, y)) };
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
            let counts = counts(cpu, OP, &geometry, count_include_pad)?;
            spread_means::<T>(cpu, channels, &geometry, &counts, g, dx);
            Ok(())
        })
    })
}

fn spread_means<S: Rows<Compute: PoolNumber>>(
    cpu: &CpuBackend,
    channels: usize,
    g: &Geometry,
    counts: &[u32],
    from: &[S],
    dx: &mut [S],
) {
    let (plane, p) = (g.plane(), g.positions());
    let (isa, dx) = (cpu.isa(), Disjoint::new(dx));
    cpu.parallel_for(channels, grain(g), |range| {
        scratch::large(cpu, 2 * p + plane, |work: &mut [S::Compute]| {
            let (given, rest) = work.split_at_mut(p);
            let (shares, sums) = rest.split_at_mut(p);
            for c in range {
                let from = S::read(isa, from, c * p, 1, given);
                // SAFETY: channels do not overlap, and each belongs to one task.
                unsafe {
                    S::write(isa, &dx, c * plane, 1, sums, |dx| S::Compute::spread(isa, g, counts, from, shares, dx));
                }
            }
        });
    });
}

#[cfg(test)]
#[path = "pooling_tests.rs"]
mod tests;
