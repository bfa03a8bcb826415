//! The part of an input that lies under a box of positions, with its padding.

use super::window::Geometry;
use crate::access::Float;
use crate::gemm::Transpose;
use crate::isa::{Isa, per_isa};

/// Where the elements under a box of positions lie once they are copied: channels, and in each a box of elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Region {
    /// Elements of a channel along each axis.
    pub(super) size: [usize; 3],
    /// From one channel to the next.
    pub(super) channel: usize,
}

impl Region {
    /// For so many positions along each axis, at least one, and elements of this many bytes.
    pub(super) fn new(g: &Geometry, positions: [usize; 3], bytes: usize) -> Region {
        let size = std::array::from_fn(|i| (positions[i] - 1) * g.stride[i] + (g.kernel[i] - 1) * g.dilation[i] + 1);
        // An odd number of cache lines: the same place of many channels does not compete for a few sets of the cache.
        let line = 64 / bytes;
        Region { size, channel: (size.iter().product::<usize>().div_ceil(line) | 1) * line }
    }

    /// Elements of so many channels.
    pub(super) fn len(&self, channels: usize) -> usize {
        channels * self.channel
    }

    /// Where an element lies in its channel.
    pub(super) fn at(&self, index: [usize; 3]) -> usize {
        (index[0] * self.size[1] + index[1]) * self.size[2] + index[2]
    }

    /// Where a tap lies, seen from the first element under the window.
    pub(super) fn tap(&self, g: &Geometry, tap: usize) -> usize {
        let tap = g.tap(tap);
        self.at(std::array::from_fn(|i| tap[i] * g.dilation[i]))
    }

    /// Where the first element under a window lies, `position` counted from the first one of the box.
    pub(super) fn position(&self, g: &Geometry, position: [usize; 3]) -> usize {
        self.at(std::array::from_fn(|i| position[i] * g.stride[i]))
    }
}

/// Copies the channels of `image`, as many as `out` has room for, from under position `first` of the output on; what is
/// not in the image is 0.
#[inline(always)]
fn copy<S: Float>(r: &Region, g: &Geometry, image: &[S], first: [usize; 3], out: &mut [S::Compute]) {
    let zero = S::Compute::default();
    if g.plane() == 0 {
        return out.fill(zero);
    }
    let [begin_z, begin_y, begin_x] = [0, 1, 2].map(|i| (first[i] * g.stride[i]) as isize - g.pad[i]);
    let [depth, height, width] = g.input;
    // Elements `left..right` of each line come from the image.
    let left = ((-begin_x).max(0) as usize).min(r.size[2]);
    let right = ((width as isize - begin_x).max(0) as usize).clamp(left, r.size[2]);
    let inside = |i: isize, size: usize| (i >= 0 && (i as usize) < size).then_some(i as usize);
    for (plane, out) in image.chunks_exact(g.plane()).zip(out.chunks_exact_mut(r.channel)) {
        let mut lines = out.chunks_exact_mut(r.size[2]);
        for z in 0..r.size[0] {
            let z = inside(begin_z + z as isize, depth);
            for y in 0..r.size[1] {
                let Some(line) = lines.next() else { return };
                let (Some(z), Some(y)) = (z, inside(begin_y + y as isize, height)) else {
                    line.fill(zero);
                    continue;
                };
                if left == right {
                    line.fill(zero);
                    continue;
                }
                line[..left].fill(zero);
                line[right..].fill(zero);
                let from = (z * height + y) * width + (begin_x + left as isize) as usize;
                for (o, &x) in line[left..right].iter_mut().zip(&plane[from..from + right - left]) {
                    *o = x.widen();
                }
            }
        }
    }
}

/// Writes `rows[r][p] = sums[p * columns + r]`, rounded; rows have one length, or none.
#[inline(always)]
fn turn<S: Float<Compute: Transpose>>(isa: Isa, sums: &[S::Compute], columns: usize, mut rows: [&mut [S]; 8]) {
    let (len, last) = (rows[0].len(), rows[7].len());
    let whole = if last == len { len / 8 * 8 } else { 0 };
    for p in (0..whole).step_by(8) {
        let mut block = [[S::Compute::default(); 8]; 8];
        let from = std::array::from_fn(|i| sums[(p + i) * columns..][..8].as_ptr());
        // SAFETY: each of the 8 pointers has 8 elements, and the block 8 rows of as many.
        unsafe { S::Compute::transpose8(isa, from, block.as_flattened_mut().as_mut_ptr(), 8) };
        for (row, block) in rows.iter_mut().zip(&block) {
            for (o, &sum) in row[p..p + 8].iter_mut().zip(block) {
                *o = S::narrow(sum);
            }
        }
    }
    for (r, row) in rows.iter_mut().enumerate() {
        for (p, o) in row.iter_mut().enumerate().skip(whole) {
            *o = S::narrow(sums[p * columns + r]);
        }
    }
}

/// [`copy`] and [`turn`] of one storage type for every instruction set.
pub(crate) trait Move: Float {
    fn copy(isa: Isa, r: &Region, g: &Geometry, image: &[Self], first: [usize; 3], out: &mut [Self::Compute]);
    fn turn(isa: Isa, sums: &[Self::Compute], columns: usize, rows: [&mut [Self]; 8]);
}

macro_rules! moves {
    ($($s:ty, $copy:ident, $turn:ident;)*) => {$(
        per_isa! {
            fn $copy(r: &Region, g: &Geometry, image: &[$s], first: [usize; 3], out: &mut [<$s as Float>::Compute]) =
                copy::<$s>;
            fn $turn(isa: Isa, sums: &[<$s as Float>::Compute], columns: usize, rows: [&mut [$s]; 8]) = turn::<$s>;
        }
        impl Move for $s {
            fn copy(isa: Isa, r: &Region, g: &Geometry, image: &[$s], first: [usize; 3], out: &mut [Self::Compute]) {
                $copy(isa, r, g, image, first, out)
            }
            fn turn(isa: Isa, sums: &[Self::Compute], columns: usize, rows: [&mut [$s]; 8]) {
                $turn(isa, isa, sums, columns, rows)
            }
        }
    )*};
}
moves! {
    f32, f32_copy, f32_turn;
    f64, f64_copy, f64_turn;
    gradus_backend::f16, f16_copy, f16_turn;
    gradus_backend::bf16, bf16_copy, bf16_turn;
}
