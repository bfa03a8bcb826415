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
//! NaN value that is hidden may reach the queries that share such a block with one that sees it.

mod backward;
mod forward;
mod kernel;
mod mask;
mod product;
#[cfg(test)]
mod tests;

use gradus_backend::composite::attention::Sizes;
use gradus_backend::{AttentionParams, Backend, Layout, Result, Scalar, View, ViewMut};

use crate::CpuBackend;
use crate::access::{Float, Plain, with_float};
use crate::gemm::{Mat, Pack, Real};
use crate::isa::Isa;
use crate::parallel::Disjoint;
use crate::rows::Rows;
use mask::Mask;

/// Queries of a tile: a multiple of the panels of every kernel.
const QUERIES: usize = 96;
/// Most keys whose scores are held at once.
const SPAN: usize = 2048;
/// Multiply-adds that are worth a task of their own.
const TASK: usize = 1 << 18;

/// The matrices of a tensor `[batch, heads, rows, columns]`.
#[derive(Debug, Clone, Copy)]
struct Matrices<'a, S> {
    data: &'a [S],
    layout: &'a Layout,
}

impl<'a, S: Plain> Matrices<'a, S> {
    fn new(cpu: &CpuBackend, op: &str, x: View<'a>) -> Result<Self> {
        Ok(Matrices { data: cpu.slice(op, x)?, layout: x.layout })
    }

    /// The matrix of a head.
    fn of(&self, b: usize, h: usize) -> Mat<'a, S> {
        let s = self.layout.strides();
        // SAFETY: `slice` checked that every element of the layout lies inside the data; users stay inside the shape.
        unsafe { Mat::new(self.data, position(self.layout, [b, h, 0]), s[2], s[3]) }
    }

    /// Its transpose.
    fn transposed(&self, b: usize, h: usize) -> Mat<'a, S> {
        let s = self.layout.strides();
        // SAFETY: as above.
        unsafe { Mat::new(self.data, position(self.layout, [b, h, 0]), s[3], s[2]) }
    }
}

/// A tensor `[batch, heads, rows, columns]` that is written, each row by one task.
struct Output<'a, S> {
    data: Disjoint<'a, S>,
    layout: Layout,
}

impl<'a, S: Rows> Output<'a, S> {
    fn new(cpu: &CpuBackend, op: &str, x: &'a mut ViewMut<'_>) -> Result<Self> {
        let layout = *x.layout;
        Ok(Output { data: Disjoint::new(cpu.slice_mut(op, x)?), layout })
    }

    /// Has `make` write a row, given by its indices; `work` has its length.
    ///
    /// # Safety
    /// No other task writes this row.
    unsafe fn write(&self, isa: Isa, row: [usize; 3], work: &mut [S::Compute], make: impl FnOnce(&mut [S::Compute])) {
        if !work.is_empty() {
            let (at, step) = (position(&self.layout, row), self.layout.strides()[3]);
            // SAFETY: the caller's promise; elements of an output are apart (`slice_mut`).
            unsafe { S::write(isa, &self.data, at, step, work, make) };
        }
    }
}

/// Where the element at these indices of the first three axes, and 0 of a fourth, lies.
fn position(layout: &Layout, index: [usize; 3]) -> usize {
    index.iter().zip(layout.strides()).fold(layout.offset(), |at, (&i, &s)| at.wrapping_add_signed(s * i as isize))
}

/// The operands that both passes read.
#[derive(Debug)]
struct Problem<'a, S: Float> {
    cpu: &'a CpuBackend,
    sizes: Sizes,
    causal: bool,
    scale: S::Compute,
    q: Matrices<'a, S>,
    k: Matrices<'a, S>,
    v: Matrices<'a, S>,
    mask: Option<Mask<'a>>,
}

impl<'a, S: Pack> Problem<'a, S> {
    fn new(
        cpu: &'a CpuBackend,
        op: &'static str,
        params: &AttentionParams,
        sizes: Sizes,
        [q, k, v]: [View<'a>; 3],
        mask: Option<View<'a>>,
    ) -> Result<Self> {
        Ok(Problem {
            cpu,
            sizes,
            causal: params.causal,
            scale: S::Compute::from_f64(params.scale),
            q: Matrices::new(cpu, op, q)?,
            k: Matrices::new(cpu, op, k)?,
            v: Matrices::new(cpu, op, v)?,
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

    /// The first query that sees key `j`.
    fn first_query(&self, j: usize) -> usize {
        let Sizes { lq, lk, .. } = self.sizes;
        if self.causal { (j + lq).saturating_sub(lk) } else { 0 }
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
        let p = Problem::<S>::new(cpu, OP, params, sizes, [q, k, v], mask)?;
        forward::forward(&p, out, lse)
    })
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
        let p = Problem::<S>::new(cpu, OP, params, sizes, [q, k, v], mask)?;
        backward::backward(&p, lse, g, dq, dk, dv)
    })
}
