//! The forward pass, which processes one tile of queries at a time.

use gradus_backend::{Layout, Result, ViewMut};

use super::kernel::AttentionNumber;
use super::matrices::{Output, position};
use super::problem::{Problem, QUERIES, SPAN, TASK, Tile};
use super::product::Size;
use crate::parallel::Disjoint;
use crate::scratch;

pub(super) fn forward<T: AttentionNumber>(
    p: &Problem<'_, T>,
    out: &Output<'_, T>,
    stats: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "attention";
    let s = p.sizes;
    let stats_layout = *stats.layout;
    let stats = Disjoint::new(p.cpu.slice_mut::<T>(OP, stats)?);
    let tiles = p.tiles();
    let grain = TASK / (QUERIES.min(s.lq) * s.lk * (s.d + s.dv)).max(1);
    p.cpu.parallel_for(s.b * s.h * tiles, grain, |tasks| {
        for task in tasks {
            let (head, i) = (task / tiles, task % tiles);
            one(p, p.tile(head / s.h, head % s.h, i), out, (&stats, &stats_layout));
        }
    });
    Ok(())
}

/// Processes one tile.
fn one<T: AttentionNumber>(
    p: &Problem<'_, T>,
    tile: Tile,
    out: &Output<'_, T>,
    (stats, stats_layout): (&Disjoint<'_, T>, &Layout),
) {
    let (isa, s) = (p.cpu.isa(), p.sizes);
    let Tile { b, h, first, len } = tile;
    let (keys, size) = (p.visible(first + len - 1), Size::of::<T>(isa, len));
    // Rows are one panel longer than the scores, so that they do not compete for the same cache sets.
    let (ld, wide) = (size.padded(SPAN.min(keys) + 1), size.padded(s.dv));
    let sizes = [
        size.left_len(len, s.d),
        size.padded(1) * s.d,
        len * ld,
        p.over_keys_len(tile, s.dv),
        len * wide,
        len,
        len,
        s.dv,
    ];
    scratch::split(p.cpu, sizes, |[q, panel, scores, work, sums, tops, totals, row]: [&mut [T]; 8]| {
        // SAFETY: the tile's queries are rows of the matrix.
        unsafe { size.pack_left(isa, p.q.of(b, h).from(first, 0), len, s.d, q) };
        sums.fill(T::ZERO);
        tops.fill(T::NEG_INFINITY);
        totals.fill(T::ZERO);
        let (k, v) = (p.k.of(b, p.key_head(h)).transposed(), p.v.of(b, p.key_head(h)));
        for start in (0..keys).step_by(SPAN) {
            let span = start..keys.min(start + SPAN);
            p.against_keys(tile, q, (k, s.d), span.clone(), p.scale, panel, (scores, ld));
            for (i, scores) in scores.chunks_exact_mut(ld).enumerate() {
                let seen = p.visible(first + i).saturating_sub(start).min(span.len());
                let (scores, hidden) = scores[..span.len()].split_at_mut(seen);
                hidden.fill(T::ZERO);
                if let Some(mask) = &p.mask {
                    mask.apply([b, h, first + i], start, scores);
                }
                let [top, factor, total] = T::weigh(isa, scores, tops[i]);
                if start > 0 {
                    T::rescale(isa, &mut sums[i * wide..][..s.dv], factor);
                }
                (tops[i], totals[i]) = (top, totals[i] * factor + total);
            }
            p.over_keys(tile, (scores, ld), span, (v, s.dv), T::ONE, work, (sums, wide));
        }
        for i in 0..len {
            let row_of = [b, h, first + i];
            // SAFETY: the rows of the tile belong to this task.
            unsafe {
                out.write(isa, row_of, row, |y| T::divide(isa, &sums[i * wide..][..s.dv], totals[i], y));
                let at = position(stats_layout, row_of);
                stats.write(at, tops[i]);
                stats.write(at.wrapping_add_signed(stats_layout.strides()[3]), totals[i]);
            }
        }
    });
}
