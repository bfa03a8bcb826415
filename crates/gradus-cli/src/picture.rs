//! PNG pictures into the network's input, and back.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use gradus::prelude::*;

use crate::resize::{Grey, fitted};

/// What a PNG file starts with.
const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// The longest side of a picture that is read.
const LONGEST_SIDE: u32 = 8192;

/// The most memory that the decoder may take beside the pixels, and the pixels, in bytes.
const MOST_MEMORY: usize = 256 << 20;

/// Reads a PNG file and brings it to `[1, height, width]`: see the help of `gradus predict` for the rule.
pub(crate) fn read(path: &Path, height: usize, width: usize, invert: bool) -> Result<Image> {
    let grey = decode(path, invert)?;
    let fitted = fitted(grey, height, width);
    Image::new(1, height, width, fitted.pixels)
}

fn decode(path: &Path, invert: bool) -> Result<Grey> {
    let unreadable = |e| Error::io("picture", path.display(), e).help("give the path of a PNG file that can be read");
    // Before it is opened: opening a pipe waits for its other end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        let e = Error::new(ErrorKind::Io, "picture", format!("{} is not a file", path.display()));
        return Err(e.help("give PNG files one by one"));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let mut start = Vec::new();
    file.by_ref().take(SIGNATURE.len() as u64).read_to_end(&mut start).map_err(unreadable)?;
    file.rewind().map_err(unreadable)?;
    if start != SIGNATURE {
        let e = Error::new(ErrorKind::Format, "picture", format!("{} is not a PNG picture", path.display()));
        return Err(e.help("convert it to PNG first"));
    }
    let bad = |what: String| {
        Error::new(ErrorKind::Format, "picture", format!("{}: {what}", path.display()))
            .help(format!("give a whole PNG file of at most {LONGEST_SIDE} x {LONGEST_SIDE} pixels"))
    };
    let damaged = |e: png::DecodingError| bad(format!("the PNG picture is damaged: {e}"));

    let mut decoder = png::Decoder::new_with_limits(BufReader::new(file), png::Limits { bytes: MOST_MEMORY });
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let (width, height) = decoder.read_header_info().map_err(damaged)?.size();
    if width > LONGEST_SIDE || height > LONGEST_SIDE {
        return Err(bad(format!("the picture is {width} x {height}")));
    }
    let mut reader = decoder.read_info().map_err(damaged)?;
    let size = reader.output_buffer_size().filter(|&n| n <= MOST_MEMORY);
    let mut bytes = vec![0; size.ok_or_else(|| bad(format!("the picture is too large: {width} x {height}")))?];
    let info = reader.next_frame(&mut bytes).map_err(damaged)?;
    reader.finish().map_err(damaged)?;
    bytes.truncate(info.buffer_size());
    let pixels = bytes.chunks_exact(info.color_type.samples()).map(|p| luminance(p, invert)).collect();
    Ok(Grey { height: info.height as usize, width: info.width as usize, pixels })
}

/// Luminance (Rec. 709) of a pixel of 1 to 4 samples, over the background where it is transparent.
fn luminance(pixel: &[u8], invert: bool) -> f32 {
    let unit = |sample: u8| f32::from(sample) / 255.0;
    let (light, alpha) = match *pixel {
        [l] => (unit(l), 1.0),
        [l, a] => (unit(l), unit(a)),
        [r, g, b] => (coloured(unit(r), unit(g), unit(b)), 1.0),
        [r, g, b, a] => (coloured(unit(r), unit(g), unit(b)), unit(a)),
        _ => (0.0, 1.0),
    };
    let light = if invert { 1.0 - light } else { light };
    (light * alpha).clamp(0.0, 1.0)
}

fn coloured(r: f32, g: f32, b: f32) -> f32 {
    // A grey stays exactly what it is.
    if r == g && g == b { r } else { 0.2126 * r + 0.7152 * g + 0.0722 * b }
}

/// Whether the border is bright, as on a picture of ink on paper.
pub(crate) fn has_bright_border(image: &Image) -> bool {
    let [_, height, width] = image.shape();
    let on_border =
        |i: usize| i.is_multiple_of(width) || (i + 1).is_multiple_of(width) || i < width || i + width >= height * width;
    let border: Vec<f32> = image.pixels().iter().enumerate().filter(|(i, _)| on_border(*i)).map(|(_, &p)| p).collect();
    border.iter().sum::<f32>() > 0.5 * border.len() as f32
}

/// A grey image as a PNG file's bytes.
pub(crate) fn to_png(image: &Image) -> Result<Vec<u8>> {
    let [channels, height, width] = image.shape();
    if channels != 1 {
        return Err(Error::argument("picture", format!("an image of {channels} channels is not grey")));
    }
    let failed = |e: png::EncodingError| Error::new(ErrorKind::Format, "picture", e.to_string()).with_source(e);
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, width as u32, height as u32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    let bytes: Vec<u8> = image.pixels().iter().map(|p| (p * 255.0).round() as u8).collect();
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&bytes).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(png)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a picture of these samples and reads it.
    fn read_back(color: png::ColorType, side: u32, samples: &[u8], target: usize, invert: bool) -> Image {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, side, side);
        encoder.set_color(color);
        encoder.write_header().unwrap().write_image_data(samples).unwrap();
        let dir = tempfile::tempdir().unwrap();
        // The contents count, not the name.
        let path = dir.path().join("picture.jpg");
        std::fs::write(&path, bytes).unwrap();
        read(&path, target, target, invert).unwrap()
    }

    #[test]
    fn a_picture_of_the_right_size_keeps_its_pixels() {
        let image = Image::new(1, 2, 3, vec![0.0, 1.0, 0.2, 0.4, 0.6, 0.8]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.png");
        std::fs::write(&path, to_png(&image).unwrap()).unwrap();
        assert_eq!(read(&path, 2, 3, false).unwrap(), image);
    }

    #[test]
    fn colours_become_luminance_and_transparency_background() {
        let red = [255, 0, 0].repeat(4);
        assert!((read_back(png::ColorType::Rgb, 2, &red, 2, false).pixels()[0] - 0.2126).abs() < 1e-4);
        assert!((read_back(png::ColorType::Rgb, 2, &red, 2, true).pixels()[0] - 0.7874).abs() < 1e-4);
        let clear = [255, 255, 255, 0].repeat(4);
        for invert in [false, true] {
            assert_eq!(read_back(png::ColorType::Rgba, 2, &clear, 2, invert).pixels(), [0.0; 4]);
        }
        let grey = read_back(png::ColorType::GrayscaleAlpha, 1, &[51, 255], 2, false);
        assert_eq!(grey.pixels(), [0.2; 4]);
    }

    #[test]
    fn bright_borders_are_noticed() {
        let image = |edge: f32, middle: f32| {
            let pixels = (0..9).map(|i| if i == 4 { middle } else { edge }).collect();
            Image::new(1, 3, 3, pixels).unwrap()
        };
        assert!(has_bright_border(&image(1.0, 0.0)) && !has_bright_border(&image(0.0, 1.0)));
    }
}
