//! Reading elements by index.

use std::sync::atomic::{AtomicUsize, Ordering};

use gradus_backend::{Result, View, ViewMut};

use super::{Indices, Walk, along};
use crate::CpuBackend;
use crate::access::{Plain, check_dtype, with_word};
use crate::check::check_output;
use crate::parallel::Disjoint;

/// See [`Backend::gather`](gradus_backend::Backend::gather).
pub(crate) fn gather(cpu: &CpuBackend, x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "gather";
    let walk = Walk::along(OP, axis, index.layout, out.layout, x.layout)?;
    run(cpu, OP, &walk, x, index, out)
}

/// See [`Backend::embedding`](gradus_backend::Backend::embedding).
pub(crate) fn embedding(cpu: &CpuBackend, weight: View<'_>, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "embedding";
    let walk = Walk::rows(OP, index.layout, out.layout, weight.layout)?;
    run(cpu, OP, &walk, weight, index, out)
}

fn run(cpu: &CpuBackend, op: &str, walk: &Walk, x: View<'_>, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    check_dtype(op, "out", out.dtype, x.dtype)?;
    check_output(op, "out", out.layout)?;
    let index = Indices::new(cpu, op, index)?;
    with_word!(x.dtype.size(), W => pick::<W>(cpu, op, walk, cpu.words(op, x)?, &index, cpu.words_mut(op, out)?))
}

fn pick<T: Plain>(cpu: &CpuBackend, op: &str, walk: &Walk, x: &[T], index: &Indices<'_>, out: &mut [T]) -> Result<()> {
    if walk.is_empty() {
        return Ok(());
    }
    let bad = AtomicUsize::new(usize::MAX);
    let out = Disjoint::new(out);
    let [si, so, sx] = walk.steps;
    cpu.parallel_for(walk.rows.numel(), walk.grain(), |rows| {
        walk.rows.for_each(rows, |row, [ai, ao, ax]| {
            if walk.whole_rows() {
                let Some(by) = walk.place(index.at(ai)) else {
                    bad.fetch_min(row * walk.len, Ordering::Relaxed);
                    return;
                };
                let ax = ax.wrapping_add_signed(by);
                if so == 1 && sx == 1 {
                    // SAFETY: no two elements of the output share a position, and each row belongs to one task.
                    unsafe { out.slice(ao..ao + walk.len) }.copy_from_slice(&x[ax..ax + walk.len]);
                } else {
                    for i in 0..walk.len {
                        // SAFETY: as above.
                        unsafe { out.write(along(ao, so, i), x[along(ax, sx, i)]) };
                    }
                }
                return;
            }
            for i in 0..walk.len {
                let Some(by) = walk.place(index.at(along(ai, si, i))) else {
                    bad.fetch_min(row * walk.len + i, Ordering::Relaxed);
                    return;
                };
                // SAFETY: as above.
                unsafe { out.write(along(ao, so, i), x[along(ax, sx, i).wrapping_add_signed(by)]) };
            }
        });
    });
    walk.report(op, index, bad.into_inner())
}
