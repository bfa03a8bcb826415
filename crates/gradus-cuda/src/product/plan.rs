//! Which kernel computes a product, in which tiles, and into how many parts the inner axis is cut.

use gradus_backend::{DType, MergedAxes};

use crate::code::element;
use crate::operand::Operand;
use crate::template::{source, sum_type};

/// Products with at most this many rows or columns are computed without tiles, because most of a tile would be empty.
const FEW: usize = 8;
/// About as many blocks as a large GPU works on at a time. With fewer tiles, the inner axis is cut.
const BUSY: usize = 264;
/// The inner axis is not cut into parts of fewer elements, which would cost more than they gain.
const SHORTEST: usize = 256;
/// The largest number of elements that one sum adds up, unless the results of the parts would take much memory.
const CHAIN: usize = 4096;
/// The largest number of results of parts for the sake of [`CHAIN`].
const MOST: usize = 1 << 24;

/// The kernel of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Tiles in registers; each thread computes a square of this many elements.
    Tile(usize),
    /// Tiles on tensor cores; each side of a tile has this many warps.
    Mma([usize; 2]),
    /// The same for f32, whose factors are rounded to tf32.
    Tf32([usize; 2]),
    /// Sums without tiles. The long factor is the left one if `by_rows` is set.
    Thin { by_rows: bool, along_k: bool },
}

/// Everything that the text of a product depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    pub(super) dtype: DType,
    pub(super) kind: Kind,
    pub(super) batch: usize,
    /// The tile.
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Whether the left factor is stored with neighbouring elements along k, and the right one likewise.
    a_along_k: bool,
    b_along_k: bool,
    /// Whether these neighbours are contiguous in aligned groups of 16 bytes.
    a_groups: bool,
    b_groups: bool,
    /// Whether the result is a part, which has the type of sums.
    pub(super) is_part: bool,
    /// Whether two neighbouring columns of the result can be stored at once.
    pairs: bool,
}

/// A plan, and how many parts the inner axis is cut into.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub(super) plan: Plan,
    pub(super) parts: usize,
    /// The number of elements of a part; the last one may have fewer.
    pub(super) depth: usize,
}

impl Form {
    /// The form of a product. With `tf32`, factors of f32 may be rounded.
    pub(super) fn of([p, q, r]: [&Operand<'_>; 3], batch: &MergedAxes, tf32: bool) -> Form {
        let lead = r.layout.rank() - 2;
        let [m, n] = [r.layout.dims()[lead], r.layout.dims()[lead + 1]];
        let k = p.layout.dims()[lead + 1];
        let (dtype, count) = (p.dtype, batch.numel());
        let steps = |o: &Operand<'_>| [o.layout.strides()[lead], o.layout.strides()[lead + 1]];
        let ([a_m, a_k], [b_k, b_n]) = (steps(p), steps(q));
        let closer = |one: isize, other: isize| one.unsigned_abs() < other.unsigned_abs();
        let tiles = |rows: usize, cols: usize| count * m.div_ceil(rows) * n.div_ceil(cols);
        let (kind, rows, cols) = if m.min(n) <= FEW {
            let by_rows = n <= m;
            let along_k = if by_rows { closer(a_k, a_m) } else { closer(b_k, b_n) };
            let (long, few) = (if along_k { 8 } else { 32 }, m.min(n).next_power_of_two());
            let (rows, cols) = if by_rows { (long, few) } else { (few, long) };
            (Kind::Thin { by_rows, along_k }, rows, cols)
        } else if matches!(dtype, DType::F16 | DType::BF16) || (dtype == DType::F32 && tf32) {
            let (warps, side) = match () {
                () if m.max(n) > 64 && tiles(128, 128) >= BUSY / 2 => ([2, 4], 128),
                () if m.max(n) > 32 => ([2, 2], 64),
                () => ([1, 1], 32),
            };
            (if dtype == DType::F32 { Kind::Tf32(warps) } else { Kind::Mma(warps) }, side, side)
        } else {
            match () {
                () if dtype == DType::F32 && tiles(128, 128) >= BUSY / 2 => (Kind::Tile(8), 128, 128),
                () if m.max(n) > 32 => (Kind::Tile(4), 64, 64),
                () => (Kind::Tile(4), 32, 32),
            }
        };
        let tasks = tiles(rows, cols);
        // Each of these many sums goes on at the same time.
        let sums = match kind {
            Kind::Thin { along_k, .. } => {
                if along_k {
                    32
                } else {
                    8
                }
            }
            _ => 1,
        };
        let busy = if tasks < BUSY { (BUSY / tasks).min(k / SHORTEST.max(sums * 16)) } else { 1 };
        let chained = k.div_ceil(CHAIN * sums).min(MOST / (count * m * n).min(MOST));
        let parts = busy.max(chained).max(1);
        let parts = if dtype.is_float() { parts } else { 1 };
        // Parts begin where groups of 16 bytes begin.
        let depth = if parts == 1 { k } else { k.div_ceil(parts).next_multiple_of(MMA_K) };
        let parts = k.div_ceil(depth);
        let plan = Plan {
            dtype,
            kind,
            batch: batch.rank(),
            rows,
            cols,
            a_along_k: closer(a_k, a_m),
            b_along_k: closer(b_k, b_n),
            a_groups: aligned(p, &batch.steps[0], a_k, a_m),
            b_groups: aligned(q, &batch.steps[1], b_k, b_n),
            is_part: parts > 1,
            pairs: parts == 1 && {
                let even = |step: &isize| step % 2 == 0;
                let [c_m, c_n] = steps(r);
                c_n == 1 && even(&c_m) && r.ptr.is_multiple_of(4) && batch.steps[2].iter().all(even)
            },
        };
        Form { plan, parts, depth }
    }
}

/// Whether neighbours along the faster of two axes are contiguous in aligned groups of 16 bytes.
fn aligned(o: &Operand<'_>, batch: &[isize], one: isize, other: isize) -> bool {
    let (fast, slow) = if one.unsigned_abs() < other.unsigned_abs() { (one, other) } else { (other, one) };
    let whole = |step: &isize| (step * o.dtype.size() as isize) % 16 == 0;
    fast == 1 && o.ptr.is_multiple_of(16) && batch.iter().chain([&slow]).all(whole)
}

impl Plan {
    pub(super) fn threads(&self) -> u32 {
        match self.kind {
            Kind::Tile(own) => (self.rows / own * (self.cols / own)) as u32,
            Kind::Mma([m, n]) | Kind::Tf32([m, n]) => (m * n * 32) as u32,
            Kind::Thin { .. } => 256,
        }
    }

    /// The bytes of shared memory of a block, besides what the text declares.
    pub(super) fn shared(&self) -> u32 {
        // The elements along k of a tile, and how much longer the rows of shared memory are.
        let (k, end_of_k, end) = match self.kind {
            Kind::Mma(_) => (MMA_K, 8, 8),
            Kind::Tf32(_) => (TF32_K, 4, 8),
            Kind::Tile(_) | Kind::Thin { .. } => return 0,
        };
        let side = |fast_k: bool, lanes: usize| if fast_k { lanes * (k + end_of_k) } else { k * (lanes + end) };
        let elements = side(self.a_along_k, self.rows) + side(self.b_along_k, self.cols);
        (STAGES * elements * self.dtype.size()) as u32
    }

    pub(super) fn source(&self) -> String {
        let sum = sum_type(self.dtype);
        let types =
            [("T", element(self.dtype)), ("A", sum), ("C", if self.is_part { sum } else { element(self.dtype) })];
        let flag = usize::from;
        let mut constants = vec![("BATCH", self.batch), ("BM", self.rows), ("BN", self.cols)];
        let file = match self.kind {
            Kind::Tile(own) => {
                let asynchronous = matches!(self.dtype, DType::F32 | DType::F64);
                constants.extend([("BK", TILE_K), ("TM", own), ("TN", own), ("ASYNC", flag(asynchronous))]);
                constants.extend([
                    ("A_ROWS", flag(asynchronous && self.a_groups && !self.a_along_k)),
                    ("B_COLS", flag(asynchronous && self.b_groups && !self.b_along_k)),
                    ("A_ALONG_K", flag(self.a_along_k)),
                    ("B_ALONG_K", flag(self.b_along_k)),
                ]);
                include_str!("tile.cu").to_owned()
            }
            Kind::Mma([m, n]) | Kind::Tf32([m, n]) => {
                constants.extend([("WM", m), ("WN", n), ("STAGES", STAGES)]);
                constants.extend([
                    ("A_ROWS", flag(!self.a_along_k)),
                    ("B_COLS", flag(!self.b_along_k)),
                    ("A_GROUPS", flag(self.a_groups)),
                    ("B_GROUPS", flag(self.b_groups)),
                ]);
                if let Kind::Tf32(_) = self.kind {
                    constants.push(("BK", TF32_K));
                    include_str!("tf32.cu").to_owned()
                } else {
                    let is_bf16 = flag(self.dtype == DType::BF16);
                    constants.extend([("BK", MMA_K), ("BF16", is_bf16), ("PAIRS", flag(self.pairs))]);
                    [include_str!("../mma.cu"), include_str!("mma.cu")].concat()
                }
            }
            Kind::Thin { by_rows, along_k } => {
                constants.extend([("BY_ROWS", flag(by_rows)), ("ALONG_K", flag(along_k))]);
                include_str!("thin.cu").to_owned()
            }
        };
        source(&types, &constants, &[include_str!("task.cu"), &file])
    }
}

/// The number of elements along k of a tile in registers, and of one on tensor cores.
const TILE_K: usize = 16;
const MMA_K: usize = 32;
const TF32_K: usize = 16;
/// The number of tiles on tensor cores that are in flight.
const STAGES: usize = 3;

/// The text of the kernel that adds parts.
pub(super) fn sum_source(dtype: DType, batch: usize) -> String {
    let sum = sum_type(dtype);
    let types = [("T", element(dtype)), ("A", sum), ("C", element(dtype))];
    source(&types, &[("BATCH", batch), ("BM", 1), ("BN", 1)], &[include_str!("task.cu"), include_str!("sum.cu")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::check_text;

    #[test]
    fn the_texts_of_all_kernels_compile() {
        let plan = Plan {
            dtype: DType::F32,
            kind: Kind::Tile(8),
            batch: 2,
            rows: 128,
            cols: 128,
            a_along_k: true,
            b_along_k: false,
            a_groups: true,
            b_groups: true,
            is_part: false,
            pairs: true,
        };
        for dtype in [DType::F32, DType::F64, DType::I8, DType::U64] {
            let small = Plan { dtype, kind: Kind::Tile(4), rows: 32, cols: 32, ..plan };
            check_text("gemm", &small.source());
        }
        check_text("gemm", &Plan { a_along_k: false, b_along_k: true, ..plan }.source());
        for (dtype, along, groups) in [(DType::F16, true, false), (DType::BF16, false, true), (DType::BF16, true, true)]
        {
            let tensor = Plan { dtype, kind: Kind::Mma([2, 2]), rows: 64, cols: 64, a_along_k: along, ..plan };
            check_text(
                "gemm",
                &Plan { a_groups: groups, b_along_k: !along, is_part: groups, pairs: !groups, ..tensor }.source(),
            );
        }
        for (warps, side, along) in [([2, 4], 128, true), ([2, 2], 64, false), ([1, 1], 32, true)] {
            let tensor = Plan { kind: Kind::Tf32(warps), rows: side, cols: side, a_along_k: along, ..plan };
            check_text("gemm", &tensor.source());
            check_text("gemm", &Plan { a_groups: false, b_groups: false, b_along_k: along, ..tensor }.source());
        }
        for (by_rows, along_k) in [(false, false), (true, true)] {
            let (rows, cols) = if by_rows { (8, 4) } else { (4, 32) };
            check_text(
                "gemm",
                &Plan { dtype: DType::F16, kind: Kind::Thin { by_rows, along_k }, rows, cols, ..plan }.source(),
            );
        }
        check_text("gemm_sum", &sum_source(DType::BF16, 1));
    }
}
