//! Resizes grey images.

/// Brightness from 0 to 1, row by row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Grey {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) pixels: Vec<f32>,
}

/// Resizes an image. Background is added equally on both sides, so that the aspect ratio becomes that of the target.
/// The triangle filter is bilinear when it enlarges, and averages over areas when it shrinks.
///
/// The background is never stored, because it may be many times as large as the picture.
pub(super) fn fitted(grey: Grey, to_height: usize, to_width: usize) -> Grey {
    if (grey.height, grey.width) == (to_height, to_width) {
        return grey;
    }
    let width = grey.width.max((grey.height * to_width).div_ceil(to_height));
    let height = grey.height.max((grey.width * to_height).div_ceil(to_width));
    let turned = resized_rows(&grey, width, to_width);
    resized_rows(&turned, height, to_height)
}

/// Pads each row with background to `width` pixels, resizes it to `to_width` pixels, and transposes the result.
fn resized_rows(grey: &Grey, width: usize, to_width: usize) -> Grey {
    let left = (width - grey.width) / 2;
    let mut pixels = Vec::with_capacity(to_width * grey.height);
    for x in 0..to_width {
        let (first, weights) = filter(x, width, to_width);
        // Keeps only the weights that fall on the picture; the background is 0.
        let weights = &weights[left.saturating_sub(first).min(weights.len())..];
        let start = first.saturating_sub(left).min(grey.width);
        for row in grey.pixels.chunks_exact(grey.width) {
            pixels.push(weights.iter().zip(&row[start..]).map(|(w, p)| w * p).sum());
        }
    }
    Grey { height: to_width, width: grey.height, pixels }
}

/// The first input pixel that contributes to output pixel `x`, and the weights from that pixel on, which sum to 1.
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
        for (h, w, to_h, to_w) in [(1, 1, 8, 8), (100, 50, 8, 4), (7, 7, 28, 28), (8, 8, 9, 9), (256, 16384, 2, 128)] {
            let out = fitted(grey(h, w, |_, _| 0.5), to_h, to_w);
            assert_eq!((out.height, out.width, out.pixels.len()), (to_h, to_w, to_h * to_w));
            assert!(out.pixels.iter().all(|p| (p - 0.5).abs() < 1e-5), "{h} x {w}");
        }
    }

    #[test]
    fn enlarging_is_bilinear_and_shrinking_averages() {
        let out = resized_rows(&grey(1, 2, |_, x| x as f32), 2, 4);
        assert_eq!(out.pixels, [0.0, 0.25, 0.75, 1.0]);
        let checks = fitted(grey(64, 64, |y, x| ((x + y) % 2) as f32), 8, 8);
        assert!(checks.pixels.iter().all(|p| (p - 0.5).abs() < 0.02), "{checks:?}");
        // Rows and columns are not swapped.
        let left = fitted(grey(6, 6, |_, x| f32::from(u8::from(x < 3))), 2, 2);
        assert!(left.pixels[0] > 0.7 && left.pixels[1] < 0.3 && left.pixels[2] > 0.7, "{left:?}");
    }

    #[test]
    fn background_keeps_the_middle() {
        let out = fitted(grey(4, 2, |_, _| 1.0), 4, 4);
        assert_eq!(out.pixels[..4], [0.0, 1.0, 1.0, 0.0]);
        let flat = fitted(grey(1, 8, |_, _| 1.0), 8, 8);
        assert_eq!(flat.pixels.iter().position(|&p| p > 0.0), Some(3 * 8));
        // The result is the same as if the background were part of the picture.
        let narrow = grey(9, 3, |y, x| ((y * 5 + x * 3) % 7) as f32 / 6.0);
        let wide = grey(9, 9, |y, x| if (3..6).contains(&x) { narrow.pixels[y * 3 + x - 3] } else { 0.0 });
        for (a, b) in fitted(narrow.clone(), 4, 4).pixels.iter().zip(fitted(wide, 4, 4).pixels) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
    }

    #[test]
    fn extreme_ratios_take_little_memory() {
        for (h, w, to_h, to_w) in [(1, 8192, 128, 2), (8192, 1, 2, 128), (8192, 1, 128, 2)] {
            let out = fitted(grey(h, w, |_, _| 1.0), to_h, to_w);
            assert_eq!(out.pixels.len(), to_h * to_w);
            assert!(out.pixels.iter().any(|&p| p > 0.0) && out.pixels.iter().all(|p| (0.0..=1.001).contains(p)));
        }
    }
}
