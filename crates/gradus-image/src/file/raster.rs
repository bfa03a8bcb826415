//! Reads files as [`Raster`]s.

use super::read::{choose, too_large};
use super::samples::{Samples, Size, Unreadable, no_memory};
use super::{Format, jpeg, png};
use crate::raster::{Raster, Section};
use gradus_tensor::{Here, Result};

/// What is known of a file before its pixels are decoded.
pub(crate) enum Sized {
    /// A file of which [`section`] can decode a part.
    InPart {
        /// Its height and width.
        size: [usize; 2],
        /// The number of its channels: 1 or 3.
        channels: usize,
    },
    /// The file must be [decoded whole](whole).
    Whole,
}

/// Reads the head of a file.
#[track_caller]
pub(crate) fn head(bytes: &[u8], name: &str) -> Result<Sized> {
    choose(bytes, name, |format| match format {
        Format::Jpeg => {
            let plain = jpeg::size_of_plain(bytes)?;
            Ok(plain
                .map_or(Sized::Whole, |[height, width, channels]| Sized::InPart { size: [height, width], channels }))
        }
        Format::Png => Ok(Sized::Whole),
    })
}

/// Decodes a section of a file that is [`Sized::InPart`], in at most `max_memory` bytes.
#[track_caller]
pub(crate) fn section(bytes: &[u8], name: &str, section: Section, max_memory: usize) -> Result<Raster> {
    let allow = |size: Size| allowed(&size, bytes, name, max_memory);
    match choose(bytes, name, |_| jpeg::decode_section(bytes, section, allow))? {
        Some(raster) => Ok(raster),
        None => Ok(whole(bytes, name, max_memory)?.cropped(section)),
    }
}

/// Decodes a whole file in at most `max_memory` bytes, and turns it upright.
#[track_caller]
pub(crate) fn whole(bytes: &[u8], name: &str, max_memory: usize) -> Result<Raster> {
    let allow = |size: Size| allowed(&size, bytes, name, max_memory);
    let samples = choose(bytes, name, |format| match format {
        Format::Png => png::decode(bytes, allow),
        Format::Jpeg => jpeg::decode(bytes, allow),
    })?;
    let Samples { width, height, channels, depth, values, orientation } = samples;
    let mut pixels: Vec<[u8; 4]> = Vec::new();
    pixels.try_reserve_exact(width * height).map_err(|_| no_memory(name, 4 * width * height)).here()?;
    let eight = |v: u16| ((u32::from(v) * 255 + 32_767) / 65_535) as u8;
    // The samples of a pixel as four, in 8 bits.
    let filled = |v: [u8; 4]| match channels {
        1 => [v[0], v[0], v[0], 255],
        2 => [v[0], v[0], v[0], v[1]],
        3 => [v[0], v[1], v[2], 255],
        _ => v,
    };
    pixels.extend(values.chunks_exact(channels * depth).map(|pixel| {
        let mut v = [0; 4];
        if depth == 1 {
            v[..channels].copy_from_slice(pixel);
        } else {
            for (v, pair) in v.iter_mut().zip(pixel.as_chunks::<2>().0) {
                *v = eight(u16::from_ne_bytes(*pair));
            }
        }
        filled(v)
    }));
    drop(values);
    let raster = Raster { height, width, channels: if channels == 2 { 4 } else { channels }, pixels };
    match orientation.filter(|o| o.turns()) {
        Some(orientation) => orientation.turn(&raster).ok_or_else(|| no_memory(name, 4 * raster.pixels.len())).here(),
        None => Ok(raster),
    }
}

/// Checks that the file, its samples and its pixels fit into `max_memory`.
#[track_caller]
fn allowed(size: &Size, bytes: &[u8], name: &str, max_memory: usize) -> Result<(), Unreadable> {
    let count = size.width.saturating_mul(size.height);
    let samples = count.saturating_mul(size.channels * size.depth);
    let decoding = bytes.len().saturating_add(size.beside).saturating_add(samples);
    let converting = bytes.len().saturating_add(samples).saturating_add(count.saturating_mul(4));
    // A picture that is turned exists twice.
    let needed = decoding.max(converting).max(bytes.len().saturating_add(count.saturating_mul(8)));
    if needed <= max_memory {
        return Ok(());
    }
    Err(Unreadable::Other(too_large(name, size, needed, max_memory)))
}
