//! The operations `unfold` and `fold`.

use gradus_backend::{Result, Scalar, View, ViewMut, Window};

use super::window::{Geometry, split};
use crate::access::{Plain, check_dtype, check_shape, with_word};
use crate::copy::bits;
use crate::sum::{Summable, with_sum};
use crate::temp::{contiguous_output, copy_if_strided, pick};
use crate::{CpuBackend, scratch};

/// The number of elements that a task should process.
const TASK: usize = 1 << 14;

/// Checks a window over `x [n, c, spatial..]`. Returns the number of channels in the whole batch (`n * c`), the
/// geometry, and the shape of the unfolded side.
fn unfolded(op: &str, window: &Window, x: View<'_>) -> Result<(usize, Geometry, Vec<usize>)> {
    if !(1..=3).contains(&window.rank) {
        let m = format!("a window over {} axes; it has 1 to 3", window.rank);
        return Err(gradus_backend::Error::argument(op, m));
    }
    let (n, c, spatial) = split(op, "the folded side", x.layout, window.rank)?;
    let g = Geometry::new(op, window, spatial)?;
    g.check(op)?;
    let mut dims = vec![n, c];
    dims.extend_from_slice(&window.kernel[..window.rank]);
    dims.extend_from_slice(&g.output[3 - window.rank..]);
    Ok((n * c, g, dims))
}

/// See [`Backend::unfold`](gradus_backend::Backend::unfold).
pub(crate) fn unfold(cpu: &CpuBackend, window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "unfold";
    let (_, g, dims) = unfolded(OP, window, x)?;
    check_dtype(OP, "out", out.dtype, x.dtype)?;
    check_shape(OP, "out", out.layout.dims(), &dims)?;
    pad.check(x.dtype)?;
    let dtype = x.dtype;
    let copy = copy_if_strided(cpu, OP, x)?;
    let x = pick(&copy, x);
    contiguous_output(cpu, OP, out, |out| {
        with_word!(x.dtype.size(), W => {
            let Some(x) = cpu.contiguous_words::<W>(OP, x)? else { return Ok(()) };
            let Some(out) = cpu.contiguous_words_mut::<W>(OP, out)? else { return Ok(()) };
            unfold_all(cpu, &g, x, bits(pad, dtype) as W, out);
            Ok(())
        })
    })
}

fn unfold_all<T: Plain>(cpu: &CpuBackend, g: &Geometry, x: &[T], pad: T, out: &mut [T]) {
    let (p, taps, plane, step) = (g.positions(), g.taps(), g.plane(), g.stride[2]);
    if p == 0 {
        return;
    }
    // A row is one tap of one channel.
    let rows = (TASK / p).max(1);
    cpu.parallel_chunks(out, rows * p, |chunk, out| {
        for (row, out) in (chunk * rows..).zip(out.chunks_exact_mut(p)) {
            let channel = &x[row / taps * plane..];
            out.fill(pad);
            g.runs(g.tap(row % taps), 0..p, |run, src| {
                for (o, &v) in out[run].iter_mut().zip(channel[src..].iter().step_by(step)) {
                    *o = v;
                }
            });
        }
    });
}

/// See [`Backend::fold`](gradus_backend::Backend::fold).
pub(crate) fn fold(cpu: &CpuBackend, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "fold";
    let (_, g, dims) = unfolded(OP, window, out.as_view())?;
    check_dtype(OP, "out", out.dtype, x.dtype)?;
    check_shape(OP, "x", x.layout.dims(), &dims)?;
    let copy = copy_if_strided(cpu, OP, x)?;
    let x = pick(&copy, x);
    contiguous_output(cpu, OP, out, |out| {
        with_sum!(OP, x.dtype, T => {
            let Some(x) = cpu.contiguous_words::<T>(OP, x)? else { return Ok(()) };
            let Some(out) = cpu.contiguous_words_mut::<T>(OP, out)? else { return Ok(()) };
            let (plane, rows) = (g.plane(), g.taps() * g.positions());
            cpu.parallel_chunks(out, plane, |channel, out| {
                scratch::large(cpu, plane, |sums: &mut [<T as Summable>::Acc]| {
                    fold_channel::<T>(&g, &x[channel * rows..(channel + 1) * rows], sums);
                    out.iter_mut().zip(sums).for_each(|(o, &mut v)| *o = <T as Summable>::narrow(v));
                });
            });
            Ok(())
        })
    })
}

/// Sets `sums` to the folded columns `[taps, positions]` of one channel. Tap by tap, each number is added to the
/// element that it was unfolded from.
pub(super) fn fold_channel<T: Summable>(g: &Geometry, cols: &[T], sums: &mut [T::Acc]) {
    let (p, step) = (g.positions(), g.stride[2]);
    sums.fill(T::Acc::default());
    for tap in 0..g.taps() {
        let row = &cols[tap * p..(tap + 1) * p];
        g.runs(g.tap(tap), 0..p, |run, src| {
            for (s, &v) in sums[src..].iter_mut().step_by(step).zip(&row[run]) {
                *s = T::add(*s, v.widen());
            }
        });
    }
}
