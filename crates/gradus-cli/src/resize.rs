//! Grey images to another size.

/// Brightness from 0 to 1, row by row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Grey {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) pixels: Vec<f32>,
}

/// With background at both sides alike, so that the ratio of width to height is that of the target.
pub(crate) fn padded(grey: Grey, to_height: usize, to_width: usize) -> Grey {
    let width = grey.width.max((grey.height * to_width).div_ceil(to_height));
    let height = grey.height.max((grey.width * to_height).div_ceil(to_width));
    if (height, width) == (grey.height, grey.width) {
        return grey;
    }
    let (top, left) = ((height - grey.height) / 2, (width - grey.width) / 2);
    let mut pixels = vec![0.0; height * width];
    for (y, row) in grey.pixels.chunks_exact(grey.width).enumerate() {
        let start = (top + y) * width + left;
        pixels[start..start + grey.width].copy_from_slice(row);
    }
    Grey { height, width, pixels }
}

/// Resized with a triangle filter, which is bilinear when it enlarges and averages over areas when it shrinks.
pub(crate) fn resized(grey: Grey, to_height: usize, to_width: usize) -> Grey {
    if (grey.height, grey.width) == (to_height, to_width) {
        return grey;
    }
    let turned = resized_rows(&grey, to_width);
    resized_rows(&turned, to_height)
}

/// Brings rows to `to_width` pixels and transposes the result.
fn resized_rows(grey: &Grey, to_width: usize) -> Grey {
    let filters: Vec<(usize, Vec<f32>)> = (0..to_width).map(|x| filter(x, grey.width, to_width)).collect();
    let mut pixels = Vec::with_capacity(to_width * grey.height);
    for (first, weights) in &filters {
        for row in grey.pixels.chunks_exact(grey.width) {
            pixels.push(weights.iter().zip(&row[*first..]).map(|(w, p)| w * p).sum());
        }
    }
    Grey { height: to_width, width: grey.height, pixels }
}

/// The first pixel that counts for output pixel `x`, and the weights from there on, which sum to 1.
fn filter(x: usize, width: usize, to_width: usize) -> (usize, Vec<f32>) {
    let scale = width as f64 / to_width as f64;
    let reach = scale.max(1.0);
    let centre = (x as f64 + 0.5) * scale;
    let first = ((centre - reach).floor().max(0.0) as usize).min(width - 1);
    let last = ((centre + reach).ceil() as usize).clamp(first + 1, width);
    let weight = |i: usize| (1.0 - (i as f64 + 0.5 - centre).abs() / reach).max(0.0);
    let total: f64 = (first..last).map(weight).sum();
    (first, (first..last).map(|i| (weight(i) / total) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(height: usize, width: usize, f: impl Fn(usize, usize) -> f32) -> Grey {
        let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (y, x))).map(|(y, x)| f(y, x)).collect();
        Grey { height, width, pixels }
    }

    #[test]
    fn constants_stay_and_sizes_are_met() {
        for (h, w, to_h, to_w) in [(1, 1, 8, 8), (100, 3, 8, 8), (7, 9, 28, 5), (8, 8, 9, 9), (1, 16384, 2, 128)] {
            let out = resized(grey(h, w, |_, _| 0.5), to_h, to_w);
            assert_eq!((out.height, out.width, out.pixels.len()), (to_h, to_w, to_h * to_w));
            assert!(out.pixels.iter().all(|p| (p - 0.5).abs() < 1e-6), "{h} x {w}");
        }
    }

    #[test]
    fn enlarging_is_bilinear_and_shrinking_averages() {
        let out = resized(grey(1, 2, |_, x| x as f32), 1, 4);
        assert_eq!(out.pixels, [0.0, 0.25, 0.75, 1.0]);
        let checks = resized(grey(64, 64, |y, x| ((x + y) % 2) as f32), 8, 8);
        assert!(checks.pixels.iter().all(|p| (p - 0.5).abs() < 0.02), "{checks:?}");
        // Rows and columns are not mixed up.
        let left = resized(grey(6, 6, |_, x| f32::from(u8::from(x < 3))), 2, 2);
        assert!(left.pixels[0] > 0.7 && left.pixels[1] < 0.3 && left.pixels[2] > 0.7, "{left:?}");
    }

    #[test]
    fn padding_keeps_the_middle() {
        let out = padded(grey(4, 2, |_, _| 1.0), 4, 4);
        assert_eq!((out.height, out.width), (4, 4));
        assert_eq!(out.pixels[..4], [0.0, 1.0, 1.0, 0.0]);
        let flat = padded(grey(1, 8, |_, _| 1.0), 8, 8);
        assert_eq!(flat.pixels.iter().position(|&p| p > 0.0), Some(3 * 8));
        assert_eq!(padded(grey(3, 3, |_, _| 1.0), 8, 8).pixels.len(), 9);
    }
}
