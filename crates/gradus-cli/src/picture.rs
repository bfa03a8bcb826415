//! Converts pictures to the network's input and back.

use std::path::Path;

use gradus::image::{Format, LoadOptions, SaveOptions, encode, load};
use gradus::prelude::*;

use crate::resize::{Grey, fitted};

/// Reads a PNG or JPEG file within `max_memory` bytes and converts it to `[1, height, width]`. The help of `gradus
/// predict` describes the conversion.
pub(crate) fn read(path: &Path, max_memory: Option<usize>, height: usize, width: usize, invert: bool) -> Result<Image> {
    let grey = decode(path, max_memory, invert)?;
    let fitted = fitted(grey, height, width);
    Image::new(1, height, width, fitted.pixels)
}

/// The options for reading a file. If `max_memory` is `None`, the default limit applies.
pub(crate) fn options(dtype: Option<DType>, max_memory: Option<usize>) -> LoadOptions {
    let default = LoadOptions::default();
    LoadOptions { dtype, max_memory: max_memory.unwrap_or(default.max_memory) }
}

fn decode(path: &Path, max_memory: Option<usize>, invert: bool) -> Result<Grey> {
    let image = load(path, &Device::cpu()?, options(Some(DType::U8), max_memory))?;
    let (channels, height, width) = (image.size(0)?, image.size(1)?, image.size(2)?);
    let bytes = image.permute(&[1, 2, 0])?.to_vec::<u8>()?;
    drop(image);
    let pixels = bytes.chunks_exact(channels).map(|p| luminance(p, invert)).collect();
    Ok(Grey { height, width, pixels })
}

/// The luminance (Rec. 709) of a pixel with 1, 3 or 4 samples. Transparent parts become background.
fn luminance(pixel: &[u8], invert: bool) -> f32 {
    let unit = |sample: u8| f32::from(sample) / 255.0;
    let (light, alpha) = match *pixel {
        [l] => (unit(l), 1.0),
        [r, g, b] => (coloured(unit(r), unit(g), unit(b)), 1.0),
        [r, g, b, a] => (coloured(unit(r), unit(g), unit(b)), unit(a)),
        _ => (0.0, 1.0),
    };
    let light = if invert { 1.0 - light } else { light };
    (light * alpha).clamp(0.0, 1.0)
}

fn coloured(r: f32, g: f32, b: f32) -> f32 {
    // A grey pixel keeps its exact value: the weighted sum could round it.
    if r == g && g == b { r } else { 0.2126 * r + 0.7152 * g + 0.0722 * b }
}

/// Whether the border is bright, as in a picture of ink on paper.
pub(crate) fn has_bright_border(image: &Image) -> bool {
    let [_, height, width] = image.shape();
    let on_border =
        |i: usize| i.is_multiple_of(width) || (i + 1).is_multiple_of(width) || i < width || i + width >= height * width;
    let border: Vec<f32> = image.pixels().iter().enumerate().filter(|(i, _)| on_border(*i)).map(|(_, &p)| p).collect();
    border.iter().sum::<f32>() > 0.5 * border.len() as f32
}

/// Encodes a grey image as a PNG file.
pub(crate) fn to_png(image: &Image) -> Result<Vec<u8>> {
    let [_, height, width] = image.shape();
    let pixels = Tensor::from_vec(image.pixels(), [1, height, width], &Device::cpu()?)?;
    encode(&pixels, Format::Png, SaveOptions::default().quality)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a picture with these samples and reads it back.
    fn read_back(color: png::ColorType, side: u32, samples: &[u8], target: usize, invert: bool) -> Image {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, side, side);
        encoder.set_color(color);
        encoder.write_header().unwrap().write_image_data(samples).unwrap();
        let dir = tempfile::tempdir().unwrap();
        // The contents determine the format, not the name.
        let path = dir.path().join("picture.jpg");
        std::fs::write(&path, bytes).unwrap();
        read(&path, None, target, target, invert).unwrap()
    }

    #[test]
    fn a_picture_of_the_right_size_keeps_its_pixels() {
        let image = Image::new(1, 2, 3, vec![0.0, 1.0, 0.2, 0.4, 0.6, 0.8]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.png");
        std::fs::write(&path, to_png(&image).unwrap()).unwrap();
        assert_eq!(read(&path, None, 2, 3, false).unwrap(), image);
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
