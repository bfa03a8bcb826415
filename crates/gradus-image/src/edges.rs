//! Filters with kernels of 3x3 pixels, which detect edges or sharpen.

use gradus_tensor::{Result, Tensor};

use crate::neighbours::{Border, weighted};
use crate::picture::{Picture, not_negative};

/// Computes the strength of edges: `sqrt(gx^2 + gy^2)` of the luma, where `gx` and `gy` are the results of the Sobel
/// kernels (weights 1, 2, 1 times the difference between the neighbours on both sides; a step from 0 to 1 gives 4).
/// Every colour channel becomes this strength. With a `threshold`, pixels that reach it become 1, and all others 0.
/// `border` determines the values beyond the border of the image; usually its pixels are [repeated](Border::Replicate).
/// The shape does not change.
///
/// Without a threshold, the result is differentiable to any order. Where the strength is 0, the gradient is 0.
///
/// # Errors
/// Returns an error if the threshold is negative or not finite, or if `x` is not an image.
#[track_caller]
pub fn sobel(x: &Tensor, threshold: Option<f64>, border: Border) -> Result<Tensor> {
    const OP: &str = "sobel";
    let picture = Picture::new(OP, x)?;
    if let Some(t) = threshold {
        not_negative(OP, "threshold", t)?;
    }
    if picture.is_empty() {
        return Ok(x.clone());
    }
    let luma = picture.luma()?;
    // Smoothing along one axis and then taking differences along the other gives exactly 0 where all pixels are equal.
    let (smooth, difference): ([f64; 3], [f64; 3]) = ([1.0, 2.0, 1.0], [-1.0, 0.0, 1.0]);
    let column = |v: &[f64; 3], x: &Tensor| weighted(x, &[&v[..1], &v[1..2], &v[2..]], border);
    let row = |v: &[f64; 3], x: &Tensor| weighted(x, &[v], border);
    let across = row(&difference, &column(&smooth, &luma)?)?;
    let down = column(&difference, &row(&smooth, &luma)?)?;
    let squared = across.square()?.add(&down.square()?)?;
    // Where the square is 0, the root of 1 is computed instead, because the slope of the root is infinite at 0.
    let flat = squared.eq(0.0)?;
    let strength = flat.where_(0.0, &flat.where_(1.0, &squared)?.sqrt()?)?;
    let edges = match threshold {
        Some(t) => strength.ge(t)?.to_dtype(luma.dtype())?,
        None => strength,
    };
    picture.with_alpha(&picture.spread(&edges)?)
}

/// Sharpens the image: adds `amount` times the difference to the four neighbours, `x + amount * (4 x - left - right -
/// up - down)`. An `amount` of 1 gives the usual kernel (5 in the middle, -1 around it). `border` has the same meaning
/// as in [`sobel`]. The shape does not change. Floats may leave the range 0 to 1. Differentiable to any order.
///
/// # Errors
/// Returns an error if `amount` is negative or not finite, or if `x` is not an image.
#[track_caller]
pub fn sharpen(x: &Tensor, amount: f64, border: Border) -> Result<Tensor> {
    const OP: &str = "sharpen";
    let picture = Picture::new(OP, x)?;
    not_negative(OP, "amount", amount)?;
    if picture.is_empty() {
        return Ok(x.clone());
    }
    let (a, middle) = (-amount, 1.0 + 4.0 * amount);
    let kernel: [&[f64]; 3] = [&[0.0, a, 0.0], &[a, middle, a], &[0.0, a, 0.0]];
    picture.with_alpha(&weighted(&picture.colour()?, &kernel, border)?)
}
