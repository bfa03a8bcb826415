//! Mixes the images of a batch with each other: [`mixup`] and [`cutmix`].

use gradus_tensor::{Ellipsis, Error, Generator, Result, Tensor};

use super::uniform;
use crate::picture::Picture;

/// A batch whose images were mixed with others of the batch. The loss is `share * loss(labels) + (1 - share) *
/// loss(others)`.
#[derive(Debug, Clone)]
pub struct Mixed {
    /// The mixed images.
    pub images: Tensor,
    /// The labels of the images.
    pub labels: Tensor,
    /// The labels of the images that they were mixed with.
    pub others: Tensor,
    /// The share of the images, from 0 to 1; that of the others is `1 - share`.
    pub share: f64,
}

/// Mixes every image with the one before it in the batch: `share * x + (1 - share) * other`, where the share is drawn
/// from the distribution Beta(`alpha`, `alpha`). The labels may be of any dtype; their first axis counts the images.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::{DType, Device, Error, Generator, Tensor}; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_image::augment::mixup;
/// let x = Tensor::ones([2, 3, 4, 4], DType::F32, &device)?;
/// let y = Tensor::from_vec(vec![5i64, 7], [2], &device)?;
/// let mixed = mixup(&x, &y, 0.2, &mut Generator::new(0))?;
/// assert_eq!(mixed.others.to_vec::<i64>()?, [7, 5]);
/// # Ok::<(), Error>(())
/// ```
///
/// Source: *mixup: Beyond Empirical Risk Minimization*, H. Zhang and others, 2018.
///
/// # Errors
/// `alpha` is not above 0 and finite, `x` is not a batch of images of floats, or there is another number of labels.
#[track_caller]
pub fn mixup(x: &Tensor, labels: &Tensor, alpha: f64, g: &mut Generator) -> Result<Mixed> {
    let share = checked("mixup", x, labels, alpha, g)?;
    let other = x.roll(&[1], &[0])?;
    let images = other.add(&x.sub(&other)?.mul(share)?)?;
    Ok(Mixed { images, labels: labels.clone(), others: labels.roll(&[1], &[0])?, share })
}

/// Fills a random rectangle of every image with that of the image before it in the batch. The share of the area that
/// stays is drawn from Beta(`alpha`, `alpha`); the rectangle is cut at the borders, and `share` is the area that in fact
/// stays.
///
/// Source: *CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features*, S. Yun and others,
/// 2019.
///
/// # Errors
/// As [`mixup`].
#[track_caller]
pub fn cutmix(x: &Tensor, labels: &Tensor, alpha: f64, g: &mut Generator) -> Result<Mixed> {
    let share = checked("cutmix", x, labels, alpha, g)?;
    let (h, w) = Picture::new("cutmix", x)?.size();
    let half = |size: usize| ((1.0 - share).sqrt() * size as f64 / 2.0) as usize;
    let span = |size: usize, g: &mut Generator| {
        let middle = g.below(size);
        middle.saturating_sub(half(size))..(middle + half(size)).min(size)
    };
    let (rows, columns) = (span(h, g), span(w, g));
    let cut = rows.len() * columns.len();
    let others = labels.roll(&[1], &[0])?;
    let images = if cut == 0 {
        x.clone()
    } else {
        let patch = (Ellipsis, rows, columns);
        let filling = x.roll(&[1], &[0])?.index(patch.clone())?;
        x.index_assign(patch, &filling)?
    };
    let share = 1.0 - cut as f64 / (h * w).max(1) as f64;
    Ok(Mixed { images, labels: labels.clone(), others, share })
}

/// Checks the arguments, and draws the share.
#[track_caller]
fn checked(op: &str, x: &Tensor, labels: &Tensor, alpha: f64, g: &mut Generator) -> Result<f64> {
    Picture::new(op, x)?;
    let shown = |e: Error| {
        e.operand("images", x.shape(), x.dtype(), x.device()).operand(
            "labels",
            labels.shape(),
            labels.dtype(),
            labels.device(),
        )
    };
    if !x.dtype().is_float() {
        return Err(shown(Error::dtype(op, x.dtype(), "floats")).help("convert with to_float"));
    }
    if x.rank() < 4 || labels.shape().first() != x.shape().first() {
        let e = shown(Error::shape(op, "a batch is [n, c, h, w], with n labels"));
        return Err(e.help("mix the batches of a loader, not its samples"));
    }
    if !(alpha.is_finite() && alpha > 0.0) {
        return Err(Error::argument(op, format!("alpha is {alpha}")).help("alpha is above 0: usually 0.2 or 1"));
    }
    let (a, b) = (gamma_log(alpha, g), gamma_log(alpha, g));
    // a / (a + b), of logarithms: for a small alpha both numbers underflow.
    Ok(1.0 / (1.0 + (b - a).exp()))
}

/// The logarithm of a number from the gamma distribution of shape `alpha` and scale 1. Source: *A Simple Method for
/// Generating Gamma Variables*, G. Marsaglia and W. Tsang, 2000.
fn gamma_log(alpha: f64, g: &mut Generator) -> f64 {
    // Above 0, so that there is a logarithm.
    let mut open = || 1.0 - uniform(g);
    if alpha < 1.0 {
        let exponent = open().ln() / alpha;
        return gamma_log(alpha + 1.0, g) + exponent;
    }
    let d = alpha - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        // A normal number, by Box and Muller.
        let x = (-2.0 * open().ln()).sqrt() * (std::f64::consts::TAU * open()).cos();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && open().ln() < x * x / 2.0 + d * (1.0 - v + v.ln()) {
            return (d * v).ln();
        }
    }
}
