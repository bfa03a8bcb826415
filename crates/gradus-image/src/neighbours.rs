//! Weighted sums of neighbouring pixels, and the values beyond the border.

use gradus_tensor::backend::HostVec;
use gradus_tensor::{ConvOptions, Error, Result, Tensor};

/// The values that a filter assumes beyond the border of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Border {
    /// The pixels of the border, repeated.
    #[default]
    Replicate,
    /// Zeros.
    Zero,
    /// The image mirrored at the centres of its border pixels, which are not repeated.
    Reflect,
}

impl Border {
    /// The index within `0..n` of the pixel that is used for index `i`.
    fn place(self, i: isize, n: usize) -> usize {
        let last = n as isize - 1;
        let place = match self {
            Border::Reflect if last > 0 => {
                let i = i.rem_euclid(2 * last);
                i.min(2 * last - i)
            }
            _ => i.clamp(0, last),
        };
        place.unsigned_abs()
    }
}

/// Sums the neighbours of each pixel of `x [.., h, w]` (floats, not empty), weighted by `kernel`. The kernel has an odd
/// number of rows and of columns, and its middle lies on the pixel.
#[track_caller]
pub(crate) fn weighted(x: &Tensor, kernel: &[&[f64]], border: Border) -> Result<Tensor> {
    let &[.., h, w] = x.shape() else { return Err(Error::shape("filter", "no rows and columns")) };
    let (rows, columns) = (kernel.len(), kernel.first().map_or(0, |row| row.len()));
    let radius = [rows / 2, columns / 2];
    let planes = x.numel() / (h * w);
    let mut image = x.reshape([planes, 1, h, w])?;
    let mut padding = radius;
    if border != Border::Zero {
        padding = [0, 0];
        for (axis, n, radius) in [(2, h, radius[0]), (3, w, radius[1])] {
            if radius == 0 {
                continue;
            }
            let (from, to) = (-(radius as isize), n as isize + radius as isize);
            let places = (from..to).map(|i| border.place(i, n) as i64);
            let places = HostVec::collect(x.device().backend(), "filter", places)?;
            let index = Tensor::from_vec(&places, [places.len()], x.device())?;
            image = image.index_select(axis, &index)?;
        }
    }
    let weight = Tensor::from_vec(kernel.concat(), [1, 1, rows, columns], x.device())?.to_dtype(x.dtype())?;
    image.conv2d(&weight, None, ConvOptions::new().padding(padding))?.reshape(x.shape())
}

#[cfg(test)]
mod tests {
    use super::Border;

    #[test]
    fn places_beyond_the_border() {
        let places = |border: Border, n| (-5..6).map(|i| border.place(i, n)).collect::<Vec<_>>();
        assert_eq!(places(Border::Replicate, 3), [0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2]);
        assert_eq!(places(Border::Reflect, 3), [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1]);
        assert_eq!(places(Border::Reflect, 1), [0; 11]);
    }
}
