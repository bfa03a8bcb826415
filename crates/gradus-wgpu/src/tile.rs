//! The core of matrix products: a work-group multiplies a tile of rows by a tile of columns in shared memory. Each
//! invocation computes a block of the result in registers.

use gradus_backend::{DType, Scalar, ScalarOp};

use crate::operand::LOOP;
use crate::wgsl::{self, GROUP, Text, ty};

/// The largest number of elements along k that one launch sums. Each takes up to one and a half loop iterations.
pub(crate) const DEPTH: usize = LOOP / 2;
/// The number of tiles that keep a device busy.
const BUSY: usize = 64;

/// A tile of 16 by 16 invocations, each of which computes a square block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    /// The compute type of operands and sums.
    pub(crate) dtype: DType,
    /// The number of rows, and of columns, in the block of an invocation.
    pub(crate) block: u32,
}

/// A product as text: its sizes, and expressions for the elements at `(am, ak)` and `(bk, bn)`.
pub(crate) struct Product<'a> {
    pub(crate) m: &'a str,
    /// The first element along k, and the end.
    pub(crate) first: &'a str,
    pub(crate) end: &'a str,
    pub(crate) n: &'a str,
    pub(crate) a: &'a str,
    pub(crate) b: &'a str,
    /// Whether neighbouring invocations load neighbours along k. This suits operands that are contiguous along k.
    pub(crate) a_along_k: bool,
    pub(crate) b_along_k: bool,
    /// For operands that may lack elements: a condition that is true if the element of `b` exists, evaluated after `b`
    /// is read. Missing elements are left out of the sum, so that an infinity in `a` is not multiplied by a zero.
    pub(crate) found: Option<&'a str>,
}

impl Tile {
    /// The tile for `count` products of `m` rows and `n` columns: small blocks if large ones would leave the device
    /// idle.
    pub(crate) fn new(dtype: DType, count: usize, m: usize, n: usize) -> Tile {
        let few = count * m.div_ceil(64) * n.div_ceil(64) < 4;
        Tile { dtype: dtype.compute(), block: if m.min(n) <= 16 || few { 1 } else { 4 } }
    }

    /// The number of rows, and of columns, of the tile.
    pub(crate) fn side(&self) -> u32 {
        16 * self.block
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
        let (t, side, block) = (ty(self.dtype), self.side(), self.block);
        // The depth of a tile. Both operands must fit the smallest shared memory that a device may have (16 KiB).
        let depth = if self.dtype.size() == 8 { 8 } else { 16 };
        let cells = side * depth;
        text.declare(format_args!(
            "var<workgroup> tile_a: array<{t}, {cells}>;\nvar<workgroup> tile_b: array<{t}, {cells}>;"
        ));
        // A zero can replace a missing element as long as `a` has no infinities and no NaN. The first of these sets
        // `strange`, which stays set.
        let found = p.found.filter(|_| self.dtype.is_float());
        if found.is_some() {
            text.declare(format_args!("var<workgroup> tile_found: array<u32, {cells}>;"));
            text.declare("var<workgroup> strange: atomic<u32>;");
            text.line("if (local == 0u) { atomicStore(&strange, 0u); } workgroupBarrier();");
        }
        // Rows and columns of a block are 16 apart, so that neighbouring invocations write neighbouring elements.
        text.line("let down = local / 16u; let across = local % 16u;");
        let zero = wgsl::constant(Scalar::Int(0), self.dtype);
        for (i, j) in pairs(block) {
            text.line(format_args!("var c_{i}_{j} = {zero};"));
        }
        text.line(format_args!("for (var k0 = {}; k0 < {}; k0 = k0 + {depth}u) {{", p.first, p.end));
        text.line(format_args!("for (var e = local; e < {cells}u; e = e + {GROUP}u) {{"));
        let split = |along_k: bool| {
            if along_k { format!("e % {depth}u, e / {depth}u") } else { format!("e / {side}u, e % {side}u") }
        };
        for (name, along_k, first, size, other, value) in
            [("a", p.a_along_k, "row", p.m, "m", p.a), ("b", p.b_along_k, "col", p.n, "n", p.b)]
        {
            text.line(format_args!("{{ let place = vec2<u32>({});", split(along_k)));
            text.line(format_args!(
                "let {name}k = k0 + place.x; let {name}{other} = {first} + place.y; var v = {zero};"
            ));
            text.line(format_args!("if ({name}k < {} && {name}{other} < {size}) {{ v = {value}; }}", p.end));
            match (name, found) {
                ("a", Some(_)) => text.line(format_args!("if (!is_finite_{t}(v)) {{ atomicStore(&strange, 1u); }}")),
                ("b", Some(found)) => {
                    text.line(format_args!("tile_found[place.x * {side}u + place.y] = select(0u, 1u, {found});"));
                }
                _ => {}
            }
            text.line(format_args!("tile_{name}[place.x * {side}u + place.y] = v; }}"));
        }
        text.line("} workgroupBarrier();");
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

    /// Adds code that accumulates the products of one depth of the tiles. If `masked`, missing elements are left out.
    fn add(&self, text: &mut Text, depth: u32, masked: bool) {
        let (side, block) = (self.side(), self.block);
        text.line(format_args!("for (var kk = 0u; kk < {depth}u; kk = kk + 1u) {{"));
        for i in 0..block {
            text.line(format_args!("let a_{i} = tile_a[kk * {side}u + down + {}u];", i * 16));
            text.line(format_args!("let b_{i} = tile_b[kk * {side}u + across + {}u];", i * 16));
            if masked {
                text.line(format_args!("let f_{i} = tile_found[kk * {side}u + across + {}u] != 0u;", i * 16));
            }
        }
        for (i, j) in pairs(block) {
            let product = wgsl::binary(ScalarOp::Mul, self.dtype, &format!("a_{i}"), &format!("b_{j}"));
            let sum = wgsl::binary(ScalarOp::Add, self.dtype, &format!("c_{i}_{j}"), &product);
            let sum = if masked { format!("select(c_{i}_{j}, {sum}, f_{j})") } else { sum };
            text.line(format_args!("c_{i}_{j} = {sum};"));
        }
        text.line("}");
    }

    /// Adds code for each element of the result. `store` receives the name of the element's sum, and returns code that
    /// may use the element's position `r`, `s`.
    pub(crate) fn store(&self, text: &mut Text, m: &str, n: &str, store: impl Fn(&str) -> String) {
        for (i, j) in pairs(self.block) {
            text.line(format_args!("{{ let r = row + down + {}u; let s = col + across + {}u;", i * 16, j * 16));
            text.line(format_args!("if (r < {m} && s < {n}) {{ {} }} }}", store(&format!("c_{i}_{j}"))));
        }
    }
}

fn pairs(block: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..block).flat_map(move |i| (0..block).map(move |j| (i, j)))
}
