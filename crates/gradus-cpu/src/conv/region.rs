//! The part of an input that lies under a box of positions, including padding.

use std::any::TypeId;

use gradus_backend::{bf16, f16};
use half::slice::HalfFloatSliceExt;

use super::window::Geometry;
use crate::access::{Float, Plain};
use crate::gemm::Transpose;
#[cfg(target_arch = "x86_64")]
use crate::gemm::f32_by_16;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::isa::{Isa, per_isa_256};
use crate::rows::Rows;
use crate::scratch;

/// The layout of the copied elements under a box of positions. Each channel is a box of elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Region {
    /// The number of elements of a channel along each axis.
    pub(super) size: [usize; 3],
    /// The distance from one channel to the next.
    pub(super) channel: usize,
}

/// The maximum size of a copy in bytes. A window that reaches far beyond the image, or covers many channels, would need
/// more.
const LARGEST: usize = 2 << 20;

impl Region {
    /// Creates the region under `positions` positions along each axis (at least 1), for `channels` channels with
    /// elements of `bytes` bytes. Returns `None` if it is too large to copy.
    pub(super) fn new(g: &Geometry, positions: [usize; 3], channels: usize, bytes: usize) -> Option<Region> {
        let (mut size, mut product) = ([0; 3], 1usize);
        for i in 0..3 {
            let steps = (positions[i] - 1).checked_mul(g.stride[i])?;
            size[i] = (g.kernel[i] - 1).checked_mul(g.dilation[i])?.checked_add(steps)?.checked_add(1)?;
            product = product.checked_mul(size[i]).filter(|&p| p <= LARGEST)?;
        }
        // Each channel takes up an odd number of cache lines, so that the same position of many channels does not
        // compete for a few cache sets.
        let line = 64 / bytes;
        let region = Region { size, channel: (product.div_ceil(line) | 1) * line };
        (channels.checked_mul(region.channel)? <= LARGEST / bytes).then_some(region)
    }

    /// Returns the image itself as a region if it can be read in place. This requires that all windows lie inside the
    /// image and that its elements are computed in the type in which they are stored.
    pub(super) fn in_place<S: Float>(g: &Geometry) -> Option<Region> {
        // The channels must not compete for a few cache sets.
        let spread = !(g.plane() * size_of::<S>()).is_multiple_of(1024);
        let same = TypeId::of::<S>() == TypeId::of::<S::Compute>();
        (same && spread && g.is_inside()).then(|| Region { size: g.input, channel: g.plane() })
    }

    /// Returns the number of elements in `channels` channels.
    pub(super) fn len(&self, channels: usize) -> usize {
        channels * self.channel
    }

    /// Returns the position of an element in its channel.
    pub(super) fn at(&self, index: [usize; 3]) -> usize {
        (index[0] * self.size[1] + index[1]) * self.size[2] + index[2]
    }

    /// Returns the offset of a tap from the first element under the window.
    pub(super) fn tap(&self, g: &Geometry, tap: usize) -> usize {
        let tap = g.tap(tap);
        self.at(std::array::from_fn(|i| tap[i] * g.dilation[i]))
    }

    /// Returns the offset from the first element under a window to the last one in `channels` channels.
    pub(super) fn reach(&self, g: &Geometry, channels: usize) -> usize {
        (channels - 1) * self.channel + self.tap(g, g.taps() - 1)
    }

    /// Returns the offset of the first element under a window. `position` is relative to the first position of the box.
    pub(super) fn position(&self, g: &Geometry, position: [usize; 3]) -> usize {
        self.at(std::array::from_fn(|i| position[i] * g.stride[i]))
    }
}

/// The number of channels whose sums are transposed at once.
pub(super) const TRANSPOSED: usize = 16;

/// Copies a short run, without a call.
#[inline(always)]
pub(super) fn copy_line<S: Plain>(from: &[S], to: &mut [S]) {
    match from.len() {
        16.. => copy_run::<S, 16>(from, to),
        8.. => copy_run::<S, 8>(from, to),
        4.. => copy_run::<S, 4>(from, to),
        1.. => copy_run::<S, 1>(from, to),
        0 => {}
    }
}

/// Copies a run of at least `W` elements, `W` at a time. The last chunk may overlap the one before.
#[inline(always)]
fn copy_run<S: Plain, const W: usize>(from: &[S], to: &mut [S]) {
    let last = from.len() - W;
    let mut i = 0;
    loop {
        to[i..i + W].copy_from_slice(&from[i..i + W]);
        if i == last {
            return;
        }
        i = (i + W).min(last);
    }
}

/// Copies as many channels of `image` as `out` has room for, starting under position `first` of the output. Elements
/// outside the image are set to 0.
#[inline(always)]
fn copy<S: Plain>(r: &Region, g: &Geometry, image: &[S], first: [usize; 3], out: &mut [S]) {
    // The origin of the box in the image, and the elements of the box that lie inside the image.
    let begin = [0, 1, 2].map(|i| (first[i] * g.stride[i]) as isize - g.pad[i]);
    let [zs, ys, xs] = [0, 1, 2].map(|i| {
        let left = ((-begin[i]).max(0) as usize).min(r.size[i]);
        left..((g.input[i] as isize - begin[i]).max(0) as usize).clamp(left, r.size[i])
    });
    if [&zs, &ys, &xs].iter().zip(r.size).any(|(inside, size)| inside.len() < size) {
        out.fill(S::default());
    }
    if zs.is_empty() || ys.is_empty() || xs.is_empty() {
        return;
    }
    let at = |i: usize, o: usize| (begin[i] + o as isize) as usize;
    for (plane, out) in image.chunks_exact(g.plane()).zip(out.chunks_exact_mut(r.channel)) {
        for z in zs.clone() {
            for y in ys.clone() {
                let from = &plane[(at(0, z) * g.input[1] + at(1, y)) * g.input[2] + at(2, xs.start)..][..xs.len()];
                let to = &mut out[r.at([z, y, xs.start])..][..xs.len()];
                copy_line(from, to);
            }
        }
    }
}

/// Sets `rows[r][p] = sums[p * columns + r]`, rounded. Rows at the end may be empty, and all others have the same
/// length.
#[inline(always)]
fn transpose<S: Float<Compute: Transpose>>(
    isa: Isa,
    sums: &[S::Compute],
    columns: usize,
    mut rows: [&mut [S]; TRANSPOSED],
) {
    // A loop, because a closure would not be compiled for AVX2.
    for (half, rows) in rows.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        if !rows[0].is_empty() {
            transpose_half(isa, &sums[8 * half..], columns, rows);
        }
    }
}

/// [`transpose`] of eight rows.
#[inline(always)]
fn transpose_half<S: Float<Compute: Transpose>>(
    isa: Isa,
    sums: &[S::Compute],
    columns: usize,
    rows: &mut [&mut [S]; 8],
) {
    let (len, last) = (rows[0].len(), rows[7].len());
    let whole = if last == len { len / 8 * 8 } else { 0 };
    for p in (0..whole).step_by(8) {
        let mut block = [[S::Compute::default(); 8]; 8];
        // This is a loop because a closure would not be compiled for AVX2.
        let mut from = [sums.as_ptr(); 8];
        for (i, from) in from.iter_mut().enumerate() {
            *from = sums[(p + i) * columns..][..8].as_ptr();
        }
        // SAFETY: each of the 8 pointers points to 8 elements, and the block has 8 rows of 8 elements.
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

per_isa_256! {
    fn copy_f32(r: &Region, g: &Geometry, image: &[f32], first: [usize; 3], out: &mut [f32]) = copy;
    fn copy_f64(r: &Region, g: &Geometry, image: &[f64], first: [usize; 3], out: &mut [f64]) = copy;
    fn copy_u16(r: &Region, g: &Geometry, image: &[u16], first: [usize; 3], out: &mut [u16]) = copy;
    fn transpose_f32(isa: Isa, sums: &[f32], columns: usize, rows: [&mut [f32]; TRANSPOSED]) = transpose;
    fn transpose_f64(isa: Isa, sums: &[f64], columns: usize, rows: [&mut [f64]; TRANSPOSED]) = transpose;
    fn transpose_f16(isa: Isa, sums: &[f32], columns: usize, rows: [&mut [f16]; TRANSPOSED]) = transpose;
    fn transpose_bf16(isa: Isa, sums: &[f32], columns: usize, rows: [&mut [bf16]; TRANSPOSED]) = transpose;
}

/// [`transpose`] for f32, 16 by 16 numbers at a time where registers are wide enough.
fn transpose_wide(level: Isa, isa: Isa, sums: &[f32], columns: usize, rows: [&mut [f32]; TRANSPOSED]) {
    #[cfg(target_arch = "x86_64")]
    if level.level() == Level::Avx512 && rows[15].len() == rows[0].len() {
        let mut rows = rows;
        let whole = rows[0].len() / 16 * 16;
        for p in (0..whole).step_by(16) {
            assert!(sums.len() >= (p + 15) * columns + 16);
            let to = rows.each_mut().map(|row| row[p..p + 16].as_mut_ptr());
            // SAFETY: each of the 16 rows of sums from `p` on has 16 numbers here, and so has each row of the result. The level
            // has AVX-512.
            unsafe { f32_by_16(sums[p * columns..].as_ptr(), columns, to) };
        }
        if whole < rows[0].len() {
            transpose_f32(level, isa, &sums[whole * columns..], columns, rows.map(|row| &mut row[whole..]));
        }
        return;
    }
    transpose_f32(level, isa, sums, columns, rows);
}

/// [`copy`] and [`transpose`] between a storage type and its compute type, on every instruction set.
pub(crate) trait Move: Float {
    fn copy(isa: Isa, r: &Region, g: &Geometry, image: &[Self], first: [usize; 3], out: &mut [Self::Compute]);
    fn transpose(isa: Isa, sums: &[Self::Compute], columns: usize, rows: [&mut [Self]; TRANSPOSED]);
}

macro_rules! moves {
    ($($s:ty, $transpose:ident: |$isa:ident, $r:ident, $g:ident, $image:ident, $first:ident, $out:ident| $copy:expr;)*) => {$(
        impl Move for $s {
            fn copy(
                $isa: Isa,
                $r: &Region,
                $g: &Geometry,
                $image: &[$s],
                $first: [usize; 3],
                $out: &mut [Self::Compute],
            ) {
                $copy
            }
            fn transpose(isa: Isa, sums: &[Self::Compute], columns: usize, rows: [&mut [$s]; TRANSPOSED]) {
                $transpose(isa, isa, sums, columns, rows)
            }
        }
    )*};
}
moves! {
    f32, transpose_wide: |isa, r, g, image, first, out| copy_f32(isa, r, g, image, first, out);
    f64, transpose_f64: |isa, r, g, image, first, out| copy_f64(isa, r, g, image, first, out);
    f16, transpose_f16: |isa, r, g, image, first, out| copy_half(isa, r, g, image, first, out);
    bf16, transpose_bf16: |isa, r, g, image, first, out| copy_half(isa, r, g, image, first, out);
}

/// Does the same as [`copy`], then widens the copy.
fn copy_half<S: Rows>(isa: Isa, r: &Region, g: &Geometry, image: &[S], first: [usize; 3], out: &mut [S::Compute])
where
    [S]: HalfFloatSliceExt,
{
    scratch::with(out.len(), |raw: &mut [S]| {
        copy_u16(isa, r, g, image.reinterpret_cast(), first, raw.reinterpret_cast_mut());
        S::load(isa, raw, 0, 1, out);
    });
}
