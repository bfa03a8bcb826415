//! Operators that move elements without changing them: shapes, slices, joins, padding. They work for every element type.

use gradus_tensor::{DType, Error, INFER, PadMode, Result, Scalar, Tensor};

use super::host;
use super::reduce::axes_of;
use crate::elem::Elem;
use crate::graph::{Call, Row, axis, one, row, size, sizes, unsupported, volume};
use crate::value::{Array, OnnxValue, Strings};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("Shape", &[1, 13, 15, 19, 21, 23, 24, 25], shape),
    row("Size", &[1, 13, 19, 21, 23, 24, 25], |c| {
        let n = match c.input(0)? {
            OnnxValue::Tensor(a) => a.numel(),
            OnnxValue::Strings(s) => s.values.len(),
            other => return Err(unsupported(format!("the size of {}", other.describe()))),
        };
        Ok(vec![c.upload(Elem::I64, vec![], vec![n as i64])])
    }),
    row("Reshape", &[1, 5, 13, 14, 19, 21, 23, 24, 25], reshape).host(host::reshape),
    row("Transpose", &[1, 13, 21, 23, 24, 25], transpose),
    row("Flatten", &[1, 9, 11, 13, 21, 23, 24, 25], flatten),
    row("Squeeze", &[1, 11, 13, 21, 23, 24, 25], squeeze).host(host::squeeze),
    row("Unsqueeze", &[1, 11, 13, 21, 23, 24, 25], unsqueeze).host(host::unsqueeze),
    row("Expand", &[8, 13], expand),
    row("Tile", &[1, 6, 13], tile),
    row("Concat", &[1, 4, 11, 13], concat).host(host::concat),
    row("Split", &[1, 2, 11, 13, 18], split),
    row("Slice", &[1, 10, 11, 13], slice).host(host::slice),
    row("Pad", &[1, 2, 11, 13, 18, 19, 21, 23, 24, 25], pad),
    row("CenterCropPad", &[18], center_crop_pad),
    row("Trilu", &[14], trilu),
    row("DepthToSpace", &[1, 11, 13], depth_to_space),
    row("SpaceToDepth", &[1, 13], space_to_depth),
    row("ReverseSequence", &[10], reverse_sequence),
    row("Range", &[11, 27], range).host(host::range),
    row("EyeLike", &[9, 22], eye_like),
    row("OneHot", &[9, 11], one_hot),
];

/// A result with the element type of the input whose elements it holds.
pub(super) fn moved(elem: Elem, tensor: Tensor) -> Vec<OnnxValue> {
    vec![OnnxValue::Tensor(Array::stored(elem, tensor))]
}

fn shape(c: &Call<'_>) -> Values {
    let shape = match c.input(0)? {
        OnnxValue::Tensor(a) => a.shape(),
        OnnxValue::Strings(s) => &s.shape,
        other => return Err(unsupported(format!("the shape of {}", other.describe()))),
    };
    let rank = shape.len() as i64;
    let place = |v: i64| if v < 0 { v.saturating_add(rank) } else { v }.clamp(0, rank) as usize;
    let (start, end) = (place(c.int("start", 0)?), place(c.int("end", rank)?));
    let part: Vec<i64> = shape.get(start..end).unwrap_or_default().iter().map(|&n| n as i64).collect();
    Ok(vec![c.upload(Elem::I64, vec![part.len()], part)])
}

/// The shape that `Reshape` requests: 0 keeps the size of an axis, and -1 is inferred.
fn target(from: &[usize], to: &[i64], allow_zero: bool) -> Result<Vec<usize>> {
    let mut shape = Vec::new();
    for (i, &n) in to.iter().enumerate() {
        shape.push(match n {
            -1 => INFER,
            0 if !allow_zero => *from.get(i).ok_or_else(|| {
                Error::shape(
                    "onnx",
                    format!("size 0 of axis {i} keeps that of the input, which has {} axes", from.len()),
                )
            })?,
            n => size(n)?,
        });
    }
    Ok(shape)
}

fn reshape(c: &Call<'_>) -> Values {
    c.skip(&["consumed_inputs"]);
    let allow_zero = c.flag("allowzero", false)?;
    let to = match c.opset() < 5 {
        true => c.ints("shape")?.unwrap_or_default().to_vec(),
        false => c.host_ints(1)?.to_vec(),
    };
    if let OnnxValue::Strings(s) = c.input(0)? {
        let mut shape = target(&s.shape, &to, allow_zero)?;
        let known = volume(&shape.iter().copied().filter(|&n| n != INFER).collect::<Vec<_>>())?;
        for n in shape.iter_mut().filter(|n| **n == INFER) {
            *n = s.values.len().checked_div(known).unwrap_or(0);
        }
        return strings(shape, s.values.clone());
    }
    let (elem, x) = c.stored(0)?;
    Ok(moved(elem, x.reshape(target(x.shape(), &to, allow_zero)?)?))
}

fn strings(shape: Vec<usize>, values: Vec<String>) -> Values {
    if volume(&shape)? != values.len() {
        return Err(Error::shape("onnx", format!("{} strings do not fill the shape {shape:?}", values.len())));
    }
    Ok(vec![OnnxValue::Strings(Strings { shape, values }.into())])
}

fn transpose(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let order: Vec<isize> = match c.ints("perm")? {
        Some(perm) => perm.iter().map(|&a| axis(a, x.rank()).map(|a| a as isize)).collect::<Result<_>>()?,
        None => (0..x.rank() as isize).rev().collect(),
    };
    Ok(moved(elem, x.permute(&order)?))
}

fn flatten(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let at = c.int("axis", 1)?;
    let at = if at == x.rank() as i64 { x.rank() } else { axis(at, x.rank().max(1))? };
    let (rows, columns) = x.shape().split_at(at.min(x.rank()));
    Ok(moved(elem, x.reshape([rows.iter().product::<usize>(), columns.iter().product()])?))
}

fn squeeze(c: &Call<'_>) -> Values {
    let axes = axes_of(c, 1, 13)?;
    let shape = match c.input(0)? {
        OnnxValue::Strings(s) => s.shape.clone(),
        _ => c.array(0)?.shape().to_vec(),
    };
    let gone: Vec<usize> = match axes {
        Some(axes) => axes.iter().map(|&a| axis(a, shape.len())).collect::<Result<_>>()?,
        None => shape.iter().enumerate().filter(|(_, n)| **n == 1).map(|(i, _)| i).collect(),
    };
    if let Some(&i) = gone.iter().find(|&&i| shape[i] != 1) {
        return Err(Error::shape("onnx", format!("axis {i} of shape {shape:?} has not the size 1")));
    }
    let kept: Vec<usize> = shape.iter().enumerate().filter(|(i, _)| !gone.contains(i)).map(|(_, &n)| n).collect();
    if let OnnxValue::Strings(s) = c.input(0)? {
        return strings(kept, s.values.clone());
    }
    let (elem, x) = c.stored(0)?;
    Ok(moved(elem, x.reshape(kept)?))
}

fn unsqueeze(c: &Call<'_>) -> Values {
    let axes = axes_of(c, 1, 13)?.unwrap_or_default();
    let (elem, x) = c.stored(0)?;
    let rank = x.rank() + axes.len();
    let mut places: Vec<usize> = axes.iter().map(|&a| axis(a, rank)).collect::<Result<_>>()?;
    places.sort_unstable();
    if places.windows(2).any(|w| w[0] == w[1]) {
        return Err(Error::argument("onnx", format!("an axis twice in {axes:?}")));
    }
    let mut y = x;
    for at in places {
        y = y.unsqueeze(at as isize)?;
    }
    Ok(moved(elem, y))
}

fn expand(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let want = sizes(&c.host_ints(1)?)?;
    let rank = want.len().max(x.rank());
    let at = |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    // At most the rank.
    let shape: Vec<usize> = (0..rank)
        .map(|i| match (at(x.shape(), i), at(&want, i)) {
            (n, 1) => n,
            (_, n) => n,
        })
        .collect();
    Ok(moved(elem, x.expand(shape)?))
}

fn tile(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    if c.opset() < 6 {
        let (count, along) = (c.host_ints(1)?, c.host_ints(2)?);
        let at = axis(along.first().copied().unwrap_or(0), x.rank())?;
        let counts = (0..x.rank()).map(|i| if i == at { size(count.first().copied().unwrap_or(1)) } else { Ok(1) });
        return Ok(moved(elem, x.repeat(&counts.collect::<Result<Vec<_>>>()?)?));
    }
    let counts = sizes(&c.host_ints(1)?)?;
    if counts.len() != x.rank() {
        return Err(Error::shape("onnx", format!("{} repeats for {} axes", counts.len(), x.rank())));
    }
    Ok(moved(elem, x.repeat(&counts)?))
}

fn concat(c: &Call<'_>) -> Values {
    let along = c.int("axis", 1)?;
    if let OnnxValue::Strings(first) = c.input(0)? {
        if first.shape.len() != 1 {
            return Err(unsupported("strings are joined along one axis only"));
        }
        let mut values = Vec::new();
        for i in 0..c.inputs.len() {
            values.extend_from_slice(&c.strings(i)?.values);
        }
        axis(along, 1)?;
        return strings(vec![values.len()], values);
    }
    let elem = c.array(0)?.elem();
    let tensors: Vec<Tensor> = (0..c.inputs.len()).map(|i| Ok(c.stored(i)?.1)).collect::<Result<_>>()?;
    let at = axis(along, tensors.first().map_or(0, Tensor::rank))?;
    Ok(moved(elem, Tensor::cat(&tensors.iter().collect::<Vec<_>>(), at as isize)?))
}

fn split(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let at = axis(c.int("axis", 0)?, x.rank())?;
    let n = x.shape()[at];
    let parts = match c.opset() < 13 && c.has("split") {
        true => c.ints("split")?.map(<[i64]>::to_vec),
        false => c.optional_ints(1)?.map(|s| s.to_vec()),
    };
    let parts = match parts {
        Some(parts) => sizes(&parts)?,
        None => {
            let count = size(c.int("num_outputs", c.node.outputs.len() as i64)?)?;
            if count == 0 || count > c.node.outputs.len() {
                return Err(Error::argument("onnx", format!("{count} parts for {} outputs", c.node.outputs.len())));
            }
            let each = n.div_ceil(count);
            // At most the number of outputs.
            (0..count).map(|i| each.min(n.saturating_sub(i * each))).collect()
        }
    };
    let tensors = x.split_with_sizes(&parts, at as isize)?;
    Ok(tensors.into_iter().map(|t| OnnxValue::Tensor(Array::stored(elem, t))).collect())
}

fn slice(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let (starts, ends, axes, steps) = if c.opset() < 10 {
        let (starts, ends) = (c.ints("starts")?.unwrap_or_default(), c.ints("ends")?.unwrap_or_default());
        (starts.to_vec(), ends.to_vec(), c.ints("axes")?.map(<[i64]>::to_vec), None)
    } else {
        let (axes, steps) = (c.optional_ints(3)?, c.optional_ints(4)?);
        (c.host_ints(1)?.to_vec(), c.host_ints(2)?.to_vec(), axes.map(|a| a.to_vec()), steps.map(|s| s.to_vec()))
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    // At most the number of axes.
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err(Error::argument("onnx", "starts, ends, axes and steps have different lengths"));
    }
    let mut y = x;
    for (i, &along) in axes.iter().enumerate() {
        let at = axis(along, y.rank())?;
        let n = y.shape()[at] as i64;
        let from_end = |v: i64| if v < 0 { v.saturating_add(n) } else { v };
        let step = steps[i];
        if step == 0 {
            return Err(Error::argument("onnx", "a step of 0"));
        }
        if step > 0 {
            let (start, end) = (from_end(starts[i]).clamp(0, n), from_end(ends[i]).clamp(0, n));
            y = y.slice(at as isize, start as usize, end.max(start) as usize, step.min(n.max(1)) as usize)?;
        } else {
            let (start, end) = (from_end(starts[i]).clamp(-1, n - 1), from_end(ends[i]).clamp(-1, n - 1));
            // From `start` down to, but not including, `end`: the same range read backwards.
            let part = match start > end {
                true => y.narrow(at as isize, (end + 1) as usize, (start - end) as usize)?,
                false => y.narrow(at as isize, 0, 0)?,
            };
            let stride = step.unsigned_abs().min(n.max(1) as u64) as usize;
            let len = part.shape()[at];
            y = part.flip(at as isize)?.slice(at as isize, 0, len, stride)?;
        }
    }
    Ok(moved(elem, y))
}

fn pad(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let pads = match c.opset() {
        1 => c.ints("paddings")?.unwrap_or_default().to_vec(),
        2..11 => c.ints("pads")?.unwrap_or_default().to_vec(),
        _ => c.host_ints(1)?.to_vec(),
    };
    let axes = match c.optional_ints(3)? {
        Some(axes) => axes.iter().map(|&a| axis(a, x.rank())).collect::<Result<_>>()?,
        None => (0..x.rank()).collect::<Vec<_>>(),
    };
    let n = axes.len();
    if pads.len() != 2 * n {
        return Err(Error::argument("onnx", format!("{} pads for {n} axes", pads.len())));
    }
    // At most the rank.
    let mut sides = vec![(0isize, 0isize); x.rank()];
    for (i, &at) in axes.iter().enumerate() {
        sides[at] = (pads[i] as isize, pads[n + i] as isize);
    }
    let mode = match c.text("mode", "constant")? {
        "constant" => {
            let scalar =
                |value: f64| if x.dtype().is_float() { Scalar::Float(value) } else { Scalar::Int(value as i64) };
            if c.opset() < 11 {
                PadMode::Constant(scalar(c.float("value", 0.0)?))
            } else {
                match c.optional_array(2)? {
                    Some(value) if !x.dtype().is_float() => {
                        PadMode::Constant(Scalar::Int(value.ints()?.first().copied().unwrap_or(0)))
                    }
                    _ => PadMode::Constant(scalar(c.number(2)?.unwrap_or(0.0))),
                }
            }
        }
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Replicate,
        "wrap" => PadMode::Circular,
        other => return Err(Error::argument("onnx", format!("mode = `{other}`"))),
    };
    Ok(moved(elem, x.pad(&sides, mode)?))
}

fn center_crop_pad(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let want = sizes(&c.host_ints(1)?)?;
    let axes: Vec<usize> = match c.ints("axes")? {
        Some(axes) => axes.iter().map(|&a| axis(a, x.rank())).collect::<Result<_>>()?,
        None => (0..x.rank()).collect(),
    };
    if want.len() != axes.len() {
        return Err(Error::argument("onnx", format!("{} sizes for {} axes", want.len(), axes.len())));
    }
    let mut y = x;
    for (&at, &want) in axes.iter().zip(&want) {
        let have = y.shape()[at];
        if have > want {
            y = y.narrow(at as isize, (have - want) / 2, want)?;
        } else {
            // At most the rank.
            let mut sides = vec![(0isize, 0isize); y.rank()];
            let before = (want - have) / 2;
            sides[at] = (before as isize, (want - have - before) as isize);
            y = y.pad(&sides, PadMode::Constant(Scalar::Int(0)))?;
        }
    }
    Ok(moved(elem, y))
}

fn trilu(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let k = c.optional_ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
    let k = k.clamp(-(1 << 40), 1 << 40) as isize;
    let upper = c.flag("upper", true)?;
    let bits = if x.dtype() == DType::Bool { x.to_dtype(DType::U8)? } else { x.clone() };
    let y = if upper { bits.triu(k)? } else { bits.tril(k)? };
    Ok(one(y.to_dtype(x.dtype())?))
}

fn block(c: &Call<'_>) -> Result<(Tensor, [usize; 5])> {
    let x = c.tensor(0)?;
    let b = size(c.int("blocksize", 0)?)?;
    match x.shape() {
        _ if b == 0 || b > 1 << 16 => Err(Error::argument("onnx", format!("a block of size {b}"))),
        &[n, ch, h, w] => Ok((x, [n, ch, h, w, b])),
        _ => Err(Error::shape("onnx", "an image of four axes belongs here")),
    }
}

fn depth_to_space(c: &Call<'_>) -> Values {
    let (x, [n, ch, h, w, b]) = block(c)?;
    let (area, out) = (b.saturating_mul(b), ch / b.saturating_mul(b));
    if !ch.is_multiple_of(area) {
        return Err(Error::shape("onnx", format!("{ch} channels are no multiple of {area}")));
    }
    let y = match c.text("mode", "DCR")? {
        "DCR" => x.reshape([n, b, b, out, h, w])?.permute(&[0, 3, 4, 1, 5, 2])?,
        "CRD" => x.reshape([n, out, b, b, h, w])?.permute(&[0, 1, 4, 2, 5, 3])?,
        other => return Err(Error::argument("onnx", format!("mode = `{other}`"))),
    };
    Ok(one(y.reshape([n, out, h * b, w * b])?))
}

fn space_to_depth(c: &Call<'_>) -> Values {
    let (x, [n, ch, h, w, b]) = block(c)?;
    let y = x.reshape([n, ch, h / b, b, w / b, b])?.permute(&[0, 3, 5, 1, 2, 4])?;
    Ok(one(y.reshape([n, ch * b * b, h / b, w / b])?))
}

fn reverse_sequence(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let time = axis(c.int("time_axis", 0)?, x.rank())?;
    let batch = axis(c.int("batch_axis", 1)?, x.rank())?;
    let (steps, items) = (x.shape()[time], x.shape()[batch]);
    let lengths = sizes(&c.host_ints(1)?)?;
    if lengths.len() != items || lengths.iter().any(|&n| n > steps) || time == batch {
        return Err(Error::argument("onnx", format!("lengths {lengths:?} for {items} sequences of {steps}")));
    }
    // At most the number of elements of the input.
    let at = |t: usize, b: usize| if t < lengths[b] { lengths[b] - 1 - t } else { t } as i64;
    let index: Vec<i64> = (0..steps).flat_map(|t| (0..items).map(move |b| (t, b))).map(|(t, b)| at(t, b)).collect();
    let moved_x = x.movedim(&[time as isize, batch as isize], &[0, 1])?;
    let mut index = Tensor::from_vec(index, [steps, items], c.device)?;
    for _ in 2..x.rank() {
        index = index.unsqueeze(-1)?;
    }
    let y = moved_x.gather(0, &index.expand(moved_x.shape())?.contiguous()?)?;
    Ok(moved(elem, y.movedim(&[0, 1], &[time as isize, batch as isize])?))
}

fn range(c: &Call<'_>) -> Values {
    let dtype = c.tensor(0)?.dtype();
    c.skip(&["stash_type"]);
    let number = |i: usize| c.number(i).map(|n| n.unwrap_or(0.0));
    let (start, limit, step) = (number(0)?, number(1)?, number(2)?);
    let n = ((limit - start) / step).ceil().max(0.0);
    if !n.is_finite() || n > 1e12 {
        return Err(Error::argument("onnx", format!("a range from {start} to {limit} in steps of {step}")));
    }
    if !dtype.is_float() {
        let (start, step) = (c.host_ints(0)?, c.host_ints(2)?);
        let y = Tensor::arange(0, n as i64, 1, DType::I64, c.device)?;
        return Ok(one(y
            .mul(step.first().copied().unwrap_or(1))?
            .add(start.first().copied().unwrap_or(0))?
            .to_dtype(dtype)?));
    }
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let y = Tensor::arange(0, n as i64, 1, DType::I64, c.device)?.to_dtype(wide)?;
    Ok(one(y.mul(step)?.add(start)?.to_dtype(dtype)?))
}

fn eye_like(c: &Call<'_>) -> Values {
    let x = c.array(0)?;
    let elem = c.elem_attribute("dtype")?.unwrap_or(x.elem());
    let dtype = elem.dtype().ok_or_else(|| unsupported(format!("EyeLike of {}", elem.name())))?;
    let k = c.int("k", 0)?;
    let &[rows, columns] = x.shape() else { return Err(Error::shape("onnx", "a matrix belongs here")) };
    let i = Tensor::arange(0, rows as i64, 1, DType::I64, c.device)?.unsqueeze(1)?;
    let j = Tensor::arange(0, columns as i64, 1, DType::I64, c.device)?.sub(k)?;
    Ok(one(i.eq(&j)?.to_dtype(dtype)?))
}

fn one_hot(c: &Call<'_>) -> Values {
    let (indices, values) = (c.tensor(0)?.to_dtype(DType::I64)?, c.tensor(2)?);
    let depth = size(c.number(1)?.unwrap_or(0.0) as i64)?;
    let at = axis(c.int("axis", -1)?, indices.rank() + 1)?;
    let classes = Tensor::arange(0, depth as i64, 1, DType::I64, c.device)?;
    let wrapped = indices.lt(0)?.where_(indices.add(depth as i64)?, &indices)?;
    let hot = wrapped.unsqueeze(-1)?.eq(&classes)?.movedim(&[-1], &[at as isize])?;
    Ok(one(hot.where_(values.select(0, 1)?, values.select(0, 0)?)?))
}
