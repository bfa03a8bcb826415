//! Filters that move pixels: resizing, cropping and mirroring.

use gradus_tensor::{Error, Interpolate, Interpolation, Resized, Result, Tensor};

use crate::picture::Picture;

/// Resizes the image to `height` x `width` pixels, bilinearly, with antialiasing when it shrinks.
///
/// # Errors
/// Returns an error if a size is 0, or if `x` is not an image.
#[track_caller]
pub fn resize(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    resize_with(x, height, width, Interpolate::from(Interpolation::Bilinear).antialias())
}

/// [`resize`] with another [interpolation](Tensor::interpolate) over two axes. Each channel is resized separately.
///
/// # Errors
/// Returns an error if a size is 0, if the interpolation is not for two axes, or if `x` is not an image.
#[track_caller]
pub fn resize_with(x: &Tensor, height: usize, width: usize, how: impl Into<Interpolate>) -> Result<Tensor> {
    let picture = Picture::new("resize", x)?;
    let all = picture.all()?;
    let (lead, channels, h, w) = split(x);
    let flat = all.reshape([lead.iter().product(), channels, h, w])?;
    let resized = flat.interpolate(Resized::To(&[height, width]), how)?;
    picture.plain(&resized.reshape([lead, &[channels, height, width]].concat())?)
}

/// The leading axes, the channels, the rows and the columns.
pub(crate) fn split(x: &Tensor) -> (&[usize], usize, usize, usize) {
    match x.shape() {
        [lead @ .., c, h, w] => (lead, *c, *h, *w),
        _ => (&[], 0, 0, 0),
    }
}

/// Cuts out the section of `height` x `width` pixels whose upper left pixel is at (`top`, `left`). The result is a
/// view.
///
/// # Errors
/// Returns an error if the section is not within the image, or if `x` is not an image.
#[track_caller]
pub fn crop(x: &Tensor, top: usize, left: usize, height: usize, width: usize) -> Result<Tensor> {
    let picture = Picture::new("crop", x)?;
    let (h, w) = picture.size();
    let within = |start: usize, size: usize, all: usize| start.checked_add(size).is_some_and(|end| end <= all);
    if !within(top, height, h) || !within(left, width, w) {
        return Err(crop_error([top, left, height, width], [h, w]));
    }
    x.narrow(-2, top, height)?.narrow(-1, left, width)
}

/// The error for a section (top, left, height, width) that is not within an image of `h` x `w` pixels.
#[track_caller]
pub(crate) fn crop_error([top, left, height, width]: [usize; 4], [h, w]: [usize; 2]) -> Error {
    let m = format!("{height} x {width} pixels from row {top}, column {left} are not within {h} x {w}");
    Error::argument("crop", m).help("sizes are height x width; rows and columns count from 0")
}

/// Cuts out `height` x `width` pixels from the middle. If the exact middle lies between pixels, the section is further
/// up or left. The result is a view.
///
/// # Errors
/// Returns an error if the section is larger than the image, or if `x` is not an image.
#[track_caller]
pub fn center_crop(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let (h, w) = Picture::new("center_crop", x)?.size();
    if height > h || width > w {
        let m = format!("{height} x {width} pixels are not within {h} x {w}");
        return Err(Error::argument("center_crop", m).help("resize the image first"));
    }
    crop(x, (h - height) / 2, (w - width) / 2, height, width)
}

/// Mirrors the image so that left becomes right. The result is a view.
///
/// # Errors
/// Returns an error if `x` is not an image.
#[track_caller]
pub fn flip_horizontal(x: &Tensor) -> Result<Tensor> {
    Picture::new("flip_horizontal", x)?;
    x.flip(-1)
}

/// Mirrors the image so that top becomes bottom. The result is a view.
///
/// # Errors
/// Returns an error if `x` is not an image.
#[track_caller]
pub fn flip_vertical(x: &Tensor) -> Result<Tensor> {
    Picture::new("flip_vertical", x)?;
    x.flip(-2)
}
