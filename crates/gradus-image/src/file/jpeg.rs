//! JPEG, by the crates `zune-jpeg` and `jpeg-encoder`.

use jpeg_encoder::{ColorType, Encoder, EncodingError, SamplingFactor};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use super::picture::{Picture, Samples, orientation_of};

/// A decoder that has read everything in front of the pixels.
fn decoder(bytes: &[u8]) -> Result<JpegDecoder<ZCursor<&[u8]>>, DecodeErrors> {
    // How large a picture may be is for the caller to say.
    let options = DecoderOptions::default().set_strict_mode(false).set_max_width(usize::MAX).set_max_height(usize::MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers()?;
    Ok(decoder)
}

/// Width and height, read before memory is taken for pixels.
pub(super) fn size(bytes: &[u8]) -> Result<(u32, u32), DecodeErrors> {
    let info = decoder(bytes)?.info().unwrap_or_default();
    Ok((info.width.into(), info.height.into()))
}

/// The picture: one channel of grey, or three of colour.
pub(super) fn read(bytes: &[u8]) -> Result<Picture, DecodeErrors> {
    let mut decoder = decoder(bytes)?;
    let grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (to, channels) = if grey { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    decoder.set_options(decoder.options().jpeg_set_out_colorspace(to));
    let samples = Samples::Eight(decoder.decode()?);
    let info = decoder.info().unwrap_or_default();
    let orientation = decoder.exif().and_then(|e| orientation_of(e));
    Ok(Picture { width: info.width.into(), height: info.height.into(), channels, samples, orientation })
}

/// A file of samples `[height, width, channels]`, 1 or 3 channels, in a quality from 1 to 100.
pub(super) fn write(
    samples: &[u8],
    [width, height]: [u16; 2],
    channels: usize,
    quality: u8,
) -> Result<Vec<u8>, EncodingError> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, quality);
    // Colours are as fine as brightness.
    encoder.set_sampling_factor(SamplingFactor::F_1_1);
    encoder.encode(samples, width, height, if channels == 1 { ColorType::Luma } else { ColorType::Rgb })?;
    Ok(file)
}
