//! Decodes PNG files of every colour type and depth, interlaced or not. Of an animation, only the default image is
//! decoded, which is usually the first frame.

use std::io::Cursor;

use png::{
    BitDepth, ColorType, Compression, Decoder, DecodingError, Encoder, EncodingError, Filter, Limits, Transformations,
};

use super::orientation::orientation_of;
use super::samples::{Samples, Size, Unreadable, zeros};

/// Decodes a file, after `allow` has granted the memory that it needs.
#[track_caller]
pub(super) fn decode(bytes: &[u8], allow: impl FnOnce(Size) -> Result<(), Unreadable>) -> Result<Samples, Unreadable> {
    let failed = |e: DecodingError| format!("is damaged, or of a kind that is not supported: {e}");
    check_chunks(bytes)?;
    let mut decoder = Decoder::new(Cursor::new(bytes));
    // These chunks are not needed, and may decompress to a thousand times their size.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND);
    let header = decoder.read_header_info().map_err(failed)?;
    let (width, height) = (header.width as usize, header.height as usize);
    let row = header.raw_row_length().saturating_mul(8);
    // The chunks that are kept, a few rows, and the window of the decompression.
    let beside = bytes.len().saturating_add(row.saturating_mul(4)).saturating_add(1 << 18);
    decoder.set_limits(Limits { bytes: bytes.len().saturating_add(row).saturating_add(1 << 16) });
    let mut reader = decoder.read_info().map_err(failed)?;
    let (color, depth) = reader.output_color_type();
    let channels = color.samples();
    let depth = if depth == BitDepth::Sixteen { 2 } else { 1 };
    allow(Size { width, height, channels, depth, beside })?;
    let mut values = zeros(reader.output_buffer_size().unwrap_or(usize::MAX))?;
    let found = reader.next_frame(&mut values).map_err(failed)?;
    if (found.width as usize, found.height as usize) != (width, height) || color == ColorType::Indexed {
        return Err("is damaged: its first picture has another size".to_owned().into());
    }
    if depth == 2 {
        values.as_chunks_mut::<2>().0.iter_mut().for_each(|v| *v = u16::from_be_bytes(*v).to_ne_bytes());
    }
    let orientation = reader.info().exif_metadata.as_deref().and_then(orientation_of);
    Ok(Samples { width, height, channels, depth, values, orientation })
}

/// Checks that the file is complete and that its palette has a valid length. A chunk is a length, a name of four
/// letters, contents and a checksum; the last chunk is `IEND`.
#[track_caller]
fn check_chunks(bytes: &[u8]) -> Result<(), Unreadable> {
    let chunk = |rest: &'_ [u8]| -> Option<(usize, [u8; 4], usize)> {
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (name, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        // The checksum of four bytes follows the contents.
        let after = length.checked_add(4).filter(|&n| n <= rest.len())?;
        Some((length, *name, after + 8))
    };
    let mut rest = bytes.get(8..).unwrap_or_default();
    loop {
        let Some((length, name, after)) = chunk(rest) else {
            return Err("is cut off: its end is missing".to_owned().into());
        };
        rest = &rest[after..];
        match &name {
            b"IEND" => return Ok(()),
            // The decoder panics on these lengths.
            b"PLTE" if !length.is_multiple_of(3) || length > 3 * 256 => {
                return Err(format!("is damaged: its palette has {length} bytes").into());
            }
            _ => {}
        }
    }
}

/// Encodes samples `[height, width, channels]` with 1, 3 or 4 channels. Samples of 16 bits have the high byte first.
#[track_caller]
pub(super) fn write(
    samples: &[u8],
    [width, height]: [u32; 2],
    channels: usize,
    deep: bool,
) -> Result<Vec<u8>, EncodingError> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, width, height);
    encoder.set_color(match channels {
        1 => ColorType::Grayscale,
        3 => ColorType::Rgb,
        _ => ColorType::Rgba,
    });
    encoder.set_depth(if deep { BitDepth::Sixteen } else { BitDepth::Eight });
    encoder.set_compression(Compression::Fast);
    encoder.set_filter(Filter::Adaptive);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(samples)?;
    writer.finish()?;
    Ok(file)
}
