//! [`Raster`]: a picture in memory as bytes, and its antialiased resizing in one pass.

use crate::file::nearest;

/// A section of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) top: usize,
    pub(crate) left: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
}

/// Pixels of red, green, blue and alpha, row by row. `channels` is the number that the file has: 1, 3 or 4.
#[derive(Debug, Clone)]
pub(crate) struct Raster {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    pub(crate) pixels: Vec<[u8; 4]>,
}

impl Raster {
    /// The pixels of row `y` of a section.
    pub(crate) fn row(&self, section: Section, y: usize) -> &[[u8; 4]] {
        &self.pixels[(section.top + y) * self.width + section.left..][..section.width]
    }

    /// A copy of a section.
    pub(crate) fn cropped(&self, section: Section) -> Raster {
        let Section { height, width, .. } = section;
        // The pixels are at most those of `self`.
        let mut pixels = Vec::with_capacity(height * width);
        (0..height).for_each(|y| pixels.extend_from_slice(self.row(section, y)));
        Raster { height, width, channels: self.channels, pixels }
    }

    /// With this many black pixels at each side. The caller has checked that there is memory for them.
    pub(crate) fn padded(&self, padding: usize) -> Raster {
        let (height, width) = (self.height + 2 * padding, self.width + 2 * padding);
        let mut pixels = vec![[0; 4]; height * width]; // at most what the caller has checked
        for (to, from) in pixels.chunks_exact_mut(width).skip(padding).zip(self.pixels.chunks_exact(self.width)) {
            to[padding..][..self.width].copy_from_slice(from);
        }
        Raster { height, width, channels: self.channels, pixels }
    }

    /// With every colour replaced by its luma, as [`grayscale`](crate::grayscale) rounds it.
    pub(crate) fn grey(mut self) -> Raster {
        if self.channels > 1 {
            for [r, g, b, _] in &mut self.pixels {
                let luma = nearest(f32::from(*r) * 0.299 + f32::from(*g) * 0.587 + f32::from(*b) * 0.114);
                [*r, *g, *b] = [luma; 3];
            }
        }
        self
    }

    /// The section, resized to `height` x `width` pixels as [`resize`](crate::resize) does: bilinearly, with an
    /// antialiasing filter where it shrinks. The sums are in f32, and rounded once.
    ///
    /// The caller has checked that there is memory for the result. No size is 0.
    pub(crate) fn resized(&self, section: Section, height: usize, width: usize) -> Raster {
        if (height, width) == (section.height, section.width) {
            return self.cropped(section);
        }
        let (down, across) = (Windows::new(section.height, height), Windows::new(section.width, width));
        // At most a pixel for each that the caller has checked.
        let mut pixels = vec![[0; 4]; height * width];
        // At most a row of each picture.
        let (mut row, mut out) = (vec![[0.0; 4]; section.width], vec![[0.0f32; 4]; width]);
        for y in 0..height {
            let (start, weights) = down.of(y);
            for (part, weights) in weights.chunks(TOGETHER).enumerate() {
                let from = |i: usize| self.row(section, start + part * TOGETHER + i).as_flattened();
                mix(row.as_flattened_mut(), from, weights, part > 0);
            }
            across.apply(&row, &mut out);
            let bytes = pixels[y * width..][..width].as_flattened_mut();
            bytes.iter_mut().zip(out.as_flattened()).for_each(|(byte, &v)| *byte = nearest(v));
        }
        Raster { height, width, channels: self.channels, pixels }
    }
}

/// The most rows that [`mix`] adds at once.
const TOGETHER: usize = 4;

/// Fills `out` with the weighted sum of 1 to [`TOGETHER`] rows, or adds it.
fn mix<'a>(out: &mut [f32], row: impl Fn(usize) -> &'a [u8], weights: &[f32], adds: bool) {
    fn sum<const N: usize>(out: &mut [f32], rows: [&[u8]; N], weights: [f32; N], adds: bool) {
        let rows = rows.map(|row| row[..out.len()].as_chunks::<16>());
        let (parts, rest) = out.as_chunks_mut::<16>();
        for (i, part) in parts.iter_mut().enumerate() {
            let mut sum = if adds { *part } else { [0.0; 16] };
            for n in 0..N {
                let bytes = rows[n].0[i];
                for (sum, byte) in sum.iter_mut().zip(bytes) {
                    *sum += f32::from(byte) * weights[n];
                }
            }
            *part = sum;
        }
        for (i, out) in rest.iter_mut().enumerate() {
            let sum: f32 = (0..N).map(|n| f32::from(rows[n].1[i]) * weights[n]).sum();
            *out = if adds { *out + sum } else { sum };
        }
    }
    match *weights {
        [a] => sum(out, [row(0)], [a], adds),
        [a, b] => sum(out, [row(0), row(1)], [a, b], adds),
        [a, b, c] => sum(out, [row(0), row(1), row(2)], [a, b, c], adds),
        [a, b, c, d] => sum(out, [row(0), row(1), row(2), row(3)], [a, b, c, d], adds),
        _ => {}
    }
}

/// For each output along an axis, the first of its inputs, and the weights of it and those that follow. They are those
/// of [`Tensor::interpolate`](gradus_tensor::Tensor::interpolate), antialiased.
struct Windows {
    /// The first input of each output.
    starts: Vec<usize>,
    /// The weights of each output. All have this number, so that some are 0.
    weights: Vec<f32>,
    count: usize,
}

impl Windows {
    fn new(input: usize, output: usize) -> Windows {
        let step = input as f64 / output as f64;
        let reach = step.max(1.0);
        let window = |i: usize| {
            let centre = step * (i as f64 + 0.5);
            let start = ((centre - reach + 0.5).max(0.0) as usize).min(input - 1);
            (centre, start, ((centre + reach + 0.5).max(0.0) as usize).clamp(start + 1, input))
        };
        let count = (0..output).map(window).map(|(_, start, end)| end - start).max().unwrap_or(1);
        // At most an entry for each output, and a few weights for each input and output.
        let (mut starts, mut weights) = (Vec::with_capacity(output), vec![0.0; count * output]);
        for (i, weights) in weights.chunks_exact_mut(count).enumerate() {
            let (centre, first, end) = window(i);
            let start = first.min(input - count);
            starts.push(start);
            let weight = |j: usize| (1.0 - ((j as f64 - centre + 0.5) / reach).abs()).max(0.0);
            let total: f64 = (first..end).map(weight).sum();
            for j in first..end {
                weights[j - start] = (weight(j) / total) as f32;
            }
        }
        Windows { starts, weights, count }
    }

    /// The first input of an output and the weights, without those at the ends that are 0.
    fn of(&self, output: usize) -> (usize, &[f32]) {
        let (start, weights) = (self.starts[output], &self.weights[output * self.count..][..self.count]);
        let first = weights.iter().position(|&w| w != 0.0).unwrap_or(0);
        let end = weights.iter().rposition(|&w| w != 0.0).map_or(self.count, |last| last + 1);
        (start + first, &weights[first..end])
    }

    /// Fills `out` with the weighted sums of `row`.
    fn apply(&self, row: &[[f32; 4]], out: &mut [[f32; 4]]) {
        // A number that is known to the compiler makes the loops over the weights straight code.
        match self.count {
            1 => self.apply_some::<1>(row, out),
            2 => self.apply_some::<2>(row, out),
            3 => self.apply_some::<3>(row, out),
            4 => self.apply_some::<4>(row, out),
            5 => self.apply_some::<5>(row, out),
            6 => self.apply_some::<6>(row, out),
            count => {
                let windows = self.starts.iter().zip(self.weights.chunks_exact(count));
                for (out, (&start, weights)) in out.iter_mut().zip(windows) {
                    *out = weighted(&row[start..], weights);
                }
            }
        }
    }

    fn apply_some<const N: usize>(&self, row: &[[f32; 4]], out: &mut [[f32; 4]]) {
        let windows = self.starts.iter().zip(self.weights.as_chunks::<N>().0);
        for (out, (&start, weights)) in out.iter_mut().zip(windows) {
            if let Some(pixels) = row[start..].first_chunk::<N>() {
                *out = weighted(pixels, weights);
            }
        }
    }
}

/// The weighted sum of the first pixels.
#[inline(always)]
fn weighted(pixels: &[[f32; 4]], weights: &[f32]) -> [f32; 4] {
    let mut sum = [0.0; 4];
    for (pixel, &weight) in pixels.iter().zip(weights) {
        for (sum, v) in sum.iter_mut().zip(pixel) {
            *sum += v * weight;
        }
    }
    sum
}
