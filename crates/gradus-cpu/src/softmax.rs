//! Softmax and log-softmax along any axis, and their gradients, in the compute type. Rows that are consecutive in
//! memory are computed in blocks, and other rows one by one.

use std::ops::Range;

use gradus_backend::{Error, Layout, Result, View, ViewMut};

use crate::access::{check_axis, check_dtype, check_shape, with_float};
use crate::check::check_output;
use crate::gemm::Real;
use crate::halve::Halve;
use crate::isa::Isa;
use crate::lanes::{LANES, ROWS, larger};
use crate::map::{Mapped, Operand};
use crate::nest::Nest;
use crate::parallel::Disjoint;
use crate::rows::{Chunked, Elementary, Rows, divide_chunks, map_chunks};
use crate::transposed::{self, Across};
use crate::vectors::{Vectors, per_vectors};
use crate::{CpuBackend, scratch};

/// The number of elements that a task should process.
const TASK: usize = 1 << 13;
/// The number of elements in a block of rows, unless a single row has more.
const BLOCK: usize = 1 << 11;

/// Rows of at most this many elements are transposed ([`transposed`]), if there are enough of them.
const NARROW: usize = 16;
/// The maximum length of rows that are computed several at a time, step by step.
const LONG: usize = 256;
/// The minimum number of rows for which transposing pays off, given that sixteen are always computed at once.
const FEWEST: usize = 4;

/// The kernels for rows of the same length. If the rows are narrow, each of `transposed` has room for them (see
/// [`transposed::size`]).
trait SoftmaxElement: Rows {
    fn forward(
        isa: Isa,
        log: bool,
        len: usize,
        x: &[Self::Compute],
        y: &mut [Self::Compute],
        transposed: &mut [Across<Self::Compute>],
    );
    fn backward(
        isa: Isa,
        log: bool,
        len: usize,
        y_g: [&[Self::Compute]; 2],
        dx: &mut [Self::Compute],
        transposed: [&mut [Across<Self::Compute>]; 2],
    );
}

/// Sets each row of `y` to the softmax of the same row of `x`, or to its logarithm if `log` is true.
#[inline(always)]
fn forward_transposed<V: Vectors<Number: Elementary>>(
    v: V,
    isa: Isa,
    log: bool,
    len: usize,
    x: &[V::Number],
    y: &mut [V::Number],
    transposed: &mut [Across<V::Number>],
) {
    let (zero, lowest) = (V::Number::ZERO, V::Number::NEG_INFINITY);
    for (x, y) in x.chunks(ROWS * len).zip(y.chunks_mut(ROWS * len)) {
        let n = y.len() / len;
        transposed::transpose(isa, x, len, n, transposed);
        let rows = &mut transposed[..len];
        let m = transposed::tree(v, [&*rows], lowest, |[x], m| v.larger(m, x), |a, b| v.larger(a, b));
        if log {
            let mut exps = [[zero; ROWS]; NARROW];
            let exps = &mut exps[..len];
            for (e, x) in exps.iter_mut().zip(&*rows) {
                *e = *x;
                transposed::each(e, |r, x| (x - m[r]).exp());
            }
            let mut total = transposed::tree(v, [&*exps], zero, |[e], s| s + e, |a, b| a + b);
            total.iter_mut().for_each(|total| *total = total.ln());
            let (m, total) = (v.load(&m), v.load(&total));
            for x in rows {
                v.store(v.load(x) - m - total, x);
            }
        } else {
            for x in &mut *rows {
                transposed::each(x, |r, x| (x - m[r]).exp());
            }
            let total = v.load(&transposed::tree(v, [&*rows], zero, |[y], s| s + y, |a, b| a + b));
            for y in rows {
                v.store(v.load(y) / total, y);
            }
        }
        transposed::transpose_back(isa, transposed, len, n, y);
    }
}

/// Sets each row of `dx` to the gradient of the input, where `y` is the result of the forward pass and `g` its
/// gradient.
#[inline(always)]
fn backward_transposed<V: Vectors<Number: Elementary>>(
    v: V,
    isa: Isa,
    log: bool,
    len: usize,
    [y, g]: [&[V::Number]; 2],
    dx: &mut [V::Number],
    [y_transposed, g_transposed]: [&mut [Across<V::Number>]; 2],
) {
    let zero = V::Number::ZERO;
    for ((y, g), dx) in y.chunks(ROWS * len).zip(g.chunks(ROWS * len)).zip(dx.chunks_mut(ROWS * len)) {
        let n = dx.len() / len;
        transposed::transpose(isa, y, len, n, y_transposed);
        transposed::transpose(isa, g, len, n, g_transposed);
        let (rows, g) = (&mut y_transposed[..len], &g_transposed[..len]);
        let total = if log {
            transposed::tree(v, [g], zero, |[g], s| s + g, |a, b| a + b)
        } else {
            transposed::tree(v, [&*rows, g], zero, |[y, g], s| v.fused(y, g, s), |a, b| a + b)
        };
        for (y, g) in rows.iter_mut().zip(g) {
            if log {
                transposed::each(y, |r, y| g[r] - y.exp() * total[r]);
            } else {
                v.store(v.load(y) * (v.load(g) - v.load(&total)), y);
            }
        }
        transposed::transpose_back(isa, y_transposed, len, n, dx);
    }
}

/// Like [`forward_transposed`], but for long rows, which are computed one by one.
#[inline(always)]
fn forward_long<T: Elementary>(log: bool, len: usize, x: &[T], y: &mut [T]) {
    let rows = Chunked::new(len);
    let [mut x_spare, mut y_spare] = [[T::ZERO; LANES]; 2];
    for i in 0..y.len() / len {
        let from = rows.row(x, i, &mut x_spare);
        let mut to = rows.row_mut(y, i, &mut y_spare);
        let m = rows.tree([from], T::NEG_INFINITY, |[x], m| larger(m, x), larger);
        if log {
            let total = rows.tree([from], T::ZERO, |[x], s| s + (x - m).exp(), |a, b| a + b).ln();
            map_chunks([from], &mut to, |[x]| x - m - total);
        } else {
            map_chunks([from], &mut to, |[x]| (x - m).exp());
            let total = rows.tree([to.row()], T::ZERO, |[y], s| s + y, |a, b| a + b);
            divide_chunks(&mut to, total);
        }
        rows.written(y, i, &y_spare);
    }
}

/// Like [`backward_transposed`], but for long rows, which are computed one by one.
#[inline(always)]
fn backward_long<T: Elementary>(log: bool, len: usize, y: &[T], g: &[T], dx: &mut [T]) {
    let rows = Chunked::new(len);
    let [mut y_spare, mut g_spare, mut d_spare] = [[T::ZERO; LANES]; 3];
    for i in 0..dx.len() / len {
        let (y, g) = (rows.row(y, i, &mut y_spare), rows.row(g, i, &mut g_spare));
        let mut to = rows.row_mut(dx, i, &mut d_spare);
        if log {
            let total = rows.tree([g], T::ZERO, |[g], s| s + g, |a, b| a + b);
            map_chunks([y, g], &mut to, |[y, g]| g - y.exp() * total);
        } else {
            let total = rows.tree([y, g], T::ZERO, |[y, g], s| y.fused(g, s), |a, b| a + b);
            map_chunks([y, g], &mut to, |[y, g]| y * (g - total));
        }
        rows.written(dx, i, &d_spare);
    }
}

/// Like [`forward_transposed`], but for rows in chunks.
#[inline(always)]
fn forward_chunked<V: Vectors<Number: Elementary>>(
    v: V,
    isa: Isa,
    log: bool,
    len: usize,
    x: &[V::Number],
    y: &mut [V::Number],
) {
    let (zero, lowest) = (V::Number::ZERO, V::Number::NEG_INFINITY);
    if len > LONG {
        // Hides the length from LLVM, which generates slower code for one that it knows to be large.
        return forward_long(log, std::hint::black_box(len), x, y);
    }
    let rows = Chunked::new(len);
    let [mut x_spare, mut y_spare] = [[zero; LANES]; 2];
    let mut lanes = [[zero; LANES]; ROWS];
    for first in (0..y.len() / len).step_by(ROWS) {
        let group = first..(first + ROWS).min(y.len() / len);
        for i in group.clone() {
            lanes[i - first] = rows.lanes(v, [rows.row(x, i, &mut x_spare)], lowest, |[x], m| v.larger(m, x));
        }
        let m = Halve::largest(isa, &lanes, group.len());
        for i in group.clone() {
            let (from, m) = (rows.row(x, i, &mut x_spare), m[i - first]);
            let mut to = rows.row_mut(y, i, &mut y_spare);
            map_chunks([from], &mut to, |[x]| (x - m).exp());
            lanes[i - first] = rows.lanes(v, [to.row()], zero, |[y], s| s + y);
            rows.written(y, i, &y_spare);
        }
        let total = Halve::sums(isa, &lanes, group.len());
        for i in group {
            let mut to = rows.row_mut(y, i, &mut y_spare);
            if log {
                let (m, total) = (v.splat(m[i - first]), v.splat(total[i - first].ln()));
                rows.map(v, [rows.row(x, i, &mut x_spare)], &mut to, |[x]| x - m - total);
            } else {
                rows.divide(v, &mut to, total[i - first]);
            }
            rows.written(y, i, &y_spare);
        }
    }
}

/// Like [`backward_transposed`], but for rows in chunks.
#[inline(always)]
fn backward_chunked<V: Vectors<Number: Elementary>>(
    v: V,
    isa: Isa,
    log: bool,
    len: usize,
    y: &[V::Number],
    g: &[V::Number],
    dx: &mut [V::Number],
) {
    let zero = V::Number::ZERO;
    if len > LONG {
        // Hides the length from LLVM, which generates slower code for one that it knows to be large.
        return backward_long(log, std::hint::black_box(len), y, g, dx);
    }
    let rows = Chunked::new(len);
    let [mut y_spare, mut g_spare, mut d_spare] = [[zero; LANES]; 3];
    let mut lanes = [[zero; LANES]; ROWS];
    for first in (0..dx.len() / len).step_by(ROWS) {
        let group = first..(first + ROWS).min(dx.len() / len);
        for i in group.clone() {
            let (y, g) = (rows.row(y, i, &mut y_spare), rows.row(g, i, &mut g_spare));
            lanes[i - first] = if log {
                rows.lanes(v, [g], zero, |[g], s| s + g)
            } else {
                rows.lanes(v, [y, g], zero, |[y, g], s| v.fused(y, g, s))
            };
        }
        let total: [V::Number; ROWS] = Halve::sums(isa, &lanes, group.len());
        for i in group {
            let (y, g) = (rows.row(y, i, &mut y_spare), rows.row(g, i, &mut g_spare));
            let (mut to, total) = (rows.row_mut(dx, i, &mut d_spare), total[i - first]);
            if log {
                map_chunks([y, g], &mut to, |[y, g]| g - y.exp() * total);
            } else {
                let total = v.splat(total);
                rows.map(v, [y, g], &mut to, |[y, g]| y * (g - total));
            }
            rows.written(dx, i, &d_spare);
        }
    }
}

macro_rules! kernel {
    ($($s:ty, $c:ty;)*) => {$(
        impl SoftmaxElement for $s {
            fn forward(isa: Isa, log: bool, len: usize, x: &[$c], y: &mut [$c], transposed: &mut [Across<$c>]) {
                per_vectors! {
                    $c: fn narrow(isa: Isa, log: bool, len: usize, x: &[$c], y: &mut [$c], transposed: &mut [Across<$c>]) =
                        forward_transposed;
                    fn others(isa: Isa, log: bool, len: usize, x: &[$c], y: &mut [$c]) = forward_chunked;
                }
                if len <= NARROW && x.len() >= FEWEST * len {
                    narrow(isa, isa, log, len, x, y, transposed)
                } else {
                    others(isa, isa, log, len, x, y)
                }
            }
            fn backward(
                isa: Isa,
                log: bool,
                len: usize,
                [y, g]: [&[$c]; 2],
                dx: &mut [$c],
                transposed: [&mut [Across<$c>]; 2],
            ) {
                per_vectors! {
                    $c: fn narrow(
                        isa: Isa, log: bool, len: usize, y_g: [&[$c]; 2], dx: &mut [$c], transposed: [&mut [Across<$c>]; 2],
                    ) = backward_transposed;
                    fn others(isa: Isa, log: bool, len: usize, y: &[$c], g: &[$c], dx: &mut [$c]) = backward_chunked;
                }
                if len <= NARROW && y.len() >= FEWEST * len {
                    narrow(isa, isa, log, len, [y, g], dx, transposed)
                } else {
                    others(isa, isa, log, len, y, g, dx)
                }
            }
        }
    )*};
}
kernel! {
    f32, f32;
    f64, f64;
}

/// Implements half precision with the kernels of f32.
macro_rules! half {
    ($($s:ty)*) => {$(
        impl SoftmaxElement for $s {
            fn forward(isa: Isa, log: bool, len: usize, x: &[f32], y: &mut [f32], transposed: &mut [Across<f32>]) {
                f32::forward(isa, log, len, x, y, transposed)
            }
            fn backward(
                isa: Isa,
                log: bool,
                len: usize,
                y_g: [&[f32]; 2],
                dx: &mut [f32],
                transposed: [&mut [Across<f32>]; 2],
            ) {
                f32::backward(isa, log, len, y_g, dx, transposed)
            }
        }
    )*};
}
half! { gradus_backend::f16 gradus_backend::bf16 }

/// Where the rows start, their length, and their strides.
struct Lanes<const N: usize> {
    starts: Nest<N>,
    len: usize,
    steps: [isize; N],
}

impl<const N: usize> Lanes<N> {
    /// Returns the number of rows in a block. A block has several rows if they are consecutive in every layout.
    fn block(&self) -> usize {
        let follow = self.starts.dims().len() == 1 && self.starts.strides(0) == [self.len as isize; N];
        if follow && self.steps == [1; N] { (BLOCK / self.len).max(1) } else { 1 }
    }

    /// Returns the number of elements needed for [transposed] rows; 0 if the rows are not narrow.
    fn transposed(&self) -> usize {
        if self.len > NARROW { 0 } else { transposed::size(self.len) * ROWS }
    }

    /// Calls `f` with the positions of the first row of each block, and the number of elements in the block.
    fn for_each_block(&self, rows: Range<usize>, mut f: impl FnMut([usize; N], usize)) {
        match self.block() {
            1 => self.starts.for_each(rows, |_, at| f(at, self.len)),
            n => rows.clone().step_by(n).for_each(|i| f(self.starts.at(i), n.min(rows.end - i) * self.len)),
        }
    }
}

/// Returns the rows along an axis of layouts of the same shape, or `None` if there are no elements.
fn lanes<const N: usize>(axis: usize, layouts: [&Layout; N]) -> Result<Option<Lanes<N>>> {
    if layouts[0].numel() == 0 {
        return Ok(None);
    }
    let mut rest = [*layouts[0]; N];
    for (r, l) in rest.iter_mut().zip(layouts) {
        *r = l.select(axis, 0)?;
    }
    let (len, steps) = (layouts[0].dims()[axis], layouts.map(|l| l.strides()[axis]));
    Ok(Some(Lanes { starts: Nest::new(&rest.each_ref()[..]), len, steps }))
}

/// See [`Backend::softmax`](gradus_backend::Backend::softmax).
pub(crate) fn softmax(cpu: &CpuBackend, log: bool, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
    let op = if log { "log_softmax" } else { "softmax" };
    check_axis(op, axis, x.layout.dims())?;
    check_dtype(op, "out", out.dtype, x.dtype)?;
    check_shape(op, "out", out.layout.dims(), x.layout.dims())?;
    check_output(op, "out", out.layout)?;
    let lanes = lanes(axis, [x.layout, out.layout])?;
    with_float!(op, x.dtype, T => {
        let (x, out) = (cpu.slice::<T>(op, x)?, cpu.slice_mut::<T>(op, out)?);
        if let Some(lanes) = lanes {
            forward::<T>(cpu, log, &lanes, Operand::Memory(x), out);
        }
        Ok::<(), Error>(())
    })
}

/// The [`softmax`] of rows that a kernel computes. They are consecutive.
pub(crate) fn softmax_of(
    cpu: &CpuBackend,
    log: bool,
    x: &Mapped<'_>,
    axis: usize,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let op = if log { "log_softmax" } else { "softmax" };
    check_axis(op, axis, x.layout.dims())?;
    check_dtype(op, "out", out.dtype, x.dtype)?;
    check_shape(op, "out", out.layout.dims(), x.layout.dims())?;
    check_output(op, "out", out.layout)?;
    let lanes = lanes(axis, [&x.layout, out.layout])?;
    with_float!(op, x.dtype, T => {
        let out = cpu.slice_mut::<T>(op, out)?;
        if let Some(lanes) = lanes {
            forward::<T>(cpu, log, &lanes, Operand::Mapped(x), out);
        }
        Ok::<(), Error>(())
    })
}

fn forward<S: SoftmaxElement>(cpu: &CpuBackend, log: bool, lanes: &Lanes<2>, x: Operand<'_, S>, out: &mut [S]) {
    let (isa, out, [sx, so]) = (cpu.isa(), Disjoint::new(out), lanes.steps);
    cpu.parallel_for(lanes.starts.numel(), (x.task(TASK) / lanes.len).max(1), |rows| {
        let (len, block) = (lanes.len, lanes.block() * lanes.len);
        x.with(rows.start * len..rows.end * len, |x, first| {
            scratch::split(
                cpu,
                [block, block, lanes.transposed()],
                |[x_rows, y_rows, transposed]: [&mut [S::Compute]; 3]| {
                    lanes.for_each_block(rows, |[ax, ao], n| {
                        let x = S::read(isa, x, ax - first, sx, &mut x_rows[..n]);
                        let make = |y: &mut [_]| S::forward(isa, log, len, x, y, transposed.as_chunks_mut().0);
                        // SAFETY: the rows belong to this task, and no two elements of the output share a position.
                        unsafe { S::write(isa, &out, ao, so, &mut y_rows[..n], make) };
                    });
                },
            );
        });
    });
}

/// See [`Backend::softmax_backward`](gradus_backend::Backend::softmax_backward).
pub(crate) fn softmax_backward(
    cpu: &CpuBackend,
    log: bool,
    y: View<'_>,
    g: View<'_>,
    axis: usize,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    let op = if log { "log_softmax_backward" } else { "softmax_backward" };
    check_axis(op, axis, y.layout.dims())?;
    for (name, dtype, layout) in [("g", g.dtype, &g.layout), ("dx", dx.dtype, &dx.layout)] {
        check_dtype(op, name, dtype, y.dtype)?;
        check_shape(op, name, layout.dims(), y.layout.dims())?;
    }
    check_output(op, "dx", dx.layout)?;
    let lanes = lanes(axis, [y.layout, g.layout, dx.layout])?;
    with_float!(op, y.dtype, T => {
        let (y, g, dx) = (cpu.slice::<T>(op, y)?, cpu.slice::<T>(op, g)?, cpu.slice_mut::<T>(op, dx)?);
        if let Some(lanes) = lanes {
            backward::<T>(cpu, log, &lanes, y, g, dx);
        }
        Ok::<(), Error>(())
    })
}

fn backward<S: SoftmaxElement>(cpu: &CpuBackend, log: bool, lanes: &Lanes<3>, y: &[S], g: &[S], dx: &mut [S]) {
    let (isa, dx, [sy, sg, sd]) = (cpu.isa(), Disjoint::new(dx), lanes.steps);
    cpu.parallel_for(lanes.starts.numel(), (TASK / lanes.len).max(1), |rows| {
        let (len, block) = (lanes.len, lanes.block() * lanes.len);
        let lens = [block, block, block, lanes.transposed(), lanes.transposed()];
        scratch::split(cpu, lens, |[y_rows, g_rows, d_rows, y_transposed, g_transposed]: [&mut [S::Compute]; 5]| {
            lanes.for_each_block(rows, |[ay, ag, ad], n| {
                let y = S::read(isa, y, ay, sy, &mut y_rows[..n]);
                let g = S::read(isa, g, ag, sg, &mut g_rows[..n]);
                let transposed = [&mut *y_transposed, &mut *g_transposed].map(|t| t.as_chunks_mut().0);
                let make = |d: &mut [S::Compute]| S::backward(isa, log, len, [y, g], d, transposed);
                // SAFETY: as in `forward`.
                unsafe { S::write(isa, &dx, ad, sd, &mut d_rows[..n], make) };
            });
        });
    });
}

#[cfg(test)]
mod tests {
    use gradus_backend::{Backend, DType, ErrorKind};

    use crate::CpuBackend;
    use crate::testing::{Lie, Tensor, assert_close, assert_same_bits, noise};

    /// Calls `f` with the positions of each row along an axis.
    fn rows(dims: &[usize], axis: usize, mut f: impl FnMut(&[usize])) {
        let inner: usize = dims[axis + 1..].iter().product();
        let outer: usize = dims[..axis].iter().product();
        for o in 0..outer {
            for i in 0..inner {
                f(&(0..dims[axis]).map(|k| (o * dims[axis] + k) * inner + i).collect::<Vec<_>>());
            }
        }
    }

    const SHAPES: [(&[usize], usize); 6] =
        [(&[7], 0), (&[3, 40], 1), (&[5, 6, 7], 1), (&[33, 2], 0), (&[2, 0, 3], 0), (&[4, 0], 1)];

    #[test]
    fn forward_and_backward_agree_with_f64() {
        let cpu = CpuBackend::with_threads(2).unwrap();
        let types = [(DType::F64, 1e-14), (DType::F32, 1e-6), (DType::F16, 2e-3), (DType::BF16, 2e-2)];
        for (t, (dims, axis)) in SHAPES.into_iter().enumerate() {
            for (d, (dtype, tolerance)) in types.into_iter().enumerate() {
                for log in [false, true] {
                    let lie = |i: usize| Lie::ALL[(t + d + i) % 4];
                    let mut n = noise(1);
                    let x = Tensor::new(&cpu, dtype, dims, lie(0), |i| 8.0 * n(i));
                    let mut y = Tensor::canary(&cpu, dtype, dims, lie(1));
                    cpu.softmax(log, x.view(), axis, &mut y.view_mut()).unwrap();
                    y.assert_gaps_untouched(&cpu);
                    let (xv, mut want) = (x.values(&cpu), vec![0.0; x.layout.numel()]);
                    rows(dims, axis, |r| {
                        let m = r.iter().map(|&i| xv[i]).fold(f64::NEG_INFINITY, f64::max);
                        let sum: f64 = r.iter().map(|&i| (xv[i] - m).exp()).sum();
                        r.iter()
                            .for_each(|&i| want[i] = if log { xv[i] - m - sum.ln() } else { (xv[i] - m).exp() / sum });
                    });
                    assert_close(&y.values(&cpu), &want, tolerance);

                    let g = Tensor::new(&cpu, dtype, dims, lie(2), noise(2));
                    let mut dx = Tensor::canary(&cpu, dtype, dims, lie(3));
                    cpu.softmax_backward(log, y.view(), g.view(), axis, &mut dx.view_mut()).unwrap();
                    let (yv, gv) = (y.values(&cpu), g.values(&cpu));
                    rows(dims, axis, |r| {
                        let sum: f64 = r.iter().map(|&i| if log { gv[i] } else { gv[i] * yv[i] }).sum();
                        r.iter().for_each(|&i| {
                            want[i] = if log { gv[i] - yv[i].exp() * sum } else { yv[i] * (gv[i] - sum) }
                        });
                    });
                    assert_close(&dx.values(&cpu), &want, tolerance);
                }
            }
        }
    }

    /// Consecutive rows are computed in blocks, and other rows one by one.
    #[test]
    fn rows_have_the_same_bits_wherever_they_lie() {
        let cpu = CpuBackend::with_threads(2).unwrap();
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            for len in [1, 3, 7, 8, 9, 15, 16, 17, 33, 127, 2100] {
                for log in [false, true] {
                    let both = [Lie::Contiguous, Lie::Spaced].map(|lie| {
                        let x = Tensor::new(&cpu, dtype, &[70, len], lie, noise(1));
                        let g = Tensor::new(&cpu, dtype, &[70, len], lie, noise(2));
                        let mut y = Tensor::canary(&cpu, dtype, &[70, len], Lie::Contiguous);
                        cpu.softmax(log, x.view(), 1, &mut y.view_mut()).unwrap();
                        let mut dx = Tensor::canary(&cpu, dtype, &[70, len], Lie::Contiguous);
                        cpu.softmax_backward(log, y.view(), g.view(), 1, &mut dx.view_mut()).unwrap();
                        [y.bytes(&cpu), dx.bytes(&cpu)]
                    });
                    assert!(both[0] == both[1], "{dtype} {len} {log}");
                }
            }
        }
    }

    #[test]
    fn infinities_and_nan_come_out_as_documented() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let inf = f64::INFINITY;
        for (row, nan) in [
            ([-inf, -inf, -inf], true),
            ([1.0, f64::NAN, 2.0], true),
            ([-inf, 0.0, 0.0], false),
            ([inf, 0.0, 1.0], true),
        ] {
            for dtype in [DType::F32, DType::F64] {
                let x = Tensor::new(&cpu, dtype, &[3], Lie::Contiguous, |i| row[i]);
                let mut y = Tensor::canary(&cpu, dtype, &[3], Lie::Contiguous);
                cpu.softmax(false, x.view(), 0, &mut y.view_mut()).unwrap();
                let y = y.values(&cpu);
                if nan {
                    assert!(y.iter().all(|v| v.is_nan()), "{row:?}: {y:?}");
                } else {
                    assert_eq!(y, [0.0, 0.5, 0.5]);
                }
            }
        }
    }

    /// Rows are computed together, but a NaN must not leave its own row.
    #[test]
    fn a_row_that_is_not_finite_leaves_the_others() {
        for len in [1, 4, 16, 17, 40, 256, 300] {
            for bad in [f64::NAN, f64::INFINITY] {
                let cpu = CpuBackend::with_threads(1).unwrap();
                let mut numbers = noise(1);
                let mut good = Vec::new();
                let x = Tensor::new(&cpu, DType::F32, &[20, len], Lie::Contiguous, |i| {
                    let number = numbers(i);
                    good.push(number);
                    if i % len == 0 && i / len % 3 == 1 { bad } else { number }
                });
                let clean = Tensor::new(&cpu, DType::F32, &[20, len], Lie::Contiguous, |i| good[i]);
                let [got, want] = [&x, &clean].map(|x| {
                    let mut y = Tensor::canary(&cpu, DType::F32, &[20, len], Lie::Contiguous);
                    cpu.softmax(false, x.view(), 1, &mut y.view_mut()).unwrap();
                    y.values(&cpu)
                });
                for (r, (got, want)) in got.chunks(len).zip(want.chunks(len)).enumerate() {
                    if r % 3 == 1 {
                        assert!(got[0].is_nan(), "{len} {bad} {r}");
                    } else {
                        assert_eq!(got, want, "{len} {bad} {r}");
                    }
                }
            }
        }
    }

    #[test]
    fn threads_and_instruction_sets_change_no_bit() {
        let shapes = [([130, 200], 1), ([130, 200], 0), ([70, 7], 1), ([70, 24], 1), ([20, 300], 1)];
        for (dtype, (dims, axis), log) in
            [DType::F32, DType::F64].into_iter().flat_map(|d| shapes.map(|s| [(d, s, false), (d, s, true)])).flatten()
        {
            assert_same_bits(|cpu| {
                let x = Tensor::new(cpu, dtype, &dims, Lie::Contiguous, noise(1));
                let mut y = Tensor::canary(cpu, dtype, &dims, Lie::Contiguous);
                cpu.softmax(log, x.view(), axis, &mut y.view_mut()).unwrap();
                let mut dx = Tensor::canary(cpu, dtype, &dims, Lie::Contiguous);
                cpu.softmax_backward(log, y.view(), x.view(), axis, &mut dx.view_mut()).unwrap();
                [y.bytes(cpu), dx.bytes(cpu)].concat()
            });
        }
    }

    #[test]
    fn wrong_operands_are_typed_errors() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let x = Tensor::new(&cpu, DType::F32, &[2, 3], Lie::Contiguous, |_| 0.0);
        let i = Tensor::new(&cpu, DType::I32, &[2, 3], Lie::Contiguous, |_| 0.0);
        let mut small = Tensor::canary(&cpu, DType::F32, &[2, 2], Lie::Contiguous);
        let mut out = Tensor::canary(&cpu, DType::I32, &[2, 3], Lie::Contiguous);
        let kind = |r: gradus_backend::Result<()>| r.unwrap_err().kind().clone();
        assert_eq!(kind(cpu.softmax(false, x.view(), 2, &mut small.view_mut())), ErrorKind::InvalidAxis);
        assert_eq!(kind(cpu.softmax(false, x.view(), 1, &mut small.view_mut())), ErrorKind::ShapeMismatch);
        assert_eq!(kind(cpu.softmax(false, x.view(), 1, &mut out.view_mut())), ErrorKind::DTypeMismatch);
        assert_eq!(kind(cpu.softmax(false, i.view(), 1, &mut out.view_mut())), ErrorKind::UnsupportedDType);
    }
}
