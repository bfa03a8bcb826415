//! Scaled dot-product attention and its gradient without the scores in memory.
//!
//! A task takes [`QUERIES`] queries of a head and walks over the keys that they may see, a span of [`SPAN`] at a time: the
//! scores of a span are a product, stay in the cache, become weights, and meet the values. Over several spans the largest
//! score so far is the shift of all, and what was summed before is scaled as it grows. The gradient computes the scores
//! again from the log-sum-exp of each row.
//!
//! Tiles, spans and chains are cut at fixed positions, so a query's result depends on its keys alone: not on threads, on
//! the instruction set, nor on the queries, heads and samples around it. What causal attention hides is skipped where
//! it fills a block of a product and has weight 0 elsewhere, which changes no bit of a sum of finite numbers; an infinite or
//! NaN value that is hidden may reach the queries that share such a block with one that sees it. The gradient skips nothing where
//! a number is not finite.

mod backward;
mod forward;
mod kernel;
mod mask;
mod product;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};

use gradus_backend::composite::attention::Sizes;
use gradus_backend::{AttentionParams, Backend, Layout, Result, Scalar, View, ViewMut};

use crate::CpuBackend;
use crate::access::{Float, with_float};
use crate::gemm::Real;
use crate::isa::Isa;
use crate::nest::Nest;
use crate::parallel::Disjoint;
use crate::rows::Elementary;
use crate::stored::{Part, Sink, Source, Stored};
use backward::Given;
use mask::Mask;

/// Queries of a tile: a multiple of the panels of every kernel.
const QUERIES: usize = 96;
/// Most keys whose scores are held at once.
const SPAN: usize = 2048;
/// Multiply-adds that are worth a task of their own.
const TASK: usize = 1 << 18;

/// The matrices of a tensor `[batch, heads, rows, columns]`, every element of which `source` holds.
#[derive(Clone, Copy)]
struct Matrices<'a, T> {
    source: &'a dyn Source<T>,
    layout: &'a Layout,
}

impl<'a, T> Matrices<'a, T> {
    /// The matrix of a head.
    fn of(&self, b: usize, h: usize) -> Part<'a, T> {
        let s = self.layout.strides();
        Part::new(self.source, position(self.layout, [b, h, 0]), [s[2], s[3]])
    }
}

/// A tensor `[batch, heads, rows, columns]` that is written, each row by one task.
struct Output<'a, T> {
    sink: &'a dyn Sink<T>,
    layout: Layout,
}

impl<T> Output<'_, T> {
    /// Has `make` write a row, given by its indices; `work` has its length.
    ///
    /// # Safety
    /// No other task writes this row.
    unsafe fn write(&self, isa: Isa, row: [usize; 3], work: &mut [T], mut make: impl FnMut(&mut [T])) {
        if !work.is_empty() {
            let (at, step) = (position(&self.layout, row), self.layout.strides()[3]);
            // SAFETY: the caller's promise; elements of an output are apart (`slice_mut`).
            unsafe { self.sink.write(isa, at, step, work, &mut make) };
        }
    }
}

/// Tensors with where their elements are.
fn matrices<'a, T>(sources: [&'a dyn Source<T>; 3], views: [View<'a>; 3]) -> [Matrices<'a, T>; 3] {
    std::array::from_fn(|i| Matrices { source: sources[i], layout: views[i].layout })
}

/// Where the element at these indices of the first three axes, and 0 of a fourth, lies.
fn position(layout: &Layout, index: [usize; 3]) -> usize {
    index.iter().zip(layout.strides()).fold(layout.offset(), |at, (&i, &s)| at.wrapping_add_signed(s * i as isize))
}

/// The operands that both passes read.
struct Problem<'a, T> {
    cpu: &'a CpuBackend,
    sizes: Sizes,
    causal: bool,
    /// Whether products leave out what causal attention hides.
    skips: bool,
    scale: T,
    q: Matrices<'a, T>,
    k: Matrices<'a, T>,
    v: Matrices<'a, T>,
    mask: Option<Mask<'a>>,
}

impl<'a, T: Real> Problem<'a, T> {
    fn new(
        cpu: &'a CpuBackend,
        op: &'static str,
        params: &AttentionParams,
        skips: bool,
        sizes: Sizes,
        [q, k, v]: [Matrices<'a, T>; 3],
        mask: Option<View<'a>>,
    ) -> Result<Self> {
        Ok(Problem {
            cpu,
            sizes,
            causal: params.causal,
            skips,
            scale: T::from_f64(params.scale),
            q,
            k,
            v,
            mask: mask.map(|m| Mask::new(cpu, op, m, sizes.scores()?)).transpose()?,
        })
    }

    /// The key head that a query head uses.
    fn key_head(&self, h: usize) -> usize {
        h / (self.sizes.h / self.sizes.hk)
    }

    /// Number of tiles of a head.
    fn tiles(&self) -> usize {
        self.sizes.lq.div_ceil(QUERIES)
    }

    /// Tile number `i` of a head.
    fn tile(&self, b: usize, h: usize, i: usize) -> Tile {
        let first = i * QUERIES;
        Tile { b, h, first, len: QUERIES.min(self.sizes.lq - first) }
    }

    /// How many keys query `i` sees: they are the first ones.
    fn visible(&self, i: usize) -> usize {
        let Sizes { lq, lk, .. } = self.sizes;
        if self.causal { (i + 1 + lk).saturating_sub(lq) } else { lk }
    }

    /// How many keys the products with query `i` reach to.
    fn reached(&self, i: usize) -> usize {
        if self.skips { self.visible(i) } else { self.sizes.lk }
    }

    /// The first query of which the products reach to key `j`.
    fn first_query(&self, j: usize) -> usize {
        let Sizes { lq, lk, .. } = self.sizes;
        if self.skips { (j + lq).saturating_sub(lk) } else { 0 }
    }
}

/// Some queries of a head.
#[derive(Debug, Clone, Copy)]
struct Tile {
    b: usize,
    h: usize,
    first: usize,
    len: usize,
}

/// See [`Backend::attention`](gradus_backend::Backend::attention).
pub(crate) fn attention(
    cpu: &CpuBackend,
    params: &AttentionParams,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    lse: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "attention";
    let sizes = Sizes::new(cpu, OP, params, [q, k, v, out.as_view(), lse.as_view()], mask)?;
    with_float!(OP, q.dtype, S => {
        let data = [Stored(cpu.slice::<S>(OP, q)?), Stored(cpu.slice::<S>(OP, k)?), Stored(cpu.slice::<S>(OP, v)?)];
        let operands = matrices([&data[0], &data[1], &data[2]], [q, k, v]);
        let p = Problem::new(cpu, OP, params, params.causal, sizes, operands, mask)?;
        let layout = *out.layout;
        let sink = Disjoint::new(cpu.slice_mut::<S>(OP, out)?);
        forward::forward(&p, &Output { sink: &sink, layout }, lse)
    })
}

/// Whether `fine` holds for all elements.
fn all<S: Float>(cpu: &CpuBackend, v: View<'_>, fine: impl Fn(S::Compute) -> bool + Sync) -> Result<bool> {
    let data = cpu.slice::<S>("attention_backward", v)?;
    let (rows, len, [step]) = Nest::new(&[v.layout]).split_inner();
    let bad = AtomicBool::new(false);
    let count = if len == 0 { 0 } else { rows.numel() };
    cpu.parallel_for(count, (TASK / len.max(1)).max(1), |range| {
        rows.for_each(range, |_, [at]| {
            let all = match step {
                1 => data[at..at + len].iter().fold(true, |all, x| all & fine(x.widen())),
                _ => (0..len).all(|i| fine(data[at.wrapping_add_signed(step * i as isize)].widen())),
            };
            if !all {
                bad.store(true, Ordering::Relaxed);
            }
        });
    });
    Ok(!bad.into_inner())
}

/// Whether all numbers are finite. Where one is not, the products that causal attention leaves out are not 0.
fn finite<S: Float<Compute: Elementary>>(cpu: &CpuBackend, operands: [View<'_>; 4], lse: View<'_>) -> Result<bool> {
    for v in operands {
        if !all::<S>(cpu, v, Elementary::is_finite)? {
            return Ok(false);
        }
    }
    // -inf where a query sees no key.
    all::<S::Compute>(cpu, lse, |x| x.is_finite() || x == Elementary::NEG_INFINITY)
}

/// See [`Backend::attention_backward`](gradus_backend::Backend::attention_backward).
pub(crate) fn attention_backward(
    cpu: &CpuBackend,
    params: &AttentionParams,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: View<'_>,
    lse: View<'_>,
    g: View<'_>,
    dq: &mut ViewMut<'_>,
    dk: &mut ViewMut<'_>,
    dv: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "attention_backward";
    let gradients = [g, dq.as_view(), dk.as_view(), dv.as_view()];
    let sizes = Sizes::of_gradients(cpu, OP, params, [q, k, v, out, lse], mask, gradients)?;
    if sizes.scores()?.numel() == 0 {
        cpu.fill(dq, Scalar::Float(0.0))?;
        cpu.fill(dk, Scalar::Float(0.0))?;
        return cpu.fill(dv, Scalar::Float(0.0));
    }
    with_float!(OP, q.dtype, S => {
        let skips = params.causal && finite::<S>(cpu, [q, k, v, g], lse)?;
        let data = [Stored(cpu.slice::<S>(OP, q)?), Stored(cpu.slice::<S>(OP, k)?), Stored(cpu.slice::<S>(OP, v)?)];
        let operands = matrices([&data[0], &data[1], &data[2]], [q, k, v]);
        let p = Problem::new(cpu, OP, params, skips, sizes, operands, mask)?;
        let (gradient, layouts) = (Stored(cpu.slice::<S>(OP, g)?), [*dq.layout, *dk.layout, *dv.layout]);
        let given = Given {
            g: Matrices { source: &gradient, layout: g.layout },
            lse: cpu.slice(OP, lse)?,
            lse_layout: lse.layout,
        };
        let [dq, dk, dv] = [
            Disjoint::new(cpu.slice_mut::<S>(OP, dq)?),
            Disjoint::new(cpu.slice_mut::<S>(OP, dk)?),
            Disjoint::new(cpu.slice_mut::<S>(OP, dv)?),
        ];
        let sinks: [&dyn Sink<_>; 3] = [&dq, &dk, &dv];
        backward::backward(&p, &given, std::array::from_fn(|i| Output { sink: sinks[i], layout: layouts[i] }))
    })
}
