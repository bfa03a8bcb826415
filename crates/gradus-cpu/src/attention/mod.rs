//! Scaled dot-product attention and its gradient, without keeping all scores in memory.
//!
//! A task takes [`QUERIES`](problem::QUERIES) queries of a head and walks over the keys that they may see,
//! [`SPAN`](problem::SPAN) keys at a time. The scores of a span are computed as a matrix product and stay in the cache,
//! where they are turned into weights and multiplied by the values. All exponents are relative to the largest score so
//! far, and earlier sums are rescaled when it grows. The backward pass recomputes the weights from the largest score and
//! the sum of each row.
//!
//! Tiles, spans and chains of sums are split at fixed positions. The result of a query therefore depends only on its
//! own keys, and not on the number of threads, the instruction set, or the other queries, heads and samples. Keys
//! hidden by causal attention are skipped where they fill a whole block of a product, and have weight 0 elsewhere. For
//! finite numbers, this does not change a single bit of a sum. A hidden value that is infinite or NaN, however, may
//! reach queries that share a block with a query that sees it. The backward pass skips nothing if any number is not
//! finite.

mod backward;
mod forward;
mod kernel;
mod mask;
mod matrices;
mod problem;
mod product;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};

use gradus_backend::composite::attention::Sizes;
use gradus_backend::{AttentionParams, Backend, Result, Scalar, View, ViewMut};

use crate::CpuBackend;
use crate::access::{Float, with_float};
use crate::nest::Nest;
use crate::parallel::Disjoint;
use crate::rows::Elementary;
use crate::stored::{Sink, Stored};
use backward::Given;
use matrices::{Matrices, Output, matrices};
use problem::{Problem, TASK};

/// See [`Backend::attention`](gradus_backend::Backend::attention).
pub(crate) fn attention(
    cpu: &CpuBackend,
    params: &AttentionParams,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    stats: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "attention";
    let sizes = Sizes::new(cpu, OP, params, [q, k, v, out.as_view(), stats.as_view()], mask)?;
    with_float!(OP, q.dtype, S => {
        let data = [Stored(cpu.slice::<S>(OP, q)?), Stored(cpu.slice::<S>(OP, k)?), Stored(cpu.slice::<S>(OP, v)?)];
        let operands = matrices([&data[0], &data[1], &data[2]], [q, k, v]);
        let p = Problem::new(cpu, OP, params, params.causal, sizes, operands, mask)?;
        let layout = *out.layout;
        let sink = Disjoint::new(cpu.slice_mut::<S>(OP, out)?);
        forward::forward(&p, &Output { sink: &sink, layout }, stats)
    })
}

/// Returns whether `fine` is true for all elements.
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

/// Returns whether all numbers are finite. If one is not, the products that causal attention skips might not be 0.
fn finite<S: Float<Compute: Elementary>>(cpu: &CpuBackend, operands: [View<'_>; 4], stats: View<'_>) -> Result<bool> {
    for v in operands {
        if !all::<S>(cpu, v, Elementary::is_finite)? {
            return Ok(false);
        }
    }
    // The largest score is -inf where a query sees no key.
    all::<S::Compute>(cpu, stats, |x| x.is_finite() || x == Elementary::NEG_INFINITY)
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
    stats: View<'_>,
    g: View<'_>,
    dq: &mut ViewMut<'_>,
    dk: &mut ViewMut<'_>,
    dv: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "attention_backward";
    let gradients = [g, dq.as_view(), dk.as_view(), dv.as_view()];
    let sizes = Sizes::of_gradients(cpu, OP, params, [q, k, v, out, stats], mask, gradients)?;
    if sizes.scores()?.numel() == 0 {
        cpu.fill(dq, Scalar::Float(0.0))?;
        cpu.fill(dk, Scalar::Float(0.0))?;
        return cpu.fill(dv, Scalar::Float(0.0));
    }
    with_float!(OP, q.dtype, S => {
        let skips = params.causal && finite::<S>(cpu, [q, k, v, g], stats)?;
        let data = [Stored(cpu.slice::<S>(OP, q)?), Stored(cpu.slice::<S>(OP, k)?), Stored(cpu.slice::<S>(OP, v)?)];
        let operands = matrices([&data[0], &data[1], &data[2]], [q, k, v]);
        let p = Problem::new(cpu, OP, params, skips, sizes, operands, mask)?;
        let (gradient, layouts) = (Stored(cpu.slice::<S>(OP, g)?), [*dq.layout, *dk.layout, *dv.layout]);
        let given = Given {
            g: Matrices { source: &gradient, layout: g.layout },
            stats: cpu.slice(OP, stats)?,
            stats_layout: stats.layout,
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
