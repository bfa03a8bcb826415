//! PNG, by the crate `png`.

use std::io::Cursor;

use png::{BitDepth, ColorType, Compression, Decoder, DecodingError, Encoder, EncodingError, Filter, Limits};

use super::picture::{Picture, Samples, orientation_of};

/// Width and height, read before memory is taken for pixels.
pub(super) fn size(bytes: &[u8]) -> Result<(u32, u32), DecodingError> {
    Decoder::new(Cursor::new(bytes)).read_header_info().map(|info| info.size())
}

/// The picture; the decoder takes at most so many bytes beside its pixels.
pub(super) fn read(bytes: &[u8], most_bytes: usize) -> Result<Picture, DecodingError> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: most_bytes });
    // They can be large, and nothing uses them.
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_ignore_text_chunk(true);
    // Palettes become colours, and fewer than 8 bits become 8.
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info()?;
    let (color, depth) = reader.output_color_type();
    let len = reader.output_buffer_size().ok_or(DecodingError::LimitsExceeded)?;
    let samples = if depth == BitDepth::Sixteen {
        let mut samples = vec![0u16; len / 2];
        reader.next_frame(bytemuck::cast_slice_mut(&mut samples))?;
        samples.iter_mut().for_each(|s| *s = u16::from_be(*s));
        Samples::Sixteen(samples)
    } else {
        let mut samples = vec![0u8; len];
        reader.next_frame(&mut samples)?;
        Samples::Eight(samples)
    };
    let info = reader.info();
    let orientation = info.exif_metadata.as_deref().and_then(orientation_of);
    Ok(Picture { width: info.width, height: info.height, channels: color.samples(), samples, orientation })
}

/// A file of samples `[height, width, channels]`, 1, 3 or 4 channels; those of 16 bits have the high byte first.
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
