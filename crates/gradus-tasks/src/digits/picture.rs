//! Converts pictures to the network's input and back.

use std::path::Path;

use gradus_data::Image;
use gradus_image::{Format, LoadOptions, SaveOptions, encode, load};
use gradus_tensor::{DType, Device, Result, Tensor};

use super::resize::{Grey, fitted};

/// How a picture is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PictureOptions {
    /// Whether the picture is dark on bright, such as ink on paper. False by default.
    pub invert: bool,
    /// The most bytes to use for reading the picture; `None` for the default of [`LoadOptions`].
    pub max_memory: Option<usize>,
}

/// Reads a PNG or JPEG file and converts it to `[1, height, width]`: colours become luminance (Rec. 709); with
/// `invert`, brightness is turned round; transparent parts become background, and background is added up to the ratio
/// of width to height; then the picture is resized bilinearly.
#[track_caller]
pub(super) fn read(
    path: &Path,
    options: PictureOptions,
    [height, width]: [usize; 2],
    device: &Device,
) -> Result<Image> {
    let grey = decode(path, options, device)?;
    let fitted = fitted(grey, height, width);
    Image::new(1, height, width, fitted.pixels)
}

#[track_caller]
fn decode(path: &Path, options: PictureOptions, device: &Device) -> Result<Grey> {
    let max_memory = options.max_memory.unwrap_or(LoadOptions::default().max_memory);
    let image = load(path, device, LoadOptions { dtype: Some(DType::U8), max_memory })?;
    let (channels, height, width) = (image.size(0)?, image.size(1)?, image.size(2)?);
    let bytes = image.permute(&[1, 2, 0])?.to_vec::<u8>()?;
    drop(image);
    let pixels = bytes.chunks_exact(channels).map(|p| luminance(p, options.invert)).collect();
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
pub fn has_bright_border(image: &Image) -> bool {
    let [_, height, width] = image.shape();
    let on_border =
        |i: usize| i.is_multiple_of(width) || (i + 1).is_multiple_of(width) || i < width || i + width >= height * width;
    let border: Vec<f32> = image.pixels().iter().enumerate().filter(|(i, _)| on_border(*i)).map(|(_, &p)| p).collect();
    border.iter().sum::<f32>() > 0.5 * border.len() as f32
}

/// Encodes a grey image as a PNG file.
#[track_caller]
pub fn to_png(image: &Image, device: &Device) -> Result<Vec<u8>> {
    let pixels = Tensor::from_vec(image.pixels(), image.shape(), device)?;
    encode(&pixels, Format::Png, SaveOptions::default().quality)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn cpu() -> Device {
        Device::from_backend(Arc::new(gradus_cpu::CpuBackend::new().unwrap()))
    }

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
        read(&path, PictureOptions { invert, max_memory: None }, [target, target], &cpu()).unwrap()
    }

    #[test]
    fn a_picture_of_the_right_size_keeps_its_pixels() {
        let image = Image::new(1, 2, 3, vec![0.0, 1.0, 0.2, 0.4, 0.6, 0.8]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.png");
        std::fs::write(&path, to_png(&image, &cpu()).unwrap()).unwrap();
        assert_eq!(read(&path, PictureOptions::default(), [2, 3], &cpu()).unwrap(), image);
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
