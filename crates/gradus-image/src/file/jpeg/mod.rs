//! Decodes JPEG files, which may be baseline or progressive, and grey, colour or CMYK.

mod baseline;
mod blocks;
mod check;
mod colour;
mod huffman;
mod idct;

use jpeg_encoder::{ColorType, Encoder, EncodingError, SamplingFactor};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::orientation::{Orientation, orientation_of};
use super::samples::{Samples, Size, Unreadable, zeros};
use crate::raster::{Raster, Section};
use check::{Frame, Segments};
use colour::{Pixel, Planes};

pub(crate) use idct::nearest;

/// The size of a picture of which a section can be decoded for less than the whole: `[height, width, channels]`. `None` for
/// a picture that must be decoded whole.
#[track_caller]
pub(super) fn size_of_plain(bytes: &[u8]) -> Result<Option<[usize; 3]>, Unreadable> {
    let start = Segments::new(bytes).start()?;
    let turned = start.exif().and_then(orientation_of).is_some_and(Orientation::turns);
    let channels = if start.frame.components.len() == 1 { 1 } else { 3 };
    Ok((start.is_plain() && !turned).then_some([start.frame.height, start.frame.width, channels]))
}

/// Decodes a section of a file for which [`size_of_plain`] returned a size, after checking that `allow` grants the memory
/// and that the whole file is complete. `None` if its segments are in an unusual order.
#[track_caller]
pub(super) fn decode_section(
    bytes: &[u8],
    section: Section,
    allow: impl FnOnce(Size) -> Result<(), Unreadable>,
) -> Result<Option<Raster>, Unreadable> {
    let start = Segments::new(bytes).start()?;
    let Section { height, width, .. } = section;
    let channels = if start.frame.components.len() == 1 { 1 } else { 3 };
    allow(Size { width, height, channels: 4, depth: 1, beside: bytes.len() + start.plane_bytes() })?;
    let Ok(planes) = start.planes(section)? else { return Ok(None) };
    Ok(Some(Raster { height, width, channels, pixels: colours(&planes, section)? }))
}

/// The pixels of a section.
#[track_caller]
fn colours<P: Pixel + Default>(planes: &Planes, section: Section) -> Result<Vec<P>, Unreadable> {
    let mut pixels = zeros(section.width * section.height)?;
    let mut spare = Default::default();
    for (y, row) in pixels.chunks_exact_mut(section.width).enumerate() {
        planes.row(section.top + y, section.left, row, &mut spare);
    }
    Ok(pixels)
}

/// Decodes a file, after checking that `allow` grants the memory that it needs and that the file is complete.
#[track_caller]
pub(super) fn decode(bytes: &[u8], allow: impl FnOnce(Size) -> Result<(), Unreadable>) -> Result<Samples, Unreadable> {
    let mut start = Segments::new(bytes).start()?;
    let frame = &start.frame;
    let (width, height) = (frame.width, frame.height);
    let coded = frame.components.len();
    let channels = if coded == 1 { 1 } else { 3 };
    // The length of the file is included because the decoder copies the metadata.
    let beside = bytes.len() + start.bytes().max(coefficients(frame)).max(start.plane_bytes());
    allow(Size { width, height, channels, depth: 1, beside })?;
    if start.is_plain() {
        let orientation = start.exif().and_then(orientation_of);
        match start.planes(Section { top: 0, left: 0, height, width })? {
            Ok(planes) => {
                let values = match channels {
                    1 => colours::<[u8; 1]>(&planes, Section { top: 0, left: 0, height, width })?.into_flattened(),
                    _ => colours::<[u8; 3]>(&planes, Section { top: 0, left: 0, height, width })?.into_flattened(),
                };
                return Ok(Samples { width, height, channels, depth: 1, values, orientation });
            }
            Err(unusual) => start = unusual,
        }
    }
    start.check()?;
    let out = if channels == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
        .jpeg_set_out_colorspace(out);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let failed = |e: zune_jpeg::errors::DecodeErrors| format!("is damaged, or of a kind that is not supported: {e}");
    decoder.decode_headers().map_err(failed)?;
    if decoder.dimensions() != Some((width, height)) {
        return Err("is damaged: its size is not clear".to_owned().into());
    }
    // A file with three channels may declare a colour space with four. The decoder then treats CMYK as RGB, and YCCK as
    // YCbCr.
    let said = decoder.input_colorspace().map_or(0, |colours| colours.num_components());
    if said != coded && (coded, said) != (3, 4) {
        return Err(Unreadable::Foreign("a number of channels that its colours do not have"));
    }
    let orientation = decoder.exif().and_then(|exif| orientation_of(exif));
    let mut values = zeros(width * height * channels)?;
    decoder.decode_into(&mut values).map_err(failed)?;
    Ok(Samples { width, height, channels, depth: 1, values, orientation })
}

/// The bytes that the decoder needs in addition to its result: two bytes for each coefficient, of the whole picture or
/// of some rows, and the rows that are upsampled to the width of the picture.
fn coefficients(frame: &Frame) -> usize {
    let most = |axis: usize| frame.components.iter().map(|c| c.sampling[axis]).max().unwrap_or(1);
    let bytes = frame.components.iter().map(|c| {
        let row = 8 * c.padded[0];
        let stretch = (most(0) / c.sampling[0]) * (most(1) / c.sampling[1]);
        let rows = 10 * c.sampling[1] + c.sampling[1] * stretch + 16 * stretch;
        let whole = if frame.is_buffered { 8 * c.padded[1] } else { 0 };
        2 * row * (rows + whole)
    });
    bytes.sum()
}

/// Encodes samples `[height, width, channels]` with 1 or 3 channels, in a quality from 1 to 100.
#[track_caller]
pub(super) fn write(
    samples: &[u8],
    [width, height]: [u16; 2],
    channels: usize,
    quality: u8,
) -> Result<Vec<u8>, EncodingError> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, quality);
    // Colours have the same resolution as brightness.
    encoder.set_sampling_factor(SamplingFactor::F_1_1);
    encoder.encode(samples, width, height, if channels == 1 { ColorType::Luma } else { ColorType::Rgb })?;
    Ok(file)
}
