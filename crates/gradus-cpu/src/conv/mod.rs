//! Convolution in one to three dimensions, with groups, dilation and any padding.
//!
//! The result is bit-identical to the product with the unfolded input, but the input is not unfolded in memory. If a
//! group has enough output channels, vectors run along them (`direct`, `weight`), unless the input under the windows is
//! too large to copy. Groups of one input channel have a way of their own (`depthwise`). Otherwise vectors run along
//! positions, which are packed directly from the tensor (`im2col`). Only the gradient of the input is computed from
//! unfolded columns, a few images at a time, if windows are strided or the weight is not finite.

mod backward;
mod depthwise;
mod direct;
mod fold;
mod im2col;
mod region;
mod sizes;
mod weight;
pub(crate) mod window;

#[cfg(test)]
mod tests;

use gradus_backend::{HostVec, Result, View, ViewMut, Window, composite};

pub(crate) use backward::{backward_input, backward_weight};
pub(crate) use fold::{fold, unfold};

use crate::CpuBackend;
use crate::access::{check_dtype, check_shape, with_float};
use crate::gemm::{Mat, MatMut, Product, Real, products};
use crate::temp::{contiguous_output, copy_if_strided, pick};
use direct::Weights;
use im2col::{Fill, Im2col};
use sizes::Sizes;

/// See [`Backend::conv`](gradus_backend::Backend::conv).
pub(crate) fn conv(
    cpu: &CpuBackend,
    window: &Window,
    groups: usize,
    x: View<'_>,
    w: View<'_>,
    bias: Option<View<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "conv";
    if !x.dtype.is_float() {
        return composite::conv::forward(cpu, window, groups, x, w, bias, out);
    }
    let s = Sizes::new(OP, window, groups, x, w, out.as_view())?;
    if let Some(b) = bias {
        check_dtype(OP, "the bias", b.dtype, x.dtype)?;
        check_shape(OP, "the bias", b.layout.dims(), &[s.k()])?;
    }
    let x_copy = copy_if_strided(cpu, OP, x)?;
    let x = pick(&x_copy, x);
    contiguous_output(cpu, OP, out, |out| with_float!(OP, x.dtype, T => forward::<T>(cpu, &s, x, w, bias, out)))
}

fn forward<S: Fill>(
    cpu: &CpuBackend,
    s: &Sizes,
    x: View<'_>,
    w: View<'_>,
    bias: Option<View<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "conv";
    let bias = match bias {
        Some(b) => {
            let all = cpu.slice::<S>(OP, b)?;
            Some(HostVec::collect(cpu, OP, b.layout.positions().map(|at| all[at]))?)
        }
        None => None,
    };
    let Some(x) = cpu.contiguous::<S>(OP, x)? else { return Ok(()) };
    let Some(out) = cpu.contiguous_mut::<S>(OP, out)? else { return Ok(()) };
    if let Some(w) = Weights::adjacent(cpu.isa(), s, cpu.slice::<S>(OP, w)?, w.layout)
        && !out.is_empty()
        && direct::correlate(cpu, s, x, w, bias.as_deref(), out)?
    {
        return Ok(());
    }
    let w_copy = copy_if_strided(cpu, OP, w)?;
    let Some(w) = cpu.contiguous::<S>(OP, pick(&w_copy, w))? else { return Ok(()) };
    correlate(cpu, s, x, w, bias.as_deref(), out)
}

/// Computes the convolution of contiguous operands with the sizes in `s`.
fn correlate<S: Fill>(cpu: &CpuBackend, s: &Sizes, x: &[S], w: &[S], bias: Option<&[S]>, out: &mut [S]) -> Result<()> {
    let g = &s.geometry;
    let (positions, plane, taps) = (g.positions(), g.plane(), s.taps());
    assert_eq!(x.len(), s.n * s.c() * plane);
    assert_eq!(w.len(), s.k() * taps);
    assert_eq!(out.len(), s.n * s.k() * positions);
    assert!(bias.is_none_or(|b| b.len() == s.k()));
    if out.is_empty() {
        return Ok(());
    }
    if s.kg >= direct::CHANNELS && taps > 0 && direct::correlate(cpu, s, x, Weights::Plain(w), bias, out)? {
        return Ok(());
    }
    if depthwise::correlate(cpu, s, x, w, bias, out)? {
        return Ok(());
    }
    let one = <S::Compute as Real>::ONE;
    let mut product = Product::<S::Compute>::plain(s.kg, positions, taps);
    if bias.is_some() {
        product.beta = one;
    }
    // SAFETY: `out` is borrowed for the whole call, and product `i` writes only the channels of group `i`, counted over
    // all images.
    let out = unsafe { MatMut::new(out.as_mut_ptr(), 0, 0, 0) };
    let to = |i: usize| out.matrix(i * s.kg * positions, positions as isize, 1);
    // SAFETY: a group of the weight is `kg` rows of `taps` elements.
    let weight = |i: usize| unsafe { Mat::new(w, i % s.groups * s.kg * taps, taps as isize, 1) };
    let image = |i: usize| i * s.cg * plane;
    // The sums are added to the bias.
    let prepare = |i: usize, row: usize, c: MatMut<'_, S>, [rows, cols]: [usize; 2]| {
        if let Some(b) = bias {
            for r in 0..rows {
                let value = b[i % s.groups * s.kg + row + r];
                // SAFETY: the tile has these rows and columns and belongs to this task.
                (0..cols).for_each(|j| unsafe { *c.at(r, j) = value });
            }
        }
    };
    let count = s.n * s.groups;
    if g.is_identity() {
        // SAFETY: a group of an image is `cg` rows of `positions` elements. The other operands are as above.
        unsafe {
            let b = |i: usize| Mat::new(x, image(i), positions as isize, 1);
            products(cpu, count, &product, |i| (weight(i), b(i), to(i)), prepare);
        }
    } else {
        let b = |i: usize| Im2col { image: &x[image(i)..], geometry: g };
        // SAFETY: a group of an image has `cg` channels of `plane` elements. The other operands are as above.
        unsafe { products(cpu, count, &product, |i| (weight(i), b(i), to(i)), prepare) };
    }
    Ok(())
}
