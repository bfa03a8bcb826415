//! The elements under a window as the right operand of a product, packed straight from the input.

use std::ops::Range;

use gradus_backend::host_vec::vec_of;
use half::slice::HalfFloatSliceExt;

use super::region::Move;
use super::window::Geometry;
use crate::access::Plain;
use crate::gemm::{Pack, Panels, Transpose};
use crate::isa::{Isa, per_isa_256};
use crate::rows::Rows;
use crate::scratch;

const OP: &str = "conv";

/// The matrix `[channels * taps, positions]` of the elements under the window, 0 in the padding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Im2col<'a, S> {
    /// The elements of an image, starting at the first channel of the matrix.
    pub(crate) image: &'a [S],
    pub(crate) geometry: &'a Geometry,
}

/// The transpose of [`Im2col`], `[positions, channels * taps]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Im2row<'a, S>(pub(crate) Im2col<'a, S>);

/// A run of columns of a panel: zeros, or the elements of a channel starting at `src`.
#[derive(Debug, Clone, Copy)]
struct Run {
    at: usize,
    len: usize,
    src: Option<usize>,
}

/// Appends to `runs` the elements that one tap of the window reads at these positions, with zeros for the padding.
/// Returns `None` if memory is short.
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

/// Adds a run. Returns `None` if memory is short.
fn push(runs: &mut Vec<Run>, run: Run) -> Option<()> {
    if runs.len() == runs.capacity() {
        runs.try_reserve(1).ok()?;
    }
    runs.push(run);
    Some(())
}

/// The number of elements that are written together.
const CHUNK: usize = 8;

/// Writes these rows of the unfolded matrix of `image` to `out` as `[rows][width]`. The `width` columns are those that
/// `t` describes.
///
/// Runs are written in whole chunks. The next run or row overwrites the excess, and `out` has room for one more chunk
/// at the end.
#[inline(always)]
fn fill<S: Plain>(image: &[S], g: &Geometry, rows: Range<usize>, width: usize, t: &Table, out: &mut [S]) {
    let (taps, plane, step) = (g.taps(), g.plane(), g.stride[2]);
    let (mut channel, mut tap) = (rows.start / taps, rows.start % taps);
    for row in 0..rows.len() {
        let base = channel * plane;
        for run in &t.runs[t.starts[tap]..t.starts[tap + 1]] {
            let out = &mut out[row * width + run.at..];
            let chunks = run.len.div_ceil(CHUNK);
            let Some(src) = run.src else {
                out[..chunks * CHUNK].as_chunks_mut::<CHUNK>().0.fill([S::default(); CHUNK]);
                continue;
            };
            let x = &image[base + src..];
            if step == 1 && chunks * CHUNK <= x.len() {
                let to = out[..chunks * CHUNK].as_chunks_mut::<CHUNK>().0;
                to.iter_mut().zip(x.as_chunks::<CHUNK>().0).for_each(|(o, x)| *o = *x);
            } else {
                out[..run.len].iter_mut().zip(x.iter().step_by(step)).for_each(|(o, &x)| *o = x);
            }
        }
        tap += 1;
        if tap == taps {
            (tap, channel) = (0, channel + 1);
        }
    }
}

per_isa_256! {
    fn fill_f32(image: &[f32], g: &Geometry, rows: Range<usize>, width: usize, t: &Table, out: &mut [f32]) = fill;
    fn fill_f64(image: &[f64], g: &Geometry, rows: Range<usize>, width: usize, t: &Table, out: &mut [f64]) = fill;
    fn fill_u16(image: &[u16], g: &Geometry, rows: Range<usize>, width: usize, t: &Table, out: &mut [u16]) = fill;
}

/// [`fill`] for a storage type, with the result in its compute type, on every instruction set.
pub(crate) trait Fill: Pack<Compute: Pack> + Move {
    fn fill(isa: Isa, m: Im2col<'_, Self>, rows: Range<usize>, width: usize, t: &Table, out: &mut [Self::Compute]);
}

macro_rules! fills {
    ($($s:ty, $fill:ident;)*) => {$(
        impl Fill for $s {
            fn fill(isa: Isa, m: Im2col<'_, $s>, rows: Range<usize>, width: usize, t: &Table, out: &mut [$s]) {
                $fill(isa, m.image, m.geometry, rows, width, t, out)
            }
        }
    )*};
}
fills! { f32, fill_f32; f64, fill_f64; }

macro_rules! halves {
    ($($s:ty)*) => {$(
        impl Fill for $s {
            fn fill(isa: Isa, m: Im2col<'_, $s>, rows: Range<usize>, width: usize, t: &Table, out: &mut [f32]) {
                let len = rows.len() * width;
                scratch::with(len + CHUNK, |raw: &mut [$s]| {
                    fill_u16(isa, m.image.reinterpret_cast(), m.geometry, rows, width, t, raw.reinterpret_cast_mut());
                    <$s as Rows>::load(isa, raw, 0, 1, &mut out[..len]);
                });
            }
        }
    )*};
}
halves!(gradus_backend::f16 gradus_backend::bf16);

/// The runs of all taps. The runs of tap `t` are `runs[starts[t]..starts[t + 1]]`.
#[derive(Debug)]
pub(crate) struct Table {
    runs: Vec<Run>,
    starts: Vec<usize>,
}

impl Table {
    /// Creates the table for these positions and for the taps of these rows of the matrix. If the panel has columns
    /// beyond the last position, each tap has one more run, which sets them to zero. Returns `None` if memory is short.
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

    /// Records that memory was short for a table of this many taps.
    fn missing(taps: usize) {
        crate::shortage::note_missing(taps.saturating_mul(2 * size_of::<Run>()));
    }
}

impl<S: Fill> Panels<S::Compute> for Im2col<'_, S> {
    unsafe fn pack(&self, isa: Isa, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [S::Compute]) {
        let table = Table::new(self.geometry, k.clone(), j, width);
        let Some(table) = table else { return Table::missing(self.geometry.taps()) };
        S::fill(isa, *self, k, width, &table, out);
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
        // Eight rows of the matrix at a time become eight columns of the panel. Each row has room for another chunk
        // after it.
        let ld = steps.next_multiple_of(8) + CHUNK;
        scratch::with(8 * ld, |rows: &mut [S::Compute]| {
            for c0 in (0..width).step_by(8) {
                let count = j.len().saturating_sub(c0).min(8);
                if count < 8 {
                    rows.fill(S::Compute::default());
                }
                for r in 0..count {
                    let row = j.start + c0 + r;
                    S::fill(isa, self.0, row..row + 1, steps, &table, &mut rows[r * ld..(r + 1) * ld]);
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
