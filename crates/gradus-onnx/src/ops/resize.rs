//! `Resize` and `Upsample`. Every mode is separable: along an axis, a pixel is a weighted sum of a few input pixels,
//! whose positions and weights the host computes.

use gradus_tensor::{DType, Error, Result, Tensor};

use super::movement::moved;
use crate::graph::{Call, Row, axis, row, sizes, unsupported};
use crate::value::{OnnxValue, device_floats};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("Resize", &[10, 11, 13, 18, 19], |c| if c.opset() < 11 { scaled(c) } else { resize(c) }),
    row("Upsample", &[1, 7, 9, 10], scaled),
];

/// How output pixels map to input positions, and how values between pixels are interpolated.
struct How<'a> {
    coordinates: &'a str,
    mode: &'a str,
    nearest: &'a str,
    cubic: f64,
    exclude_outside: bool,
    antialias: bool,
    extrapolation: f64,
}

/// One axis: its sizes, the factor, and the region of interest.
struct Axis {
    at: usize,
    from: usize,
    to: usize,
    scale: f64,
    region: (f64, f64),
}

/// The position in the input of pixel `i` of the output.
fn position(how: &How<'_>, a: &Axis, i: usize) -> Result<f64> {
    let (x, from, wide) = (i as f64, a.from as f64, a.scale * a.from as f64);
    Ok(match how.coordinates {
        "half_pixel" => (x + 0.5) / a.scale - 0.5,
        "asymmetric" => x / a.scale,
        "align_corners" if wide == 1.0 => 0.0,
        "align_corners" => x * (from - 1.0) / (wide - 1.0),
        "pytorch_half_pixel" if wide == 1.0 => -0.5,
        "pytorch_half_pixel" => (x + 0.5) / a.scale - 0.5,
        "half_pixel_symmetric" => from / 2.0 * (1.0 - a.to as f64 / wide) + (x + 0.5) / a.scale - 0.5,
        "tf_crop_and_resize" => {
            let (start, end) = a.region;
            let within = match a.to {
                1 => (end - start) * (from - 1.0) / 2.0,
                _ => x * (end - start) * (from - 1.0) / (wide - 1.0),
            };
            within + start * (from - 1.0)
        }
        other => return Err(Error::argument("onnx", format!("coordinate_transformation_mode = `{other}`"))),
    })
}

/// The pixel nearest to a position.
fn nearest(mode: &str, x: f64) -> Result<f64> {
    Ok(match mode {
        "round_prefer_floor" => (x - 0.5).ceil(),
        "round_prefer_ceil" => (x + 0.5).floor(),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        other => return Err(Error::argument("onnx", format!("nearest_mode = `{other}`"))),
    })
}

fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    match x {
        ..=1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        ..2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

/// The weights of the pixels around a position that lies `ratio` (above 0, up to 1) after a pixel, and the offset of
/// the first weighted pixel from that pixel.
fn weights(how: &How<'_>, scale: f64, ratio: f64) -> (i64, Vec<f64>) {
    let scale = if how.antialias { scale.min(1.0) } else { 1.0 };
    let reach = if how.mode == "cubic" { 2.0 } else { 1.0 };
    let first = (-reach / scale).floor() as i64 + 1;
    let kernel = |i: i64| {
        let x = (i as f64 - ratio) * scale;
        if how.mode == "cubic" { cubic(x, how.cubic) } else { (1.0 - x.abs()).clamp(0.0, 1.0) }
    };
    let mut w: Vec<f64> = (first..2 - first).map(kernel).collect();
    if how.antialias {
        let sum: f64 = w.iter().sum();
        w.iter_mut().for_each(|w| *w /= sum);
    }
    (first, w)
}

/// The largest number of weights that the host computes for an axis.
const MOST: usize = 1 << 22;

/// Resizes one axis.
fn along(x: &Tensor, how: &How<'_>, a: &Axis) -> Result<Tensor> {
    if a.from == 0 || a.to == 0 || a.to > MOST {
        return Err(Error::shape("onnx", format!("an axis of {} resized to {}", a.from, a.to)));
    }
    let taps = if how.antialias { 4.0 / a.scale.min(1.0) } else { 4.0 };
    if taps * a.to as f64 > MOST as f64 {
        return Err(unsupported(format!("an axis of {} resized to {} by the factor {:e}", a.from, a.to, a.scale)));
    }
    let device = x.device();
    let last = a.from as i64 - 1;
    // The positions and weights of each tap, for all pixels of the output.
    let mut places: Vec<Vec<i64>> = Vec::new();
    let mut parts: Vec<Vec<f64>> = Vec::new();
    let mut outside: Vec<bool> = Vec::new();
    for i in 0..a.to {
        let at = position(how, a, i)?;
        outside.push(how.coordinates == "tf_crop_and_resize" && (at < 0.0 || at > last as f64));
        let taps: Vec<(i64, f64)> = if how.mode == "nearest" {
            vec![(nearest(how.nearest, at)? as i64, 1.0)]
        } else {
            let base = at.ceil() - 1.0;
            let (first, w) = weights(how, a.scale, at - base);
            w.into_iter().enumerate().map(|(k, w)| (base as i64 + first + k as i64, w)).collect()
        };
        let kept = |&(p, w): &(i64, f64)| if how.exclude_outside && !(0..=last).contains(&p) { 0.0 } else { w };
        let sum: f64 = if how.exclude_outside { taps.iter().map(kept).sum() } else { 1.0 };
        for (k, tap) in taps.iter().enumerate() {
            if places.len() <= k {
                places.push(Vec::new());
                parts.push(Vec::new());
            }
            places[k].push(tap.0.clamp(0, last));
            parts[k].push(kept(tap) / sum);
        }
    }
    // Reshapes a vector to lie along the axis.
    let shaped = |v: Tensor| -> Result<Tensor> {
        let mut v = v;
        for _ in a.at + 1..x.rank() {
            v = v.unsqueeze(-1)?;
        }
        Ok(v)
    };
    let mut sum: Option<Tensor> = None;
    for (places, parts) in places.iter().zip(&parts) {
        let picked = x.index_select(a.at as isize, &Tensor::from_vec(places, [places.len()], device)?)?;
        let part = match how.mode {
            "nearest" => picked,
            _ => picked.mul(shaped(device_floats(parts, &[parts.len()], x.dtype(), device)?)?)?,
        };
        sum = Some(match sum {
            None => part,
            Some(sum) => sum.add(part)?,
        });
    }
    let y = sum.ok_or_else(|| Error::argument("onnx", "no pixel counts"))?;
    if outside.contains(&true) {
        let n = outside.len();
        return shaped(Tensor::from_vec(outside, [n], device)?)?.where_(how.extrapolation, y)?.to_dtype(x.dtype());
    }
    Ok(y)
}

fn run(c: &Call<'_>, how: &How<'_>, axes: &[Axis]) -> Values {
    let (elem, x) = c.stored(0)?;
    if !matches!(how.mode, "nearest" | "linear" | "cubic") {
        return Err(Error::argument("onnx", format!("mode = `{}`", how.mode)));
    }
    let exact = how.mode == "nearest";
    let mut y =
        if exact { x.clone() } else { x.to_dtype(if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 })? };
    for a in axes {
        if a.from != a.to || a.scale != 1.0 || how.coordinates == "tf_crop_and_resize" {
            y = along(&y, how, a)?;
        }
    }
    if !exact && x.dtype().is_int() {
        let (lo, hi) = elem.range().unwrap_or((i64::MIN, i64::MAX));
        y = y.round()?.clamp(lo as f64, hi as f64)?;
    }
    Ok(moved(elem, y.to_dtype(x.dtype())?))
}

/// The floats of an input; an empty one counts as missing.
fn floats(c: &Call<'_>, input: usize) -> Result<Option<Vec<f64>>> {
    match c.optional_array(input)? {
        Some(values) if values.numel() > 0 => Ok(Some(values.floats()?.to_vec())),
        _ => Ok(None),
    }
}

/// The operators before opset 11, which know only factors, relative to the corner of the first pixel.
fn scaled(c: &Call<'_>) -> Values {
    let shape = c.array(0)?.shape();
    let scales = match c.opset() >= 9 {
        true => floats(c, 1)?.unwrap_or_default(),
        false if c.opset() < 7 => {
            vec![1.0, 1.0, c.float("height_scale", 1.0)?, c.float("width_scale", 1.0)?]
        }
        false => c.floats("scales")?.unwrap_or_default().iter().map(|&s| f64::from(s)).collect(),
    };
    let mode = match c.text("mode", "nearest")? {
        "bilinear" => "linear",
        mode => mode,
    };
    let how = How {
        coordinates: "asymmetric",
        mode,
        nearest: "floor",
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
        extrapolation: 0.0,
    };
    run(c, &how, &by_scales(shape, &(0..shape.len()).collect::<Vec<_>>(), &scales)?)
}

fn by_scales(shape: &[usize], axes: &[usize], scales: &[f64]) -> Result<Vec<Axis>> {
    if scales.len() != axes.len() || scales.iter().any(|&s| !(s > 0.0 && s < 1e6)) {
        return Err(Error::argument("onnx", format!("the factors {scales:?} for {} axes", axes.len())));
    }
    let axis = |(&at, &scale): (&usize, &f64)| Axis {
        at,
        from: shape[at],
        to: (shape[at] as f64 * scale).floor() as usize,
        scale,
        region: (0.0, 1.0),
    };
    Ok(axes.iter().zip(scales).map(axis).collect())
}

fn resize(c: &Call<'_>) -> Values {
    let how = How {
        coordinates: c.text("coordinate_transformation_mode", "half_pixel")?,
        mode: c.text("mode", "nearest")?,
        nearest: c.text("nearest_mode", "round_prefer_floor")?,
        cubic: c.float("cubic_coeff_a", -0.75)?,
        exclude_outside: c.flag("exclude_outside", false)?,
        antialias: c.flag("antialias", false)?,
        extrapolation: c.float("extrapolation_value", 0.0)?,
    };
    let shape = c.array(0)?.shape();
    let axes: Vec<usize> = match c.ints("axes")? {
        Some(axes) => axes.iter().map(|&a| axis(a, shape.len())).collect::<Result<_>>()?,
        None => (0..shape.len()).collect(),
    };
    let policy = c.text("keep_aspect_ratio_policy", "stretch")?;
    let wanted = match c.optional_array(3)? {
        Some(array) if array.numel() > 0 => Some(sizes(&array.ints()?)?),
        _ => None,
    };
    let mut planned = match (floats(c, 2)?, wanted) {
        (_, Some(want)) => {
            if want.len() != axes.len() || axes.iter().any(|&a| shape[a] == 0) {
                return Err(Error::argument("onnx", format!("the sizes {want:?} for {} axes", axes.len())));
            }
            let ratios: Vec<f64> = axes.iter().zip(&want).map(|(&a, &to)| to as f64 / shape[a] as f64).collect();
            let common = match policy {
                "stretch" => None,
                "not_larger" => ratios.iter().copied().reduce(f64::min),
                "not_smaller" => ratios.iter().copied().reduce(f64::max),
                other => return Err(Error::argument("onnx", format!("keep_aspect_ratio_policy = `{other}`"))),
            };
            let axis = |((&at, &to), &ratio): ((&usize, &usize), &f64)| match common {
                None => Axis { at, from: shape[at], to, scale: ratio, region: (0.0, 1.0) },
                Some(scale) => {
                    let to = (shape[at] as f64 * scale + 0.5).floor() as usize;
                    Axis { at, from: shape[at], to, scale, region: (0.0, 1.0) }
                }
            };
            axes.iter().zip(&want).zip(&ratios).map(axis).collect()
        }
        (Some(scales), None) => by_scales(shape, &axes, &scales)?,
        (None, None) => return Err(Error::argument("onnx", "neither factors nor sizes are given")),
    };
    if how.coordinates == "tf_crop_and_resize" {
        let region = floats(c, 1)?.unwrap_or_default();
        if region.len() != 2 * planned.len() {
            return Err(Error::argument(
                "onnx",
                format!("a region of {} numbers for {} axes", region.len(), planned.len()),
            ));
        }
        let n = planned.len();
        for (i, a) in planned.iter_mut().enumerate() {
            a.region = (region[i], region[n + i]);
        }
    }
    run(c, &how, &planned)
}
