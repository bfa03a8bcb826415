//! Sums of rows of f32 and f64, computed with [`Vectors`].

use crate::gemm::Real;
use crate::halve::Halve;
use crate::isa::Isa;
use crate::lanes::{self, ROWS};
use crate::rows::Elementary;
use crate::vectors::{Vectors, per_vectors};

/// The number of lanes that a block is accumulated in.
pub(super) const LANES: usize = 64;
/// The number of vectors that the lanes of a block take up.
const PARTS: usize = LANES / lanes::LANES;

/// A type whose rows can be summed. `sum_rows` sets each of `sums` to the sum of the next `n` elements of `x`, in the
/// tree of [`kernels`](super::kernels).
pub(super) trait SumRows: Elementary {
    fn sum_rows(isa: Isa, by: u64, x: &[Self], n: usize, sums: &mut [Self]);
}

#[inline(always)]
fn sum_rows<V: Vectors<Number: Elementary>>(v: V, isa: Isa, x: &[V::Number], n: usize, sums: &mut [V::Number]) {
    let mut lanes = [[V::Number::ZERO; lanes::LANES]; ROWS];
    for (group, sums) in sums.chunks_mut(ROWS).enumerate() {
        for (r, lanes) in lanes.iter_mut().enumerate().take(sums.len()) {
            let row = &x[(group * ROWS + r) * n..][..n];
            if n <= lanes::LANES {
                v.store(v.splat(V::Number::ZERO) + v.load_first(row), lanes);
                continue;
            }
            let mut all = [v.splat(V::Number::ZERO); PARTS];
            let (blocks, rest) = row.as_chunks::<LANES>();
            for block in blocks {
                for (all, part) in all.iter_mut().zip(block.as_chunks().0) {
                    *all = *all + v.load(part);
                }
            }
            for (all, part) in all.iter_mut().zip(rest.chunks(lanes::LANES)) {
                *all = *all + v.load_first(part);
            }
            v.store((all[0] + all[2]) + (all[1] + all[3]), lanes);
        }
        sums.copy_from_slice(&Halve::sums(isa, &lanes, sums.len())[..sums.len()]);
    }
}

macro_rules! instances {
    ($($t:ty)*) => {$(
        impl SumRows for $t {
            fn sum_rows(isa: Isa, _: u64, x: &[$t], n: usize, sums: &mut [$t]) {
                per_vectors! { $t: fn run(isa: Isa, x: &[$t], n: usize, sums: &mut [$t]) = sum_rows; }
                run(isa, isa, x, n, sums);
            }
        }
    )*};
}
instances! { f32 f64 }
