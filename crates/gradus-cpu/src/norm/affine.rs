//! The gradients of the scale and shift of a normalisation: the sums of `g * n`, with `n = (x - mean) * rstd`, and of
//! `g`.
//!
//! The terms of one element of the scale either are contiguous and share a statistic, as the pixels of a channel do
//! (*runs*), or form a column, as in layer norm (*columns*). Columns are summed in units of [`UNIT`] rows by [`WIDTH`]
//! columns, each by one task, and the units of a column are then added in f64, in order. The results therefore have the
//! same bits on any number of threads.

use gradus_backend::{Error, HostVec, Result, View, ViewMut, composite};

use super::groups::{BLOCK, Groups, TASK, stretch};
use super::kernel::NormElement;
use crate::access::{check_dtype, check_shape, with_float};
use crate::check::check_output;
use crate::gemm::Real;
use crate::parallel::Disjoint;
use crate::rows::Elementary;
use crate::{CpuBackend, scratch};

const OP: &str = "normalize_affine_backward";

/// The number of rows in a unit.
const UNIT: usize = 256;
/// The maximum number of columns that a task sums.
const WIDTH: usize = 512;

/// See [`Backend::normalize_affine_backward`](gradus_backend::Backend::normalize_affine_backward).
pub(crate) fn normalize_affine_backward(
    cpu: &CpuBackend,
    g: View<'_>,
    x: View<'_>,
    mean: View<'_>,
    rstd: View<'_>,
    dscale: &mut ViewMut<'_>,
    mut dshift: Option<&mut ViewMut<'_>>,
) -> Result<()> {
    if !x.dtype.is_float() {
        return Err(Error::dtype(OP, x.dtype, "f64, f32, f16 and bf16"));
    }
    let (dims, compute) = (x.layout.dims(), x.dtype.compute());
    check_dtype(OP, "g", g.dtype, x.dtype)?;
    check_shape(OP, "g", g.layout.dims(), dims)?;
    for (name, v) in [("mean", mean), ("rstd", rstd)] {
        check_dtype(OP, name, v.dtype, compute)?;
    }
    for (name, out) in [("dscale", Some(&*dscale)), ("dshift", dshift.as_deref())] {
        let Some(out) = out else { continue };
        check_dtype(OP, name, out.dtype, compute)?;
        check_shape(OP, name, out.layout.dims(), dscale.layout.dims())?;
        check_output(OP, name, out.layout)?;
    }
    let reduced = composite::norm::stretched_axes(OP, dscale.layout.shape(), x.layout.shape())?;
    let stretched = |l| stretch(l, x.layout);
    let layouts = [
        Some(*x.layout),
        Some(*g.layout),
        stretched(dscale.layout)?,
        dshift.as_ref().map_or(Ok(None), |d| stretched(d.layout))?,
        stretched(mean.layout)?,
        stretched(rstd.layout)?,
    ];
    let groups = Groups::new(reduced, layouts)?;
    let (_, _, kept) = groups.starts.clone().split_inner();
    let runs = groups.steps[0] == 1 && groups.steps[4..] == [0, 0];
    let columns = kept[0] == 1 && kept[4..] == [0, 0] && groups.runs.dims().is_empty();
    if x.layout.numel() == 0 || !(runs || columns) {
        return composite::norm::affine_backward(cpu, g, x, mean, rstd, dscale, dshift.as_deref_mut());
    }
    with_float!(OP, x.dtype, T => {
        let task = Task {
            cpu,
            groups,
            x: cpu.slice::<T>(OP, x)?,
            g: cpu.slice::<T>(OP, g)?,
            mean: cpu.slice(OP, mean)?,
            rstd: cpu.slice(OP, rstd)?,
            dscale: Disjoint::new(cpu.slice_mut(OP, dscale)?),
            dshift: dshift.map(|d| cpu.slice_mut(OP, d)).transpose()?.map(Disjoint::new),
        };
        if columns { task.columns() } else { task.runs() }
    })
}

struct Task<'a, S: NormElement> {
    cpu: &'a CpuBackend,
    /// The groups of x, g, dscale, dshift, mean and rstd. A group holds the terms of one element of the scale.
    groups: Groups<6>,
    x: &'a [S],
    g: &'a [S],
    mean: &'a [S::Compute],
    rstd: &'a [S::Compute],
    dscale: Disjoint<'a, S::Compute>,
    dshift: Option<Disjoint<'a, S::Compute>>,
}

impl<S: NormElement> Task<'_, S> {
    fn runs(&self) -> Result<()> {
        let (isa, [sx, sg, ..]) = (self.cpu.isa(), self.groups.steps);
        self.cpu.parallel_for(self.groups.starts.numel(), self.groups.grain(), |range| {
            scratch::with(2 * BLOCK, |block: &mut [S::Compute]| {
                let (x_block, g_block) = block.split_at_mut(BLOCK);
                self.groups.starts.for_each(range, |_, at| {
                    let mut sums = [0.0; 2];
                    self.groups.for_each_run(at, |p, n| {
                        let x = S::read(isa, self.x, p[0], sx, &mut x_block[..n]);
                        let g = S::read(isa, self.g, p[1], sg, &mut g_block[..n]);
                        let (of_g, of_gn) = S::moments(isa, x, g, None, self.mean[p[4]], self.rstd[p[5]]);
                        sums[0] += of_gn.to_f64();
                        sums[1] += of_g.to_f64();
                    });
                    self.store([at[2], at[3]], sums);
                });
            });
        });
        Ok(())
    }

    fn columns(&self) -> Result<()> {
        let (outer, len, [_, sg, to_scale, to_shift, ..]) = self.groups.starts.clone().split_inner();
        let [row_x, row_g, _, _, row_m, row_r] = self.groups.steps;
        let width = len.min(WIDTH);
        let (units, strips) = (self.groups.len.div_ceil(UNIT), len.div_ceil(width));
        // The number of rows per call: a multiple of four.
        let together = (8 * BLOCK / width).clamp(4, UNIT) / 4 * 4;
        let tasks = outer.numel() * strips * units;
        let mut partial = HostVec::filled(self.cpu, OP, S::Compute::ZERO, tasks * 2 * width)?;
        let sums = Disjoint::new(&mut partial);
        let grain = (TASK / (UNIT.min(self.groups.len) * width)).max(1);
        self.cpu.parallel_for(tasks, grain, |range| {
            let block = together * width;
            scratch::split(self.cpu, [block, block, together, together], |[x_rows, g_rows, m, r]| {
                for t in range {
                    let (strip, unit) = (t / units, t % units);
                    let [x_at, g_at, _, _, m_at, r_at] = outer.at(strip / strips);
                    let first = strip % strips * width;
                    let w = width.min(len - first);
                    // SAFETY: the sums of a task belong to it alone.
                    let sums = unsafe { sums.slice(t * 2 * width..(t + 1) * 2 * width) };
                    let (of_gn, of_g) = sums.split_at_mut(width);
                    let end = self.groups.len.min((unit + 1) * UNIT);
                    for i in (unit * UNIT..end).step_by(together) {
                        let n = together.min(end - i);
                        for k in 0..n {
                            m[k] = self.mean[m_at.wrapping_add_signed(row_m * (i + k) as isize)];
                            r[k] = self.rstd[r_at.wrapping_add_signed(row_r * (i + k) as isize)];
                        }
                        let x = self.rows(self.x, (x_at + first, 1), (i, row_x), (n, w), x_rows);
                        let g_at = g_at.wrapping_add_signed(sg * first as isize);
                        let g = self.rows(self.g, (g_at, sg), (i, row_g), (n, w), g_rows);
                        S::affine(self.cpu.isa(), x, g, [&m[..n], &r[..n]], [&mut of_gn[..w], &mut of_g[..w]]);
                    }
                }
            });
        });
        for (strip, units) in partial.chunks(units * 2 * width).enumerate() {
            let [_, _, scale_at, shift_at, ..] = outer.at(strip / strips);
            let first = strip % strips * width;
            for j in 0..width.min(len - first) {
                let mut sums = [0.0; 2];
                for unit in units.chunks(2 * width) {
                    sums[0] += unit[j].to_f64();
                    sums[1] += unit[width + j].to_f64();
                }
                let of = |at: usize, step: isize| at.wrapping_add_signed(step * (first + j) as isize);
                self.store([of(scale_at, to_scale), of(shift_at, to_shift)], sums);
            }
        }
        Ok(())
    }

    /// Returns rows `i..i + n` of `w` elements, and the distance between their starts. The rows are in place if
    /// possible, and otherwise copied to `room`.
    fn rows<'a>(
        &self,
        from: &'a [S],
        (at, step): (usize, isize),
        (i, row): (usize, isize),
        (n, w): (usize, usize),
        room: &'a mut [S::Compute],
    ) -> (&'a [S::Compute], usize) {
        let start = |k: usize| at.wrapping_add_signed(row * (i + k) as isize);
        if step == 1
            && row >= 0
            && let Some(lying) = S::lying(&from[start(0)..start(n - 1) + w])
        {
            return (lying, row as usize);
        }
        for (k, to) in room.chunks_exact_mut(w).take(n).enumerate() {
            S::load(self.cpu.isa(), from, start(k), step, to);
        }
        (room, w)
    }

    /// Stores the gradients of one element of the scale and, if there is a shift, of the shift.
    fn store(&self, at: [usize; 2], sums: [f64; 2]) {
        // SAFETY: each element of the scale is stored once, and no two elements of an output share a position.
        unsafe {
            self.dscale.write(at[0], S::Compute::from_f64(sums[0]));
            if let Some(dshift) = &self.dshift {
                dshift.write(at[1], S::Compute::from_f64(sums[1]));
            }
        }
    }
}
