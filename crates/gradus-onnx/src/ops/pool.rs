//! Poolings. Gradus runs those that it supports as single operations, and all others as reductions over sliding views.

use gradus_tensor::{DType, Error, PadMode, PoolOptions, Result, Scalar, Tensor};

use super::conv::Window;
use crate::graph::{Call, Row, one, row, sizes, unsupported, volume};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("MaxPool", &[1, 8, 10, 11, 12, 22], max_pool),
    row("AveragePool", &[1, 7, 10, 11, 19, 22], |c| Ok(one(averaged(c, &c.tensor(0)?)?))),
    row("LpPool", &[1, 2, 11, 18, 22], lp_pool),
    row("GlobalAveragePool", &[1, 22], |c| global(c, |x, axes| x.mean(axes, true))),
    row("GlobalMaxPool", &[1, 22], |c| global(c, |x, axes| x.max(axes, true))),
    row("GlobalLpPool", &[1, 2, 22], |c| {
        let p = if c.opset() < 2 { c.float("p", 2.0)? } else { c.int("p", 2)? as f64 };
        global(c, |x, axes| x.norm(p, axes, true))
    }),
    row("MaxUnpool", &[9, 11, 22], max_unpool),
];

fn global(c: &Call<'_>, f: impl FnOnce(&Tensor, &[isize]) -> Result<Tensor>) -> Values {
    let x = c.tensor(0)?;
    let axes: Vec<isize> = (2..x.rank() as isize).collect();
    Ok(one(f(&x, &axes)?))
}

/// The window, and how much each end pad must grow if the number of positions is rounded up.
fn window(c: &Call<'_>, x: &Tensor) -> Result<(Window, Vec<usize>)> {
    let w = Window::of(c, x, None)?;
    let ceil = c.flag("ceil_mode", false)?;
    let more = (0..w.kernel.len()).map(|i| {
        let n = x.shape()[2 + i];
        let whole = n.saturating_add(w.pads[i].0).saturating_add(w.pads[i].1);
        let left = whole.saturating_sub(w.reach(i)) % w.stride[i];
        let next = (whole.saturating_sub(w.reach(i)) / w.stride[i] + 1).saturating_mul(w.stride[i]);
        // Adds one more window, unless it would begin in the padding at the end.
        if ceil && left > 0 && next < n.saturating_add(w.pads[i].0) {
            next.saturating_add(w.reach(i)).saturating_sub(whole)
        } else {
            0
        }
    });
    let more = more.collect();
    Ok((w, more))
}

/// The windows of the padded input. The elements of a window lie along the last axes, one axis for each of the window.
fn windows(x: &Tensor, w: &Window, more: &[usize], fill: Scalar) -> Result<Tensor> {
    let mut sides = vec![(0, 0), (0, 0)];
    for (i, &(before, after)) in w.pads.iter().enumerate() {
        sides.push((before as isize, (after + more[i]) as isize));
    }
    let mut y = if sides.iter().any(|s| *s != (0, 0)) { x.pad(&sides, PadMode::Constant(fill))? } else { x.clone() };
    for i in 0..w.kernel.len() {
        y = y.unfold_axis(2 + i as isize, w.reach(i), w.stride[i])?;
        y = y.slice(-1, 0, w.reach(i), w.dilation[i])?;
    }
    Ok(y)
}

/// The last axes, along which the elements of a window lie.
fn last(w: &Window) -> Vec<isize> {
    (1..=w.kernel.len() as isize).map(|i| -i).collect()
}

/// The smallest number of a dtype.
fn least(dtype: DType) -> Scalar {
    match dtype {
        DType::I8 => Scalar::Int(-128),
        d if d.is_float() => Scalar::Float(f64::NEG_INFINITY),
        DType::I16 => Scalar::Int(i16::MIN.into()),
        DType::I32 => Scalar::Int(i32::MIN.into()),
        DType::I64 => Scalar::Int(i64::MIN),
        _ => Scalar::Int(0),
    }
}

fn fixed<const N: usize>(values: &[usize]) -> Result<[usize; N]> {
    values.try_into().map_err(|_| unsupported("a pooling over other than 1 to 3 axes"))
}

/// The options of Gradus's own pooling, if it supports this window.
fn plain<const N: usize>(w: &Window, more: &[usize]) -> Option<([usize; N], PoolOptions<N>)> {
    let even = w.pads.iter().zip(&w.kernel).all(|(&(before, after), &k)| before == after && before <= k / 2);
    if w.kernel.len() != N || !even || more.iter().any(|&m| m > 0) {
        return None;
    }
    let pads: Vec<usize> = w.pads.iter().map(|p| p.0).collect();
    let options = PoolOptions::new().stride(fixed(&w.stride).ok()?).padding(fixed(&pads).ok()?);
    Some((fixed(&w.kernel).ok()?, options.dilation(fixed(&w.dilation).ok()?)))
}

/// The maxima of windows without padding, along one axis after the other.
fn largest(x: &Tensor, w: &Window) -> Result<Tensor> {
    let mut y = x.clone();
    for i in 0..w.kernel.len() {
        let places = w.places(i, y.shape()[2 + i])?;
        let part = |at: usize| {
            let from = at * w.dilation[i];
            y.slice(2 + i as isize, from, from + (places - 1) * w.stride[i] + 1, w.stride[i])
        };
        let mut most = part(0)?;
        for at in 1..w.kernel[i] {
            most = most.maximum(part(at)?)?;
        }
        y = most;
    }
    Ok(y)
}

fn max_pool(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let (w, more) = window(c, &x)?;
    let by_column = c.flag("storage_order", false)?;
    if !c.wants(1) {
        // Without a gradient, the positions of the maxima are not needed.
        if !x.requires_grad() && w.pads.iter().all(|p| *p == (0, 0)) && more.iter().all(|&m| m == 0) {
            return Ok(one(largest(&x, &w)?));
        }
        if let Some((kernel, options)) = plain::<1>(&w, &more) {
            return Ok(one(x.max_pool1d(kernel, options)?));
        }
        if let Some((kernel, options)) = plain::<2>(&w, &more) {
            return Ok(one(x.max_pool2d(kernel, options)?));
        }
        if let Some((kernel, options)) = plain::<3>(&w, &more) {
            return Ok(one(x.max_pool3d(kernel, options)?));
        }
        return Ok(one(windows(&x, &w, &more, least(x.dtype()))?.max(&last(&w), false)?));
    }
    // The position of each element of the input, for the indices of the maxima.
    let n = x.numel();
    let spatial = &x.shape()[2..];
    let mut index = Tensor::arange(0, n as i64, 1, DType::I64, c.device)?;
    if by_column {
        let lead = n / spatial.iter().product::<usize>().max(1);
        let reversed: Vec<usize> = [lead].into_iter().chain(spatial.iter().rev().copied()).collect();
        let back: Vec<isize> = [0].into_iter().chain((1..=spatial.len() as isize).rev()).collect();
        index = index.reshape(reversed)?.permute(&back)?;
    }
    let index = index.reshape(x.shape())?;
    let rank = 2 + w.kernel.len();
    let elements = windows(&x, &w, &more, least(x.dtype()))?.flatten(rank as isize, -1)?;
    let places = windows(&index, &w, &more, Scalar::Int(-1))?.flatten(rank as isize, -1)?;
    let (values, at) = elements.max_with_indices(-1, true)?;
    Ok(vec![values.squeeze(-1)?.into(), places.gather(-1, &at)?.squeeze(-1)?.into()])
}

/// Averages by the attributes of a node.
pub(super) fn averaged(c: &Call<'_>, x: &Tensor) -> Result<Tensor> {
    let (w, more) = window(c, x)?;
    let with_pads = c.flag("count_include_pad", false)?;
    if w.dilation.iter().all(|&d| d == 1) {
        if let Some((kernel, options)) = plain::<1>(&w, &more) {
            return x.avg_pool1d(kernel, options, with_pads);
        }
        if let Some((kernel, options)) = plain::<2>(&w, &more) {
            return x.avg_pool2d(kernel, options, with_pads);
        }
        if let Some((kernel, options)) = plain::<3>(&w, &more) {
            return x.avg_pool3d(kernel, options, with_pads);
        }
    }
    let sums = windows(x, &w, &more, Scalar::Float(0.0))?.sum(&last(&w), false)?;
    // The divisor counts the elements of the input and, with `count_include_pad`, those of the pads, but not the
    // padding that rounding up has added.
    let mut counted = x.shape().to_vec();
    (counted[0], counted[1]) = (1, 1);
    let none: Vec<usize> = more.iter().map(|_| 0).collect();
    let ones = Tensor::ones(&counted, x.dtype(), c.device)?;
    let counts = if with_pads {
        let mut sides = vec![(0, 0), (0, 0)];
        sides.extend(w.pads.iter().map(|&(before, after)| (before as isize, after as isize)));
        let padded = ones.pad(&sides, PadMode::Constant(Scalar::Float(1.0)))?;
        let bare = Window { pads: none.iter().map(|_| (0, 0)).collect(), ..w.clone() };
        windows(&padded, &bare, &more, Scalar::Float(0.0))?.sum(&last(&w), false)?
    } else {
        windows(&ones, &w, &more, Scalar::Float(0.0))?.sum(&last(&w), false)?
    };
    sums.div(counts)?.to_dtype(x.dtype())
}

fn lp_pool(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let (w, more) = window(c, &x)?;
    let p = if c.opset() < 2 { c.float("p", 2.0)? } else { c.int("p", 2)? as f64 };
    Ok(one(windows(&x, &w, &more, Scalar::Float(0.0))?.norm(p, &last(&w), false)?))
}

fn max_unpool(c: &Call<'_>) -> Values {
    let (x, index) = (c.tensor(0)?, c.tensor(1)?);
    let w = Window::of(c, &x, None)?;
    let inferred = |i: usize| {
        let n = (x.shape()[2 + i].saturating_sub(1)).saturating_mul(w.stride[i]).saturating_add(w.reach(i));
        n.saturating_sub(w.pads[i].0).saturating_sub(w.pads[i].1)
    };
    let mut small = x.shape()[..2].to_vec();
    small.extend((0..w.kernel.len()).map(inferred));
    let shape = match c.optional_ints(2)? {
        Some(shape) => sizes(&shape)?,
        None => small.clone(),
    };
    if shape.len() != x.rank() {
        return Err(Error::shape("onnx", format!("output_shape {shape:?} for {} axes", x.rank())));
    }
    // The indices refer to the result as it is without `output_shape`. With it, that result fills the first corner of a
    // larger one.
    let flat = Tensor::zeros([volume(&small)?], x.dtype(), c.device)?;
    let y = flat.scatter(0, &index.reshape([index.numel()])?, &x.reshape([x.numel()])?)?.reshape(&small)?;
    let room = |(&want, &have): (&usize, &usize)| (0, want as isize - have as isize);
    let sides: Vec<(isize, isize)> = shape.iter().zip(&small).map(room).collect();
    Ok(one(y.pad(&sides, PadMode::Constant(Scalar::Float(0.0)))?))
}
