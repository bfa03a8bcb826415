//! Normalisation over any axes: layer, batch, group, instance and RMS norm.
//!
//! Elements that are normalised together form a *group*: the elements along the reduced axes at one position of the
//! other axes. Groups are distributed over tasks. A group is read in runs of up to [`BLOCK`] elements. Each run is
//! summed in the compute type in a fixed tree, and the sums of the runs are added in f64, in order. The mean is
//! computed first, and then the mean square of the deviations.

mod affine;
mod backward;
mod blocks;
mod groups;
mod kernel;
mod large;
mod narrow;

#[cfg(test)]
mod tests;

use gradus_backend::{Axes, Error, ErrorKind, Layout, Result, View, ViewMut};

pub(crate) use affine::normalize_affine_backward;
pub(crate) use backward::normalize_backward;

use crate::access::{Float, check_dtype, check_shape, with_float};
use crate::check::check_output;
use crate::gemm::Real;
use crate::parallel::Disjoint;
use crate::rows::{Elementary, Rows};
use crate::{CpuBackend, scratch};
use groups::{BLOCK, Groups, stretch};
use kernel::NormElement;
use large::Large;

/// Checks a scale or shift and returns its layout, broadcast to the shape of `x`.
fn affine(op: &str, name: &str, x: View<'_>, v: Option<View<'_>>) -> Result<Option<Layout>> {
    let Some(v) = v else { return Ok(None) };
    check_dtype(op, name, v.dtype, x.dtype)?;
    let stretched = v.layout.expand(*x.layout.shape()).map_err(|_| {
        let m = format!("{name} has shape {}, which does not stretch to {}", v.layout.shape(), x.layout.shape());
        Error::new(ErrorKind::Broadcast, op, m)
    })?;
    Ok(Some(stretched))
}

/// Checks the dtype of `x`, the axes, and the two statistics.
fn check(op: &str, axes: Axes, x: View<'_>, mean: View<'_>, rstd: View<'_>) -> Result<()> {
    if !x.dtype.is_float() {
        return Err(Error::dtype(op, x.dtype, "f64, f32, f16 and bf16"));
    }
    let shape = x.layout.shape();
    if let Some(a) = axes.iter().find(|&a| a >= shape.rank()) {
        return Err(Error::new(ErrorKind::InvalidAxis, op, format!("axis {a} is outside rank {}", shape.rank())));
    }
    for (name, v) in [("mean", mean), ("rstd", rstd)] {
        check_dtype(op, name, v.dtype, x.dtype.compute())?;
        check_shape(op, name, v.layout.dims(), shape.reduced(axes, true).dims())?;
    }
    Ok(())
}

/// See [`Backend::normalize`](gradus_backend::Backend::normalize).
pub(crate) fn normalize(
    cpu: &CpuBackend,
    rms: bool,
    axes: Axes,
    eps: f64,
    x: View<'_>,
    scale: Option<View<'_>>,
    shift: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    mean: &mut ViewMut<'_>,
    rstd: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "normalize";
    if !(eps.is_finite() && eps >= 0.0) {
        return Err(Error::argument(OP, format!("eps is {eps}; it is finite and at least 0")));
    }
    check(OP, axes, x, mean.as_view(), rstd.as_view())?;
    check_dtype(OP, "out", out.dtype, x.dtype)?;
    check_shape(OP, "out", out.layout.dims(), x.layout.dims())?;
    for (name, l) in [("out", out.layout), ("mean", mean.layout), ("rstd", rstd.layout)] {
        check_output(OP, name, l)?;
    }
    let affine = [affine(OP, "scale", x, scale)?, affine(OP, "shift", x, shift)?];
    with_float!(OP, x.dtype, T => forward::<T>(cpu, rms, axes, eps, x, (scale, shift), affine, out, mean, rstd))
}

fn forward<S: NormElement>(
    cpu: &CpuBackend,
    rms: bool,
    axes: Axes,
    eps: f64,
    x: View<'_>,
    (scale, shift): (Option<View<'_>>, Option<View<'_>>),
    [scale_layout, shift_layout]: [Option<Layout>; 2],
    out: &mut ViewMut<'_>,
    mean: &mut ViewMut<'_>,
    rstd: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "normalize";
    let (xl, isa) = (x.layout, cpu.isa());
    let stat = |l: &Layout| if xl.numel() == 0 { Ok(None) } else { stretch(l, xl) };
    let groups = Groups::<6>::new(
        axes,
        [Some(*xl), Some(*out.layout), scale_layout, shift_layout, stat(mean.layout)?, stat(rstd.layout)?],
    )?;
    let x = cpu.slice::<S>(OP, x)?;
    let scale = scale.map(|s| cpu.slice::<S>(OP, s)).transpose()?;
    let shift = shift.map(|s| cpu.slice::<S>(OP, s)).transpose()?;
    let (mean_layout, rstd_layout) = (mean.layout, rstd.layout);
    let out = Disjoint::new(cpu.slice_mut::<S>(OP, out)?);
    let mean = Disjoint::new(cpu.slice_mut::<S::Compute>(OP, mean)?);
    let rstd = Disjoint::new(cpu.slice_mut::<S::Compute>(OP, rstd)?);
    let number = |v: f64| <S::Compute as Real>::from_f64(v);
    if xl.numel() == 0 {
        // The statistics of groups without elements.
        for (m, r) in mean_layout.positions().zip(rstd_layout.positions()) {
            // SAFETY: no other thread accesses the statistics here.
            unsafe {
                mean.write(m, number(if rms { 0.0 } else { f64::NAN }));
                rstd.write(r, number(f64::NAN));
            }
        }
        return Ok(());
    }
    let [sx, so, ss, sh, ..] = groups.steps;
    cpu.parallel_for(groups.starts.numel(), groups.grain(), |range| {
        let range = blocks::forward(cpu, &groups, (rms, eps), (x, [scale, shift]), &out, [&mean, &rstd], range);
        scratch::with(4 * BLOCK, |block: &mut [S::Compute]| {
            let (work, rest) = block.split_at_mut(BLOCK);
            let (to, rest) = rest.split_at_mut(BLOCK);
            let (a, b) = rest.split_at_mut(BLOCK);
            groups.starts.for_each(range, |_, at| {
                let count = groups.count as f64;
                let mut m = 0.0;
                if !rms {
                    groups.for_each_run(at, |p, n| {
                        m += S::sum(isa, S::read(isa, x, p[0], sx, &mut work[..n])).to_f64();
                    });
                    m /= count;
                }
                let m = number(m);
                let mut square = 0.0;
                groups.for_each_run(at, |p, n| {
                    square += S::squares(isa, S::read(isa, x, p[0], sx, &mut work[..n]), m).to_f64();
                });
                let r = number(1.0 / (square / count + eps).sqrt());
                let ordinary = square.is_finite() && m.to_f64().abs() < narrow::limit::<S::Compute>();
                let large = if ordinary { None } else { Large::new((isa, &groups, at), x, rms, eps, work) };
                let (stats, [m, r]) = large.as_ref().map_or(([m, r], [m, r]), |l| ([l.mean, l.rstd], [l.centre, l.by]));
                // SAFETY: the statistics of different groups do not overlap, and each group belongs to one task.
                unsafe {
                    mean.write(at[4], stats[0]);
                    rstd.write(at[5], stats[1]);
                }
                groups.for_each_run(at, |p, n| {
                    let row = match &large {
                        None => S::read(isa, x, p[0], sx, &mut work[..n]),
                        Some(large) => {
                            S::load(isa, x, p[0], sx, &mut work[..n]);
                            large.scale(&mut work[..n]);
                            &work[..n]
                        }
                    };
                    let a = scale.map(|s| values(isa, s, p[2], ss, &mut a[..n]));
                    let b = shift.map(|s| values(isa, s, p[3], sh, &mut b[..n]));
                    // SAFETY: as for the statistics.
                    unsafe { S::write(isa, &out, p[1], so, &mut to[..n], |y| S::apply(isa, row, y, m, r, a, b)) };
                });
            });
        });
    });
    Ok(())
}

/// Returns the values of a run of a scale or shift, in place if possible, and otherwise copied to `out`.
fn values<'a, S: Rows>(
    isa: crate::isa::Isa,
    from: &'a [S],
    at: usize,
    step: isize,
    out: &'a mut [<S as Float>::Compute],
) -> &'a [<S as Float>::Compute] {
    if step == 0 {
        out.fill(from[at].widen());
        return out;
    }
    S::read(isa, from, at, step, out)
}
