//! Writing elements by index. Writes to the same element happen in the order of the indices, because no two tasks write
//! to the same element.

use gradus_backend::{DType, Result, Scalar, ScatterOp, View, ViewMut};

use super::{Indices, Walk, along};
use crate::access::{Plain, check_dtype, with_word};
use crate::check::check_output;
use crate::nest::Nest;
use crate::parallel::Disjoint;
use crate::sum::{Summable, with_sum};
use crate::temp::Temp;
use crate::{CpuBackend, copy};

/// The number of elements of a row that a task processes.
const COLS: usize = 128;

/// See [`Backend::scatter`](gradus_backend::Backend::scatter).
pub(crate) fn scatter(
    cpu: &CpuBackend,
    op: ScatterOp,
    axis: usize,
    index: View<'_>,
    src: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "scatter";
    check_dtype(OP, "src", src.dtype, out.dtype)?;
    check_output(OP, "out", out.layout)?;
    let walk = Walk::along(OP, axis, index.layout, src.layout, out.layout)?;
    let indices = Indices::new(cpu, OP, index)?;
    match op {
        ScatterOp::Set => with_word!(out.dtype.size(), W => {
            let (src, out) = (cpu.words::<W>(OP, src)?, cpu.words_mut::<W>(OP, out)?);
            walk.check(cpu, OP, &indices)?;
            put(cpu, &walk, &indices, None, src, out, |o, v| *o = v);
            Ok(())
        }),
        ScatterOp::Add if is_half(out.dtype) => {
            // The whole output is summed in f32 and rounded once.
            cpu.check_view(OP, out.buffer, out.dtype, out.layout)?;
            let mut sums = Temp::new(cpu, DType::F32, out.layout.dims())?;
            convert(cpu, OP, out.as_view(), &mut sums.view_mut())?;
            let walk = Walk::along(OP, axis, index.layout, src.layout, sums.view().layout)?;
            walk.check(cpu, OP, &indices)?;
            add(cpu, OP, &walk, &indices, None, src, &mut sums.view_mut())?;
            convert(cpu, OP, sums.view(), out)
        }
        ScatterOp::Add => {
            walk.check(cpu, OP, &indices)?;
            add(cpu, OP, &walk, &indices, None, src, out)
        }
    }
}

/// See [`Backend::embedding_backward`](gradus_backend::Backend::embedding_backward).
pub(crate) fn embedding_backward(
    cpu: &CpuBackend,
    index: View<'_>,
    g: View<'_>,
    padding_index: Option<usize>,
    dw: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "embedding_backward";
    check_dtype(OP, "g", g.dtype, dw.dtype)?;
    check_output(OP, "dw", dw.layout)?;
    cpu.check_view(OP, dw.buffer, dw.dtype, dw.layout)?;
    let indices = Indices::new(cpu, OP, index)?;
    let half = is_half(dw.dtype);
    let mut sums = Temp::new(cpu, DType::F32, if half { dw.layout.dims() } else { &[0] })?;
    let layout = dw.layout;
    let mut to = if half { sums.view_mut() } else { dw.with(layout) };
    let walk = Walk::rows(OP, index.layout, g.layout, to.layout)?;
    walk.check(cpu, OP, &indices)?;
    copy::fill(cpu, &mut to, Scalar::Int(0))?;
    add(cpu, OP, &walk, &indices, padding_index, g, &mut to)?;
    if half { convert(cpu, OP, sums.view(), dw) } else { Ok(()) }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Copies between f32 and a half-precision type, in either direction.
fn convert(cpu: &CpuBackend, op: &str, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    fn each<T: Plain, U: Plain>(cpu: &CpuBackend, nest: Nest<2>, x: &[T], out: &mut [U], f: impl Fn(T) -> U + Sync) {
        let (rows, len, [sx, so]) = nest.split_inner();
        let out = Disjoint::new(out);
        cpu.parallel_for(rows.numel(), (super::TASK / len.max(1)).max(1), |r| {
            rows.for_each(r, |_, [ax, ao]| {
                for i in 0..len {
                    // SAFETY: no two elements of the output share a position, and each belongs to one task.
                    unsafe { out.write(along(ao, so, i), f(x[along(ax, sx, i)])) };
                }
            });
        });
    }
    use gradus_backend::{bf16, f16};
    let nest = Nest::<2>::new(&[x.layout, out.layout]);
    match (x.dtype, out.dtype) {
        (DType::F16, _) => each(cpu, nest, cpu.slice::<f16>(op, x)?, cpu.slice_mut(op, out)?, Summable::widen),
        (DType::BF16, _) => each(cpu, nest, cpu.slice::<bf16>(op, x)?, cpu.slice_mut(op, out)?, Summable::widen),
        (_, DType::F16) => {
            each(cpu, nest, cpu.slice::<f32>(op, x)?, cpu.slice_mut(op, out)?, <f16 as Summable>::narrow)
        }
        _ => each(cpu, nest, cpu.slice::<f32>(op, x)?, cpu.slice_mut(op, out)?, <bf16 as Summable>::narrow),
    }
    Ok(())
}

/// Adds `src` to `out` at the indices, which were checked before. `out` has the type that `src` is summed in.
fn add(
    cpu: &CpuBackend,
    op: &str,
    walk: &Walk,
    index: &Indices<'_>,
    skip: Option<usize>,
    src: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_sum!(op, src.dtype, T => {
        let (src, out) = (cpu.words::<T>(op, src)?, cpu.words_mut::<<T as Summable>::Acc>(op, out)?);
        put(cpu, walk, index, skip, src, out, |o, v| *o = T::add(*o, Summable::widen(v)));
        Ok(())
    })
}

/// Combines every element of `src` with the element of `out` at its index, in the order of the indices, which were
/// checked before.
fn put<T: Plain, A: Plain>(
    cpu: &CpuBackend,
    walk: &Walk,
    index: &Indices<'_>,
    skip: Option<usize>,
    src: &[T],
    out: &mut [A],
    meet: impl Fn(&mut A, T) + Sync,
) {
    if walk.is_empty() {
        return;
    }
    let out = Disjoint::new(out);
    let [si, ss, so] = walk.steps;
    let skip = skip.and_then(|s| i64::try_from(s).ok());
    let count = walk.rows.numel();
    let at = |i: usize, v: T| {
        // SAFETY: no other task accesses this element, for the reasons given below, where the tasks are created.
        let one = unsafe { out.slice(i..i + 1) };
        meet(&mut one[0], v);
    };
    let columns = |[ai, a_src, a_out]: [usize; 3], cols: std::ops::Range<usize>| {
        if walk.whole_rows() {
            let i = index.at(ai);
            let Some(by) = walk.place(i).filter(|_| skip != Some(i)) else { return };
            let a_out = a_out.wrapping_add_signed(by);
            if ss == 1 && so == 1 {
                // SAFETY: the columns of the row belong to this task.
                let out = unsafe { out.slice(a_out + cols.start..a_out + cols.end) };
                let src = &src[a_src + cols.start..a_src + cols.end];
                out.iter_mut().zip(src).for_each(|(o, &v)| meet(o, v));
            } else {
                cols.for_each(|c| at(along(a_out, so, c), src[along(a_src, ss, c)]));
            }
        } else {
            for c in cols {
                let i = index.at(along(ai, si, c));
                let Some(by) = walk.place(i).filter(|_| skip != Some(i)) else { continue };
                at(along(a_out, so, c).wrapping_add_signed(by), src[along(a_src, ss, c)]);
            }
        }
    };
    // Different combinations of positions along the axes before the indexed one never write to the same element, so
    // each can be a task. Rows are in row-major order, so a combination is a run of rows.
    let per_lead = walk.lead / walk.len;
    if walk.lead.is_multiple_of(walk.len) && per_lead > 0 && count > per_lead {
        let grain = (super::TASK / walk.lead).max(1) * per_lead;
        cpu.parallel_for(count, grain, |rows| walk.rows.for_each(rows, |_, a| columns(a, 0..walk.len)));
    } else if walk.whole_rows() && so != 0 && walk.len > COLS && count * walk.len > 2 * super::TASK {
        // Different columns of whole rows do not write to the same element either, unless all columns are the same
        // element (stride 0).
        cpu.parallel_for(walk.len, COLS, |cols| walk.rows.for_each(0..count, |_, a| columns(a, cols.clone())));
    } else {
        walk.rows.for_each(0..count, |_, a| columns(a, 0..walk.len));
    }
}
