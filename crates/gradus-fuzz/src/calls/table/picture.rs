//! Image filters.

use gradus::image::{self, Border, LoadOptions, Range, Rotate};
use gradus::prelude::*;
use gradus::tensor::{Interpolation, Sampling};

use super::{Row, SHORT, rows};
use crate::calls::Draw;

/// An image, or a tensor that is not one.
fn picture(d: &mut Draw) -> Result<Tensor> {
    if d.once_in(12) {
        return d.any();
    }
    let dtype = if d.flag() { DType::U8 } else { d.float_dtype() };
    let batch = if d.once_in(4) { vec![d.below(3)] } else { vec![] };
    let c = d.of(&[1, 3, 3, 4, 2]);
    let sides = [if d.once_in(15) { 0 } else { 1 + d.below(9) }, 1 + d.below(9)];
    d.made(&[&batch[..], &[c], &sides].concat(), dtype)
}

fn border(d: &mut Draw) -> Border {
    d.of(&[Border::Replicate, Border::Zero, Border::Reflect])
}

fn range(d: &mut Draw) -> Range {
    d.of(&[Range::Unit, Range::Open])
}

const TABLE: &[Row] = rows! { SHORT;
    image::gaussian_blur |d| image::gaussian_blur(&picture(d)?, d.number(), Some(d.size()).filter(|_| d.flag()), border(d));
    image::sobel |d| image::sobel(&picture(d)?, Some(d.number()).filter(|_| d.flag()), border(d));
    image::sharpen |d| image::sharpen(&picture(d)?, d.number(), border(d));
    image::rotate |d| {
        let how = Rotate { expand: d.flag(), sampling: d.of(&[Sampling::Bilinear, Sampling::Nearest, Sampling::Bicubic]) };
        let degrees = if d.flag() { d.number() * 90.0 } else { d.of(&[90.0, -180.0, 270.0, 45.0]) };
        image::rotate(&picture(d)?, degrees, how)
    };
    image::resize |d| image::resize(&picture(d)?, d.size(), d.size());
    image::resize_with |d| image::resize_with(&picture(d)?, d.size(), d.size(), d.of(&[Interpolation::Nearest, Interpolation::Bicubic]));
    image::crop |d| image::crop(&picture(d)?, d.size(), d.size(), d.size(), d.size());
    image::center_crop |d| image::center_crop(&picture(d)?, d.size(), d.size());
    image::flip |d| { let x = picture(d)?; if d.flag() { image::flip_horizontal(&x) } else { image::flip_vertical(&x) } };
    image::grayscale |d| image::grayscale(&picture(d)?, d.flag());
    image::threshold |d| image::threshold(&picture(d)?, d.number());
    image::brightness |d| image::brightness(&picture(d)?, d.number(), range(d));
    image::contrast |d| image::contrast(&picture(d)?, d.number(), range(d));
    image::contrast_about_mean |d| image::contrast_about_mean(&picture(d)?, d.number(), range(d));
    image::invert |d| image::invert(&picture(d)?);
    image::normalize |d| {
        let x = picture(d)?;
        let n = if d.once_in(6) { d.below(5) } else { x.size(-3).unwrap_or(1).min(9) };
        let [mean, std] = [0; 2].map(|_| (0..n).map(|_| d.number()).collect::<Vec<_>>());
        image::normalize(&x, &mean, &std)
    };
    image::convert |d| {
        let x = picture(d)?;
        match d.below(4) {
            0 => image::from_hwc(&x),
            1 => image::to_hwc(&x),
            2 => image::to_float(&x, d.dtype()),
            _ => image::to_bytes(&x),
        }
    };
    image::encode |d| {
        let format = d.of(&[image::Format::Png, image::Format::Jpeg]);
        let bytes = image::encode(&picture(d)?, format, d.below(120) as u8)?;
        image::decode(&bytes, "picture", &d.device, LoadOptions::default())
    };
};

pub(super) const ROWS: &[&[Row]] = &[TABLE];
