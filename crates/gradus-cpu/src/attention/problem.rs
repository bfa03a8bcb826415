//! The operands of both passes, and how the work is divided into tiles.

use gradus_backend::composite::attention::Sizes;
use gradus_backend::{AttentionParams, Result, View};

use super::mask::Mask;
use super::matrices::Matrices;
use crate::CpuBackend;
use crate::gemm::Real;

/// The number of queries in a tile: a multiple of the panel width of every kernel.
pub(super) const QUERIES: usize = 96;
/// The maximum number of keys whose scores are in memory at once.
pub(super) const SPAN: usize = 2048;
/// The number of multiply-adds that a task should perform.
pub(super) const TASK: usize = 1 << 18;

/// The operands that both passes read.
pub(super) struct Problem<'a, T> {
    pub(super) cpu: &'a CpuBackend,
    pub(super) sizes: Sizes,
    pub(super) causal: bool,
    /// Whether products skip the keys that causal attention hides.
    pub(super) skips: bool,
    pub(super) scale: T,
    pub(super) q: Matrices<'a, T>,
    pub(super) k: Matrices<'a, T>,
    pub(super) v: Matrices<'a, T>,
    pub(super) mask: Option<Mask<'a>>,
}

impl<'a, T: Real> Problem<'a, T> {
    pub(super) fn new(
        cpu: &'a CpuBackend,
        op: &'static str,
        params: &AttentionParams,
        skips: bool,
        sizes: Sizes,
        [q, k, v]: [Matrices<'a, T>; 3],
        mask: Option<View<'a>>,
    ) -> Result<Self> {
        Ok(Problem {
            cpu,
            sizes,
            causal: params.causal,
            skips,
            scale: T::from_f64(params.scale),
            q,
            k,
            v,
            mask: mask.map(|m| Mask::new(cpu, op, m, sizes.scores()?)).transpose()?,
        })
    }

    /// The key head that a query head uses.
    pub(super) fn key_head(&self, h: usize) -> usize {
        h / (self.sizes.h / self.sizes.hk)
    }

    /// Number of tiles in a head.
    pub(super) fn tiles(&self) -> usize {
        self.sizes.lq.div_ceil(QUERIES)
    }

    /// Tile number `i` of a head.
    pub(super) fn tile(&self, b: usize, h: usize, i: usize) -> Tile {
        let first = i * QUERIES;
        Tile { b, h, first, len: QUERIES.min(self.sizes.lq - first) }
    }

    /// The number of keys that query `i` sees. They are the first ones.
    pub(super) fn visible(&self, i: usize) -> usize {
        let Sizes { lq, lk, .. } = self.sizes;
        if self.causal { (i + 1 + lk).saturating_sub(lq) } else { lk }
    }

    /// The number of keys, counted from the first, that the products with query `i` include.
    pub(super) fn reached(&self, i: usize) -> usize {
        if self.skips { self.visible(i) } else { self.sizes.lk }
    }

    /// The first query whose products include key `j`.
    pub(super) fn first_query(&self, j: usize) -> usize {
        let Sizes { lq, lk, .. } = self.sizes;
        if self.skips { (j + lq).saturating_sub(lk) } else { 0 }
    }
}

/// Some consecutive queries of a head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile {
    pub(super) b: usize,
    pub(super) h: usize,
    pub(super) first: usize,
    pub(super) len: usize,
}
