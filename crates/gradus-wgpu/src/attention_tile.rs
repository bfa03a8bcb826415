//! Code that the kernels of attention share: their operands and parameters, and the computation of a tile of scores.
//!
//! A work-group owns some queries and loops over tiles of keys, or owns some keys and loops over tiles of queries. Each
//! invocation has a block of up to 8 by 4 scores in registers. The values that are computed from the scores are written
//! to shared memory, as the left factor of a product with the other rows.

use std::fmt::Display;
use std::ops::Range;

use gradus_backend::composite::attention::Sizes;
use gradus_backend::{DType, ReduceOp, Result, Scalar, View};

use crate::WgpuBackend;
use crate::map::{scalar_param, scalar_words};
use crate::operand::{Bound, LOOP};
use crate::queue::{Bind, Launch};
use crate::reduce::identity;
use crate::wgsl::{Text, cast, param, ty};
use gradus_backend::key::key;

/// The indices of the parameters, first those for the numbers of work-groups, heads, queries and keys.
const TASKS: usize = 0;
const HEADS: usize = 1;
const QUERIES: usize = 2;
const KEYS: usize = 3;
/// The sizes of a key and of a value, and the number of query heads per key head.
const SIZE: usize = 4;
const WIDTH: usize = 5;
const SHARED: usize = 6;
/// The scale (two words), and the number of keys that the last query sees under the causal rule, which may be negative.
const SCALE: usize = 7;
const CAUSAL: usize = 9;
/// The first tile and the one after the last, and the number of work-groups among which columns are divided.
const FIRST: usize = 10;
const END: usize = 11;
const PARTS: usize = 12;
/// The index of the first parameter of the operands. Each operand has its position and four strides.
const OPERANDS: usize = 13;

/// The length of the longest rows with which a work-group can process several tiles.
pub(crate) const LONGEST: usize = LOOP / 8;
/// The largest number of own rows in the block of an invocation.
const MOST: usize = 8;
/// The other rows of a block.
pub(crate) const OTHER: Range<usize> = 0..4;
/// The elements of a vector.
pub(crate) const AXES: [&str; 4] = ["x", "y", "z", "w"];

/// What a work-group owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Own {
    Queries,
    Keys,
}

/// Everything that the text of a kernel depends on.
#[derive(Debug, Hash)]
pub(crate) struct Tile {
    pub(crate) own: Own,
    /// The number of own rows in the block of an invocation.
    pub(crate) block: usize,
    /// The operands in the order of their bindings. The first are `q`, `k` and `v`.
    pub(crate) inputs: Vec<(&'static str, DType)>,
    pub(crate) outputs: Vec<(&'static str, DType)>,
    pub(crate) causal: bool,
    /// The number of pieces of columns that a work-group computes of each output.
    pub(crate) pieces: usize,
    /// Whether results are added to the existing values of the outputs.
    pub(crate) again: bool,
}

/// The parameters of a launch, except those of its operands.
pub(crate) struct Numbers<'a> {
    pub(crate) op: &'static str,
    pub(crate) sizes: &'a Sizes,
    pub(crate) scale: f64,
    /// The number of keys that the last query sees under the causal rule; may be negative.
    pub(crate) causal: isize,
    /// The tiles over which the kernel loops.
    pub(crate) tiles: Range<usize>,
    /// The number of work-groups among which the columns are divided.
    pub(crate) parts: usize,
}

/// The mask, broadcast to the shape of the scores.
pub(crate) fn stretched<'a>(b: &WgpuBackend, op: &str, s: &Sizes, mask: View<'a>) -> Result<Bound<'a>> {
    // A broadcast mask takes less memory than the scores, so it is bound with its own layout first.
    let own = b.input(op, "mask", mask)?;
    Ok(Bound { layout: own.layout.expand(s.scores()?)?, ..own })
}

/// The number of other rows in a tile, and of columns in a piece: as many as fit in the smallest shared memory (16
/// KiB).
pub(crate) fn side(dtype: DType) -> usize {
    if dtype.size() == 8 { 16 } else { 32 }
}

/// The number of own rows in a block. It is small if there are few rows, because most of a larger tile would be empty.
pub(crate) fn block(dtype: DType, rows: usize) -> usize {
    rows.div_ceil(side(dtype) / OTHER.end).next_power_of_two().min(MOST)
}

/// WGSL for the factor of the scores.
pub(crate) fn scale(dtype: DType) -> String {
    scalar_param(SCALE, dtype)
}

/// Whether an operand has one row for each key, and not for each query.
fn of_keys(name: &str) -> bool {
    matches!(name, "k" | "v" | "dk" | "dv")
}

/// WGSL for the number of rows that an operand has in each head.
pub(crate) fn rows(name: &str) -> String {
    param(if of_keys(name) { KEYS } else { QUERIES })
}

/// WGSL for the number of columns of an operand.
fn columns(name: &str) -> String {
    param(if matches!(name, "v" | "g" | "out" | "dv") { WIDTH } else { SIZE })
}

/// The head of a loop over `i` that no driver can unroll. Drivers compile loads and stores in such a loop in a fraction of the time that
/// they take for the same code written out.
fn rolled(count: usize) -> String {
    format!("var i = 0u; i < {count}u + ZERO(); i = i + 1u")
}

/// The results of `f` for all numbers, separated by commas.
pub(crate) fn list<T: Display>(numbers: Range<usize>, f: impl Fn(usize) -> T) -> String {
    numbers.map(|i| f(i).to_string()).collect::<Vec<_>>().join(", ")
}

impl Tile {
    pub(crate) fn dtype(&self) -> DType {
        self.inputs[0].1.compute()
    }

    fn side(&self) -> usize {
        side(self.dtype())
    }

    /// The own rows of a block.
    pub(crate) fn own_rows(&self) -> Range<usize> {
        0..self.block
    }

    /// The number of vectors of four in a row of a tile. This is also the distance between the rows of an invocation.
    fn quads(&self) -> usize {
        self.side() / OTHER.end
    }

    /// The distance between rows in shared memory, such that rows that are read at the same time lie in different
    /// banks.
    fn pitch(&self) -> usize {
        self.quads() + 1
    }

    /// The number of invocations in a work-group.
    pub(crate) fn lanes(&self) -> u32 {
        (self.quads() * self.quads()) as u32
    }

    /// The number of tiles that cover the other rows of a head.
    pub(crate) fn cover(&self, rows: usize) -> usize {
        rows.div_ceil(self.side())
    }

    /// The largest number of loop iterations that a tile takes: those of a product for each of `sizes`, of one
    /// combination of rows, and of a sum for each output.
    pub(crate) fn turns(&self, sizes: &[usize]) -> usize {
        let summed = self.outputs.iter().filter(|(name, _)| !["stats", "rows"].contains(name)).count();
        let (loads, sums) = (self.block + OTHER.end, summed * self.pieces);
        // With each piece of columns, `find` may go through the other rows as well.
        let scores: usize = sizes.iter().map(|&n| self.cover(n) * (self.quads() + 2 + loads + OTHER.end)).sum();
        1 + scores + self.quads() + (self.quads() + OTHER.end) * sums
    }

    /// Runs the kernel whose text `source` returns.
    pub(crate) fn launch(
        &self,
        b: &WgpuBackend,
        numbers: &Numbers<'_>,
        operands: &[Bound<'_>],
        source: &dyn Fn(&Tile) -> String,
    ) -> Result<()> {
        let s = numbers.sizes;
        let (heads, own) = if self.own == Own::Queries { (s.h, s.lq) } else { (s.hk, s.lk) };
        let tasks = s.b * heads * own.div_ceil(self.quads() * self.block) * numbers.parts;
        let mut words: Vec<u32> = [tasks, s.h, s.lq, s.lk, s.d, s.dv, s.h / s.hk].map(|v| v as u32).to_vec();
        let mut scale = scalar_words(Scalar::Float(numbers.scale), self.dtype());
        scale.resize(2, 0);
        words.extend(scale);
        words.push(numbers.causal as u32);
        words.extend([numbers.tiles.start, numbers.tiles.end, numbers.parts].map(|v| v as u32));
        for layout in operands.iter().map(|o| &o.layout) {
            words.push(layout.offset() as u32);
            words.extend(layout.strides().iter().map(|&s| s as u32));
        }
        let binds: Vec<Bind<'_>> = operands.iter().map(|o| o.bind).collect();
        b.queue().launch(&Launch {
            call: numbers.op.into(),
            key: key((numbers.op, self)),
            source: &|| source(self),
            binds: &binds,
            params: &words,
            groups: tasks as u64,
        })
    }
}

/// Methods that write the text of a kernel.
impl Tile {
    fn t(&self) -> &'static str {
        ty(self.dtype())
    }

    fn has(&self, name: &str) -> bool {
        self.inputs.iter().any(|(n, _)| *n == name)
    }

    /// Parameter `k` of an operand: its position if `k` is 0, and a stride otherwise.
    pub(crate) fn at(&self, name: &str, k: usize) -> String {
        let o = self.inputs.iter().chain(&self.outputs).position(|(n, _)| *n == name);
        param(OPERANDS + 5 * o.unwrap_or_default() + k)
    }

    /// The text that precedes the loop over tiles. `own_0`, `own_1`, .. are the own rows of an invocation. Neighbouring
    /// invocations have neighbouring rows.
    pub(crate) fn open(&self) -> Text {
        let mut text = Text::new(OPERANDS + 5 * (self.inputs.len() + self.outputs.len()));
        self.inputs.iter().for_each(|&(name, dtype)| text.input(name, dtype));
        self.outputs.iter().for_each(|&(name, dtype)| text.output(name, dtype));
        let (t, quads) = (self.t(), self.quads());
        for (name, rows) in [("left", MOST), ("right", OTHER.end)] {
            let cells = rows * quads * self.pitch();
            text.declare(format_args!("var<workgroup> {name}: array<vec4<{t}>, {cells}>;"));
        }
        ["q", "k", "v", "g"].iter().filter(|n| self.has(n)).for_each(|n| self.four(&mut text, n));
        let each = AXES.map(|axis| format!("is_finite_{t}(v.{axis})")).join(" && ");
        text.declare(format_args!("fn all_finite(v: vec4<{t}>) -> bool {{ return {each}; }}"));
        self.score(&mut text);
        text.line(format_args!("if (group >= {}) {{ return; }}", param(TASKS)));
        text.line(format_args!("let down = local / {quads}u; let across = local % {quads}u;"));
        let (own, other, heads) = match self.own {
            Own::Queries => (QUERIES, KEYS, param(HEADS)),
            Own::Keys => (KEYS, QUERIES, format!("({} / {})", param(HEADS), param(SHARED))),
        };
        for (name, rows, side) in [("cover", own, quads * self.block), ("turns", other, self.side())] {
            text.line(format_args!("let {name} = ({} + {}u) / {side}u;", param(rows), side - 1));
        }
        text.line(format_args!("let part = group % {}; let task = group / {0};", param(PARTS)));
        text.line(format_args!("let own = task % cover * {}u;", quads * self.block));
        text.line(format_args!("let head = task / cover % {heads}; let n = task / cover / {heads};"));
        match self.own {
            Own::Queries => text.line(format_args!("let h = head; let hk = head / {};", param(SHARED))),
            Own::Keys => text.line("let hk = head;"),
        }
        self.positions(&mut text, true);
        self.own_rows().for_each(|i| text.line(format_args!("let own_{i} = own + down + {}u;", i * quads)));
        text
    }

    /// Adds code that computes where a head begins in each operand whose rows are owned, or, unless `own` is set, in
    /// each of the others.
    fn positions(&self, text: &mut Text, own: bool) {
        for (name, _) in self.inputs.iter().chain(&self.outputs) {
            if of_keys(name) != ((self.own == Own::Keys) == own) {
                continue;
            }
            let head = if of_keys(name) { "hk" } else { "h" };
            let [at, batch, step] = [0, 1, 2].map(|k| self.at(name, k));
            text.line(format_args!("let {name}_at = {at} + n * {batch} + {head} * {step};"));
        }
    }

    /// Declares `four_NAME`, which returns four elements of a row, with zeros beyond its end. Instead of an element
    /// beyond the end, it loads the head's first element and ignores the value.
    fn four(&self, text: &mut Text, name: &str) {
        let (t, [row_step, step]) = (self.t(), [3, 4].map(|k| self.at(name, k)));
        text.declare(format_args!("fn four_{name}(at: u32, row: u32, first: u32) -> vec4<{t}> {{"));
        text.declare(format_args!("  let size = select(0u, {}, row < {});", columns(name), rows(name)));
        text.declare("  let e = first + vec4<u32>(0u, 1u, 2u, 3u); let inside = e < vec4<u32>(size);");
        text.declare(format_args!("  let p = select(vec4<u32>(at), at + row * {row_step} + e * {step}, inside);"));
        let each = AXES.map(|axis| format!("load_{name}(p.{axis})")).join(", ");
        text.declare(format_args!("  return select(vec4<{t}>(), vec4<{t}>({each}), inside);\n}}"));
    }

    /// Declares `score`, which computes a score from the product of a query and a key.
    fn score(&self, text: &mut Text) {
        let (d, t, queries, keys) = (self.dtype(), self.t(), param(QUERIES), param(KEYS));
        text.declare(format_args!("fn nothing() -> {t} {{ return {}; }}", identity(ReduceOp::Max, d)));
        // The number of visible keys may be negative, so both sums wrap and are compared as signed integers.
        text.declare(format_args!(
            "fn sees(query: u32, key: u32) -> bool {{ return bitcast<i32>(key + {queries}) <= bitcast<i32>(query + {}); }}",
            param(CAUSAL)
        ));
        let visible = if self.causal { " && sees(query, key)" } else { "" };
        let plain = format!("dot * {}", scale(d));
        let place = format!("query * {} + key * {}", self.at("mask", 3), self.at("mask", 4));
        let load = format!("load_mask(mask_at + select(0u, {place}, seen))");
        let score = match self.inputs.iter().find(|(name, _)| *name == "mask") {
            Some((_, DType::Bool)) => format!("select(nothing(), {plain}, {load})"),
            Some((_, m)) => format!("{plain} + {}", cast(&load, m.compute(), d)),
            None => plain,
        };
        text.declare(format_args!("fn score(dot: {t}, query: u32, key: u32, mask_at: u32) -> {t} {{"));
        text.declare(format_args!("  let seen = query < {queries} && key < {keys}{visible};"));
        text.declare(format_args!("  return select(nothing(), {score}, seen);\n}}"));
    }

    /// Opens the loop over tiles, each of which begins with row `first`. An invocation computes scores of its own rows
    /// with the rows `other_0` to `other_3`.
    pub(crate) fn tiles(&self, text: &mut Text) {
        text.line(format_args!("for (var t = {}; t < {}; t = t + 1u) {{", param(FIRST), param(END)));
        text.line(format_args!("let first = t % turns * {}u;", self.side()));
        if self.own == Own::Keys {
            text.line(format_args!("let h = hk * {} + t / turns;", param(SHARED)));
        }
        self.positions(text, false);
        OTHER.for_each(|j| text.line(format_args!("let other_{j} = first + across + {}u;", j * self.quads())));
    }

    /// Adds code that loads a piece of rows into shared memory, beginning at row `first` and column `column`.
    fn load(&self, text: &mut Text, name: &str, first: &str, column: &str) {
        let (to, rows) = if first == "own" { ("left", self.block) } else { ("right", OTHER.end) };
        text.line(format_args!("for ({}) {{ let row = down + i * {}u;", rolled(rows), self.quads()));
        text.line(format_args!(
            "{to}[row * {}u + across] = four_{name}({name}_at, {first} + row, {column} + across * 4u); }}",
            self.pitch()
        ));
    }

    /// Adds code that multiplies own rows by other rows. `NAME_i` holds the products of row `own_i`.
    pub(crate) fn multiply(&self, text: &mut Text, name: &str, own: &str, other: &str) {
        let (t, side, quads, pitch, size) = (self.t(), self.side(), self.quads(), self.pitch(), columns(own));
        self.own_rows().for_each(|i| text.line(format_args!("var {name}_{i} = vec4<{t}>();")));
        text.line(format_args!("for (var e = 0u; e < {size}; e = e + {side}u) {{"));
        self.load(text, own, "own", "e");
        self.load(text, other, "first", "e");
        text.line("workgroupBarrier();");
        text.line(format_args!("let filled = min({quads}u, ({size} - e + 3u) / 4u);"));
        text.line("for (var kk = 0u; kk < filled; kk = kk + 1u) {");
        OTHER.for_each(|j| {
            text.line(format_args!("let b_{j} = right[(across + {}u) * {pitch}u + kk];", j * quads));
        });
        for i in self.own_rows() {
            text.line(format_args!("let a_{i} = left[(down + {}u) * {pitch}u + kk];", i * quads));
            let dots = list(OTHER, |j| format!("dot(a_{i}, b_{j})"));
            text.line(format_args!("{name}_{i} = {name}_{i} + vec4<{t}>({dots});"));
        }
        text.line("} workgroupBarrier(); }");
    }

    /// The score of row `i` and column `j` of a block, from the products `NAME_i`.
    pub(crate) fn score_of(&self, name: &str, i: usize, j: usize) -> String {
        let (query, key) = match self.own {
            Own::Queries => (format!("own_{i}"), format!("other_{j}")),
            Own::Keys => (format!("other_{j}"), format!("own_{i}")),
        };
        let mask = if self.has("mask") { "mask_at" } else { "0u" };
        format!("score({name}_{i}.{}, {query}, {key}, {mask})", AXES[j])
    }

    /// Adds code that declares the sums of an output.
    pub(crate) fn sums(&self, text: &mut Text, name: &str) {
        self.blocks().for_each(|(c, i)| text.line(format_args!("var {name}_{c}_{i} = vec4<{}>();", self.t())));
    }

    /// All pairs of a piece of an output and a row of the block.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.pieces).flat_map(|c| self.own_rows().map(move |i| (c, i)))
    }

    /// The first column of a piece.
    fn column(&self, piece: impl Display) -> String {
        format!("(part * {}u + {piece}) * {}u", self.pieces, self.side())
    }

    /// Adds code that multiplies `values`, four for each own row, by other rows, and adds the products to the sums of
    /// an output.
    pub(crate) fn add(&self, text: &mut Text, name: &str, values: impl Fn(usize) -> String, other: &str) {
        let (quads, pitch) = (self.quads(), self.pitch());
        text.line("{");
        self.own_rows().for_each(|i| {
            text.line(format_args!("left[(down + {}u) * {pitch}u + across] = {};", i * quads, values(i)));
        });
        text.line(format_args!("let filled = min({quads}u, {} - first);", rows(other)));
        for c in 0..self.pieces {
            let column = self.column(format_args!("{c}u"));
            text.line(format_args!("if ({column} < {}) {{", columns(other)));
            self.load(text, other, "first", &column);
            text.line("workgroupBarrier();");
            // The four values of a vector belong to other rows that are `quads` apart.
            text.line("for (var kk = 0u; kk < filled; kk = kk + 1u) {");
            OTHER.for_each(|j| {
                text.line(format_args!("let b_{j} = right[(kk + {}u) * {pitch}u + across];", j * quads));
            });
            for i in self.own_rows() {
                text.line(format_args!("let a_{i} = left[(down + {}u) * {pitch}u + kk];", i * quads));
                let sum = OTHER.map(|j| format!("a_{i}.{} * b_{j}", AXES[j])).collect::<Vec<_>>().join(" + ");
                text.line(format_args!("{name}_{c}_{i} = {name}_{c}_{i} + ({sum});"));
            }
            text.line("} workgroupBarrier(); }");
        }
        text.line("}");
    }

    /// Adds code that combines the values that the invocations of a row hold. `NAME_0` holds one value for each of
    /// the rows `own_0` to `own_3`, and `NAME_1` one for each of the remaining own rows.
    pub(crate) fn combine(&self, text: &mut Text, name: &str, join: impl Fn(&str, &str) -> String) {
        let quads = self.quads();
        text.line(format_args!("left[local * 2u] = {name}_0; left[local * 2u + 1u] = {name}_1; workgroupBarrier();"));
        for k in 0..2 {
            text.line(format_args!("{name}_{k} = left[down * {}u + {k}u];", 2 * quads));
        }
        text.line(format_args!("for (var k = 1u; k < {quads}u; k = k + 1u) {{"));
        for k in 0..2 {
            let (own, next) = (format!("{name}_{k}"), format!("left[(down * {quads}u + k) * 2u + {k}u]"));
            text.line(format_args!("{own} = {};", join(&own, &next)));
        }
        text.line("} workgroupBarrier();");
    }

    /// Adds code that stores an output. `value` returns the result for row `own_i`, given the name of its sum.
    pub(crate) fn store(&self, text: &mut Text, name: &str, value: impl Fn(&str, usize) -> String) {
        let (count, step) = (self.blocks().count(), self.at(name, 4));
        let values: Vec<_> = self.blocks().map(|(c, i)| value(&format!("{name}_{c}_{i}"), i)).collect();
        text.line(format_args!("{{ var values = array<vec4<{}>, {count}>({});", self.t(), values.join(", ")));
        text.line(format_args!(
            "for ({}) {{ let c = i / {1}u; let row = own + down + i % {1}u * {2}u;",
            rolled(count),
            self.block,
            self.quads()
        ));
        text.line(format_args!("let e = {} + across * 4u; let v = values[i];", self.column("c")));
        text.line(format_args!("let at = {name}_at + row * {} + e * {step};", self.at(name, 3)));
        for (k, axis) in AXES.iter().enumerate() {
            let at = format!("at + {k}u * {step}");
            let v = if self.again { format!("load_{name}({at}) + v.{axis}") } else { format!("v.{axis}") };
            let inside = format!("row < {} && e + {k}u < {}", rows(name), columns(name));
            text.line(format_args!("if ({inside}) {{ store_{name}({at}, {v}); }}"));
        }
        text.line("} }");
    }
}

/// The numbers that must be finite for a tile that the causal rule hides to be skipped. If any of them were not finite,
/// a weight of 0 times that number would be NaN, so the tile could not be skipped.
pub(crate) struct Strange<'a> {
    /// The operands whose elements must be finite.
    pub(crate) names: &'a [&'a str],
    /// WGSL for a condition that is true if any other number that must be finite is not.
    pub(crate) more: &'a str,
}

impl Tile {
    /// Adds code before the loop over tiles, which checks the numbers of the own rows.
    pub(crate) fn look(&self, text: &mut Text, strange: &Strange<'_>) {
        text.declare("var<workgroup> strange: atomic<u32>;");
        text.line("if (local == 0u) { atomicStore(&strange, 0u); } workgroupBarrier();");
        self.find(text, strange, "own");
    }

    /// Adds code in the loop that continues with the next tile if the causal rule hides this one. Once a number that is
    /// not finite has been found, no further tile is skipped.
    pub(crate) fn skip(&self, text: &mut Text, strange: &Strange<'_>) {
        let seen = match self.own {
            Own::Queries => format!("sees(own + {}u, first)", self.quads() * self.block - 1),
            Own::Keys => format!("sees(first + {}u, own)", self.side() - 1),
        };
        text.line(format_args!("if (!{seen}) {{"));
        self.find(text, strange, "first");
        // No invocation checks the next tile until all of them have read what was found in this one.
        text.line("workgroupBarrier(); var found = atomicLoad(&strange); workgroupBarrier();");
        text.line("if (found == 0u) { continue; } }");
    }

    /// Adds code that sets `strange` if a number in the rows from `first` on is not finite.
    fn find(&self, text: &mut Text, strange: &Strange<'_>, first: &str) {
        text.line(format_args!("var odd = {};", strange.more));
        for name in strange.names {
            text.line(format_args!("for (var e = across * 4u; e < {}; e = e + {}u) {{", columns(name), self.side()));
            let rows = if first == "own" { self.block } else { OTHER.end };
            let row = format!("{first} + down + i * {}u", self.quads());
            text.line(format_args!("for ({}) {{", rolled(rows)));
            text.line(format_args!("odd = odd | !all_finite(four_{name}({name}_at, {row}, e)); }} }}"));
        }
        text.line("if (odd) { atomicStore(&strange, 1u); }");
    }
}
