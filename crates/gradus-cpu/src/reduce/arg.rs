//! Finds the position of the largest or smallest element along an axis. The first of several equal elements wins, and a
//! NaN wins over every number.
//!
//! Elements are compared by keys, so that the largest key always wins. As long as the best key so far is not NaN,
//! another key beats it if it is *not* less than or equal to it, which is also true of a NaN. Each element of a group
//! therefore takes one vectorisable comparison, and a group is searched only if one of its elements wins.

use gradus_backend::{ArgReduceOp, DType, Error, Layout, Result, View, ViewMut};

use crate::CpuBackend;
use crate::access::{Plain, check_axis, check_dtype, check_shape, with_word};
use crate::nest::Nest;
use crate::order::Order;
use crate::parallel::Disjoint;

/// The number of elements, or of columns, that are compared together.
const GROUP: usize = 64;
/// The number of elements that a task should compare.
const GRAIN: usize = 32 << 10;

/// See [`Backend::arg_reduce`](gradus_backend::Backend::arg_reduce).
pub(crate) fn arg_reduce(
    cpu: &CpuBackend,
    op: ArgReduceOp,
    x: View<'_>,
    axis: usize,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let name = match op {
        ArgReduceOp::Max => "argmax",
        ArgReduceOp::Min => "argmin",
    };
    check_axis(name, axis, x.layout.dims())?;
    check_dtype(name, "the output", out.dtype, DType::I64)?;
    check_shape(name, "the output", out.layout.dims(), &x.layout.shape().with(axis, 1)?)?;
    if x.layout.dims()[axis] == 0 && out.layout.numel() > 0 {
        let m = format!("axis {axis} of {} is empty, so it has no {name}", x.layout.shape());
        return Err(Error::argument(name, m));
    }
    let max = op == ArgReduceOp::Max;
    match x.dtype {
        // The smallest element is the one whose negative is the largest.
        DType::F32 if max => find(cpu, name, cpu.slice::<f32>(name, x)?, x.layout, axis, out, |v| v),
        DType::F32 => find(cpu, name, cpu.slice::<f32>(name, x)?, x.layout, axis, out, |v| -v),
        DType::F64 if max => find(cpu, name, cpu.slice::<f64>(name, x)?, x.layout, axis, out, |v| v),
        DType::F64 => find(cpu, name, cpu.slice::<f64>(name, x)?, x.layout, axis, out, |v| -v),
        // Every byte other than 0 is true.
        DType::Bool => find(cpu, name, cpu.slice::<u8>(name, x)?, x.layout, axis, out, |v| u8::from((v != 0) == max)),
        _ => with_word!(x.dtype.size(), W => {
            let order = Order::<W>::new(x.dtype);
            let order = if max { order } else { order.falling() };
            find(cpu, name, cpu.words::<W>(name, x)?, x.layout, axis, out, move |v| order.key(v))
        }),
    }
}

/// Writes the positions of the largest keys to `out`.
fn find<T: Plain, K: Plain + PartialOrd>(
    cpu: &CpuBackend,
    name: &str,
    all: &[T],
    x: &Layout,
    axis: usize,
    out: &mut ViewMut<'_>,
    key: impl Fn(T) -> K + Sync,
) -> Result<()> {
    let layout = out.layout;
    let to = Disjoint::new(cpu.slice_mut::<i64>(name, out)?);
    if layout.numel() == 0 {
        return Ok(());
    }
    let (n, step) = (x.dims()[axis], x.strides()[axis]);
    let kept = Nest::<2>::new(&[&x.select(axis, 0)?, &layout.squeeze(axis)?]);
    let last = kept.dims().len().wrapping_sub(1);
    if kept.dims().last().is_some_and(|&d| d >= 8) && kept.strides(last)[0] == 1 && step != 1 {
        columns_of(cpu, all, &to, kept, (n, step), key);
        return Ok(());
    }
    cpu.parallel_for(kept.numel(), (GRAIN / n).max(1), |range| {
        kept.for_each(range, |_, [from, at]| {
            let best = line(all, from, n, step, &key);
            // SAFETY: the positions of the output are all different, and each is written by one task.
            unsafe { to.write(at, best as i64) };
        });
    });
    Ok(())
}

/// Returns the position of the first of `n` elements whose key is not beaten by any other key.
#[inline(always)]
fn line<T: Plain, K: Plain + PartialOrd>(all: &[T], from: usize, n: usize, step: isize, key: impl Fn(T) -> K) -> usize {
    let (mut best, mut at) = (key(all[from]), 0);
    if step == 1 {
        for (g, group) in all[from..from + n].chunks(GROUP).enumerate() {
            if group.iter().fold(true, |quiet, &v| quiet & at_most(key(v), best)) {
                continue;
            }
            for (i, &v) in group.iter().enumerate() {
                if is_nan(best) {
                    return at;
                }
                if !at_most(key(v), best) {
                    (best, at) = (key(v), g * GROUP + i);
                }
            }
        }
        return at;
    }
    for i in 1..n {
        if is_nan(best) {
            return at;
        }
        let v = key(all[from.wrapping_add_signed(step * i as isize)]);
        if !at_most(v, best) {
            (best, at) = (v, i);
        }
    }
    at
}

/// Returns whether `a` does not beat `b`. A NaN beats every number.
#[inline(always)]
fn at_most<K: PartialOrd>(a: K, b: K) -> bool {
    a <= b
}

#[allow(clippy::eq_op)]
#[inline(always)]
fn is_nan<K: PartialOrd>(k: K) -> bool {
    k != k
}

/// Searches strips of neighbouring lines together. Their best keys and positions form one row, which is updated with
/// every row of the strip.
fn columns_of<T: Plain, K: Plain + PartialOrd>(
    cpu: &CpuBackend,
    all: &[T],
    to: &Disjoint<'_, i64>,
    kept: Nest<2>,
    (n, step): (usize, isize),
    key: impl Fn(T) -> K + Sync,
) {
    let (outer, len, [_, step_out]) = kept.split_inner();
    let strips = len.div_ceil(GROUP);
    cpu.parallel_for(outer.numel() * strips, (GRAIN / (n * GROUP)).max(1), |range| {
        for t in range {
            let [from, at] = outer.at(t / strips);
            let first = t % strips * GROUP;
            let w = GROUP.min(len - first);
            let (mut best, mut position) = ([K::default(); GROUP], [0i64; GROUP]);
            for i in 0..n {
                let start = (from + first).wrapping_add_signed(step * i as isize);
                let row = &all[start..start + w];
                for ((&v, best), position) in row.iter().zip(&mut best).zip(&mut position) {
                    let v = key(v);
                    let wins = (i == 0) | (!at_most(v, *best) & !is_nan(*best));
                    *best = if wins { v } else { *best };
                    *position = if wins { i as i64 } else { *position };
                }
            }
            for (j, &p) in position[..w].iter().enumerate() {
                // SAFETY: the positions of the output are all different, and each is written by one task.
                unsafe { to.write(at.wrapping_add_signed(step_out * (first + j) as isize), p) };
            }
        }
    });
}
