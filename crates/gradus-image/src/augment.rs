//! Random changes of images, with which a network is trained to see the same in different pictures. The names and
//! defaults are torchvision's.
//!
//! They take any image `[.., c, h, w]`; all images of a batch are changed alike. In a data loader, call them for every
//! sample, with the loader's generator:
//!
//! ```
//! # use gradus_cpu::CpuBackend; use gradus_tensor::{DType, Device, Error, Generator, Tensor}; use std::sync::Arc;
//! # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
//! use gradus_image::augment::{ResizedCrop, random_flip_horizontal, random_resized_crop};
//! let augment = |x: Tensor, g: &mut Generator| {
//!     random_flip_horizontal(&random_resized_crop(&x, 32, 32, ResizedCrop::default(), g)?, 0.5, g)
//! };
//! let photo = Tensor::ones([3, 60, 80], DType::U8, &device)?;
//! assert_eq!(augment(photo, &mut Generator::new(0))?.shape(), [3, 32, 32]);
//! # Ok::<(), Error>(())
//! ```

mod mix;

use gradus_tensor::{Error, Generator, PadMode, Result, Tensor};

use crate::colour::{Range, brightness, contrast_about_mean, hue, saturation};
use crate::geometry::{crop, flip_horizontal, flip_vertical, resize};
use crate::picture::{Picture, not_negative};
use crate::rotate::{Rotate, rotate};

pub use mix::{Mixed, cutmix, mixup};

/// A uniform number from 0 to 1, without 1.
pub(crate) fn uniform(g: &mut Generator) -> f64 {
    // 53 random bits fill the fraction of an f64.
    (g.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

fn between(range: (f64, f64), g: &mut Generator) -> f64 {
    range.0 + (range.1 - range.0) * uniform(g)
}

#[track_caller]
pub(crate) fn probability(op: &str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::argument(op, format!("the probability is {p}")).help("it goes from 0 to 1"))
}

/// Errors unless both are finite and above 0, and in order.
#[track_caller]
fn positive(op: &str, name: &str, range: (f64, f64)) -> Result<()> {
    if 0.0 < range.0 && range.0 <= range.1 && range.1.is_finite() {
        return Ok(());
    }
    let m = format!("{name} goes from {} to {}", range.0, range.1);
    Err(Error::argument(op, m).help("both ends are finite and above 0, and the first is not the larger"))
}

/// Mirrors the image left to right with probability `p`.
///
/// # Errors
/// `p` is not within 0 to 1, or `x` is not an image.
#[track_caller]
pub fn random_flip_horizontal(x: &Tensor, p: f64, g: &mut Generator) -> Result<Tensor> {
    Picture::new("random_flip_horizontal", x)?;
    probability("random_flip_horizontal", p)?;
    if uniform(g) < p { flip_horizontal(x) } else { Ok(x.clone()) }
}

/// Mirrors the image top to bottom with probability `p`.
///
/// # Errors
/// `p` is not within 0 to 1, or `x` is not an image.
#[track_caller]
pub fn random_flip_vertical(x: &Tensor, p: f64, g: &mut Generator) -> Result<Tensor> {
    Picture::new("random_flip_vertical", x)?;
    probability("random_flip_vertical", p)?;
    if uniform(g) < p { flip_vertical(x) } else { Ok(x.clone()) }
}

/// Adds `padding` pixels of 0 at each side, and cuts out `height` x `width` pixels at a random place.
///
/// # Errors
/// The section is larger than the padded image, or `x` is not an image.
#[track_caller]
pub fn random_crop(x: &Tensor, height: usize, width: usize, padding: usize, g: &mut Generator) -> Result<Tensor> {
    const OP: &str = "random_crop";
    let (h, w) = Picture::new(OP, x)?.size();
    let sides = isize::try_from(padding).ok().map(|p| (p, p));
    let padded = |size: usize| size.checked_add(padding.checked_mul(2)?);
    let (Some(sides), Some(h), Some(w)) = (sides, padded(h), padded(w)) else {
        return Err(Error::argument(OP, format!("a padding of {padding} pixels")).help("give a smaller one"));
    };
    if height > h || width > w {
        let m = format!("{height} x {width} pixels are not within {h} x {w}, with padding");
        return Err(Error::argument(OP, m).help("resize the image first, or add padding"));
    }
    let (top, left) = (g.below(h - height + 1), g.below(w - width + 1));
    if padding == 0 {
        return crop(x, top, left, height, width);
    }
    // Pads are given from the last axis on.
    crop(&x.pad(&[sides, sides], PadMode::Constant(0.0.into()))?, top, left, height, width)
}

/// The section that [`random_resized_crop`] cuts out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResizedCrop {
    /// The smallest and the largest area, as a share of the image: 0.08 to 1 by default.
    pub scale: (f64, f64),
    /// The smallest and the largest width, as a share of the height: 3/4 to 4/3 by default.
    pub ratio: (f64, f64),
}

impl Default for ResizedCrop {
    fn default() -> Self {
        ResizedCrop { scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) }
    }
}

/// Cuts out a section of random area and aspect ratio at a random place, and resizes it to `height` x `width` pixels
/// as [`resize`] does. If ten sections in a row do not fit into the image, it is the largest one in the
/// middle whose aspect ratio is within the range.
///
/// # Errors
/// A size is 0, a range is not one of positive numbers, or `x` is not an image of at least one pixel.
#[track_caller]
pub fn random_resized_crop(
    x: &Tensor,
    height: usize,
    width: usize,
    how: ResizedCrop,
    g: &mut Generator,
) -> Result<Tensor> {
    const OP: &str = "random_resized_crop";
    let (h, w) = Picture::new(OP, x)?.size();
    let (top, left, rows, columns) = random_section(h, w, how, g)?;
    resize(&crop(x, top, left, rows, columns)?, height, width)
}

/// The place and the size of the section that [`random_resized_crop`] cuts out: top, left, rows and columns.
#[track_caller]
pub(crate) fn random_section(
    h: usize,
    w: usize,
    how: ResizedCrop,
    g: &mut Generator,
) -> Result<(usize, usize, usize, usize)> {
    const OP: &str = "random_resized_crop";
    positive(OP, "scale", how.scale)?;
    positive(OP, "ratio", how.ratio)?;
    if h == 0 || w == 0 {
        return Err(Error::shape(OP, format!("an image of {h} x {w} pixels")).help("it has at least one pixel"));
    }
    Ok(section(h, w, how, g).unwrap_or_else(|| {
        let wanted = (w as f64 / h as f64).clamp(how.ratio.0, how.ratio.1);
        let rows = ((w as f64 / wanted).round() as usize).clamp(1, h);
        let columns = ((h as f64 * wanted).round() as usize).clamp(1, w);
        ((h - rows) / 2, (w - columns) / 2, rows, columns)
    }))
}

/// The place and the size of a random section: top, left, rows and columns.
fn section(h: usize, w: usize, how: ResizedCrop, g: &mut Generator) -> Option<(usize, usize, usize, usize)> {
    (0..10).find_map(|_| {
        let area = (h * w) as f64 * between(how.scale, g);
        let ratio = between((how.ratio.0.ln(), how.ratio.1.ln()), g).exp();
        let (columns, rows) = ((area * ratio).sqrt().round() as usize, (area / ratio).sqrt().round() as usize);
        let fits = (1..=h).contains(&rows) && (1..=w).contains(&columns);
        fits.then(|| (g.below(h - rows + 1), g.below(w - columns + 1), rows, columns))
    })
}

/// How much [`color_jitter`] changes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ColorJitter {
    /// The factor of the [brightness] is from `1 - brightness`, but at least 0, to `1 + brightness`.
    pub brightness: f64,
    /// In the same way for the [contrast](crate::contrast_about_mean).
    pub contrast: f64,
    /// In the same way for the [saturation].
    pub saturation: f64,
    /// The [hue] is turned by `-hue` to `hue`, at most 0.5.
    pub hue: f64,
}

/// Changes brightness, contrast and saturation by random factors and the hue by a random turn, in random order.
///
/// # Errors
/// A setting is negative or not finite, `hue` is above 0.5, or `x` is not an image.
#[track_caller]
pub fn color_jitter(x: &Tensor, jitter: ColorJitter, g: &mut Generator) -> Result<Tensor> {
    const OP: &str = "color_jitter";
    Picture::new(OP, x)?;
    let ColorJitter { brightness: bright, contrast, saturation: full, hue: turn } = jitter;
    let settings = [("brightness", bright), ("contrast", contrast), ("saturation", full), ("hue", turn)];
    let mut x = x.clone();
    settings.iter().try_for_each(|(name, size)| not_negative(OP, name, *size))?;
    if turn > 0.5 {
        return Err(Error::argument(OP, format!("hue is {turn}")).help("half of the circle, 0.5, is the most"));
    }
    for at in g.permutation(settings.len())? {
        let (name, size) = settings[at];
        let range = if name == "hue" { (-size, size) } else { ((1.0 - size).max(0.0), 1.0 + size) };
        let factor = between(range, g);
        x = match name {
            _ if size == 0.0 => x,
            "brightness" => brightness(&x, factor, Range::Unit)?,
            "hue" => hue(&x, factor)?,
            "contrast" => contrast_about_mean(&x, factor, Range::Unit)?,
            _ => saturation(&x, factor, Range::Unit)?,
        };
    }
    Ok(x)
}

/// The rectangle that [`random_erasing`] fills.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomErasing {
    /// How likely a rectangle is filled at all: 0.5 by default.
    pub p: f64,
    /// The smallest and the largest area, as a share of the image: 0.02 to 0.33 by default.
    pub scale: (f64, f64),
    /// The smallest and the largest width, as a share of the height: 0.3 to 3.3 by default.
    pub ratio: (f64, f64),
    /// The value of the pixels: 0 by default.
    pub value: f64,
}

impl Default for RandomErasing {
    fn default() -> Self {
        RandomErasing { p: 0.5, scale: (0.02, 0.33), ratio: (0.3, 3.3), value: 0.0 }
    }
}

/// Fills a random rectangle with one value in all channels. If ten rectangles in a row do not fit, none is filled.
///
/// # Errors
/// The probability or a range is not one, or `x` is not an image.
#[track_caller]
pub fn random_erasing(x: &Tensor, how: RandomErasing, g: &mut Generator) -> Result<Tensor> {
    const OP: &str = "random_erasing";
    let (h, w) = Picture::new(OP, x)?.size();
    match random_rectangle(h, w, how, g)? {
        Some((top, left, rows, columns)) => {
            x.index_assign((gradus_tensor::Ellipsis, top..top + rows, left..left + columns), how.value)
        }
        None => Ok(x.clone()),
    }
}

/// The place and the size of the rectangle that [`random_erasing`] fills, if it does.
#[track_caller]
pub(crate) fn random_rectangle(
    h: usize,
    w: usize,
    how: RandomErasing,
    g: &mut Generator,
) -> Result<Option<(usize, usize, usize, usize)>> {
    const OP: &str = "random_erasing";
    probability(OP, how.p)?;
    positive(OP, "scale", how.scale)?;
    positive(OP, "ratio", how.ratio)?;
    if uniform(g) >= how.p {
        return Ok(None);
    }
    Ok(section(h, w, ResizedCrop { scale: how.scale, ratio: how.ratio }, g))
}

/// Rotates the image by a random angle of at most `degrees` in either direction, as [`rotate`](crate::rotate) does.
///
/// # Errors
/// `degrees` is negative or not finite, or `x` is not an image.
#[track_caller]
pub fn random_rotation(x: &Tensor, degrees: f64, how: Rotate, g: &mut Generator) -> Result<Tensor> {
    not_negative("random_rotation", "degrees", degrees)?;
    rotate(x, between((-degrees, degrees), g), how)
}
