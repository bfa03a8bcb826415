//! The core of matrix products: a work-group multiplies a tile of rows by a tile of columns in shared memory. Each
//! invocation computes a block of the result in registers.

use gradus_backend::{DType, ScalarOp};

use crate::operand::LOOP;
use crate::wgsl::{self, Text, ty};

/// The largest number of elements along k that one launch sums. Each takes up to one and a half loop iterations.
pub(crate) const DEPTH: usize = LOOP / 2;
/// The number of tiles that keep a device busy.
const BUSY: usize = 64;

/// A tile of 16 by 16 or 8 by 8 invocations, each of which computes a square block.
///
/// Blocks of floats consist of vectors of four columns. Both operands are stored in shared memory as vectors, of four
/// rows of `a` and of four columns of `b`, so that fewer loads are needed for the same products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    /// The compute type of operands and sums.
    pub(crate) dtype: DType,
    /// The number of invocations along each side of the tile.
    across: u32,
    /// The number of rows, and of columns, in the block of an invocation.
    block: u32,
}

/// A product as WGSL expressions: its sizes, and its factors, of which `a` has the rows and `b` the columns.
pub(crate) struct Product<'a> {
    /// The first element along k that is summed, and the end of the range.
    pub(crate) first: &'a str,
    pub(crate) end: &'a str,
    pub(crate) a: Factor<'a>,
    pub(crate) b: Factor<'a>,
    /// For operands that may lack elements: a condition that is true if the element of `b` exists, evaluated after `b`
    /// is read. Missing elements are left out of the sum, so that an infinity in `a` is not multiplied by a zero.
    pub(crate) found: Option<&'a str>,
}

/// How to read a factor of a product, as WGSL. `k` is the number of an element along k. A vector has an element in each of
/// its lanes; `n_LANE` is the number of its row in `a`, or of its column in `b`.
pub(crate) struct Factor<'a> {
    /// The number of rows or columns.
    pub(crate) size: &'a str,
    /// Whether neighbouring invocations load neighbours along k. This suits operands that are contiguous along k.
    pub(crate) along_k: bool,
    /// Statements for what depends on `k` alone.
    pub(crate) by_k: &'a str,
    /// Statements for what depends on the row or column in a lane, whose name they get. What they declare has this name in
    /// its own. They run only once if `along_k` is not set.
    pub(crate) by_lane: &'a dyn Fn(&str) -> String,
    /// The element at `k` in the lane of this name, after the statements.
    pub(crate) element: &'a dyn Fn(&str) -> String,
}

impl Tile {
    /// The tile for `count` products of `m` rows and `n` columns: small if large ones would leave the device idle.
    pub(crate) fn new(dtype: DType, count: usize, m: usize, n: usize) -> Tile {
        let (dtype, small) = (dtype.compute(), m.min(n));
        let tiles = |side: usize| count * m.div_ceil(side) * n.div_ceil(side);
        let (across, block) = match dtype {
            DType::F32 if small > 64 && tiles(128) >= BUSY / 4 => (16, 8),
            DType::F32 if small > 32 => (8, 8),
            DType::F32 if small > 16 => (8, 4),
            _ if small <= 16 || tiles(64) < 4 => (16, 1),
            _ => (16, 4),
        };
        Tile { dtype, across, block }
    }

    /// The number of elements in a vector of the block.
    fn lanes(&self) -> u32 {
        if self.block > 1 && self.dtype.is_float() { 4 } else { 1 }
    }

    /// The names of the elements of a variable.
    fn elements(&self, name: &str) -> Vec<String> {
        if self.lanes() == 1 {
            vec![name.to_owned()]
        } else {
            ["x", "y", "z", "w"].map(|l| format!("{name}.{l}")).into()
        }
    }

    /// The number of rows, and of columns, of the tile.
    pub(crate) fn side(&self) -> u32 {
        self.across * self.block
    }

    /// The number of invocations in a work-group.
    pub(crate) fn size(&self) -> u32 {
        self.across * self.across
    }

    /// The number of tiles that cover this many rows or columns.
    pub(crate) fn cover(&self, size: usize) -> usize {
        size.div_ceil(self.side() as usize)
    }

    /// The number of parts into which the sum along k is split, each for its own work-group. It is as small as
    /// [`DEPTH`] allows, but larger if there are few tiles.
    pub(crate) fn parts(&self, count: usize, m: usize, k: usize, n: usize) -> usize {
        let tiles = count * self.cover(m) * self.cover(n);
        k.div_ceil(DEPTH).max((BUSY / tiles).min(k / 512))
    }

    /// Adds code that computes the product for the tile whose first row and column are `row` and `col`.
    /// [`store`](Tile::store) must follow.
    pub(crate) fn multiply(&self, text: &mut Text, p: &Product<'_>) {
        let (t, lanes) = (ty(self.dtype), self.lanes());
        // The depth of a tile. Both operands must fit the smallest shared memory that a device may have (16 KiB).
        let depth = if self.dtype.size() == 8 || self.side() == 128 { 8 } else { 16 };
        let (width, count) = (self.side() / lanes, self.side() / lanes * depth);
        let vector = |t: &str| if lanes == 1 { t.to_owned() } else { format!("vec4<{t}>") };
        let (cell, flags) = (vector(t), vector("u32"));
        text.declare(format_args!("var<workgroup> tile_a: array<{cell}, {count}>;"));
        text.declare(format_args!("var<workgroup> tile_b: array<{cell}, {count}>;"));
        // A zero can replace a missing element as long as `a` contains no infinity and no NaN. The first of these sets
        // the flag `strange`, which is not cleared again.
        let found = p.found.filter(|_| self.dtype.is_float());
        if found.is_some() {
            text.declare(format_args!("var<workgroup> tile_found: array<{flags}, {count}>;"));
            text.declare("var<workgroup> strange: atomic<u32>;");
            text.line("if (local == 0u) { atomicStore(&strange, 0u); } workgroupBarrier();");
        }
        text.line(format_args!("let down = local / {}u; let across = local % {0}u;", self.across));
        for (i, j) in self.vectors() {
            text.line(format_args!("var c_{i}_{j} = {cell}();"));
        }
        let number = |text: &mut Text, name: &str, vector: &str, first: &str, factor: &Factor<'_>| {
            for lane in 0..lanes {
                text.line(format_args!("let n_{name}{lane} = {first} + ({vector}) * {lanes}u + {lane}u;"));
                text.line((factor.by_lane)(&format!("{name}{lane}")));
            }
        };
        let factors = [("a", "row", &p.a), ("b", "col", &p.b)];
        for (name, first, factor) in factors.iter().filter(|(.., factor)| !factor.along_k) {
            // The number of invocations is a multiple of the width, so each loads the same rows or columns every time.
            number(text, name, &format!("local % {width}u"), first, factor);
        }
        text.line(format_args!("for (var k0 = {}; k0 < {}; k0 = k0 + {depth}u) {{", p.first, p.end));
        for (name, first, factor) in factors {
            text.line(format_args!("for (var e = local; e < {count}u; e = e + {}u) {{", self.size()));
            let (across_k, vector) = if factor.along_k {
                (format!("e % {depth}u"), format!("e / {depth}u"))
            } else {
                (format!("e / {width}u"), format!("e % {width}u"))
            };
            text.line(format_args!("let place = {across_k}; let k = k0 + place; var v = {cell}();"));
            let found = found.filter(|_| name == "b");
            if found.is_some() {
                text.line(format_args!("var f = {flags}();"));
            }
            text.line(format_args!("if (k < {}) {{ {}", p.end, factor.by_k));
            if factor.along_k {
                number(text, name, &vector, first, factor);
            }
            for (lane, (v, f)) in self.elements("v").iter().zip(self.elements("f")).enumerate() {
                let lane = format!("{name}{lane}");
                let found = found.map_or(String::new(), |found| format!(" {f} = select(0u, 1u, {found});"));
                let element = (factor.element)(&lane);
                text.line(format_args!("if (n_{lane} < {}) {{ {v} = {element};{found} }}", factor.size));
            }
            text.line("}");
            if name == "a" && p.found.is_some() && self.dtype.is_float() {
                let finite: Vec<_> = self.elements("v").iter().map(|v| format!("is_finite_{t}({v})")).collect();
                text.line(format_args!("if (!({})) {{ atomicStore(&strange, 1u); }}", finite.join(" && ")));
            }
            if found.is_some() {
                text.line(format_args!("tile_found[place * {width}u + {vector}] = f;"));
            }
            text.line(format_args!("tile_{name}[place * {width}u + {vector}] = v; }}"));
        }
        text.line("workgroupBarrier();");
        if found.is_some() {
            text.line("if (atomicLoad(&strange) != 0u) {");
            self.add(text, depth, true);
            text.line("} else {");
        }
        self.add(text, depth, false);
        if found.is_some() {
            text.line("}");
        }
        text.line("workgroupBarrier(); }");
    }

    /// Adds code that accumulates the products of the tiles in shared memory. `masked` skips missing elements.
    fn add(&self, text: &mut Text, depth: u32, masked: bool) {
        let (width, groups) = (self.side() / self.lanes(), self.block / self.lanes());
        text.line(format_args!("for (var kk = 0u; kk < {depth}u; kk = kk + 1u) {{"));
        for i in 0..groups {
            let next = i * self.across;
            text.line(format_args!("let a_{i} = tile_a[kk * {width}u + down + {next}u];"));
            text.line(format_args!("let b_{i} = tile_b[kk * {width}u + across + {next}u];"));
            if masked {
                let none = if self.lanes() == 1 { "0u" } else { "vec4<u32>()" };
                text.line(format_args!("let f_{i} = tile_found[kk * {width}u + across + {next}u] != {none};"));
            }
        }
        // There are at most 8 names.
        let rows: Vec<_> = (0..groups).flat_map(|i| self.elements(&format!("a_{i}"))).collect();
        for (i, j) in self.vectors() {
            let product = wgsl::binary(ScalarOp::Mul, self.dtype, &rows[i as usize], &format!("b_{j}"));
            let sum = wgsl::binary(ScalarOp::Add, self.dtype, &format!("c_{i}_{j}"), &product);
            let sum = if masked { format!("select(c_{i}_{j}, {sum}, f_{j})") } else { sum };
            text.line(format_args!("c_{i}_{j} = {sum};"));
        }
        text.line("}");
    }

    /// Adds code for each element of the result. `store` receives the name of the element's sum, and its text uses the
    /// position `r`, `s`.
    pub(crate) fn store(&self, text: &mut Text, m: &str, n: &str, store: impl Fn(&str) -> String) {
        let lanes = self.lanes();
        // Between two vectors of a block lie those of all other invocations, so that neighbours write neighbouring vectors.
        let place = |of: &str, number: u32| {
            format!("({of} + {}u) * {lanes}u + {}u", number / lanes * self.across, number % lanes)
        };
        for (i, j) in self.vectors() {
            for (lane, sum) in (j * lanes..).zip(self.elements(&format!("c_{i}_{j}"))) {
                text.line(format_args!(
                    "{{ let r = row + {}; let s = col + {};",
                    place("down", i),
                    place("across", lane)
                ));
                text.line(format_args!("if (r < {m} && s < {n}) {{ {} }} }}", store(&sum)));
            }
        }
    }

    /// The row of each vector of the block, and the vector's number within the row.
    fn vectors(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (rows, columns) = (self.block, self.block / self.lanes());
        (0..rows).flat_map(move |i| (0..columns).map(move |j| (i, j)))
    }
}
