//! Fourier transforms, as products with matrices of sines and cosines, and windows.

use std::f64::consts::PI;

use gradus_tensor::{Error, PadMode, Result, Scalar, Tensor};

use crate::elem::Elem;
use crate::graph::{Call, Row, axis, one, row, size, unsupported};
use crate::value::{OnnxValue, device_floats};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("DFT", &[17, 20], dft),
    row("STFT", &[17], stft),
    row("HannWindow", &[17], |c| window(c, [0.5, 0.5, 0.0])),
    row("HammingWindow", &[17], |c| window(c, [25.0 / 46.0, 21.0 / 46.0, 0.0])),
    row("BlackmanWindow", &[17], |c| window(c, [0.42, 0.5, 0.08])),
    row("MelWeightMatrix", &[17], mel),
];

/// The length of the longest transform, whose matrix has the square of this number of elements.
const LONGEST: usize = 1 << 12;

/// A transform along the last axis, of real numbers or of real and imaginary parts.
struct Transform {
    length: usize,
    inverse: bool,
    onesided: bool,
}

impl Transform {
    /// The cosines and sines `[from, to]` of the exponents.
    fn tables(&self, from: usize, to: usize, like: &Tensor) -> Result<(Tensor, Tensor)> {
        let n = self.length;
        if n > LONGEST || from > LONGEST || to > LONGEST {
            return Err(unsupported(format!("a Fourier transform of {n} points; {LONGEST} are possible")));
        }
        let table = |f: fn(f64) -> f64| {
            let entry = |(i, j): (usize, usize)| f(2.0 * PI * ((i * j) % n) as f64 / n as f64);
            // At most the square of `LONGEST`.
            let values: Vec<f64> = (0..from).flat_map(|i| (0..to).map(move |j| (i, j))).map(entry).collect();
            device_floats(&values, &[from, to], like.dtype(), like.device())
        };
        Ok((table(f64::cos)?, table(f64::sin)?))
    }

    /// `[.., n]` with `n` cut or filled with zeros.
    fn fitted(&self, x: &Tensor, n: usize) -> Result<Tensor> {
        let last = x.shape().last().copied().unwrap_or(0);
        if last >= n {
            return x.narrow(-1, 0, n);
        }
        let mut sides = Vec::new();
        // At most the rank.
        sides.resize(x.rank(), (0, 0));
        if let Some(side) = sides.last_mut() {
            *side = (0, (n - last) as isize);
        }
        x.pad(&sides, PadMode::Constant(Scalar::Float(0.0)))
    }

    /// Real and imaginary parts in a new last axis.
    fn run(&self, real: &Tensor, imaginary: Option<&Tensor>) -> Result<Tensor> {
        let n = self.length;
        if n == 0 {
            return Err(Error::argument("onnx", "a Fourier transform of no points"));
        }
        let half = n / 2 + 1;
        if self.inverse && self.onesided {
            // The other half is the complex conjugate of this half.
            let (re, im) = (self.fitted(real, half)?, imaginary.map(|im| self.fitted(im, half)).transpose()?);
            let (cos, sin) = self.tables(half, n, real)?;
            let weight = |k: usize| if k == 0 || 2 * k == n { 1.0 } else { 2.0 } / n as f64;
            // At most half of `LONGEST`.
            let weights: Vec<f64> = (0..half).map(weight).collect();
            let weights = device_floats(&weights, &[half], real.dtype(), real.device())?;
            let mut y = re.mul(&weights)?.matmul(&cos)?;
            if let Some(im) = im {
                y = y.sub(im.mul(&weights)?.matmul(&sin)?)?;
            }
            return y.unsqueeze(-1);
        }
        let to = if self.onesided { half } else { n };
        let (cos, sin) = self.tables(n, to, real)?;
        // The transform uses e^(-i a) = cos a - i sin a, and its inverse the conjugate.
        let sin = if self.inverse { sin } else { sin.neg()? };
        let re = self.fitted(real, n)?;
        let (mut a, mut b) = (re.matmul(&cos)?, re.matmul(&sin)?);
        if let Some(im) = imaginary {
            let im = self.fitted(im, n)?;
            (a, b) = (a.sub(im.matmul(&sin)?)?, b.add(im.matmul(&cos)?)?);
        }
        let y = Tensor::stack(&[&a, &b], -1)?;
        if self.inverse { y.div(n as f64) } else { Ok(y) }
    }
}

/// The real part of `[.., 1]` or `[.., 2]`, and the imaginary one.
fn parts(x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
    match x.shape().last() {
        Some(1) => Ok((x.select(-1, 0)?, None)),
        Some(2) => Ok((x.select(-1, 0)?, Some(x.select(-1, 1)?))),
        _ => Err(Error::shape("onnx", format!("the last axis of {:?} has not 1 or 2 parts", x.shape()))),
    }
}

fn dft(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let along = match c.opset() < 20 {
        true => c.int("axis", 1)?,
        false => c.number(2)?.map_or(-2, |a| a as i64),
    };
    let at = axis(along, x.rank())?;
    if at + 1 == x.rank() {
        return Err(Error::argument("onnx", "the last axis holds the parts, and is not transformed"));
    }
    let (inverse, onesided) = (c.flag("inverse", false)?, c.flag("onesided", false)?);
    let n = x.shape()[at];
    let length = match c.number(1)? {
        Some(length) => size(length as i64)?,
        None if inverse && onesided => 2 * n.saturating_sub(1),
        None => n,
    };
    let (real, imaginary) = parts(&x)?;
    let last = |t: &Tensor| t.movedim(&[at as isize], &[-1]);
    let imaginary = imaginary.map(|im| last(&im)).transpose()?;
    let y = Transform { length, inverse, onesided }.run(&last(&real)?, imaginary.as_ref())?;
    Ok(one(y.movedim(&[-2], &[at as isize])?.to_dtype(x.dtype())?))
}

fn stft(c: &Call<'_>) -> Values {
    let (x, step) = (c.tensor(0)?, size(c.number(1)?.unwrap_or(0.0) as i64)?);
    let window = c.optional(2)?;
    let onesided = c.flag("onesided", true)?;
    let length = match (c.number(3)?, &window) {
        (Some(length), _) => size(length as i64)?,
        (None, Some(window)) => window.numel(),
        (None, None) => return Err(Error::argument("onnx", "neither a window nor the length of frames is given")),
    };
    if x.rank() != 3 || step == 0 || length == 0 || length > x.shape()[1] {
        return Err(Error::argument("onnx", format!("frames of {length} each {step} of a signal {:?}", x.shape())));
    }
    // [batch, frames, parts, length]
    let mut frames = x.unfold_axis(1, length, step)?;
    if let Some(window) = window {
        frames = frames.mul(window)?;
    }
    let (real, imaginary) = parts(&frames.transpose(-2, -1)?)?;
    let y = Transform { length, inverse: false, onesided }.run(&real, imaginary.as_ref())?;
    Ok(one(y.to_dtype(x.dtype())?))
}

/// `a - b cos(2 pi n / N) + c cos(4 pi n / N)`
fn window(c: &Call<'_>, [a, b, d]: [f64; 3]) -> Values {
    let n = size(c.number(0)?.unwrap_or(0.0) as i64)?;
    let periodic = c.flag("periodic", true)?;
    let elem = c.elem_attribute("output_datatype")?.unwrap_or(Elem::F32);
    let dtype = elem.dtype().ok_or_else(|| unsupported(format!("a window of {}", elem.name())))?;
    let span = if periodic { n as f64 } else { n as f64 - 1.0 };
    if n > 1 << 24 {
        return Err(unsupported(format!("a window of {n} points")));
    }
    let value = |i: usize| {
        let angle = 2.0 * PI * i as f64 / span;
        a - b * angle.cos() + d * (2.0 * angle).cos()
    };
    // At most 2^24.
    let values: Vec<f64> = (0..n).map(value).collect();
    Ok(one(device_floats(&values, &[n], dtype, c.device)?))
}

fn mel(c: &Call<'_>) -> Values {
    let number = |i: usize| c.number(i).map(|n| n.unwrap_or(0.0));
    let (bins, length, rate) = (size(number(0)? as i64)?, size(number(1)? as i64)?, number(2)?);
    let (lower, upper) = (number(3)?, number(4)?);
    let elem = c.elem_attribute("output_datatype")?.unwrap_or(Elem::F32);
    let dtype = elem.dtype().ok_or_else(|| unsupported(format!("weights of {}", elem.name())))?;
    let rows = length / 2 + 1;
    if bins.saturating_mul(rows) > 1 << 24
        || rate.is_nan()
        || rate < 1.0
        || !(0.0..1e9).contains(&lower)
        || !(0.0..1e9).contains(&upper)
    {
        return Err(unsupported(format!("a matrix of {rows} x {bins} from {lower} to {upper} Hz at a rate of {rate}")));
    }
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(upper) - mel(lower)) / (bins as f64 + 2.0);
    let edge = |i: usize| {
        let hertz = 700.0 * (10f64.powf((i as f64 * step + mel(lower)) / 2595.0) - 1.0);
        ((length as f64 + 1.0) * hertz / rate).floor() as i64
    };
    let mut values: Vec<f64> = Vec::new();
    // At most 2^24.
    values.resize(rows * bins, 0.0);
    for i in 0..bins {
        let (left, centre, right) = (edge(i), edge(i + 1), edge(i + 2));
        let mut put = |row: i64, value: f64| {
            if let Some(to) = usize::try_from(row).ok().and_then(|row| values.get_mut(row * bins + i)) {
                *to = value;
            }
        };
        if left == centre {
            put(centre, 1.0);
        } else {
            (left..=centre.min(rows as i64)).for_each(|j| put(j, (j - left) as f64 / (centre - left) as f64));
        }
        (centre..right.min(rows as i64)).for_each(|j| put(j, (right - j) as f64 / (right - centre) as f64));
    }
    Ok(one(device_floats(&values, &[rows, bins], dtype, c.device)?))
}
