//! Operators that sample images between pixels.

use gradus_tensor::{DType, Error, GridPadding, GridSample, Result, Sampling, Tensor};

use crate::graph::{Call, Row, axis, one, row, size, sizes, unsupported, volume};
use crate::value::{OnnxValue, device_floats, host_floats};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("GridSample", &[16, 20, 22], grid_sample),
    row("AffineGrid", &[20], affine_grid),
    row("RoiAlign", &[10, 16, 22], roi_align),
];

fn grid_sample(c: &Call<'_>) -> Values {
    let (x, grid) = (c.tensor(0)?, c.tensor(1)?);
    let mode = match c.text("mode", if c.opset() < 20 { "bilinear" } else { "linear" })? {
        "bilinear" | "linear" => Sampling::Bilinear,
        "nearest" => Sampling::Nearest,
        "bicubic" | "cubic" => Sampling::Bicubic,
        other => return Err(Error::argument("onnx", format!("mode = `{other}`"))),
    };
    let padding = match c.text("padding_mode", "zeros")? {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => return Err(Error::argument("onnx", format!("padding_mode = `{other}`"))),
    };
    let how = GridSample { mode, padding, align_corners: c.flag("align_corners", false)? };
    if x.rank() == 4 {
        return Ok(one(x.grid_sample(&grid, how)?));
    }
    Ok(one(volume_sample(&x, &grid, how)?))
}

/// The positions of points along an axis of `n` pixels, after the border rule.
fn positions(points: &Tensor, n: usize, how: GridSample) -> Result<Tensor> {
    let size = n as f64;
    let at = match how.align_corners {
        true => points.add(1.0)?.mul((size - 1.0) / 2.0)?,
        false => points.add(1.0)?.mul(size / 2.0)?.sub(0.5)?,
    };
    match how.padding {
        GridPadding::Zeros => Ok(at),
        GridPadding::Border => at.clamp(0.0, size - 1.0),
        GridPadding::Reflection => {
            let (lo, hi) = if how.align_corners { (0.0, size - 1.0) } else { (-0.5, size - 0.5) };
            let span = hi - lo;
            if span <= 0.0 {
                return at.zeros_like();
            }
            // A triangle wave of period 2 * span.
            let wave = at.sub(lo)?.remainder(2.0 * span)?;
            wave.gt(span)?.where_(wave.neg()?.add(2.0 * span)?, &wave)?.add(lo)?.clamp(0.0, size - 1.0)
        }
    }
}

/// Samples volumes `[n, c, d, h, w]` at points `[n, .., 3]`: interpolates between the eight pixels around a point, or
/// takes the nearest pixel.
fn volume_sample(x: &Tensor, grid: &Tensor, how: GridSample) -> Result<Tensor> {
    let &[n, channels, d, h, w] = x.shape() else {
        return Err(unsupported("GridSample over other than 2 or 3 axes"));
    };
    if how.mode == Sampling::Bicubic {
        return Err(unsupported("bicubic GridSample over 3 axes"));
    }
    let &[_, od, oh, ow, 3] = grid.shape() else {
        return Err(Error::shape("onnx", format!("a grid of shape {:?} for volumes", grid.shape())));
    };
    let points = od * oh * ow;
    let dims = [d, h, w];
    let mut at = Vec::new();
    for (i, &size) in dims.iter().enumerate() {
        at.push(positions(&grid.select(-1, 2 - i as isize)?.reshape([n, points])?, size, how)?);
    }
    let flat = x.reshape([n, channels, d * h * w])?;
    pixels(&flat, &dims, &at, how.mode == Sampling::Nearest)?.reshape([n, channels, od, oh, ow])
}

/// Samples images `[n, c, pixels]`, whose spatial sizes are `dims`, at points. `at` holds their positions `[n, points]`
/// along each axis. Interpolates between the pixels around a point, or takes the nearest pixel. Outside the image, the
/// values are 0.
pub(super) fn pixels(flat: &Tensor, dims: &[usize], at: &[Tensor], nearest: bool) -> Result<Tensor> {
    let mut sum: Option<Tensor> = None;
    for corner in 0..if nearest { 1 } else { 1 << dims.len() } {
        let (mut weight, mut index): (Option<Tensor>, Option<Tensor>) = (None, None);
        for (i, (at, &size)) in at.iter().zip(dims).enumerate() {
            let (pixel, part) = if nearest {
                (at.round()?, at.ones_like()?)
            } else {
                let upper = corner >> i & 1 == 1;
                let pixel = if upper { at.floor()?.add(1.0)? } else { at.floor()? };
                let part = at.sub(&pixel)?.abs()?.neg()?.add(1.0)?;
                (pixel, part)
            };
            let inside = pixel.ge(0.0)?.logical_and(pixel.le(size as f64 - 1.0)?)?;
            let part = inside.where_(part, 0.0)?;
            let pixel = pixel.detach().clamp(0.0, size as f64 - 1.0)?.to_dtype(DType::I64)?;
            weight = Some(match weight {
                None => part,
                Some(weight) => weight.mul(part)?,
            });
            index = Some(match index {
                None => pixel,
                Some(index) => index.mul(size as i64)?.add(pixel)?,
            });
        }
        let (Some(weight), Some(index)) = (weight, index) else { continue };
        let &[n, points] = index.shape() else { continue };
        let index = index.unsqueeze(1)?.expand([n, flat.shape()[1], points])?.contiguous()?;
        let part = flat.gather(2, &index)?.mul(weight.unsqueeze(1)?)?;
        sum = Some(match sum {
            None => part,
            Some(sum) => sum.add(part)?,
        });
    }
    sum.ok_or_else(|| Error::argument("onnx", "an image without axes"))?.to_dtype(flat.dtype())
}

fn affine_grid(c: &Call<'_>) -> Values {
    let (theta, shape) = (c.tensor(0)?, sizes(&c.host_ints(1)?)?);
    let aligned = c.flag("align_corners", false)?;
    let Some((&batch, dims)) = shape.split_first().map(|(n, rest)| (n, rest.get(1..).unwrap_or_default())) else {
        return Err(Error::argument("onnx", "an empty size"));
    };
    let rank = dims.len();
    let points = volume(dims)?;
    let line = |n: usize| -> Result<Tensor> {
        let at = Tensor::arange(0, n as i64, 1, DType::I64, c.device)?.to_dtype(theta.dtype())?;
        match aligned {
            true if n > 1 => at.mul(2.0 / (n as f64 - 1.0))?.sub(1.0),
            true => at.zeros_like(),
            false => at.mul(2.0)?.add(1.0)?.div(n as f64)?.sub(1.0),
        }
    };
    // Coordinates begin with that of the last axis.
    let mut columns = Vec::new();
    for i in (0..rank).rev() {
        let mut at = line(dims[i])?;
        for _ in i + 1..rank {
            at = at.unsqueeze(-1)?;
        }
        columns.push(at.expand(dims)?.reshape([points])?);
    }
    columns.push(Tensor::ones([points], theta.dtype(), c.device)?);
    let base = Tensor::stack(&columns.iter().collect::<Vec<_>>(), -1)?;
    let grid = base.matmul(&theta.transpose(1, 2)?)?;
    Ok(one(grid.reshape([&[batch], dims, &[rank]].concat())?))
}

/// The largest number of samples of one region.
const MOST_SAMPLES: usize = 1 << 22;

fn roi_align(c: &Call<'_>) -> Values {
    let (x, rois, batches) = (c.tensor(0)?, c.tensor(1)?, c.host_ints(2)?);
    let default = if c.opset() < 16 { "output_half_pixel" } else { "half_pixel" };
    let half = c.text("coordinate_transformation_mode", default)? == "half_pixel";
    let average = match c.text("mode", "avg")? {
        "avg" => true,
        "max" => false,
        other => return Err(Error::argument("onnx", format!("mode = `{other}`"))),
    };
    let (rows, columns) = (size(c.int("output_height", 1)?)?, size(c.int("output_width", 1)?)?);
    let (ratio, scale) = (size(c.int("sampling_ratio", 0)?)?, c.float("spatial_scale", 1.0)?);
    let &[n, channels, height, width] = x.shape() else { return Err(Error::shape("onnx", "images belong here")) };
    let corners = host_floats(&rois)?;
    if height == 0 || width == 0 || corners.len() != 4 * batches.len() {
        return Err(Error::shape("onnx", format!("regions {:?} for {} places", rois.shape(), batches.len())));
    }
    let mut results = Vec::new();
    for (corner, &batch) in corners.chunks_exact(4).zip(batches.iter()) {
        let batch = axis(batch, n)?;
        let offset = if half { 0.5 } else { 0.0 };
        let at = |i: usize| corner.get(i).copied().unwrap_or(0.0) * scale - offset;
        let (mut w, mut h) = (at(2) - at(0), at(3) - at(1));
        if !half {
            (w, h) = (w.max(1.0), h.max(1.0));
        }
        let (bin_h, bin_w) = (h / rows as f64, w / columns as f64);
        let count = |bin: f64| if ratio > 0 { ratio } else { bin.ceil().max(0.0) as usize };
        let (grid_h, grid_w) = (count(bin_h), count(bin_w));
        let samples = grid_h.saturating_mul(grid_w);
        if samples.saturating_mul(rows).saturating_mul(columns) > MOST_SAMPLES {
            return Err(unsupported(format!("a region of {h} x {w} pixels")));
        }
        // For each of the four pixels around a sample, its position and weight.
        let mut places: [Vec<i64>; 4] = Default::default();
        let mut weights: [Vec<f64>; 4] = Default::default();
        for bin in 0..rows * columns {
            for s in 0..samples {
                let y = at(1) + (bin / columns) as f64 * bin_h + ((s / grid_w) as f64 + 0.5) * bin_h / grid_h as f64;
                let x = at(0) + (bin % columns) as f64 * bin_w + ((s % grid_w) as f64 + 0.5) * bin_w / grid_w as f64;
                let outside = y < -1.0 || y > height as f64 || x < -1.0 || x > width as f64;
                let along = |v: f64, n: usize| {
                    let v = v.max(0.0).min(n as f64 - 1.0);
                    let low = v.floor() as usize;
                    (low, (low + 1).min(n - 1), v - low as f64)
                };
                let ((y0, y1, ly), (x0, x1, lx)) = (along(y, height), along(x, width));
                let four = [
                    (y0, x0, (1.0 - ly) * (1.0 - lx)),
                    (y0, x1, (1.0 - ly) * lx),
                    (y1, x0, ly * (1.0 - lx)),
                    (y1, x1, ly * lx),
                ];
                for (i, (y, x, weight)) in four.into_iter().enumerate() {
                    places[i].push((y * width + x) as i64);
                    weights[i].push(if outside { 0.0 } else { weight });
                }
            }
        }
        let image = x.select(0, batch as isize)?.reshape([channels, height * width])?;
        let mut all: Option<Tensor> = None;
        for (places, weights) in places.iter().zip(&weights) {
            let weight = device_floats(weights, &[weights.len()], x.dtype(), c.device)?;
            let part = image.index_select(1, &Tensor::from_vec(places, [places.len()], c.device)?)?.mul(weight)?;
            all = Some(match all {
                None => part,
                Some(all) if average => all.add(part)?,
                Some(all) => all.maximum(part)?,
            });
        }
        let all =
            all.ok_or_else(|| Error::argument("onnx", "no sample"))?.reshape([channels, rows, columns, samples])?;
        results.push(match (average, samples) {
            (_, 0) => Tensor::zeros([channels, rows, columns], x.dtype(), c.device)?,
            (true, _) => all.mean(&[3], false)?,
            (false, _) => all.max(&[3], false)?,
        });
    }
    if results.is_empty() {
        return Ok(one(Tensor::zeros([0, channels, rows, columns], x.dtype(), c.device)?));
    }
    Ok(one(Tensor::stack(&results.iter().collect::<Vec<_>>(), 0)?))
}
