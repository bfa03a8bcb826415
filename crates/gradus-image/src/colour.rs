//! Filters of single pixels.

use gradus_tensor::{DType, Error, Result, Tensor};

use crate::picture::{Picture, not_negative};

/// What becomes of float results outside 0 to 1. (`u8` always saturates.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Range {
    /// They are clamped.
    #[default]
    Unit,
    /// They stay.
    Open,
}

impl Range {
    #[track_caller]
    fn apply(self, x: Tensor) -> Result<Tensor> {
        match self {
            Range::Unit => x.clamp(0.0, 1.0),
            Range::Open => Ok(x),
        }
    }
}

/// The luma `0.299 r + 0.587 g + 0.114 b`. With `keep_channels` every colour channel gets it, alpha passes through and the
/// shape stays; without, the result is `[.., 1, h, w]` and has no alpha. Grey images stay as they are.
///
/// # Errors
/// A tensor that is not an image.
#[track_caller]
pub fn grayscale(x: &Tensor, keep_channels: bool) -> Result<Tensor> {
    let picture = Picture::new("grayscale", x)?;
    if let [.., 1, _, _] = x.shape() {
        return Ok(x.clone());
    }
    let luma = picture.luma()?;
    if keep_channels { picture.with_alpha(&picture.spread(&luma)?) } else { picture.plain(&luma) }
}

/// 1 where a colour is `t` or more, else 0 (also for NaN); `t` is in units of 0 to 1 for `u8` too. Has no gradient.
///
/// # Errors
/// A `t` that is not finite, and a tensor that is not an image.
#[track_caller]
pub fn threshold(x: &Tensor, t: f64) -> Result<Tensor> {
    let picture = Picture::new("threshold", x)?;
    if !t.is_finite() {
        return Err(Error::argument("threshold", format!("t is {t}")).help("t is finite, usually from 0 to 1"));
    }
    let colour = picture.colour()?;
    picture.with_alpha(&colour.ge(t)?.to_dtype(colour.dtype())?)
}

/// Colours times `factor`.
///
/// # Errors
/// A factor that is negative or not finite, and a tensor that is not an image.
#[track_caller]
pub fn brightness(x: &Tensor, factor: f64, range: Range) -> Result<Tensor> {
    let picture = Picture::new("brightness", x)?;
    not_negative("brightness", "factor", factor)?;
    picture.with_alpha(&range.apply(picture.colour()?.mul(factor)?)?)
}

/// Distances from mid-grey times `factor`: `(x - 0.5) * factor + 0.5`.
///
/// # Errors
/// A factor that is negative or not finite, and a tensor that is not an image.
#[track_caller]
pub fn contrast(x: &Tensor, factor: f64, range: Range) -> Result<Tensor> {
    let picture = Picture::new("contrast", x)?;
    not_negative("contrast", "factor", factor)?;
    picture.with_alpha(&range.apply(picture.colour()?.sub(0.5)?.mul(factor)?.add(0.5)?)?)
}

/// Distances from the mean luma of each image times `factor`.
///
/// # Errors
/// A factor that is negative or not finite, and a tensor that is not an image.
#[track_caller]
pub fn contrast_about_mean(x: &Tensor, factor: f64, range: Range) -> Result<Tensor> {
    let picture = Picture::new("contrast_about_mean", x)?;
    not_negative("contrast_about_mean", "factor", factor)?;
    if picture.is_empty() {
        return Ok(x.clone());
    }
    let mean = picture.luma()?.mean(&[-3, -2, -1], true)?;
    picture.with_alpha(&range.apply(picture.colour()?.sub(&mean)?.mul(factor)?.add(&mean)?)?)
}

/// `1 - x` for colours.
///
/// # Errors
/// A tensor that is not an image.
#[track_caller]
pub fn invert(x: &Tensor) -> Result<Tensor> {
    let picture = Picture::new("invert", x)?;
    picture.with_alpha(&picture.colour()?.neg()?.add(1.0)?)
}

/// `(x - mean) / std`, one of each a channel (alpha is a channel too): what networks are fed with.
///
/// # Errors
/// `u8`, which cannot hold the result; numbers of means or deviations other than the channels'; deviations that are not
/// above 0, numbers that are not finite, and a tensor that is not an image.
#[track_caller]
pub fn normalize(x: &Tensor, mean: &[f64], std: &[f64]) -> Result<Tensor> {
    const OP: &str = "normalize";
    let picture = Picture::new(OP, x)?;
    if x.dtype() == DType::U8 {
        let e = Error::dtype(OP, x.dtype(), "floats, since the result is not from 0 to 1");
        return Err(e.help("convert first, with to_float"));
    }
    let channels = x.size(-3)?;
    if mean.len() != channels || std.len() != channels {
        let m = format!("{} means and {} deviations for {channels} channels", mean.len(), std.len());
        return Err(Error::argument(OP, m).help("give one of each a channel"));
    }
    if mean.iter().chain(std).any(|v| !v.is_finite()) || std.iter().any(|&s| s <= 0.0) {
        let e = Error::argument(OP, format!("means {mean:?} and deviations {std:?}"));
        return Err(e.help("means are finite, deviations finite and above 0"));
    }
    let all = picture.all()?;
    let column = |v: &[f64]| Tensor::from_vec(v, [channels, 1, 1], x.device())?.to_dtype(all.dtype());
    picture.plain(&all.sub(&column(mean)?)?.div(&column(std)?)?)
}
