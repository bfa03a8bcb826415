//! The gradients of a convolution.

use gradus_backend::{DType, Result, View, ViewMut, Window, composite};

use super::correlate;
use super::direct::CHANNELS;
use super::fold::fold_channel;
use super::im2col::{Fill, Im2col, Im2row};
use super::sizes::Sizes;
use super::window::Geometry;
use crate::access::{Float, with_float};
use crate::gemm::{Mat, MatMut, Product, Real, products, tile};
use crate::parallel::Disjoint;
use crate::rows::Elementary;
use crate::temp::{Temp, contiguous_output, copy_if_strided, pick};
use crate::{CpuBackend, scratch};

/// The maximum number of bytes of unfolded columns that are kept at once, unless a single image needs more.
const COLUMNS: usize = 16 << 20;
/// The minimum number of parts that the weight's gradient is divided into, given enough images.
const PARTS: usize = 12;
/// The number of rows in a part of the weight's gradient; `PART_COLS` is the number of columns.
const PART_ROWS: usize = 96;
const PART_COLS: usize = 256;

/// The number of input channels of a weight that are rearranged together, so that the weight is read in long runs.
const TRANSPOSED: usize = 16;

/// See [`Backend::conv_backward_input`](gradus_backend::Backend::conv_backward_input).
pub(crate) fn backward_input(
    cpu: &CpuBackend,
    window: &Window,
    groups: usize,
    g: View<'_>,
    w: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "conv_backward_input";
    if !g.dtype.is_float() {
        return composite::conv::backward_input(cpu, window, groups, g, w, dx);
    }
    let s = Sizes::new(OP, window, groups, dx.as_view(), w, g)?;
    let (g_copy, w_copy) = (copy_if_strided(cpu, OP, g)?, copy_if_strided(cpu, OP, w)?);
    let (g, w) = (pick(&g_copy, g), pick(&w_copy, w));
    contiguous_output(cpu, OP, dx, |dx| {
        with_float!(OP, g.dtype, T => {
            let (Some(g), Some(w)) = (cpu.contiguous::<T>(OP, g)?, cpu.contiguous::<T>(OP, w)?) else { return Ok(()) };
            let Some(dx) = cpu.contiguous_mut::<T>(OP, dx)? else { return Ok(()) };
            if s.geometry.stride == [1; 3] && flipped(cpu, &s, g, w, dx)? {
                return Ok(());
            }
            columns(cpu, &s, g, w, dx)
        })
    })
}

/// Computes `dx` for stride 1 as the convolution of `g` with the reversed weight, whose input and output channels are
/// exchanged. If the weight is not finite, returns `false`, and the contents of `dx` are meaningless, because the
/// weight would be multiplied by the zeros around `g`.
fn flipped<S: Fill>(cpu: &CpuBackend, s: &Sizes, g: &[S], w: &[S], dx: &mut [S]) -> Result<bool>
where
    S::Compute: Elementary,
{
    const OP: &str = "conv_backward_input";
    let from = &s.geometry;
    let mut to = Geometry { input: from.output, output: from.input, ..*from };
    for i in 0..3 {
        to.pad[i] = ((from.kernel[i] - 1) * from.dilation[i]) as isize - from.pad[i];
    }
    let taps = from.taps();
    // If the weight has more elements than the result, the check is cheaper at the end, where a finite result shows
    // that the weight is finite. Otherwise the weight is checked here.
    let few_weights = w.len() <= dx.len();
    if few_weights && !finite(w) {
        return Ok(false);
    }
    let mut transposed = Temp::new(cpu, dtype_of::<S>(), &[w.len()])?;
    let mut view = transposed.view_mut();
    let Some(t) = cpu.contiguous_mut::<S>(OP, &mut view)? else { return Ok(true) };
    // Each input channel of a group has a row of `kg * taps` elements, which covers all output channels of the group.
    let (row, parts) = (s.kg * taps, s.cg.div_ceil(TRANSPOSED));
    let rows = Disjoint::new(t);
    cpu.parallel_for(s.groups * parts, 1, |tasks| {
        for task in tasks {
            let (group, first) = (task / parts, task % parts * TRANSPOSED);
            let channels = TRANSPOSED.min(s.cg - first);
            // SAFETY: these rows belong to this task.
            let rows = unsafe { rows.slice((group * s.cg + first) * row..(group * s.cg + first + channels) * row) };
            for k in 0..s.kg {
                let at = ((group * s.kg + k) * s.cg + first) * taps;
                for (c, w) in w[at..at + channels * taps].chunks_exact(taps).enumerate() {
                    let to = &mut rows[c * row + k * taps..][..taps];
                    to.iter_mut().rev().zip(w).for_each(|(t, &w)| *t = w);
                }
            }
        }
    });
    let sizes = Sizes { cg: s.kg, kg: s.cg, geometry: to, ..*s };
    correlate(cpu, &sizes, g, t, None, dx)?;
    Ok(few_weights || finite(dx) || finite(w))
}

/// Returns whether all elements are finite.
fn finite<S: Float<Compute: Elementary>>(x: &[S]) -> bool {
    // A finite number minus itself is 0, and any other number minus itself is NaN. The lanes are compiled to vectors.
    let mut lanes = [S::Compute::ZERO; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, v)| *lane = *lane + (v.widen() - v.widen()));
    }
    lanes.iter().all(|lane| lane.is_finite()) && rest.iter().all(|v| v.widen().is_finite())
}

/// Computes `dx` in the general case. The columns `w^T g` of a few images at a time are folded into `dx`.
fn columns<S: Fill>(cpu: &CpuBackend, s: &Sizes, g: &[S], w: &[S], dx: &mut [S]) -> Result<()> {
    const OP: &str = "conv_backward_input";
    let geometry = &s.geometry;
    let (p, plane, taps) = (geometry.positions(), geometry.plane(), s.taps());
    assert!(g.len() == s.n * s.k() * p && dx.len() == s.n * s.c() * plane && w.len() == s.k() * taps);
    if dx.is_empty() {
        return Ok(());
    }
    let image = (s.groups * taps * p).max(1);
    let images = (COLUMNS / size_of::<S::Compute>() / image).clamp(1, s.n.max(1));
    let mut temp = Temp::new(cpu, dtype_of::<S::Compute>(), &[images * s.groups * taps * p])?;
    let mut view = temp.view_mut();
    let Some(cols) = cpu.contiguous_mut::<S::Compute>(OP, &mut view)? else { return Ok(()) };
    let product = Product::plain(taps, p, s.kg);
    for first in (0..s.n).step_by(images) {
        let count = images.min(s.n - first);
        // SAFETY: groups of `kg` channels of `g`, of `kg` rows of `w` and of `taps` rows of columns lie inside their
        // slices, and each product writes only its own group of columns.
        unsafe {
            let out = MatMut::new(cols.as_mut_ptr(), 0, 0, 0);
            let operands = |i: usize| {
                let a = Mat::new(w, i % s.groups * s.kg * taps, 1, taps as isize);
                let b = Mat::new(g, (first * s.groups + i) * s.kg * p, p as isize, 1);
                (a, b, out.matrix(i * taps * p, p as isize, 1))
            };
            products(cpu, count * s.groups, &product, operands, |_, _, _, _: [usize; 2]| ());
        }
        let cols = &*cols;
        let dx = &mut dx[first * s.c() * plane..(first + count) * s.c() * plane];
        cpu.parallel_chunks(dx, plane, |channel, dx| {
            let rows = geometry.taps() * p;
            scratch::large(cpu, plane, |sums: &mut [S::Compute]| {
                fold_channel(geometry, &cols[channel * rows..(channel + 1) * rows], sums);
                dx.iter_mut().zip(sums).for_each(|(d, &mut v)| *d = S::narrow(v));
            });
        });
    }
    Ok(())
}

/// See [`Backend::conv_backward_weight`](gradus_backend::Backend::conv_backward_weight).
pub(crate) fn backward_weight(
    cpu: &CpuBackend,
    window: &Window,
    groups: usize,
    x: View<'_>,
    g: View<'_>,
    dw: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "conv_backward_weight";
    if !x.dtype.is_float() {
        return composite::conv::backward_weight(cpu, window, groups, x, g, dw);
    }
    let s = Sizes::new(OP, window, groups, x, dw.as_view(), g)?;
    let (x_copy, g_copy) = (copy_if_strided(cpu, OP, x)?, copy_if_strided(cpu, OP, g)?);
    let (x, g) = (pick(&x_copy, x), pick(&g_copy, g));
    contiguous_output(cpu, OP, dw, |dw| {
        with_float!(OP, x.dtype, T => {
            let (Some(x), Some(g)) = (cpu.contiguous::<T>(OP, x)?, cpu.contiguous::<T>(OP, g)?) else { return Ok(()) };
            let Some(dw) = cpu.contiguous_mut::<T>(OP, dw)? else { return Ok(()) };
            weight(cpu, &s, x, g, dw)
        })
    })
}

/// Computes `dw`, the sum of `g x_unfolded^T` over the images. The images are divided into blocks. Within a block, each
/// part of `dw` is summed in order by one task. The results of the blocks are then added in order.
fn weight<S: Fill>(cpu: &CpuBackend, s: &Sizes, x: &[S], g: &[S], dw: &mut [S]) -> Result<()> {
    const OP: &str = "conv_backward_weight";
    let geometry = &s.geometry;
    let (p, plane, taps) = (geometry.positions(), geometry.plane(), s.taps());
    assert!(x.len() == s.n * s.c() * plane && g.len() == s.n * s.k() * p && dw.len() == s.k() * taps);
    if dw.is_empty() {
        return Ok(());
    }
    if s.n == 0 {
        dw.fill(S::default());
        return Ok(());
    }
    if s.kg >= CHANNELS && p > 0 && super::weight::weight(cpu, s, x, g, dw)? {
        return Ok(());
    }
    let (down, across) = (s.kg.div_ceil(PART_ROWS), taps.div_ceil(PART_COLS));
    let parts = s.groups * down * across;
    let block = s.n.div_ceil(PARTS.div_ceil(parts));
    let blocks = s.n.div_ceil(block);
    let mut temp = Temp::new(cpu, dtype_of::<S::Compute>(), &[blocks, dw.len()])?;
    let mut view = temp.view_mut();
    let Some(sums) = cpu.contiguous_mut::<S::Compute>(OP, &mut view)? else { return Ok(()) };
    // SAFETY: `sums` stays borrowed until the tasks are done, and each task writes only its own part of one block's
    // gradient.
    let out = unsafe { MatMut::new(sums.as_mut_ptr(), 0, 0, 0) };
    cpu.parallel_for(blocks * parts, 1, |tasks| {
        for task in tasks {
            let (b, part) = (task / parts, task % parts);
            let (group, i, j) = (part / (down * across), part / across % down * PART_ROWS, part % across * PART_COLS);
            let c = out.matrix((b * s.k() + group * s.kg + i) * taps + j, taps as isize, 1);
            for image in b * block..s.n.min((b + 1) * block) {
                let beta = if image == b * block { <S::Compute as Real>::ZERO } else { <S::Compute as Real>::ONE };
                let (m, n) = (PART_ROWS.min(s.kg - i), PART_COLS.min(taps - j));
                let product = Product { beta, ..Product::plain(m, n, p) };
                // SAFETY: the rows of `g`, the channels of `x` and the part of the gradient lie inside their slices.
                unsafe {
                    let a = Mat::new(g, (image * s.k() + group * s.kg + i) * p, p as isize, 1);
                    let at = (image * s.c() + group * s.cg) * plane;
                    if geometry.is_identity() {
                        tile::<S, S::Compute>(cpu.isa(), &product, a, &Mat::new(x, at, 1, p as isize), j, c);
                    } else {
                        let rows = Im2row(Im2col { image: &x[at..], geometry });
                        tile::<S, S::Compute>(cpu.isa(), &product, a, &rows, j, c);
                    }
                }
            }
        }
    });
    let (sums, size) = (&*sums, dw.len());
    cpu.parallel_chunks(dw, 1 << 14, |chunk, dw| {
        for (i, d) in (chunk << 14..).zip(dw) {
            let sum = (1..blocks).fold(sums[i], |sum, b| sum + sums[b * size + i]);
            *d = S::narrow(sum);
        }
    });
    Ok(())
}

/// Returns the dtype whose elements are stored as `S`.
fn dtype_of<S: Float>() -> DType {
    [DType::F64, DType::F32, DType::F16].into_iter().find(|&d| S::holds(d)).unwrap_or(DType::BF16)
}
