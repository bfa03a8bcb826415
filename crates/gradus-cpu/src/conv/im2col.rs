//! The elements under a window as the right operand of a product, packed straight from the input.

use std::ops::Range;

use gradus_backend::host_vec::vec_of;

use super::region::Move;
use super::window::Geometry;
use crate::access::Float;
use crate::gemm::{Pack, Panels, Transpose};
use crate::isa::{Isa, per_isa};
use crate::scratch;

const OP: &str = "conv";

/// The matrix `[channels * taps, positions]` of the elements under the window, 0 in the padding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Im2col<'a, S> {
    /// One image, from its first channel on.
    pub(crate) image: &'a [S],
    pub(crate) geometry: &'a Geometry,
}

/// Its transpose, `[positions, channels * taps]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Im2row<'a, S>(pub(crate) Im2col<'a, S>);

/// A run of columns of a panel: zeros, or elements of a channel from `src` on.
#[derive(Debug, Clone, Copy)]
struct Run {
    at: usize,
    len: usize,
    src: Option<usize>,
}

/// The runs of one tap over some positions, with zeros for the padding in between; `None` if there is no memory for them.
fn collect(g: &Geometry, tap: usize, positions: Range<usize>, runs: &mut Vec<Run>) -> Option<()> {
    let (mut end, mut all) = (0, Some(()));
    g.runs(g.tap(tap), positions.clone(), |r, src| {
        if r.start > end {
            all = all.and_then(|()| push(runs, Run { at: end, len: r.start - end, src: None }));
        }
        all = all.and_then(|()| push(runs, Run { at: r.start, len: r.len(), src: Some(src) }));
        end = r.end;
    });
    if end < positions.len() {
        push(runs, Run { at: end, len: positions.len() - end, src: None })?;
    }
    all
}

/// One run more, unless there is no memory for it.
fn push(runs: &mut Vec<Run>, run: Run) -> Option<()> {
    if runs.len() == runs.capacity() {
        runs.try_reserve(1).ok()?;
    }
    runs.push(run);
    Some(())
}

/// Writes rows `rows` of the matrix, `width` columns of it as `runs` describe, to `out` as `[rows][width]`.
///
/// With `W` the width of a panel every run is written `W` wide: what is too much is overwritten by the next run or row,
/// so `out` has room for a row more. With `W` 0 runs are written exactly.
#[inline(always)]
fn fill<S: Float, const W: usize>(
    m: Im2col<'_, S>,
    rows: Range<usize>,
    width: usize,
    runs: &[Run],
    starts: &[usize],
    out: &mut [S::Compute],
) {
    let (taps, plane, step) = (m.geometry.taps(), m.geometry.plane(), m.geometry.stride[2]);
    let (mut channel, mut tap) = (rows.start / taps, rows.start % taps);
    for row in 0..rows.len() {
        let base = channel * plane;
        for run in &runs[starts[tap]..starts[tap + 1]] {
            let at = row * width + run.at;
            match run.src {
                None if W > 0 => out[at..at + W].fill(S::Compute::default()),
                None => out[at..at + run.len].fill(S::Compute::default()),
                Some(src) => {
                    let from = base + src;
                    if W > 0 && step == 1 && from + W <= m.image.len() {
                        let mut wide = [S::Compute::default(); W];
                        for (o, &x) in wide.iter_mut().zip(&m.image[from..from + W]) {
                            *o = x.widen();
                        }
                        out[at..at + W].copy_from_slice(&wide);
                    } else if step == 1 {
                        let x = &m.image[from..from + run.len];
                        for (o, &x) in out[at..at + run.len].iter_mut().zip(x) {
                            *o = x.widen();
                        }
                    } else {
                        let x = m.image[from..].iter().step_by(step);
                        for (o, &x) in out[at..at + run.len].iter_mut().zip(x) {
                            *o = x.widen();
                        }
                    }
                }
            }
        }
        tap += 1;
        if tap == taps {
            (tap, channel) = (0, channel + 1);
        }
    }
}

/// [`fill`] for the widths that panels have.
#[inline(always)]
fn fill_panel<S: Float>(
    m: Im2col<'_, S>,
    rows: Range<usize>,
    width: usize,
    runs: &[Run],
    starts: &[usize],
    out: &mut [S::Compute],
) {
    match width {
        8 => fill::<S, 8>(m, rows, width, runs, starts, out),
        16 => fill::<S, 16>(m, rows, width, runs, starts, out),
        32 => fill::<S, 32>(m, rows, width, runs, starts, out),
        64 => fill::<S, 64>(m, rows, width, runs, starts, out),
        128 => fill::<S, 128>(m, rows, width, runs, starts, out),
        _ => fill::<S, 0>(m, rows, width, runs, starts, out),
    }
}

/// [`fill_panel`] and exact [`fill`] of one storage type for every instruction set.
pub(crate) trait Fill: Pack + Move {
    fn padded(isa: Isa, m: Im2col<'_, Self>, rows: Range<usize>, width: usize, t: &Table, out: &mut [Self::Compute]);
    fn exact(isa: Isa, m: Im2col<'_, Self>, rows: Range<usize>, width: usize, t: &Table, out: &mut [Self::Compute]);
}

/// The runs of every tap; those of tap `t` are `runs[starts[t]..starts[t + 1]]`.
#[derive(Debug)]
pub(crate) struct Table {
    runs: Vec<Run>,
    starts: Vec<usize>,
}

impl Table {
    /// For the positions, and for the taps that these rows of the matrix have. The columns of a panel of this width beyond
    /// the positions are zeros: they go on as one more run of every tap. `None` if there is no memory for it.
    fn new(g: &Geometry, rows: Range<usize>, positions: Range<usize>, width: usize) -> Option<Table> {
        let (taps, len) = (g.taps(), positions.len());
        let mut t = Table { runs: vec_of(OP, 2 * taps).ok()?, starts: vec_of(OP, taps + 1).ok()? };
        let needed = |tap: usize| rows.len() >= taps || (tap + taps - rows.start % taps) % taps < rows.len();
        for tap in 0..taps {
            t.starts.push(t.runs.len());
            if needed(tap) {
                collect(g, tap, positions.clone(), &mut t.runs)?;
            }
            if len < width {
                push(&mut t.runs, Run { at: len, len: width - len, src: None })?;
            }
        }
        t.starts.push(t.runs.len());
        Some(t)
    }

    /// Notes that there was no memory for a table of so many taps.
    fn missing(taps: usize) {
        scratch::note_missing(taps.saturating_mul(2 * size_of::<Run>()));
    }
}

macro_rules! fills {
    ($($s:ty, $panel:ident, $exact:ident;)*) => {$(
        per_isa! {
            fn $panel(m: Im2col<'_, $s>, rows: Range<usize>, width: usize, t: &Table, out: &mut [<$s as Float>::Compute]) =
                |m, rows, width, t: &Table, out| fill_panel::<$s>(m, rows, width, &t.runs, &t.starts, out);
            fn $exact(m: Im2col<'_, $s>, rows: Range<usize>, width: usize, t: &Table, out: &mut [<$s as Float>::Compute]) =
                |m, rows, width, t: &Table, out| fill::<$s, 0>(m, rows, width, &t.runs, &t.starts, out);
        }
        impl Fill for $s {
            fn padded(isa: Isa, m: Im2col<'_, $s>, rows: Range<usize>, width: usize, t: &Table, out: &mut [Self::Compute]) {
                $panel(isa, m, rows, width, t, out)
            }
            fn exact(isa: Isa, m: Im2col<'_, $s>, rows: Range<usize>, width: usize, t: &Table, out: &mut [Self::Compute]) {
                $exact(isa, m, rows, width, t, out)
            }
        }
    )*};
}
fills! {
    f32, f32_panel, f32_exact;
    f64, f64_panel, f64_exact;
    gradus_backend::f16, f16_panel, f16_exact;
    gradus_backend::bf16, bf16_panel, bf16_exact;
}

impl<S: Fill> Panels<S::Compute> for Im2col<'_, S> {
    unsafe fn pack(&self, isa: Isa, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [S::Compute]) {
        let table = Table::new(self.geometry, k.clone(), j, width);
        let Some(table) = table else { return Table::missing(self.geometry.taps()) };
        S::padded(isa, *self, k, width, &table, out);
    }

    fn direct(&self, _: usize, _: usize) -> Option<(*const S::Compute, isize)> {
        None
    }
}

impl<S: Fill> Panels<S::Compute> for Im2row<'_, S> {
    unsafe fn pack(&self, isa: Isa, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [S::Compute]) {
        let steps = k.len();
        let table = Table::new(self.0.geometry, j.clone(), k, 0);
        let Some(table) = table else { return Table::missing(self.0.geometry.taps()) };
        // Eight rows of the matrix at a time become eight columns of the panel.
        let ld = steps.next_multiple_of(8);
        scratch::with(8 * ld, |rows: &mut [S::Compute]| {
            for c0 in (0..width).step_by(8) {
                let count = j.len().saturating_sub(c0).min(8);
                if count < 8 {
                    rows.fill(S::Compute::default());
                }
                for r in 0..count {
                    let row = j.start + c0 + r;
                    S::exact(isa, self.0, row..row + 1, steps, &table, &mut rows[r * ld..]);
                }
                let row = |r: usize, p: usize| rows[r * ld + p..].as_ptr();
                let whole = steps / 8 * 8;
                for p in (0..whole).step_by(8) {
                    let from = [row(0, p), row(1, p), row(2, p), row(3, p), row(4, p), row(5, p), row(6, p), row(7, p)];
                    let to = &mut out[p * width + c0..(p + 7) * width + c0 + 8];
                    // SAFETY: each row has 8 elements from `p` on; `to` ends after the last of the 8 by 8 elements.
                    unsafe { S::Compute::transpose8(isa, from, to.as_mut_ptr(), width) };
                }
                for p in whole..steps {
                    for r in 0..8 {
                        out[p * width + c0 + r] = rows[r * ld + p];
                    }
                }
            }
        });
    }

    fn direct(&self, _: usize, _: usize) -> Option<(*const S::Compute, isize)> {
        None
    }
}
