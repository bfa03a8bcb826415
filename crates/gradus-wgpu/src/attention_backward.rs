//! The gradients of attention, without storing the matrix of scores. Three kernels compute tiles of this matrix again,
//! from the shift and the sum of each query. Let `p = e^(score - shift) / sum` be the weight of a score, `dp = g v^T`,
//! and `delta` the sum of `p * dp` over the keys. Then the gradient of the score is `p * (dp - delta)`. The first kernel
//! computes `delta`, the second the gradient of the queries, and the third the gradients of the keys and values.
//!
//! `sum(g * out)` also equals `delta` and takes less time. But `dp - delta` can cancel, so both are computed from the
//! same numbers. Then the gradient of a score that has no influence is 0.

use gradus_backend::composite::attention::{Sizes, backward as composed};
use gradus_backend::{AttentionParams, KernelBuilder, Layout, MapArg, Result, Shape, View, ViewMut};

use crate::WgpuBackend;
use crate::attention_tile::{
    AXES, LONGEST, Numbers, OTHER, Own, Strange, Tile, block, list, rows, scale, side, stretched,
};
use crate::operand::{Bound, LOOP};
use crate::temp::Temp;
use crate::wgsl::{Text, ty};

const OP: &str = "attention_backward";
/// The largest number of pieces of columns that a work-group computes, over all its outputs. Each takes 32 registers.
const PIECES: usize = 4;

/// An output with its name.
type Named<'a> = (&'static str, ViewMut<'a>);

/// The operands of the kernels.
#[derive(Clone, Copy)]
struct Given<'a> {
    params: &'a AttentionParams,
    sizes: &'a Sizes,
    q: View<'a>,
    k: View<'a>,
    v: View<'a>,
    g: View<'a>,
    mask: Option<View<'a>>,
    /// The shift and the sum of each query; after the first kernel, what [`row`] declares.
    rows: View<'a>,
}

/// See [`Backend::attention_backward`](gradus_backend::Backend::attention_backward). The default body handles operands
/// that are empty or too large to bind, and rows longer than [`LONGEST`].
pub(crate) fn backward(
    b: &WgpuBackend,
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
    let gradients = [g, dq.as_view(), dk.as_view(), dv.as_view()];
    let s = Sizes::of_gradients(b, OP, params, [q, k, v, out, stats], mask, gradients)?;
    let row = Layout::contiguous(Shape::new(&[s.b, s.h, s.lq, 3])?);
    let mut views = [q, k, v, out, stats].map(|x| (x.layout, x.dtype)).to_vec();
    views.extend(gradients.map(|x| (x.layout, x.dtype)));
    views.extend(mask.map(|x| (x.layout, x.dtype)));
    views.push((&row, stats.dtype));
    let plain = views.iter().all(|(l, d)| l.numel() > 0 && b.fits(l, *d));
    if !plain || s.d.max(s.dv) > LONGEST {
        return composed(b, params, q, k, v, mask, out, stats, g, dq, dk, dv);
    }
    let mut given = Given { params, sizes: &s, q, k, v, g, mask, rows: stats };
    let mut rows = Temp::new(b, stats.dtype, *row.shape())?;
    given.run(b, Own::Queries, &mut [("rows", rows.view_mut())])?;
    given.rows = rows.view();
    let layouts = [dq.layout, dk.layout, dv.layout];
    given.run(b, Own::Queries, &mut [("dq", dq.with(layouts[0]))])?;
    given.run(b, Own::Keys, &mut [("dk", dk.with(layouts[1])), ("dv", dv.with(layouts[2]))])
}

impl Given<'_> {
    /// Computes outputs in work-groups that own queries or keys. If there are too many tiles for one launch, further
    /// launches add to the results of the previous ones.
    fn run(&self, b: &WgpuBackend, own: Own, outs: &mut [Named<'_>]) -> Result<()> {
        let (s, d) = (self.sizes, self.q.dtype.compute());
        let columns = outs.iter().map(|(_, out)| out.layout.dims()[3]).max().unwrap_or_default();
        let pieces = columns.div_ceil(side(d));
        let mut tile = Tile {
            own,
            block: block(d, if own == Own::Queries { s.lq } else { s.lk }),
            inputs: vec![("q", self.q.dtype), ("k", self.k.dtype), ("v", self.v.dtype), ("g", self.g.dtype)],
            outputs: outs.iter().map(|(name, out)| (*name, out.dtype)).collect(),
            causal: self.params.causal,
            pieces: pieces.min(PIECES / outs.len()),
            again: false,
        };
        // The first kernel makes the rows of the others.
        tile.inputs.push((if outs[0].0 == "rows" { "stats" } else { "rows" }, d));
        tile.inputs.extend(self.mask.map(|m| ("mask", m.dtype)));
        let all = match own {
            Own::Queries => tile.cover(s.lk),
            Own::Keys => s.h / s.hk * tile.cover(s.lq),
        };
        // Half of the iterations are for the tiles. The rest is for `Tile::look`, which loops over the own rows once.
        let most = LOOP / 2 / tile.turns(&[s.d, s.dv]);
        if all > most && outs.iter().any(|(_, out)| out.dtype != d) {
            return self.through_sums(b, own, outs);
        }
        for start in (0..all).step_by(most) {
            tile.again = start > 0;
            let tiles = start..all.min(start + most);
            let parts = pieces.div_ceil(tile.pieces);
            let numbers = Numbers { op: OP, sizes: s, scale: self.params.scale, causal: s.lk as isize, tiles, parts };
            tile.launch(b, &numbers, &self.operands(b, tile.inputs[4].0, outs)?, &source)?;
        }
        Ok(())
    }

    /// Computes outputs in the compute dtype, and rounds them to their own dtype once at the end.
    fn through_sums(&self, b: &WgpuBackend, own: Own, outs: &mut [Named<'_>]) -> Result<()> {
        let d = self.q.dtype.compute();
        let sums = outs.iter().map(|(_, out)| Temp::new(b, d, *out.layout.shape()));
        let mut sums = sums.collect::<Result<Vec<_>>>()?;
        let mut wide: Vec<_> = outs.iter().zip(&mut sums).map(|((name, _), sum)| (*name, sum.view_mut())).collect();
        self.run(b, own, &mut wide)?;
        for ((_, out), sum) in outs.iter_mut().zip(&sums) {
            let builder = KernelBuilder::new(&[d]);
            let kernel = builder.finish(OP, &[(builder.args()[0], out.dtype)])?;
            let layout = out.layout;
            crate::map::map(b, &kernel, &[MapArg::View(sum.view())], &mut [out.with(layout)])?;
        }
        Ok(())
    }

    /// The operands of a kernel in the order of its bindings.
    fn operands<'a>(&'a self, b: &'a WgpuBackend, rows: &str, outs: &'a [Named<'_>]) -> Result<Vec<Bound<'a>>> {
        let inputs = [("q", self.q), ("k", self.k), ("v", self.v), ("g", self.g), (rows, self.rows)];
        let inputs = inputs.into_iter().map(|(name, x)| b.input(OP, name, x));
        let mask = self.mask.map(|mask| stretched(b, OP, self.sizes, mask));
        let outputs = outs.iter().map(|(name, out)| b.output(OP, name, out));
        inputs.chain(mask).chain(outputs).collect()
    }
}

fn source(tile: &Tile) -> String {
    let t = ty(tile.dtype());
    let mut text = tile.open();
    row(tile, &mut text);
    text.declare(format_args!("fn weight(score: {t}, row: vec3<{t}>) -> {t} {{"));
    text.declare(format_args!("  return exp_{t}(score - row.x) * row.y;\n}}"));
    text.declare(format_args!("fn odd_row(v: vec3<{t}>) -> bool {{"));
    text.declare(format_args!("  return !is_finite_{t}(v.x) || !is_finite_{t}(v.y) || !is_finite_{t}(v.z);\n}}"));
    match tile.outputs[0].0 {
        "rows" => deltas(tile, &mut text),
        "dq" => of_queries(tile, &mut text),
        _ => of_keys(tile, &mut text),
    }
    text.finish(tile.lanes())
}

/// Declares `row`, which returns the shift of a query, the factor of its weights and `delta`, or zeros beyond the last
/// query. A query that sees no key has the shift 0 and the factor 0.
fn row(tile: &Tile, text: &mut Text) {
    let (t, from) = (ty(tile.dtype()), tile.inputs[4].0);
    let load = |i: usize| format!("load_{from}(at + query * {} + {i}u * {})", tile.at(from, 3), tile.at(from, 4));
    text.declare(format_args!("fn row(at: u32, query: u32) -> vec3<{t}> {{"));
    text.declare(format_args!("  if (query >= {}) {{ return vec3<{t}>(); }}", rows(from)));
    if from == "rows" {
        text.declare(format_args!("  return vec3<{t}>({});\n}}", list(0..3, load)));
        return;
    }
    text.declare(format_args!("  let sum = {};", load(1)));
    text.declare(format_args!("  if (sum == {t}(0)) {{ return vec3<{t}>(); }}"));
    text.declare(format_args!("  return vec3<{t}>({}, {t}(1) / sum, {t}(0));\n}}", load(0)));
}

/// Adds code that computes `delta`, the sums of weights times their gradients.
fn deltas(tile: &Tile, text: &mut Text) {
    let t = ty(tile.dtype());
    of_own_queries(tile, text, "stats");
    text.line(format_args!("var delta_0 = vec4<{t}>(); var delta_1 = vec4<{t}>();"));
    tile.tiles(text);
    if tile.causal {
        tile.skip(text, &Strange { names: &["v"], more: "false" });
    }
    weights(tile, text, ["q", "k"], ["g", "v"], |i, _| format!("row_{i}"));
    tile.own_rows().for_each(|i| {
        let delta = format!("delta_{}.{}", i / 4, AXES[i % 4]);
        text.line(format_args!("{delta} = {delta} + dot(p_{i}, dp_{i});"));
    });
    text.line("}");
    tile.combine(text, "delta", |a, b| format!("{a} + {b}"));
    for i in tile.own_rows() {
        let at = format!("rows_at + own_{i} * {}", tile.at("rows", 3));
        let delta = format!("delta_{}.{}", i / 4, AXES[i % 4]);
        let delta = if tile.again { format!("load_rows({at} + 2u) + {delta}") } else { delta };
        let own = format!("across == 0u && own_{i} < {}", rows("rows"));
        let stores = format!("store_rows({at}, row_{i}.x); store_rows({at} + 1u, row_{i}.y)");
        text.line(format_args!("if ({own}) {{ {stores}; store_rows({at} + 2u, {delta}); }}"));
    }
}

/// Adds code that computes the gradient of the queries.
fn of_queries(tile: &Tile, text: &mut Text) {
    of_own_queries(tile, text, "rows");
    tile.sums(text, "dq");
    tile.tiles(text);
    if tile.causal {
        tile.skip(text, &Strange { names: &["k", "v"], more: "false" });
    }
    weights(tile, text, ["q", "k"], ["g", "v"], |i, _| format!("row_{i}"));
    tile.add(text, "dq", |i| format!("p_{i} * (dp_{i} - row_{i}.z)"), "k");
    text.line("}");
    let scale = scale(tile.dtype());
    tile.store(text, "dq", |sum, _| format!("{sum} * {scale}"));
}

/// Adds code that loads the rows of the own queries, and checks for infinities and NaN among the numbers by which hidden
/// weights are multiplied.
fn of_own_queries(tile: &Tile, text: &mut Text, from: &str) {
    tile.own_rows().for_each(|i| text.line(format_args!("let row_{i} = row({from}_at, own_{i});")));
    if tile.causal {
        let more = tile.own_rows().map(|i| format!("odd_row(row_{i})")).collect::<Vec<_>>().join(" || ");
        tile.look(text, &Strange { names: &["g"], more: &more });
    }
}

/// Adds code that computes the gradients of the keys and values.
fn of_keys(tile: &Tile, text: &mut Text) {
    let t = ty(tile.dtype());
    if tile.causal {
        tile.look(text, &Strange { names: &["v"], more: "false" });
    }
    ["dk", "dv"].iter().for_each(|name| tile.sums(text, name));
    tile.tiles(text);
    OTHER.for_each(|j| text.line(format_args!("let row_{j} = row(rows_at, other_{j});")));
    if tile.causal {
        let more = OTHER.map(|j| format!("odd_row(row_{j})")).collect::<Vec<_>>().join(" || ");
        tile.skip(text, &Strange { names: &["q", "g"], more: &more });
    }
    weights(tile, text, ["k", "q"], ["v", "g"], |_, j| format!("row_{j}"));
    tile.add(text, "dv", |i| format!("p_{i}"), "g");
    text.line(format_args!("let deltas = vec4<{t}>({});", list(OTHER, |j| format!("row_{j}.z"))));
    tile.add(text, "dk", |i| format!("p_{i} * (dp_{i} - deltas)"), "q");
    text.line("}");
    let scale = scale(tile.dtype());
    tile.store(text, "dk", |sum, _| format!("{sum} * {scale}"));
    tile.store(text, "dv", |sum, _| sum.to_owned());
}

/// Adds code that computes the weights `p_i` of a block and their gradients `dp_i`.
///
/// Beyond the last of the other rows, weights are 0, and their gradients are 0 or NaN. Such a NaN is multiplied by
/// zeros. It comes from a number that is not finite, in a row whose results are NaN in any case.
fn weights(
    tile: &Tile,
    text: &mut Text,
    [own, other]: [&str; 2],
    [own_side, other_side]: [&str; 2],
    row: impl Fn(usize, usize) -> String,
) {
    tile.multiply(text, "dots", own, other);
    tile.multiply(text, "dp", own_side, other_side);
    for i in tile.own_rows() {
        let each = list(OTHER, |j| format!("weight({}, {})", tile.score_of("dots", i, j), row(i, j)));
        text.line(format_args!("let p_{i} = vec4<{}>({each});", ty(tile.dtype())));
    }
}
