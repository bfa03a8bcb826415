//! `gradus image`: applies filters to a picture and writes another picture.

use gradus::image::{self, Border, Format, LoadOptions, Range, Rotate, SaveOptions};
use gradus::prelude::*;
use gradus::tensor::{Interpolate, Interpolation, Sampling};

use crate::chain::Chain;
use crate::filters::{BorderName, Filter, ResizeName, RotateName};
use crate::output::say;

/// Reads the picture, applies the filters in order, and writes the result.
pub(crate) fn run(chain: &Chain) -> Result<()> {
    let files = &chain.files;
    let device = super::open(files.device.as_deref().unwrap_or("cpu"), files.threads)?;
    // The output path is checked before anything is read or computed.
    let format = Format::of_name(&chain.output)?;
    if !files.force && chain.output.symlink_metadata().is_ok() {
        let m = format!("{} is there already", chain.output.display());
        return Err(Error::new(ErrorKind::Io, "image", m).help("give another name, or replace it with --force"));
    }
    let default = LoadOptions::default();
    let options = LoadOptions { dtype: None, max_memory: files.max_memory.unwrap_or(default.max_memory) };
    let read = image::load(&chain.input, &device, options)?;
    let deep = read.dtype().is_float() && format == Format::Png;
    let fits =
        |what: &str, height: f64, width: f64, channels: usize| fits(options.max_memory, what, height, width, channels);
    fits("reading as floats", read.size(1)? as f64, read.size(2)? as f64, read.size(0)?)?;
    let mut picture = image::to_float(&read, DType::F32)?;
    drop(read);
    for filter in &chain.filters {
        picture = apply(filter, &picture, &fits)?;
    }
    if deep {
        picture = picture.clamp(0.0, 1.0)?.mul(65535.0)?.round()?.to_dtype(DType::U16)?;
    }
    let quality = files.quality.unwrap_or(SaveOptions::default().quality);
    image::save(&chain.output, &picture, SaveOptions { overwrite: files.force, quality })?;
    let (channels, height, width) = (picture.size(0)?, picture.size(1)?, picture.size(2)?);
    let output = chain.output.display().to_string();
    say(&format!("{output}: {width} x {height} pixels, channels: {channels}"))?;
    if files.json {
        let json = serde_json::json!({ "image": output, "width": width, "height": height, "channels": channels });
        say(&json.to_string())?;
    }
    Ok(())
}

impl From<BorderName> for Border {
    fn from(name: BorderName) -> Self {
        match name {
            BorderName::Replicate => Border::Replicate,
            BorderName::Zero => Border::Zero,
            BorderName::Reflect => Border::Reflect,
        }
    }
}

/// Returns the result of a filter. Before a filter that enlarges the picture, `fits` checks the new size.
fn apply(filter: &Filter, x: &Tensor, fits: &dyn Fn(&str, f64, f64, usize) -> Result<()>) -> Result<Tensor> {
    let channels = x.size(0)?;
    match *filter {
        Filter::Blur { sigma, radius, border, .. } => image::gaussian_blur(x, sigma, radius, border.into()),
        Filter::Sobel { threshold, border, .. } => image::sobel(x, threshold, border.into()),
        Filter::Grayscale { keep_channels, .. } => image::grayscale(x, keep_channels),
        Filter::Threshold { at, .. } => image::threshold(x, at),
        Filter::Brightness { factor, .. } => image::brightness(x, factor, Range::Open),
        Filter::Contrast { factor, about_mean: false, .. } => image::contrast(x, factor, Range::Open),
        Filter::Contrast { factor, about_mean: true, .. } => image::contrast_about_mean(x, factor, Range::Open),
        Filter::Invert { .. } => image::invert(x),
        Filter::Sharpen { amount, border, .. } => image::sharpen(x, amount, border.into()),
        Filter::Normalize { ref mean, ref std, .. } => {
            let each = |v: &[f64]| if let [one] = *v { vec![one; channels] } else { v.to_vec() };
            image::normalize(x, &each(mean), &each(std))
        }
        Filter::Resize { width, height, filter, .. } => {
            let (height, width) = size(x.size(1)?, x.size(2)?, height, width);
            fits("resize", height as f64, width as f64, channels)?;
            let how = match filter {
                ResizeName::Nearest => Interpolation::NearestExact.into(),
                ResizeName::Bilinear => Interpolate::from(Interpolation::Bilinear).antialias(),
                ResizeName::Bicubic => Interpolate::from(Interpolation::Bicubic).antialias(),
                ResizeName::Area => Interpolation::Area.into(),
            };
            image::resize_with(x, height, width, how)
        }
        Filter::Crop { width, height, left, top, .. } => match (top, left) {
            (Some(top), Some(left)) => image::crop(x, top, left, height, width),
            _ => image::center_crop(x, height, width),
        },
        Filter::Flip { horizontal, vertical, .. } => {
            let x = if horizontal { image::flip_horizontal(x)? } else { x.clone() };
            if vertical { image::flip_vertical(&x) } else { Ok(x) }
        }
        Filter::Rotate { degrees, expand, filter, .. } => {
            let sampling = match filter {
                RotateName::Nearest => Sampling::Nearest,
                RotateName::Bilinear => Sampling::Bilinear,
                RotateName::Bicubic => Sampling::Bicubic,
            };
            if expand {
                let (h, w) = (x.size(1)? as f64, x.size(2)? as f64);
                let (sin, cos) = degrees.to_radians().sin_cos();
                fits("rotate", h * cos.abs() + w * sin.abs(), w * cos.abs() + h * sin.abs(), channels)?;
            }
            image::rotate(x, degrees, Rotate { expand, sampling })
        }
    }
}

/// Returns an error if a picture of floats would take more than `most` bytes.
fn fits(most: usize, what: &str, height: f64, width: f64, channels: usize) -> Result<()> {
    let bytes = height * width * (channels * DType::F32.size()) as f64;
    if bytes <= most as f64 {
        return Ok(());
    }
    let m = format!("{what} would make {width:.0} x {height:.0} pixels of {bytes:.0} bytes, where {most} are allowed");
    Err(Error::argument("image", m).help("make the picture smaller, or allow more with --max-memory"))
}

/// Height and width. If only one is given, the other keeps the aspect ratio, and is at least 1.
fn size(h: usize, w: usize, height: Option<usize>, width: Option<usize>) -> (usize, usize) {
    let by_ratio = |to: usize, own: usize, other: usize| ((to * own + other / 2) / other.max(1)).max(1);
    match (height, width) {
        (Some(height), Some(width)) => (height, width),
        (Some(height), None) => (height, by_ratio(height, w, h)),
        (None, Some(width)) => (by_ratio(width, h, w), width),
        (None, None) => (h, w),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn the_ratio_is_kept() {
        assert_eq!(size(300, 400, None, Some(100)), (75, 100));
        assert_eq!(size(300, 400, Some(100), None), (100, 133));
        assert_eq!(size(1, 1000, None, Some(10)), (1, 10));
        assert_eq!(size(3, 4, Some(7), Some(9)), (7, 9));
    }
}
