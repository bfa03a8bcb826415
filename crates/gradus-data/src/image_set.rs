//! [`Image`] and [`ImageSet`]: labelled images in memory, one byte per pixel.

use gradus_tensor::{Error, ErrorKind, Result};

use crate::Dataset;
use crate::dataset::check_index;

/// An image of floats, `[channels, height, width]` in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    channels: usize,
    height: usize,
    width: usize,
    pixels: Vec<f32>,
}

impl Image {
    /// An image with these pixels. Errors if their number is not `channels * height * width`.
    #[track_caller]
    pub fn new(channels: usize, height: usize, width: usize, pixels: Vec<f32>) -> Result<Self> {
        if channels.checked_mul(height).and_then(|n| n.checked_mul(width)) != Some(pixels.len()) {
            let m = format!("{} pixels do not fill {channels} x {height} x {width}", pixels.len());
            return Err(Error::shape("image", m));
        }
        Ok(Image { channels, height, width, pixels })
    }

    /// `[channels, height, width]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.channels, self.height, self.width]
    }

    /// All pixels in row-major order.
    pub fn pixels(&self) -> &[f32] {
        &self.pixels
    }

    /// The image shifted `dy` rows down and `dx` columns to the right; pixels from outside the image are 0.
    ///
    /// ```
    /// use gradus_data::Image;
    /// let image = Image::new(1, 2, 2, vec![1.0, 2.0, 3.0, 4.0])?;
    /// assert_eq!(image.shifted(0, 1).pixels(), [0.0, 1.0, 0.0, 3.0]);
    /// assert_eq!(image.shifted(-1, 0).pixels(), [3.0, 4.0, 0.0, 0.0]);
    /// # Ok::<(), gradus_tensor::Error>(())
    /// ```
    #[must_use]
    pub fn shifted(&self, dy: isize, dx: isize) -> Image {
        let source =
            |at: usize, by: isize, size: usize| at.checked_add_signed(by.saturating_neg()).filter(|&s| s < size);
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for channel in 0..self.channels {
            for y in 0..self.height {
                let row = source(y, dy, self.height).map(|y| (channel * self.height + y) * self.width);
                for x in 0..self.width {
                    let from = row.zip(source(x, dx, self.width));
                    pixels.push(from.map_or(0.0, |(row, x)| self.pixels[row + x]));
                }
            }
        }
        Image { pixels, ..*self }
    }
}

/// Labelled images of equal size in memory, one byte per pixel. A sample is an [`Image`] with values from 0 to 1, and
/// its label.
#[derive(Debug, Clone)]
pub struct ImageSet {
    shape: [usize; 3],
    white: u8,
    classes: usize,
    pixels: Vec<u8>,
    labels: Vec<i64>,
}

impl ImageSet {
    /// Images of `shape` (channels, height, width), one after another in `pixels`, with a label for each. The pixel
    /// value `white` becomes 1.0. The number of classes is the largest label plus 1.
    ///
    /// Returns an error if sizes disagree, a pixel is above `white`, or a label is negative.
    #[track_caller]
    pub fn new(shape: [usize; 3], white: u8, pixels: Vec<u8>, labels: Vec<i64>) -> Result<Self> {
        let size = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n > 0);
        if size.and_then(|n| n.checked_mul(labels.len())) != Some(pixels.len()) {
            let m = format!("{} pixels are not {} images of {shape:?}", pixels.len(), labels.len());
            return Err(Error::shape("image_set", m).help("every image needs one label, and the same size above 0"));
        }
        if let Some(at) = pixels.iter().position(|&p| p > white) {
            let image = size.map_or(0, |n| at / n);
            let m = format!("image {image} has a pixel of {}; the greatest allowed is {white}", pixels[at]);
            return Err(Error::new(ErrorKind::Format, "image_set", m));
        }
        if let Some(at) = labels.iter().position(|&l| l < 0) {
            return Err(Error::new(
                ErrorKind::Format,
                "image_set",
                format!("label {at} is {}; labels start at 0", labels[at]),
            ));
        }
        let classes =
            labels.iter().max().map_or(0, |&l| usize::try_from(l).map_or(usize::MAX, |l| l.saturating_add(1)));
        Ok(ImageSet { shape, white: white.max(1), classes, pixels, labels })
    }

    /// Channels, height and width.
    pub fn image_shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The largest label plus 1; 0 if there are no images.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The label of every image.
    pub fn labels(&self) -> &[i64] {
        &self.labels
    }
}

impl Dataset for ImageSet {
    type Item = (Image, i64);

    fn len(&self) -> usize {
        self.labels.len()
    }

    #[track_caller]
    fn get(&self, index: usize) -> Result<(Image, i64)> {
        check_index("image_set", index, self.len())?;
        let [channels, height, width] = self.shape;
        let size = channels * height * width;
        let white = f32::from(self.white);
        let pixels = self.pixels[index * size..(index + 1) * size].iter().map(|&p| f32::from(p) / white).collect();
        Ok((Image { channels, height, width, pixels }, self.labels[index]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_scale_to_one() {
        let set = ImageSet::new([1, 1, 2], 16, vec![0, 16, 8, 4], vec![3, 0]).unwrap();
        assert_eq!((set.len(), set.classes()), (2, 4));
        let (image, label) = set.get(1).unwrap();
        assert_eq!((image.pixels(), label), (&[0.5, 0.25][..], 0));
        assert!(set.get(2).is_err());
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert!(ImageSet::new([1, 2, 2], 255, vec![0; 7], vec![0, 1]).is_err());
        assert!(ImageSet::new([1, 0, 2], 255, vec![], vec![]).is_err());
        assert!(ImageSet::new([1, 1, 1], 16, vec![17], vec![0]).unwrap_err().to_string().contains("pixel of 17"));
        assert!(ImageSet::new([1, 1, 1], 16, vec![1], vec![-1]).unwrap_err().to_string().contains("label 0 is -1"));
        assert!(Image::new(1, usize::MAX, 2, vec![]).is_err());
    }

    #[test]
    fn a_shift_far_out_leaves_nothing() {
        let image = Image::new(1, 2, 2, vec![1.0; 4]).unwrap();
        for (dy, dx) in [(2, 0), (0, -2), (isize::MIN, isize::MAX)] {
            assert_eq!(image.shifted(dy, dx).pixels(), [0.0; 4], "{dy} {dx}");
        }
        assert_eq!(image.shifted(0, 0), image);
    }
}
