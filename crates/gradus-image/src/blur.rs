//! The Gaussian blur.

use gradus_tensor::{Error, Result, Tensor};

use crate::neighbours::{Border, weighted};
use crate::picture::{Picture, not_negative};

/// The largest radius that is accepted. A wider kernel would be too slow to be useful.
const WIDEST: usize = 1 << 15;

/// Blurs the image with a Gaussian whose standard deviation is `sigma` pixels. The Gaussian is cut off at `radius`
/// pixels (`None`: `ceil(3 sigma)`), and its weights sum to 1. A `sigma` of 0 changes nothing. The shape `[.., c, h,
/// w]` does not change. Differentiable to any order.
///
/// # Errors
/// Returns an error if `sigma` is negative or not finite, if the radius is above 32768, or if `x` is not an image.
#[track_caller]
pub fn gaussian_blur(x: &Tensor, sigma: f64, radius: Option<usize>, border: Border) -> Result<Tensor> {
    const OP: &str = "gaussian_blur";
    let picture = Picture::new(OP, x)?;
    not_negative(OP, "sigma", sigma)?;
    let radius = radius.unwrap_or((3.0 * sigma).ceil() as usize);
    if radius > WIDEST {
        let e = Error::argument(OP, format!("a radius of {radius} pixels"));
        return Err(e.help(format!("a radius is at most {WIDEST}; make the image smaller first, with resize")));
    }
    if sigma == 0.0 || radius == 0 || picture.is_empty() {
        return Ok(x.clone());
    }
    let bell = |i: usize| (-0.5 * ((i as f64 - radius as f64) / sigma).powi(2)).exp();
    // The radius is at most `WIDEST`.
    let mut weights: Vec<f64> = (0..2 * radius + 1).map(bell).collect();
    let total: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w /= total);
    let across = weighted(&picture.colour()?, &[&weights], border)?;
    let down: Vec<&[f64]> = weights.chunks(1).collect();
    picture.with_alpha(&weighted(&across, &down, border)?)
}
