//! `grid_sample`: the values of an image at arbitrary points, as in PyTorch. `affine_grid`: the points of an affine
//! map.
//!
//! Both are composed of other operations. The pixels around a point (its taps) are gathered and weighted by expressions
//! in the point's coordinates. Gradients of every order therefore exist with respect to the image, and with respect to
//! the points wherever the weights are smooth.

use gradus_backend::{DType, Error, ErrorKind, Here, Result};

use super::operand_rules::common_dtype;
use super::same_device;
use crate::Tensor;

/// How [`Tensor::grid_sample`] finds a value between pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sampling {
    /// Linear interpolation between the four pixels around a point.
    Bilinear,
    /// The nearest pixel. A point halfway between two pixels goes to the even one. The gradient of the points is zero.
    Nearest,
    /// Cubic convolution of the sixteen pixels around a point, with a = -0.75.
    Bicubic,
}

/// The values outside the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GridPadding {
    /// Zeros.
    Zeros,
    /// The nearest border pixel.
    Border,
    /// The image mirrored repeatedly: at the centres of the border pixels with `align_corners`, otherwise at their
    /// outer edges.
    Reflection,
}

/// The options of [`Tensor::grid_sample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridSample {
    /// The interpolation between pixels.
    pub mode: Sampling,
    /// The values outside the image.
    pub padding: GridPadding,
    /// Whether -1 and 1 are the centres of the border pixels rather than their outer edges.
    pub align_corners: bool,
}

impl Default for GridSample {
    fn default() -> Self {
        GridSample { mode: Sampling::Bilinear, padding: GridPadding::Zeros, align_corners: false }
    }
}

/// One axis of the image: its size and the sampling options.
struct Axis {
    size: usize,
    how: GridSample,
}

/// The pixels that points touch along an axis. Each entry holds, for all points, the positions (whole floats) and
/// weights of one pixel.
type Taps = Vec<(Tensor, Tensor)>;

/// The parameter of the cubic weights.
const CUBIC: f64 = -0.75;

/// The cubic weight of a pixel at a distance up to 1.
#[track_caller]
fn inner(x: &Tensor) -> Result<Tensor> {
    x.mul(CUBIC + 2.0)?.sub(CUBIC + 3.0)?.mul(x)?.mul(x)?.add(1.0)
}

/// The cubic weight of a pixel at a distance from 1 to 2.
#[track_caller]
fn outer(x: &Tensor) -> Result<Tensor> {
    x.sub(5.0)?.mul(x)?.add(8.0)?.mul(x)?.sub(4.0)?.mul(CUBIC)
}

impl Axis {
    fn last(&self) -> f64 {
        self.size as f64 - 1.0
    }

    /// Converts coordinates from -1..1 to pixels.
    #[track_caller]
    fn pixels(&self, g: &Tensor) -> Result<Tensor> {
        if self.how.align_corners {
            g.add(1.0)?.mul(self.last() / 2.0)
        } else {
            g.add(1.0)?.mul(self.size as f64)?.sub(1.0)?.mul(0.5)
        }
    }

    /// Moves coordinates into the image as the padding requires. With zero padding they stay as they are. A coordinate
    /// that is moved to the centre of a border pixel has slope 0, and so does a coordinate that already lies there.
    #[track_caller]
    fn within(&self, x: &Tensor) -> Result<Tensor> {
        match self.how.padding {
            GridPadding::Zeros => Ok(x.clone()),
            GridPadding::Border => x.hardtanh(0.0, self.last()),
            GridPadding::Reflection => {
                let (lo, span) = if self.how.align_corners { (0.0, self.last()) } else { (-0.5, self.size as f64) };
                if span == 0.0 {
                    return x.mul(0.0);
                }
                // A triangle wave with a period of twice the span.
                let phase = x.sub(lo)?.remainder(2.0 * span)?;
                let folded = phase.gt(span)?.where_(&phase.neg()?.add(2.0 * span)?, &phase)?;
                folded.add(lo)?.hardtanh(0.0, self.last())
            }
        }
    }

    #[track_caller]
    fn taps(&self, g: &Tensor) -> Result<Taps> {
        let x = self.pixels(g)?;
        let far = 4.0;
        match self.how.mode {
            Sampling::Nearest => {
                let place = self.within(&x)?.detach().round()?;
                let weight = place.ones_like()?;
                Ok(vec![(place, weight)])
            }
            Sampling::Bilinear => {
                // With zero padding, everything more than a pixel outside the image is zero, so the clamp changes no
                // result. It keeps infinite coordinates finite.
                let x = self.within(&x)?.clamp(-far, self.last() + far)?;
                let first = x.detach().floor()?;
                let t = x.sub(&first)?;
                Ok(vec![(first.clone(), t.neg()?.add(1.0)?), (first.add(1.0)?, t)])
            }
            Sampling::Bicubic => {
                let x = match self.how.padding {
                    GridPadding::Reflection => x,
                    _ => x.clamp(-far, self.last() + far)?,
                };
                let first = x.detach().floor()?;
                let t = x.sub(&first)?;
                let rest = t.neg()?.add(1.0)?;
                let weights = [outer(&t.add(1.0)?)?, inner(&t)?, inner(&rest)?, outer(&rest.add(1.0)?)?];
                let mut taps = Vec::with_capacity(weights.len());
                for (k, w) in weights.into_iter().enumerate() {
                    // Each tap is moved into the image separately.
                    taps.push((self.within(&first.add(k as f64 - 1.0)?)?.round()?, w));
                }
                Ok(taps)
            }
        }
    }

    /// The positions as indices, and a mask of those inside the image. With padding other than zeros all are inside,
    /// and there is no mask.
    #[track_caller]
    fn index(&self, place: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let inside = match self.how.padding {
            GridPadding::Zeros => Some(place.ge(0.0)?.logical_and(&place.le(self.last())?)?),
            _ => None,
        };
        Ok((place.clamp(0.0, self.last())?.to_dtype(DType::I64)?, inside))
    }
}

impl Tensor {
    /// The values of `self [n, c, h, w]` at the points `grid [n, oh, ow, 2]`, as `[n, c, oh, ow]` in the dtype to which
    /// the two promote. Equivalent to PyTorch's `grid_sample`.
    ///
    /// A point is `(x, y)`, from -1 (left, top) to 1 (right, bottom). A NaN coordinate yields NaN, and so does an
    /// infinite one with reflection. With the nearest pixel, such a coordinate instead reads pixel 0 of its axis, or
    /// yields 0 with zero padding. Half precision is computed in f32.
    ///
    /// Differentiable to any order. At the centre of a pixel, the slope is that of the interval that begins there;
    /// where a border begins, it is 0. With the nearest pixel it is 0 everywhere.
    ///
    /// # Errors
    /// Fails for other ranks, for batch sizes that differ, for an image without pixels, and for dtypes that are not
    /// floats.
    #[track_caller]
    pub fn grid_sample(&self, grid: &Tensor, how: GridSample) -> Result<Tensor> {
        const OP: &str = "grid_sample";
        same_device(OP, &[self, grid])?;
        let shown = |e: Error| grid.describe(self.describe(e, "self"), "grid");
        let &[n, c, h, w] = self.shape() else {
            return Err(shown(Error::shape(OP, "the image is not [n, c, h, w]")));
        };
        let &[grids, oh, ow, 2] = grid.shape() else {
            return Err(shown(Error::shape(OP, "the grid is not [n, oh, ow, 2]")));
        };
        if n != grids {
            return Err(shown(Error::shape(OP, format!("{n} images and {grids} grids"))).help("give one grid an image"));
        }
        if h == 0 || w == 0 {
            return Err(shown(Error::argument(OP, "the image has no pixels")));
        }
        for t in [self, grid] {
            if !t.dtype().is_float() {
                return Err(shown(Error::dtype(OP, t.dtype(), "floats")).help("convert with to_dtype"));
            }
        }
        let pixels = h.checked_mul(w).and_then(|p| i64::try_from(p).ok());
        if pixels.is_none() {
            return Err(shown(Error::new(ErrorKind::Overflow, OP, "the image has too many pixels")));
        }
        let shared = common_dtype(OP, &[self, grid], &["image", "grid"])?;
        let dtype = shared.compute();
        let points = oh * ow;
        let image = self.to_dtype(dtype)?.reshape([n, c, h * w])?;
        let grid = grid.to_dtype(dtype)?.reshape([n, 1, points, 2])?;
        let (across, down) = (Axis { size: w, how }, Axis { size: h, how });
        let mut columns = Vec::new();
        for (place, weight) in across.taps(&grid.select(-1, 0)?)? {
            columns.push((across.index(&place)?, weight));
        }
        let mut sum: Option<Tensor> = None;
        for (place, weight_y) in down.taps(&grid.select(-1, 1)?)? {
            let (row, inside_y) = down.index(&place)?;
            let row = row.mul(w as i64)?;
            let mut line: Option<Tensor> = None;
            for ((column, inside_x), weight_x) in &columns {
                let index = row.add(column)?.expand([n, c, points])?;
                let mut value = image.gather(2, &index)?;
                if let (Some(x), Some(y)) = (inside_x, &inside_y) {
                    // The value is selected rather than multiplied by the mask, so that a NaN at the border does not
                    // reach points outside the image.
                    value = x.logical_and(y)?.where_(&value, 0.0)?;
                }
                let part = value.mul(weight_x)?;
                line = Some(match line {
                    Some(line) => line.add(&part)?,
                    None => part,
                });
            }
            let Some(line) = line else { continue };
            let part = line.mul(&weight_y)?;
            sum = Some(match sum {
                Some(sum) => sum.add(&part)?,
                None => part,
            });
        }
        let sum = sum.ok_or_else(|| Error::argument(OP, "no tap")).here()?;
        sum.reshape([n, c, oh, ow])?.to_dtype(shared)
    }

    /// The grid `[n, h, w, 2]` for [`grid_sample`](Tensor::grid_sample) that the affine maps `self [n, 2, 3]` describe.
    /// For a map `theta`, it holds the point `theta [x, y, 1]` for every pixel `(x, y)` of an output of `h` x `w`
    /// pixels, whose coordinates run from -1 to 1.
    ///
    /// # Errors
    /// Fails for another shape or a dtype that is not a float.
    #[track_caller]
    pub fn affine_grid(&self, h: usize, w: usize, align_corners: bool) -> Result<Tensor> {
        const OP: &str = "affine_grid";
        let &[n, 2, 3] = self.shape() else {
            return Err(self.describe(Error::shape(OP, "the maps are not [n, 2, 3]"), "self"));
        };
        if !self.dtype().is_float() {
            return Err(self.describe(Error::dtype(OP, self.dtype(), "floats"), "self"));
        }
        let dtype = self.dtype().compute();
        let axis = |size: usize| -> Result<Tensor> {
            let end = match size {
                1 => 0.0,
                _ if align_corners => 1.0,
                _ => 1.0 - 1.0 / size as f64,
            };
            Tensor::linspace(-end, end, size, dtype, self.device())
        };
        let x = axis(w).here()?.reshape([1, w])?.expand([h, w])?;
        let y = axis(h).here()?.reshape([h, 1])?.expand([h, w])?;
        let base = Tensor::stack(&[&x, &y, &x.ones_like()?], -1)?.reshape([1, h * w, 3])?;
        let points = base.product(&self.to_dtype(dtype)?.transpose(1, 2)?)?;
        points.reshape([n, h, w, 2])?.to_dtype(self.dtype())
    }
}
