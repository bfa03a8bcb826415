//! Filters that work on each pixel separately.

use gradus_tensor::{DType, Error, Result, Tensor, fused};

use crate::picture::{Picture, not_negative};

/// What happens to float results outside the range 0 to 1. (`u8` results always saturate.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Range {
    /// Clamps them.
    #[default]
    Unit,
    /// Keeps them.
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

/// Converts the image to its luma `0.299 r + 0.587 g + 0.114 b`. With `keep_channels`, every colour channel becomes the
/// luma, and alpha and the shape do not change. Without it, the result is `[.., 1, h, w]` and has no alpha. Grey images
/// do not change.
///
/// # Errors
/// Returns an error if `x` is not an image.
#[track_caller]
pub fn grayscale(x: &Tensor, keep_channels: bool) -> Result<Tensor> {
    let picture = Picture::new("grayscale", x)?;
    if let [.., 1, _, _] = x.shape() {
        return Ok(x.clone());
    }
    let luma = picture.luma()?;
    if keep_channels { picture.with_alpha(&picture.spread(&luma)?) } else { picture.plain(&luma) }
}

/// Sets each colour channel to 1 where it is at least `t`, and to 0 elsewhere (also for NaN). The scale of `t` is 0 to
/// 1 for `u8` images too. Has no gradient.
///
/// # Errors
/// Returns an error if `t` is not finite, or if `x` is not an image.
#[track_caller]
pub fn threshold(x: &Tensor, t: f64) -> Result<Tensor> {
    let picture = Picture::new("threshold", x)?;
    if !t.is_finite() {
        return Err(Error::argument("threshold", format!("t is {t}")).help("t is finite, usually from 0 to 1"));
    }
    let colour = picture.colour()?;
    picture.with_alpha(&colour.ge(t)?.to_dtype(colour.dtype())?)
}

/// Multiplies the colours by `factor`.
///
/// # Errors
/// Returns an error if `factor` is negative or not finite, or if `x` is not an image.
#[track_caller]
pub fn brightness(x: &Tensor, factor: f64, range: Range) -> Result<Tensor> {
    let picture = Picture::new("brightness", x)?;
    not_negative("brightness", "factor", factor)?;
    picture.with_alpha(&range.apply(picture.colour()?.mul(factor)?)?)
}

/// Multiplies the distances of the colours from mid-grey by `factor`: `(x - 0.5) * factor + 0.5`.
///
/// # Errors
/// Returns an error if `factor` is negative or not finite, or if `x` is not an image.
#[track_caller]
pub fn contrast(x: &Tensor, factor: f64, range: Range) -> Result<Tensor> {
    let picture = Picture::new("contrast", x)?;
    not_negative("contrast", "factor", factor)?;
    picture.with_alpha(&range.apply(picture.colour()?.sub(0.5)?.mul(factor)?.add(0.5)?)?)
}

/// Multiplies the distances of the colours from the mean luma of each image by `factor`.
///
/// # Errors
/// Returns an error if `factor` is negative or not finite, or if `x` is not an image.
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

/// Multiplies the distances of the colours from the luma of their pixel by `factor`: 0 gives grey, 1 the image itself.
///
/// # Errors
/// Returns an error if `factor` is negative or not finite, or if `x` is not an image.
#[track_caller]
pub fn saturation(x: &Tensor, factor: f64, range: Range) -> Result<Tensor> {
    let picture = Picture::new("saturation", x)?;
    not_negative("saturation", "factor", factor)?;
    let luma = picture.luma()?;
    picture.with_alpha(&range.apply(picture.colour()?.sub(&luma)?.mul(factor)?.add(&luma)?)?)
}

/// Turns the hue of each pixel by `turn`, from -0.5 to 0.5 of the colour circle: 1/3 makes red green. Value and
/// saturation in HSV stay. Grey images do not change. The formula is that of torchvision's `adjust_hue` for floats.
///
/// # Errors
/// Returns an error if `turn` is not from -0.5 to 0.5, or if `x` is not an image.
#[track_caller]
pub fn hue(x: &Tensor, turn: f64) -> Result<Tensor> {
    let picture = Picture::new("hue", x)?;
    if !(-0.5..=0.5).contains(&turn) {
        return Err(Error::argument("hue", format!("turn is {turn}")).help("it goes from -0.5 to 0.5"));
    }
    let colour = picture.colour()?;
    if colour.size(-3)? == 1 || turn == 0.0 {
        return Ok(x.clone());
    }
    let channel = |c| colour.narrow(-3, c, 1);
    let (r, g, b) = (channel(0)?, channel(1)?, channel(2)?);
    // The new hue in sixths of the circle. Of grey, whose hue is any, the range is 0.
    let sixths = fused!(|r, g, b, turn| {
        let (most, range) = (r.max(g).max(b), r.max(g).max(b) - r.min(g).min(b));
        let range = range.eq(0.0).select(1.0, range);
        let hue = r.eq(most).select((g - b) / range, g.eq(most).select((b - r) / range + 2.0, (r - g) / range + 4.0));
        let turned = hue / 6.0 + turn + 1.0;
        (turned - turned.floor()) * 6.0
    })(&r, &g, &b, turn)?;
    let of_channel = |offset: f64| {
        fused!(|r, g, b, sixths, offset| {
            let (most, least) = (r.max(g).max(b), r.min(g).min(b));
            let at = sixths + offset;
            let at = at.ge(6.0).select(at - 6.0, at);
            most - (most - least) * at.min(4.0 - at).max(0.0).min(1.0)
        })(&r, &g, &b, &sixths, offset)
    };
    picture.with_alpha(&Tensor::cat(&[&of_channel(5.0)?, &of_channel(3.0)?, &of_channel(1.0)?], -3)?)
}

/// Inverts the colours: `1 - x`.
///
/// # Errors
/// Returns an error if `x` is not an image.
#[track_caller]
pub fn invert(x: &Tensor) -> Result<Tensor> {
    let picture = Picture::new("invert", x)?;
    picture.with_alpha(&picture.colour()?.neg()?.add(1.0)?)
}

/// Normalises an image for a network: `(x - mean) / std`, with one mean and one deviation per channel. Alpha is a
/// channel too.
///
/// # Errors
/// Returns an error if `x` is `u8`, which cannot hold the result; if the number of means or deviations differs from the
/// number of channels; if a deviation is not above 0; if a number is not finite; or if `x` is not an image.
#[track_caller]
pub fn normalize(x: &Tensor, mean: &[f64], std: &[f64]) -> Result<Tensor> {
    const OP: &str = "normalize";
    let picture = Picture::new(OP, x)?;
    if x.dtype() == DType::U8 {
        let e = Error::dtype(OP, x.dtype(), "floats, since the result is not from 0 to 1");
        return Err(e.help("convert first, with to_float"));
    }
    let channels = x.size(-3)?;
    check_normalize(OP, mean, std, channels)?;
    let all = picture.all()?;
    let column = |v: &[f64]| Tensor::from_vec(v, [channels, 1, 1], x.device())?.to_dtype(all.dtype());
    picture.plain(&all.sub(&column(mean)?)?.div(&column(std)?)?)
}

/// Returns an error unless there is a finite mean and a finite deviation above 0 for each channel.
#[track_caller]
pub(crate) fn check_normalize(op: &str, mean: &[f64], std: &[f64], channels: usize) -> Result<()> {
    if mean.len() != channels || std.len() != channels {
        let m = format!("{} means and {} deviations for {channels} channels", mean.len(), std.len());
        return Err(Error::argument(op, m).help("give one of each a channel"));
    }
    if mean.iter().chain(std).any(|v| !v.is_finite()) || std.iter().any(|&s| s <= 0.0) {
        let e = Error::argument(op, format!("means {mean:?} and deviations {std:?}"));
        return Err(e.help("means are finite, deviations finite and above 0"));
    }
    Ok(())
}
