//! The gradient of the input of a normalisation.

use gradus_backend::{Axes, Result, View, ViewMut};

use super::groups::{BLOCK, Groups, stretch};
use super::kernel::NormElement;
use super::{affine, blocks, check, values};
use crate::access::{check_dtype, check_shape, with_float};
use crate::check::check_output;
use crate::gemm::Real;
use crate::parallel::Disjoint;
use crate::rows::Elementary;
use crate::{CpuBackend, scratch};

const OP: &str = "normalize_backward";

/// See [`Backend::normalize_backward`](gradus_backend::Backend::normalize_backward).
pub(crate) fn normalize_backward(
    cpu: &CpuBackend,
    rms: bool,
    axes: Axes,
    g: View<'_>,
    x: View<'_>,
    scale: Option<View<'_>>,
    mean: View<'_>,
    rstd: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    check(OP, axes, x, mean, rstd)?;
    for (name, dtype, layout) in [("g", g.dtype, &g.layout), ("dx", dx.dtype, &dx.layout)] {
        check_dtype(OP, name, dtype, x.dtype)?;
        check_shape(OP, name, layout.dims(), x.layout.dims())?;
    }
    check_output(OP, "dx", dx.layout)?;
    with_float!(OP, x.dtype, T => backward::<T>(cpu, rms, axes, g, x, scale, mean, rstd, dx))
}

fn backward<S: NormElement>(
    cpu: &CpuBackend,
    rms: bool,
    axes: Axes,
    g: View<'_>,
    x: View<'_>,
    scale: Option<View<'_>>,
    mean: View<'_>,
    rstd: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    let scale_layout = affine(OP, "scale", x, scale)?;
    let (xl, isa) = (x.layout, cpu.isa());
    let (mean_layout, rstd_layout) = (mean.layout, rstd.layout);
    let (x, g_layout) = (cpu.slice::<S>(OP, x)?, g.layout);
    let g = cpu.slice::<S>(OP, g)?;
    let dx_layout = dx.layout;
    let scale = scale.map(|s| cpu.slice::<S>(OP, s)).transpose()?;
    let (mean, rstd) = (cpu.slice::<S::Compute>(OP, mean)?, cpu.slice::<S::Compute>(OP, rstd)?);
    let dx = Disjoint::new(cpu.slice_mut::<S>(OP, dx)?);
    if xl.numel() == 0 {
        return Ok(());
    }
    let groups = Groups::<6>::new(
        axes,
        [
            Some(*xl),
            Some(*g_layout),
            Some(*dx_layout),
            scale_layout,
            stretch(mean_layout, xl)?,
            stretch(rstd_layout, xl)?,
        ],
    )?;
    let number = |v: f64| <S::Compute as Real>::from_f64(v);
    let [sx, sg, sd, ss, ..] = groups.steps;
    cpu.parallel_for(groups.starts.numel(), groups.grain(), |range| {
        let range = blocks::backward(cpu, &groups, rms, ([x, g], scale), [mean, rstd], &dx, range);
        scratch::with(4 * BLOCK, |block: &mut [S::Compute]| {
            let (x_block, rest) = block.split_at_mut(BLOCK);
            let (g_block, rest) = rest.split_at_mut(BLOCK);
            let (a, to) = rest.split_at_mut(BLOCK);
            groups.starts.for_each(range, |_, at| {
                let (m, r) = (mean[at[4]], rstd[at[5]]);
                let (mut sum_h, mut sum_hn) = (0.0, 0.0);
                groups.for_each_run(at, |p, n| {
                    let row = S::read(isa, x, p[0], sx, &mut x_block[..n]);
                    let g = S::read(isa, g, p[1], sg, &mut g_block[..n]);
                    let a = scale.map(|s| values(isa, s, p[3], ss, &mut a[..n]));
                    let (first, second) = S::moments(isa, row, g, a, m, r);
                    sum_h += first.to_f64();
                    sum_hn += second.to_f64();
                });
                let count = groups.count as f64;
                let mean_h = number(if rms { 0.0 } else { sum_h / count });
                let mean_hn = number(sum_hn / count);
                groups.for_each_run(at, |p, n| {
                    let row = S::read(isa, x, p[0], sx, &mut x_block[..n]);
                    let g = S::read(isa, g, p[1], sg, &mut g_block[..n]);
                    let a = scale.map(|s| values(isa, s, p[3], ss, &mut a[..n]));
                    let make = |d: &mut [S::Compute]| S::gradient(isa, row, g, a, [m, r, mean_h, mean_hn], d);
                    // SAFETY: each group belongs to one task, and no two elements of the output share a position.
                    unsafe { S::write(isa, &dx, p[2], sd, &mut to[..n], make) };
                });
            });
        });
    });
    Ok(())
}
