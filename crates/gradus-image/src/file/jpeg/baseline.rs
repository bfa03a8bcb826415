//! Decodes files that are not progressive and have one scan: nearly all files of cameras and data sets. The coded data
//! are checked on the way, and only the blocks of a section are turned into pixels.

use super::super::samples::{Unreadable, zeros};
use super::blocks::{Broken, Coding, Component, Scan, Walk, table, walk_units};
use super::colour::{Plane, Planes};
use super::huffman::{Bits, Fault, Table};
use super::idct::{PLACES, flat, pixels, steps};
use crate::raster::Section;

/// The blocks of a channel that are decoded: columns and rows, without the last.
type Wanted = [std::ops::Range<usize>; 2];

/// The channels of a scan while it is decoded.
pub(super) struct Decoding {
    channels: Vec<Channel>,
    coarser: [usize; 2],
}

struct Channel {
    plane: Plane,
    steps: [f32; 64],
    wanted: Wanted,
    /// The number of blocks in a row of the plane.
    across: usize,
    /// The last DC coefficient.
    mean: i32,
}

impl Decoding {
    /// Prepares to decode a section of the picture. The planes have room for all of it.
    pub(super) fn new(
        size: [usize; 2],
        components: &[Component],
        tables: &[Option<[u16; 64]>; 4],
        section: Section,
    ) -> Result<Option<Self>, Unreadable> {
        let coarser = components[0].sampling;
        let mut channels = Vec::new(); // one or three
        for (number, component) in components.iter().enumerate() {
            let Some(quantization) = tables.get(component.quantization).and_then(Option::as_ref) else {
                return Ok(None);
            };
            let factors = if number == 0 { [1, 1] } else { coarser };
            let places = [(section.left, section.width), (section.top, section.height)];
            let wanted = [0, 1].map(|axis| {
                let (start, count) = places[axis];
                // Interpolation needs a sample of chroma at each side.
                let (first, end) = (start / factors[axis], (start + count).div_ceil(factors[axis]));
                first.saturating_sub(1) / 8..(end + 1).div_ceil(8).min(component.padded[axis])
            });
            let [across, down] = component.padded;
            channels.push(Channel {
                plane: Plane {
                    values: zeros(64 * across * down)?,
                    stride: 8 * across,
                    width: size[0].div_ceil(factors[0]),
                    height: size[1].div_ceil(factors[1]),
                },
                steps: steps(quantization),
                wanted,
                across,
                mean: 0,
            });
        }
        Ok(Some(Decoding { channels, coarser }))
    }

    /// The bytes of the planes of these channels.
    pub(super) fn bytes(components: &[Component]) -> usize {
        components
            .iter()
            .map(|c| 64usize.saturating_mul(c.padded[0]).saturating_mul(c.padded[1]))
            .fold(0, usize::saturating_add)
    }

    /// Decodes a scan of all channels. Returns the position at which its data end, or one a little after it.
    pub(super) fn scan(
        &mut self,
        bytes: &[u8],
        scan: &Scan,
        components: &[Component],
        coding: &Coding<'_>,
    ) -> Result<usize, Broken> {
        walk_units(bytes, scan, components, coding, self)
    }

    pub(super) fn planes(self) -> Planes {
        let mut planes = self.channels.into_iter().map(|c| c.plane);
        let luma = planes.next().unwrap_or_default();
        let chroma = planes.next().zip(planes.next()).map(|(a, b)| [a, b]);
        Planes { luma, chroma, coarser: self.coarser }
    }
}

impl Walk for Decoding {
    fn restart(&mut self) {
        self.channels.iter_mut().for_each(|c| c.mean = 0);
    }

    #[inline]
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        coding: &Coding<'_>,
        (number, dc, ac): (usize, usize, usize),
        place: usize,
    ) -> Result<(), Fault> {
        let channel = &mut self.channels[number];
        let (dc, ac) = (table(coding, 0, dc).ok_or(Fault::Damaged)?, table(coding, 1, ac).ok_or(Fault::Damaged)?);
        let [x, y] = [place % channel.across, place / channel.across];
        let (symbol, difference) = bits.coefficient(dc)?;
        if symbol > 15 {
            return Err(Fault::Damaged);
        }
        channel.mean = channel.mean.wrapping_add(difference);
        let first = channel.mean as f32 * channel.steps[0];
        if !channel.wanted[0].contains(&x) || !channel.wanted[1].contains(&y) {
            return coefficients(bits, ac, |_, _| {});
        }
        let mut block = [[0.0; 8]; 8];
        let mut is_flat = true;
        coefficients(bits, ac, |k, value| {
            is_flat = false;
            let place = usize::from(PLACES[k & 63] & 63);
            block[place / 8][place % 8] = value as f32 * channel.steps[k & 63];
        })?;
        let rows = if is_flat {
            flat(first)
        } else {
            block[0][0] = first;
            pixels(&block)
        };
        let stride = channel.plane.stride;
        let start = 8 * y * stride + 8 * x;
        if let Some(out) = channel.plane.values.get_mut(start..start + 7 * stride + 8) {
            for (out, row) in out.chunks_mut(stride).zip(&rows) {
                out[..8].copy_from_slice(row);
            }
        }
        Ok(())
    }
}

/// Reads the AC coefficients of a block. Calls `found` with the number and the value of each that is not 0.
#[inline(always)]
fn coefficients(bits: &mut Bits<'_>, ac: &Table, mut found: impl FnMut(usize, i32)) -> Result<(), Fault> {
    let mut k = 1;
    while k < 64 {
        let (symbol, value) = bits.coefficient(ac)?;
        let (skipped, size) = (usize::from(symbol >> 4), symbol & 15);
        if size == 0 {
            if skipped < 15 {
                break;
            }
            k += 16;
            continue;
        }
        k += skipped;
        if k > 63 {
            return Err(Fault::Damaged);
        }
        found(k, value);
        k += 1;
    }
    Ok(())
}
