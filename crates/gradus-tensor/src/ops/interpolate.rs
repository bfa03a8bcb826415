//! `interpolate`: resizes lines, images and volumes, as in PyTorch.
//!
//! Every mode is separable. Along one axis, an output is a short weighted sum of inputs, its *taps*, whose positions
//! and weights are computed on the host in f64. Each tap then requires one gather and one multiply-add. As a result,
//! gradients of every order exist, an output depends only on its taps (a NaN elsewhere does not reach it), and the
//! order of summation is fixed.

use gradus_backend::host_vec::check_room;
use gradus_backend::{Error, ErrorKind, Here, Result, Scalar, Shape};

use super::elementwise::{Class, Elementwise};
use super::operand::Operand;
use crate::{Device, Tensor};

/// How [`Tensor::interpolate`] finds a value between pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interpolation {
    /// The pixel at `floor(i * in / out)`; 1 to 3 axes, any dtype.
    Nearest,
    /// The pixel whose centre is nearest: `floor((i + 0.5) * in / out)`; 1 to 3 axes, any dtype.
    NearestExact,
    /// A straight line between two pixels; 1 axis.
    Linear,
    /// Linear along two axes.
    Bilinear,
    /// Linear along three axes.
    Trilinear,
    /// Cubic convolution along two axes, with a = -0.75, or -0.5 if antialiased.
    Bicubic,
    /// The mean of the pixels from `floor(i * in / out)` to `ceil((i + 1) * in / out)`; 1 to 3 axes.
    Area,
}

/// The size of the result of [`Tensor::interpolate`], with one number for each axis after the first two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Resized<'a> {
    /// The sizes themselves.
    To(&'a [usize]),
    /// Factors: the size is `floor(in * factor)`. Coordinates are divided by the factor itself, not by the ratio of the
    /// sizes.
    By(&'a [f64]),
}

/// How to interpolate: the mode, and the options of some modes.
#[must_use = "options do nothing until they are passed to an operation, and setting one gives new options"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interpolate {
    mode: Interpolation,
    align_corners: bool,
    antialias: bool,
}

impl From<Interpolation> for Interpolate {
    fn from(mode: Interpolation) -> Self {
        Interpolate { mode, align_corners: false, antialias: false }
    }
}

impl Interpolate {
    /// Aligns the centres of the first and last pixels instead of their outer edges. Applies to the linear and cubic
    /// modes.
    pub fn align_corners(mut self) -> Self {
        self.align_corners = true;
        self
    }

    /// Widens the filter when an axis shrinks, so that every input contributes. Applies to the bilinear and bicubic
    /// modes.
    pub fn antialias(mut self) -> Self {
        self.antialias = true;
        self
    }
}

impl Interpolation {
    fn name(self) -> &'static str {
        match self {
            Interpolation::Nearest => "nearest",
            Interpolation::NearestExact => "nearest_exact",
            Interpolation::Linear => "linear",
            Interpolation::Bilinear => "bilinear",
            Interpolation::Trilinear => "trilinear",
            Interpolation::Bicubic => "bicubic",
            Interpolation::Area => "area",
        }
    }

    /// The number of axes that the mode accepts.
    fn axes(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Interpolation::Linear => 1..=1,
            Interpolation::Bilinear | Interpolation::Bicubic => 2..=2,
            Interpolation::Trilinear => 3..=3,
            Interpolation::Nearest | Interpolation::NearestExact | Interpolation::Area => 1..=3,
        }
    }

    fn is_linear(self) -> bool {
        matches!(self, Interpolation::Linear | Interpolation::Bilinear | Interpolation::Trilinear)
    }

    /// Whether the mode picks pixels rather than mixing them.
    fn picks(self) -> bool {
        matches!(self, Interpolation::Nearest | Interpolation::NearestExact)
    }
}

/// Adds one tap: `sum + value * weight`.
static TAP: Elementwise = Elementwise::new("interpolate", Class::Float, 3, |x| vec![x[0] + x[1] * x[2]]);

/// The cubic convolution kernel at distance `x >= 0`.
fn cubic(x: f64, a: f64) -> f64 {
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * a
    } else {
        0.0
    }
}

/// The weights of pixels `-1, 0, 1, 2` for a point at distance `t` (0 to 1) after pixel 0: cubic convolution with a =
/// -0.75.
fn cubic_weights(t: f64) -> [f64; 4] {
    [t + 1.0, t, 1.0 - t, 2.0 - t].map(|x| cubic(x, -0.75))
}

/// The maximum number of bytes on the host that the windows of an axis need for each input and each output.
const TABLE_BYTES: usize = 256;

/// The inputs of one output, with their weights.
type Window = Vec<(usize, f64)>;

/// The window of every output along one axis.
struct Taps {
    windows: Vec<Window>,
}

impl Taps {
    fn new(input: usize, output: usize, factor: Option<f64>, how: Interpolate) -> Taps {
        let (n, last) = (input as f64, input - 1);
        // The number of input pixels per output pixel.
        let step = match factor {
            _ if how.align_corners => {
                if output > 1 {
                    (n - 1.0) / (output as f64 - 1.0)
                } else {
                    0.0
                }
            }
            Some(factor) => 1.0 / factor,
            None => n / output as f64,
        };
        let pick = |at: f64| vec![((at.floor().max(0.0) as usize).min(last), 1.0)];
        let centre = |i: usize| if how.align_corners { step * i as f64 } else { step * (i as f64 + 0.5) - 0.5 };
        let window = |i: usize| -> Window {
            match how.mode {
                // Without a factor the position is a quotient of integers, which is computed exactly.
                Interpolation::Nearest if factor.is_none() => {
                    vec![((i as u128 * input as u128 / output as u128) as usize, 1.0)]
                }
                Interpolation::Nearest => pick(i as f64 * step),
                Interpolation::NearestExact => pick((i as f64 + 0.5) * step),
                Interpolation::Area => {
                    let (i, input, output) = (i as u128, input as u128, output as u128);
                    let (start, end) = (i * input / output, ((i + 1) * input).div_ceil(output));
                    // All windows together have at most `input + output` entries: see `TABLE_BYTES`.
                    (start..end).map(|j| (j as usize, 1.0 / (end - start) as f64)).collect()
                }
                _ if how.antialias => widened(step * (i as f64 + 0.5), step, input, how.mode),
                Interpolation::Bicubic => {
                    let at = centre(i);
                    let weights = cubic_weights(at - at.floor()).into_iter();
                    let place = |k: usize| ((at.floor() + k as f64 - 1.0).max(0.0) as usize).min(last);
                    weights.enumerate().map(|(k, w)| (place(k), w)).collect()
                }
                Interpolation::Linear | Interpolation::Bilinear | Interpolation::Trilinear => {
                    let at = centre(i).max(0.0);
                    let first = (at.floor() as usize).min(last);
                    let t = (at - first as f64).clamp(0.0, 1.0);
                    vec![(first, 1.0 - t), ((first + 1).min(last), t)]
                }
            }
        };
        // There are at most as many windows as there is known to be room for: see `TABLE_BYTES`.
        Taps { windows: (0..output).map(window).collect() }
    }

    /// The taps in order, each with its positions and weights for all outputs. A window that is shorter than the
    /// longest repeats its last tap and divides that tap's weight among the copies, so that no value from outside the
    /// window contributes.
    fn in_turn(&self) -> impl Iterator<Item = (Vec<i64>, Vec<f64>)> + '_ {
        let longest = self.windows.iter().map(Vec::len).max().unwrap_or(0);
        (0..longest).map(move |k| {
            let tap = |window: &Window| {
                let end = window.len() - 1;
                let (place, weight) = window[k.min(end)];
                let copies = if k >= end { (longest - end) as f64 } else { 1.0 };
                (place as i64, weight / copies)
            };
            self.windows.iter().map(tap).unzip()
        })
    }

    #[track_caller]
    fn apply(&self, x: &Tensor, axis: usize) -> Result<Tensor> {
        let device: &Device = x.device();
        let mut along = vec![1; x.rank() - axis]; // at most 3 axes
        along[0] = self.windows.len();
        let mut sum: Option<Tensor> = None;
        for (places, weights) in self.in_turn() {
            let index = Tensor::from_vec(places, [self.windows.len()], device)?;
            let value = x.index_select(axis as isize, &index)?;
            if sum.is_none() && weights.iter().all(|&w| w == 1.0) {
                sum = Some(value);
                continue;
            }
            let weight =
                Tensor::from_scalars(weights.into_iter().map(Scalar::Float), Shape::new(&along)?, x.dtype(), device)?;
            sum = Some(match sum {
                Some(sum) => TAP.apply(&[Operand::Tensor(&sum), Operand::Tensor(&value), Operand::Tensor(&weight)])?,
                None => value.mul(&weight)?,
            });
        }
        sum.ok_or_else(|| Error::argument("interpolate", "no window has a pixel")).here()
    }
}

/// The window of an antialiased output around `centre`. If the axis shrinks, the filter is `step` times as wide.
fn widened(centre: f64, step: f64, input: usize, mode: Interpolation) -> Window {
    let stretch = step.max(1.0);
    let reach = if mode == Interpolation::Bicubic { 2.0 } else { 1.0 } * stretch;
    let start = ((centre - reach + 0.5).max(0.0) as usize).min(input - 1);
    let end = ((centre + reach + 0.5).max(0.0) as usize).clamp(start + 1, input);
    let weight = |i: usize| {
        let x = ((i as f64 - centre + 0.5) / stretch).abs();
        if mode == Interpolation::Bicubic { cubic(x, -0.5) } else { (1.0 - x).max(0.0) }
    };
    let total: f64 = (start..end).map(weight).sum();
    let total = if total == 0.0 { 1.0 } else { total };
    // All windows together hold at most a few times as many entries as there are pixels: see `TABLE_BYTES`.
    (start..end).map(|i| (i, weight(i) / total)).collect()
}

impl Tensor {
    /// Resizes the axes after the first two of `self [n, c, ..]`, as PyTorch's `interpolate` does. There are 1 to 3
    /// such axes, depending on the mode.
    ///
    /// Output pixel `i` corresponds to the input position `(i + 0.5) * in / out - 0.5`, or `i * (in - 1) / (out - 1)`
    /// with [`align_corners`](Interpolate::align_corners). If a factor is given, it replaces `out / in`. (PyTorch
    /// ignores the factor of [`Nearest`](Interpolation::Nearest) in some memory layouts; this method does not.) Half
    /// precision is computed in f32.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![0.0f32, 1.0], [1, 1, 2], &device)?;
    /// let y = x.interpolate(Resized::To(&[4]), Interpolation::Linear)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 0.25, 0.75, 1.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the mode does not support the rank or the number of sizes, if a size is 0, if a factor is not above 0,
    /// if the mode does not support an option, or if the dtype is not a float and the mode mixes pixels.
    #[track_caller]
    pub fn interpolate(&self, to: Resized<'_>, how: impl Into<Interpolate>) -> Result<Tensor> {
        const OP: &str = "interpolate";
        let how = how.into();
        let name = how.mode.name();
        let given = match to {
            Resized::To(sizes) => sizes.len(),
            Resized::By(factors) => factors.len(),
        };
        if self.rank() < 3 || !how.mode.axes().contains(&(self.rank() - 2)) || given != self.rank() - 2 {
            let (lo, hi) = (how.mode.axes().start() + 2, how.mode.axes().end() + 2);
            let e = Error::shape(OP, format!("{given} sizes for a tensor of rank {} by {name}", self.rank()));
            let ranks = if lo == hi { format!("rank {lo}") } else { format!("rank {lo} to {hi}") };
            let help = format!("{name} takes [n, c, ..] of {ranks}, and one size an axis after the first two");
            return Err(self.describe(e, "self").help(help));
        }
        if how.align_corners && (how.mode.picks() || how.mode == Interpolation::Area) {
            let e = Error::argument(OP, format!("{name} has no corners to align"));
            return Err(self.describe(e, "self").help("leave out align_corners, or use a linear or cubic mode"));
        }
        if how.antialias && !matches!(how.mode, Interpolation::Bilinear | Interpolation::Bicubic) {
            let e = Error::argument(OP, format!("{name} cannot be antialiased"));
            return Err(self.describe(e, "self").help("leave out antialias, or use bilinear or bicubic"));
        }
        if !how.mode.picks() && !self.dtype().is_float() {
            let e = self.describe(Error::dtype(OP, self.dtype(), "floats, since pixels are mixed"), "self");
            return Err(e.help("convert with to_dtype, or use nearest"));
        }
        // All sizes are checked before anything is computed.
        let mut plan = Vec::new();
        for i in 0..given {
            let input = self.shape()[i + 2];
            let (output, factor) = match to {
                Resized::To(sizes) => (sizes[i], None),
                Resized::By(factors) => {
                    (scaled(input, factors[i]).map_err(|e| self.describe(e, "self"))?, Some(factors[i]))
                }
            };
            if input == 0 || output == 0 {
                let e = Error::argument(OP, format!("axis {} goes from {input} to {output}", i + 2));
                return Err(self.describe(e, "self").help("sizes before and after are at least 1"));
            }
            plan.push((i + 2, input, output, factor));
        }
        let shape = plan.iter().try_fold(*self.layout().shape(), |s, &(axis, _, output, _)| s.with(axis, output));
        let shape = shape.map_err(|e| self.describe(e, "self")).here()?;
        if shape.numel() == 0 {
            return self.reshape(shape);
        }
        // Checks that the result and the host tables fit into memory before anything of their size is allocated.
        let longest = plan.iter().map(|&(_, input, output, _)| input.saturating_add(output)).max().unwrap_or(0);
        let bytes = shape.numel().saturating_mul(size_of::<i64>()).saturating_add(longest.saturating_mul(TABLE_BYTES));
        check_room(self.device().backend(), OP, 1, bytes).map_err(|e| self.describe(e, "self"))?;
        let mut y = if how.mode.picks() { self.clone() } else { self.to_dtype(self.dtype().compute())? };
        // The axes that shrink most are resized first, which leaves less work for the other axes.
        plan.sort_by(|a, b| (a.2 as f64 / a.1 as f64).total_cmp(&(b.2 as f64 / b.1 as f64)));
        for (axis, input, output, factor) in plan {
            // As in PyTorch, linear and antialiased modes do not resample an axis whose size stays the same, regardless
            // of the factor.
            let copied = how.antialias || how.mode.is_linear() || factor.is_none_or(|f| f == 1.0);
            if input != output || !copied {
                y = Taps::new(input, output, factor, how).apply(&y, axis)?;
            }
        }
        y.to_dtype(self.dtype())
    }
}

/// `floor(input * factor)`
#[track_caller]
fn scaled(input: usize, factor: f64) -> Result<usize> {
    if !factor.is_finite() || factor <= 0.0 {
        let e = Error::argument("interpolate", format!("the factor {factor:?} is no scale"));
        return Err(e.help("factors are finite and above 0"));
    }
    let size = (input as f64 * factor).floor();
    if size > isize::MAX as f64 {
        let e = format!("{input} pixels times {factor:?} are more than memory can hold");
        return Err(Error::new(ErrorKind::Overflow, "interpolate", e).help("give a smaller factor"));
    }
    Ok(size as usize)
}
