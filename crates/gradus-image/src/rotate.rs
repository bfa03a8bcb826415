//! Rotation by any angle.

use gradus_tensor::{Error, GridPadding, GridSample, Result, Sampling, Tensor};

use crate::geometry::split;
use crate::picture::Picture;

/// Options for [`rotate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotate {
    /// Whether to enlarge the result so that the whole rotated image fits. If not, the result has the size of the
    /// image.
    pub expand: bool,
    /// How values between pixels are computed.
    pub sampling: Sampling,
}

impl Default for Rotate {
    fn default() -> Self {
        Rotate { expand: false, sampling: Sampling::Bilinear }
    }
}

/// Rotates the image counter-clockwise about its middle by `degrees`. Pixels from outside the image are 0 (black, and
/// transparent if there is alpha). Multiples of 90 degrees move pixels exactly, unless the size must not change and the
/// numbers of rows and columns differ.
///
/// # Errors
/// Returns an error if the angle is not finite; if the image has no pixels and the angle is not a multiple of 90
/// degrees; or if `x` is not an image.
#[track_caller]
pub fn rotate(x: &Tensor, degrees: f64, how: Rotate) -> Result<Tensor> {
    const OP: &str = "rotate";
    let picture = Picture::new(OP, x)?;
    if !degrees.is_finite() {
        return Err(Error::argument(OP, format!("{degrees} degrees")).help("give a finite angle"));
    }
    let degrees = degrees.rem_euclid(360.0);
    let (h, w) = picture.size();
    if degrees == 0.0 || degrees == 360.0 {
        return Ok(x.clone());
    }
    if degrees == 180.0 {
        return x.flip(-1)?.flip(-2);
    }
    if (degrees == 90.0 || degrees == 270.0) && (how.expand || h == w) {
        return x.transpose(-2, -1)?.flip(if degrees == 90.0 { -2 } else { -1 });
    }
    if h == 0 || w == 0 {
        return Err(Error::argument(OP, "the image has no pixels").operand("image", x.shape(), x.dtype(), x.device()));
    }
    let (sin, cos) = match degrees {
        90.0 => (1.0, 0.0),
        270.0 => (-1.0, 0.0),
        _ => degrees.to_radians().sin_cos(),
    };
    let (hf, wf) = (h as f64, w as f64);
    // The bound is slightly below the sum, so that rounding errors do not add a row.
    let reach = |a: f64, b: f64| ((a.abs() + b.abs() - 1e-9).ceil() as usize).max(1);
    let (oh, ow) = if how.expand { (reach(wf * sin, hf * cos), reach(wf * cos, hf * sin)) } else { (h, w) };
    let (ohf, owf) = (oh as f64, ow as f64);
    // Maps the coordinates of the result (-1 to 1) to those of the image, through pixel distances from the middle. The
    // y axis points down.
    let theta = [cos * owf / wf, -sin * ohf / wf, 0.0, sin * owf / hf, cos * ohf / hf, 0.0];
    let all = picture.all()?;
    let (lead, channels, ..) = split(x);
    let images: usize = lead.iter().product();
    let theta = Tensor::from_vec(theta, [1, 2, 3], x.device())?;
    let grid = theta.affine_grid(oh, ow, false)?.to_dtype(all.dtype())?.expand([images, oh, ow, 2])?;
    let sample = GridSample { mode: how.sampling, padding: GridPadding::Zeros, align_corners: false };
    let turned = all.reshape([images, channels, h, w])?.grid_sample(&grid, sample)?;
    picture.plain(&turned.reshape([lead, &[channels, oh, ow]].concat())?)
}
