//! Products, divided into tiles for all threads.
//!
//! Every tile covers all of `k`, so the division into tiles does not change a single bit of the result. The size of
//! tiles is chosen so that there are enough of them for all threads.

use super::block::{MatMut, Product, k_step, tile};
use super::kernel::Real;
use super::pack::{Mat, Pack, Panels};
use super::packed::{self, Packed};
use crate::CpuBackend;
use crate::temp::Temp;

/// The maximum number of rows in a tile. With this many rows, the tile's part of A fills half of a small L2 cache.
const TILE_ROWS: usize = 192;
/// The maximum number of columns in a tile.
const TILE_COLS: usize = 512;
/// The minimum number of tiles that a large product is divided into.
const TILES: usize = 12;
/// The minimum number of rows for which the tiles of a product share a packed B.
const SHARED_ROWS: usize = 192;
/// The number of elements of B that are packed at a time to be shared.
const SHARED: usize = 1 << 24;
/// The number of multiply-adds that a task should perform.
const TASK: usize = 1 << 18;

/// Computes `count` products of the same size on all threads. `operands(i)` returns A, B and C of product `i`. C is
/// stored in the type of the operands or in their compute type. Just before a tile of C is computed, `prepare` is
/// called with the number of its product, its first row, the tile and its sizes.
///
/// # Safety
/// The operands have the sizes in `p`, and the results of different products do not overlap.
pub(crate) unsafe fn products<'a, S: Pack, B: Panels<S::Compute>, C: Pack<Compute = S::Compute>>(
    cpu: &CpuBackend,
    count: usize,
    p: &Product<S::Compute>,
    operands: impl Fn(usize) -> (Mat<'a, S>, B, MatMut<'a, C>) + Sync,
    prepare: impl Fn(usize, usize, MatMut<'a, C>, [usize; 2]) + Sync,
) {
    if p.m == 0 || p.n == 0 || count == 0 {
        return;
    }
    let run = |part: Part<'_, S::Compute>| {
        let (a, b, c) = operands(part.product);
        let (row, col) = part.at;
        let c = c.from(row, col);
        prepare(part.product, row, c, [part.size.m, part.size.n]);
        let (b, j): (&dyn Panels<_>, _) = part.packed.map_or((&b, col), |(packed, j)| (packed, j));
        // SAFETY: the part lies inside the operands, and no two parts share an element.
        unsafe { tile(cpu.isa(), &part.size, a.from(row, 0), b, j, c) };
    };
    let (_, b, _) = operands(0);
    let packed = b.is_packed();
    if count == 1 && p.m >= SHARED_ROWS && p.n >= TILE_COLS / 4 && p.k > 0 && !packed {
        // SAFETY: guaranteed by the caller.
        if unsafe { shared(cpu, p, &b, &run) } {
            return;
        }
    }
    tiles(cpu, &Grid::new(count, p, packed), p, &run);
}

/// A part of the results that one task computes.
struct Part<'a, T> {
    product: usize,
    /// The part's first row and column.
    at: (usize, usize),
    size: Product<T>,
    /// B, if it is already packed, and the index of the part's first column in the packed matrix.
    packed: Option<(&'a Packed<'a, T>, usize)>,
}

/// How products are divided into tiles.
#[derive(Debug, Clone, Copy)]
struct Grid {
    count: usize,
    rows: usize,
    cols: usize,
}

impl Grid {
    /// Creates the grid for `count` products. If their tiles share a packed B, more tiles in a column cost nothing,
    /// while each tile in a row packs its rows of A again.
    fn new<T>(count: usize, p: &Product<T>, shared: bool) -> Grid {
        let most = if shared { TILE_ROWS / 2 } else { TILE_ROWS };
        let (mut rows, mut cols) = (p.m.min(most), p.n.min(TILE_COLS));
        let enough = |rows: usize, cols: usize| {
            rows * cols * p.k <= 4 * TASK || count * p.m.div_ceil(rows) * p.n.div_ceil(cols) >= TILES
        };
        while !enough(rows, cols) && (rows > 48 || cols > 64) {
            // Halves one side. A tile should have more columns than rows, and its columns should fill whole panels.
            if ((shared || 2 * rows > cols) && rows > 48) || cols <= 64 {
                rows = (rows / 2).next_multiple_of(12);
            } else {
                cols = (cols / 2).next_multiple_of(64);
            }
        }
        Grid { count, rows, cols }
    }
}

/// Runs the tiles of a grid.
fn tiles<T: Real>(
    cpu: &CpuBackend,
    &Grid { count, rows, cols }: &Grid,
    p: &Product<T>,
    run: &(dyn Fn(Part<'_, T>) + Sync),
) {
    let (down, across) = (p.m.div_ceil(rows), p.n.div_ceil(cols));
    let tile = |task: usize| {
        let (i, j) = (task / across % down * rows, task % across * cols);
        let size = Product { m: rows.min(p.m - i), n: cols.min(p.n - j), ..*p };
        run(Part { product: task / (down * across), at: (i, j), size, packed: None });
    };
    if count * down * across == 1 {
        return tile(0);
    }
    let grain = (TASK / (rows * cols * p.k.max(1))).max(1);
    cpu.parallel_for(count * down * across, grain, |tasks| tasks.for_each(tile));
}

/// Computes one large product whose tiles share B, which is packed once. Returns `false`, and does nothing, if memory
/// is short.
///
/// # Safety
/// `b` has the number of rows and columns in `p`.
unsafe fn shared<T: Real>(
    cpu: &CpuBackend,
    p: &Product<T>,
    b: &dyn Panels<T>,
    run: &(dyn Fn(Part<'_, T>) + Sync),
) -> bool {
    let (step, width) = (k_step(p.k), T::panel(cpu.isa()));
    let block = (SHARED / p.k).next_multiple_of(TILE_COLS).min(p.n);
    let Ok(mut temp) = Temp::new(cpu, T::DTYPE, &[packed::size(p.k, block, step, width)]) else {
        return false;
    };
    let mut view = temp.view_mut();
    let Ok(Some(data)) = cpu.contiguous_mut::<T>("gemm", &mut view) else { return false };
    for first in (0..p.n).step_by(block) {
        let size = Product { n: block.min(p.n - first), ..*p };
        // SAFETY: the columns lie inside `b`.
        let b = &unsafe { Packed::new(cpu, b, p.k, first..first + size.n, step, &mut *data) };
        tiles(cpu, &Grid::new(1, &size, true), &size, &|part| {
            let (row, col) = part.at;
            run(Part { at: (row, first + col), packed: Some((b, col)), ..part });
        });
    }
    true
}
