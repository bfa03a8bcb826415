//! Attention without the matrix of scores: a work-group owns some queries and goes through tiles of keys, keeps the largest
//! score and the sum so far of each query, and rescales its sums when a larger score comes. More keys than a loop may go
//! through are halved, and the results of both halves weighted.

use gradus_backend::composite::attention::{Sizes, forward};
use gradus_backend::{AttentionParams, Expr, Kernel, KernelBuilder, Layout, MapArg, Result, Shape, View, ViewMut};

use crate::WgpuBackend;
use crate::attention_tile::{AXES, LONGEST, Numbers, OTHER, Own, Strange, Tile, block, list, rows, side, stretched};
use crate::operand::LOOP;
use crate::temp::Temp;
use crate::wgsl::{Text, ty};

const OP: &str = "attention";
/// Most pieces of columns that a work-group computes: each takes 32 registers.
const PIECES: usize = 4;

/// See [`Backend::attention`](gradus_backend::Backend::attention); operands that are empty or too large to bind, and rows
/// longer than [`LONGEST`], go to the default body.
pub(crate) fn attention(
    b: &WgpuBackend,
    params: &AttentionParams,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    stats: &mut ViewMut<'_>,
) -> Result<()> {
    let s = Sizes::new(b, OP, params, [q, k, v, out.as_view(), stats.as_view()], mask)?;
    let mut views = vec![(q.layout, q.dtype), (k.layout, k.dtype), (v.layout, v.dtype)];
    views.extend([(out.layout, out.dtype), (stats.layout, stats.dtype)]);
    views.extend(mask.map(|m| (m.layout, m.dtype)));
    if s.d.max(s.dv) > LONGEST || views.iter().any(|(l, d)| l.numel() == 0 || !b.fits(l, *d)) {
        return forward(b, params, q, k, v, mask, out, stats);
    }
    part(b, params, &s, s.lk as isize, q, k, v, mask, out, stats)
}

/// Attention to some of the keys, or to all: `s` has their number. By the causal rule the last query sees `causal` of them.
fn part(
    b: &WgpuBackend,
    params: &AttentionParams,
    s: &Sizes,
    causal: isize,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    stats: &mut ViewMut<'_>,
) -> Result<()> {
    let d = q.dtype.compute();
    let pieces = s.dv.div_ceil(side(d));
    let mut tile = Tile {
        own: Own::Queries,
        block: block(d, s.lq),
        inputs: vec![("q", q.dtype), ("k", k.dtype), ("v", v.dtype)],
        outputs: vec![("out", out.dtype), ("stats", d)],
        causal: params.causal,
        pieces: pieces.min(PIECES),
        again: false,
    };
    tile.inputs.extend(mask.map(|m| ("mask", m.dtype)));
    let tiles = 0..tile.cover(s.lk);
    if tiles.end * tile.turns(&[s.d, s.dv]) > LOOP && tiles.end > 1 {
        return by_halves(b, params, s, causal, q, k, v, mask, out, stats);
    }
    let inputs = [("q", q), ("k", k), ("v", v)].into_iter().map(|(name, x)| b.input(OP, name, x));
    let mask = mask.map(|mask| stretched(b, OP, s, mask));
    let outputs = [b.output(OP, "out", out), b.output(OP, "stats", stats)];
    let operands = inputs.chain(mask).chain(outputs).collect::<Result<Vec<_>>>()?;
    let parts = pieces.div_ceil(tile.pieces);
    let numbers = Numbers { op: OP, sizes: s, scale: params.scale, causal, tiles, parts };
    tile.launch(b, &numbers, &operands, &source)
}

/// Attends to each half of the keys, with the results `a` and `b`. Let `p` and `q` be the sums of both, relative to the larger
/// of the two shifts: then the result is `(a p + b q) / (p + q)`.
fn by_halves(
    b: &WgpuBackend,
    params: &AttentionParams,
    s: &Sizes,
    causal: isize,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    stats: &mut ViewMut<'_>,
) -> Result<()> {
    let d = q.dtype.compute();
    let half = (s.lk / 2).next_multiple_of(side(d));
    let of_half = |start: usize, len: usize| -> Result<(Temp, Temp)> {
        let (k_part, v_part) = (k.layout.narrow(2, start, len)?, v.layout.narrow(2, start, len)?);
        // A mask may be broadcast along the keys.
        let keys = |l: &Layout| match l.dims().last() {
            Some(&n) if n == s.lk => l.narrow(l.rank() - 1, start, len),
            _ => Ok(*l),
        };
        let seen = mask.map(|m| keys(m.layout)).transpose()?;
        let mask = mask.zip(seen.as_ref()).map(|(m, l)| m.with(l));
        let (k, v) = (k.with(&k_part), v.with(&v_part));
        let (mut y, mut sums) = (Temp::new(b, d, *out.layout.shape())?, Temp::new(b, d, *stats.layout.shape())?);
        let mut sizes = *s;
        sizes.lk = len;
        let causal = causal - start as isize;
        part(b, params, &sizes, causal, q, k, v, mask, &mut y.view_mut(), &mut sums.view_mut())?;
        Ok((y, sums))
    };
    let (first, second) = (of_half(0, half)?, of_half(half, s.lk - half)?);
    let column = |i| stats.layout.narrow(3, i, 1);
    // The shifts of both halves and their sums, stretched to a shape.
    let rows = |shape: Shape| -> Result<[Layout; 4]> {
        let [shift, sum] = [0, 1].map(|i| Layout::contiguous(*stats.layout.shape()).narrow(3, i, 1)?.expand(shape));
        let (shift, sum) = (shift?, sum?);
        Ok([shift, shift, sum, sum])
    };
    let halves = [&first.1, &second.1, &first.1, &second.1];
    let builder = KernelBuilder::new(&[d; 6]);
    let args = builder.args();
    let [p, q] = weights_of_halves(&args[..4]);
    // Without any key in both, the weights are 0.
    let total = (p + q).eq(0.0).select(1.0, p + q);
    let kernel = builder.finish(OP, &[(args[4] * (p / total) + args[5] * (q / total), out.dtype)])?;
    let wide = rows(*out.layout.shape())?;
    let views = [0, 1, 2, 3].map(|i| halves[i].view().with(&wide[i]));
    let args = [views[0], views[1], views[2], views[3], first.0.view(), second.0.view()].map(MapArg::View);
    let layout = out.layout;
    crate::map::map(b, &kernel, &args, &mut [out.with(layout)])?;
    let narrow = rows(*column(0)?.shape())?;
    let args = [0, 1, 2, 3].map(|i| MapArg::View(halves[i].view().with(&narrow[i])));
    let kernel = Kernel::build(OP, &[d; 2], |v| vec![v[0].max(v[1])])?;
    crate::map::map(b, &kernel, &args[..2], &mut [stats.with(&column(0)?)])?;
    let kernel = Kernel::build(OP, &[d; 4], |v| {
        let [p, q] = weights_of_halves(v);
        vec![p + q]
    })?;
    crate::map::map(b, &kernel, &args, &mut [stats.with(&column(1)?)])
}

/// The sums of both halves relative to the larger shift, from both shifts and both sums.
fn weights_of_halves<'k>(v: &[Expr<'k>]) -> [Expr<'k>; 2] {
    let largest = v[0].max(v[1]);
    let shift = largest.eq(f64::NEG_INFINITY).select(0.0, largest);
    [(v[0] - shift).exp() * v[2], (v[1] - shift).exp() * v[3]]
}

/// A vector for each four own rows. Row `i` is an element of vector `i / 4`.
const VECTORS: [usize; 2] = [0, 1];

fn source(tile: &Tile) -> String {
    let t = ty(tile.dtype());
    let mut text = tile.open();
    VECTORS.iter().for_each(|r| {
        text.line(format_args!("var top_{r} = vec4<{t}>(nothing()); var total_{r} = vec4<{t}>();"));
    });
    tile.sums(&mut text, "out");
    if tile.causal {
        tile.look(&mut text, &Strange { names: &[], more: "false" });
    }
    tile.tiles(&mut text);
    if tile.causal {
        tile.skip(&mut text, &Strange { names: &["v"], more: "false" });
    }
    tile.multiply(&mut text, "dots", "q", "k");
    weights(tile, &mut text);
    tile.add(&mut text, "out", |i| format!("p_{i}"), "v");
    text.line("}");
    tile.combine(&mut text, "total", |a, b| format!("{a} + {b}"));
    tile.store(&mut text, "out", |sum, i| {
        // A row that sees no key has weights of 0. Their products with infinities and NaN are NaN.
        let (total, top) = (of_row("total", i), of_row("top", i));
        format!("{sum} / select({total}, {t}(1), {top} == nothing())")
    });
    for i in tile.own_rows() {
        let at = format!("stats_at + own_{i} * {}", tile.at("stats", 3));
        let stores = ["top", "total"]
            .into_iter()
            .zip(0..)
            .map(|(name, k)| format!("store_stats({at} + {k}u * {}, {});", tile.at("stats", 4), of_row(name, i)));
        let first = format!("part == 0u && across == 0u && own_{i} < {}", rows("stats"));
        text.line(format_args!("if ({first}) {{ {} }}", stores.collect::<String>()));
    }
    text.finish(tile.lanes())
}

/// WGSL for the component that belongs to row `i` in the vectors of this name.
fn of_row(name: &str, i: usize) -> String {
    format!("{name}_{}.{}", i / 4, AXES[i % 4])
}

/// Code for the weights `p_i` of a block, relative to the largest score so far, by which it rescales the sums. A score that
/// is NaN makes the weights of its row NaN, whatever the largest is.
fn weights(tile: &Tile, text: &mut Text) {
    let t = ty(tile.dtype());
    VECTORS.iter().for_each(|r| text.line(format_args!("var next_{r} = top_{r};")));
    for i in tile.own_rows() {
        let scores = list(OTHER, |j| tile.score_of("dots", i, j));
        text.line(format_args!("let s_{i} = vec4<{t}>({scores});"));
        let next = of_row("next", i);
        text.line(format_args!("{next} = max({next}, max(max(s_{i}.x, s_{i}.y), max(s_{i}.z, s_{i}.w)));"));
    }
    tile.combine(text, "next", |a, b| format!("max({a}, {b})"));
    for r in VECTORS {
        // Before any key has been seen, every weight is e^-inf.
        text.line(format_args!("let none_{r} = next_{r} == vec4<{t}>(nothing());"));
        text.line(format_args!("let shift_{r} = select(next_{r}, vec4<{t}>(), none_{r});"));
        let keep = AXES.map(|axis| format!("exp_{t}(top_{r}.{axis} - shift_{r}.{axis})")).join(", ");
        text.line(format_args!("let keep_{r} = vec4<{t}>({keep}); top_{r} = next_{r};"));
        text.line(format_args!("total_{r} = total_{r} * keep_{r};"));
    }
    for i in tile.own_rows() {
        let (shift, total, keep) = (of_row("shift", i), of_row("total", i), of_row("keep", i));
        let each = AXES.map(|axis| format!("exp_{t}(s_{i}.{axis} - {shift})")).join(", ");
        text.line(format_args!("let p_{i} = vec4<{t}>({each});"));
        text.line(format_args!("{total} = {total} + ((p_{i}.x + p_{i}.y) + (p_{i}.z + p_{i}.w));"));
        for c in 0..tile.pieces {
            text.line(format_args!("out_{c}_{i} = out_{c}_{i} * {keep};"));
        }
    }
}
