//! The backward pass, which processes one tile of queries at a time.
//!
//! A task processes several consecutive tiles of the queries that share a key head. It sums their contributions to the
//! gradients of the keys and values in a block of its own, and the blocks are added in order at the end. The gradient
//! of a score is `p * (dp - delta)`, where `p` is the weight, `dp` its gradient, and `delta` the sum of `p * dp` over
//! the row. `delta` is computed here from the same `p` and `dp`. Computed from the result of the forward pass, it would
//! be too inaccurate where `dp` and `delta` cancel.

use std::ops::Range;

use gradus_backend::{Layout, Result};

use super::kernel::AttentionNumber;
use super::matrices::{Matrices, Output, position};
use super::problem::{Problem, QUERIES, SPAN, TASK, Tile};
use super::product::Size;
use crate::parallel::Disjoint;
use crate::scratch;
use crate::temp::Temp;

const OP: &str = "attention_backward";
/// The minimum number of tiles that justifies a task with its own block.
const PART: usize = 4;
/// The maximum number of blocks per key head.
const PARTS: usize = 4;
/// The maximum number of elements in all blocks together, unless a single key head needs more.
const HELD: usize = 1 << 24;

/// The operands of the backward pass that the forward pass does not have.
pub(super) struct Given<'a, T> {
    pub(super) g: Matrices<'a, T>,
    pub(super) stats: &'a [T],
    pub(super) stats_layout: &'a Layout,
}

pub(super) fn backward<T: AttentionNumber>(
    p: &Problem<'_, T>,
    given: &Given<'_, T>,
    [dq, dk, dv]: [Output<'_, T>; 3],
) -> Result<()> {
    let (isa, s) = (p.cpu.isa(), p.sizes);
    let group = s.h / s.hk;
    let tiles = group * p.tiles();
    let parts = (tiles / PART).clamp(1, PARTS);
    let full = Size::full::<T>(isa);
    let (wide_k, wide_v) = (full.padded(s.d), full.padded(s.dv));
    let (heads, block) = (s.b * s.hk, s.lk * (wide_k + wide_v));
    let at_once = (HELD / (parts * block).max(1)).clamp(1, heads);
    let mut temp = Temp::new(p.cpu, T::DTYPE, &[at_once, parts, block])?;
    let mut view = temp.view_mut();
    let sums = p.cpu.contiguous_mut::<T>(OP, &mut view)?.unwrap_or_default();
    let grain = TASK / (tiles / parts * QUERIES.min(s.lq) * s.lk * (s.d + s.dv)).max(1);
    for start in (0..heads).step_by(at_once) {
        let count = at_once.min(heads - start);
        let blocks = Disjoint::new(&mut sums[..count * parts * block]);
        p.cpu.parallel_for(count * parts, grain, |tasks| {
            for task in tasks {
                let (head, part) = (start + task / parts, task % parts);
                // SAFETY: block `task` belongs to this task.
                let sums = unsafe { blocks.slice(task * block..(task + 1) * block) };
                sums.fill(T::ZERO);
                let (k_sums, v_sums) = sums.split_at_mut(s.lk * wide_k);
                for i in part * tiles / parts..(part + 1) * tiles / parts {
                    let h = head % s.hk * group + i / p.tiles();
                    one(p, p.tile(head / s.hk, h, i % p.tiles()), given, &dq, [&mut *k_sums, &mut *v_sums]);
                }
            }
        });
        p.cpu.parallel_chunks(&mut sums[..count * parts * block], parts * block, |i, sums| {
            let head = start + i;
            let (first, others) = sums.split_at_mut(block);
            for other in others.chunks_exact(block) {
                first.iter_mut().zip(other).for_each(|(a, &b)| *a = *a + b);
            }
            let (k_sums, v_sums) = first.split_at(s.lk * wide_k);
            scratch::split(p.cpu, [s.d, s.dv], |[k_row, v_row]: [&mut [T]; 2]| {
                for j in 0..s.lk {
                    let row = [head / s.hk, head % s.hk, j];
                    // SAFETY: the rows of a key head belong to this task.
                    unsafe {
                        dk.write(isa, row, k_row, |y| y.copy_from_slice(&k_sums[j * wide_k..][..s.d]));
                        dv.write(isa, row, v_row, |y| y.copy_from_slice(&v_sums[j * wide_v..][..s.dv]));
                    }
                }
            });
        });
    }
    Ok(())
}

/// The working memory of a tile: its packed operands and the scores of a span of keys.
struct Work<'a, T> {
    /// The queries and the gradients of the output, packed as rows.
    q: &'a mut [T],
    g: &'a mut [T],
    panel: &'a mut [T],
    /// The weights and their gradients. Rows of consecutive queries are `ld` elements apart.
    weights: &'a mut [T],
    dp: &'a mut [T],
    ld: usize,
}

/// Processes one tile: writes the gradient of its queries, and adds its contribution to the gradients of the keys and
/// values.
fn one<T: AttentionNumber>(
    p: &Problem<'_, T>,
    tile: Tile,
    given: &Given<'_, T>,
    dq: &Output<'_, T>,
    [k_sums, v_sums]: [&mut [T]; 2],
) {
    let (isa, s) = (p.cpu.isa(), p.sizes);
    let Tile { b, h, first, len } = tile;
    let (keys, size, full) = (p.reached(first + len - 1), Size::of::<T>(isa, len), Size::full::<T>(isa));
    // Rows are one panel longer than the scores, as in the forward pass.
    let (ld, wide) = (size.padded(SPAN.min(keys) + 1), size.padded(s.d));
    let (wide_k, wide_v) = (full.padded(s.d), full.padded(s.dv));
    let sizes = [
        size.left_len(len, s.d),
        size.left_len(len, s.dv),
        size.padded(1) * s.d.max(s.dv),
        len * ld,
        len * ld,
        len * wide_k,
        len * wide_v,
        p.over_keys_len(tile, s.d),
        len * wide,
        len,
        s.d,
    ];
    scratch::split(
        p.cpu,
        sizes,
        |[q, g, panel, weights, dp, q_right, g_right, work, sums, deltas, row]: [&mut [T]; 11]| {
            let (queries, gradients) = (p.q.of(b, h).from(first, 0), given.g.of(b, h).from(first, 0));
            // SAFETY: the tile's queries are rows of the matrices.
            unsafe {
                size.pack_left(isa, queries, len, s.d, q);
                size.pack_left(isa, gradients, len, s.dv, g);
                full.pack_right(isa, queries, len, s.d, q_right);
                full.pack_right(isa, gradients, len, s.dv, g_right);
            }
            sums.fill(T::ZERO);
            deltas.fill(T::ZERO);
            let w = &mut Work { q, g, panel, weights, dp, ld };
            let spans = || (0..keys).step_by(SPAN).map(|start| start..keys.min(start + SPAN));
            for span in spans() {
                find_weights(p, tile, given, w, span, &mut |i, part| deltas[i] = deltas[i] + part);
            }
            for span in spans() {
                if keys > SPAN {
                    find_weights(p, tile, given, w, span.clone(), &mut |_, _| ());
                }
                for (i, (p, dp)) in w.weights.chunks_exact(ld).zip(w.dp.chunks_exact_mut(ld)).enumerate() {
                    T::slopes(isa, &p[..span.len()], &mut dp[..span.len()], deltas[i]);
                }
                let (ds, k) = ((&*w.dp, ld), p.k.of(b, p.key_head(h)));
                p.over_keys(tile, ds, span.clone(), (k, s.d), p.scale, work, (sums, wide));
                let to = (&mut k_sums[span.start * wide_k..], wide_k);
                p.over_queries(tile, ds, span.clone(), (q_right, s.d), p.scale, to);
                let to = (&mut v_sums[span.start * wide_v..], wide_v);
                p.over_queries(tile, (w.weights, ld), span, (g_right, s.dv), T::ONE, to);
            }
            for i in 0..len {
                // SAFETY: the rows of the tile belong to this task.
                unsafe { dq.write(isa, [b, h, first + i], row, |y| y.copy_from_slice(&sums[i * wide..][..s.d])) };
            }
        },
    );
}

/// Computes the weights of a span and their gradients. The weight of a key that the query does not see is 0, and so is
/// its gradient if hidden keys are skipped. Calls `add` for each query with its index and the sum of its weights times
/// their gradients.
fn find_weights<T: AttentionNumber>(
    p: &Problem<'_, T>,
    tile: Tile,
    given: &Given<'_, T>,
    w: &mut Work<'_, T>,
    span: Range<usize>,
    add: &mut dyn FnMut(usize, T),
) {
    let Tile { b, h, first, .. } = tile;
    let (k, v) = (p.k.of(b, p.key_head(h)).transposed(), p.v.of(b, p.key_head(h)).transposed());
    p.against_keys(tile, w.q, (k, p.sizes.d), span.clone(), p.scale, w.panel, (w.weights, w.ld));
    p.against_keys(tile, w.g, (v, p.sizes.dv), span.clone(), T::ONE, w.panel, (w.dp, w.ld));
    for (i, (weights, dp)) in w.weights.chunks_exact_mut(w.ld).zip(w.dp.chunks_exact_mut(w.ld)).enumerate() {
        let seen = p.visible(first + i).saturating_sub(span.start).min(span.len());
        if let Some(mask) = &p.mask {
            mask.apply([b, h, first + i], span.start, &mut weights[..seen]);
        }
        let reached = if p.skips {
            weights[seen..span.len()].fill(T::ZERO);
            dp[seen..span.len()].fill(T::ZERO);
            seen
        } else {
            weights[seen..span.len()].fill(T::NEG_INFINITY);
            span.len()
        };
        let (weights, dp) = (&mut weights[..reached], &dp[..reached]);
        let at = position(given.stats_layout, [b, h, first + i]);
        let stats = [at, at.wrapping_add_signed(given.stats_layout.strides()[3])].map(|at| given.stats[at]);
        add(i, T::weights(p.cpu.isa(), weights, dp, stats));
    }
}
