//! Operators that pick and place elements by index.

use gradus_tensor::{DType, Error, Result, ScatterReduction, Tensor};

use super::host;
use super::movement::moved;
use crate::elem::Elem;
use crate::graph::{Call, Row, axis, row, size};
use crate::value::{Array, OnnxValue, Strings};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("Gather", &[1, 11, 13], gather).host(host::gather),
    row("GatherElements", &[11, 13], gather_elements),
    row("GatherND", &[11, 12, 13], gather_nd),
    row("Scatter", &[9, 11], scatter_elements),
    row("ScatterElements", &[11, 13, 16, 18], scatter_elements),
    row("ScatterND", &[11, 13, 16, 18], scatter_nd),
    row("TensorScatter", &[24], tensor_scatter),
    row("Compress", &[9, 11], compress),
    row("NonMaxSuppression", &[10, 11], non_max_suppression),
];

/// Resolves indices into an axis of size `n`, of which negative ones count from the end. Returns i64.
fn wrapped(index: &Tensor, n: usize) -> Result<Tensor> {
    let index = index.to_dtype(DType::I64)?;
    index.lt(0)?.where_(index.add(n as i64)?, &index)
}

fn gather(c: &Call<'_>) -> Values {
    if let OnnxValue::Strings(s) = c.input(0)? {
        if s.shape.len() != 1 {
            return Err(crate::graph::unsupported("Gather of strings along one axis only"));
        }
        let mut values = Vec::new();
        for &i in c.host_ints(1)?.iter() {
            values.push(s.values[axis(i, s.values.len())?].clone());
        }
        let shape = c.array(1)?.shape().to_vec();
        return Ok(vec![OnnxValue::Strings(Strings { shape, values }.into())]);
    }
    let ((elem, x), index) = (c.stored(0)?, c.tensor(1)?);
    let at = axis(c.int("axis", 0)?, x.rank())?;
    let flat = wrapped(&index, x.shape()[at])?.reshape([index.numel()])?;
    let shape = [&x.shape()[..at], index.shape(), &x.shape()[at + 1..]].concat();
    Ok(moved(elem, x.index_select(at as isize, &flat)?.reshape(shape)?))
}

fn gather_elements(c: &Call<'_>) -> Values {
    let ((elem, x), index) = (c.stored(0)?, c.tensor(1)?);
    let at = axis(c.int("axis", 0)?, x.rank())?;
    Ok(moved(elem, x.gather(at as isize, &wrapped(&index, x.shape()[at])?)?))
}

/// Each vector along the last axis of `index` addresses an element of a block of shape `sizes`. Returns their positions
/// in the flattened block.
fn positions(index: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    let mut flat: Option<Tensor> = None;
    for (i, &n) in sizes.iter().enumerate() {
        let part = wrapped(&index.select(-1, i as isize)?, n)?;
        let outside = part.lt(0)?.logical_or(part.ge(n as i64)?)?;
        if outside.numel() > 0 && outside.to_dtype(DType::I64)?.sum_all()?.item()? != 0.0 {
            return Err(Error::argument("onnx", format!("an index outside of axis {i}, which has size {n}")));
        }
        flat = Some(match flat {
            None => part,
            Some(flat) => flat.mul(n as i64)?.add(&part)?,
        });
    }
    match flat {
        Some(flat) => Ok(flat),
        None => {
            let shape = &index.shape()[..index.rank() - 1];
            Tensor::zeros(shape, DType::I64, index.device())
        }
    }
}

fn gather_nd(c: &Call<'_>) -> Values {
    let ((elem, x), index) = (c.stored(0)?, c.tensor(1)?);
    let batch = size(c.int("batch_dims", 0)?)?;
    let depth = index.shape().last().copied().unwrap_or(0);
    if index.rank() == 0 || batch >= index.rank() || batch + depth > x.rank() {
        return Err(Error::shape("onnx", format!("indices {:?} into {:?}", index.shape(), x.shape())));
    }
    let lead: usize = x.shape()[..batch].iter().product();
    let (picked, rest) = x.shape()[batch..].split_at(depth);
    let (spots, width) = (picked.iter().product::<usize>(), rest.iter().product::<usize>());
    let shape = [&index.shape()[..index.rank() - 1], rest].concat();
    let flat = positions(&index, picked)?;
    let each = flat.numel().checked_div(lead).unwrap_or(0);
    let base = Tensor::arange(0, lead as i64, 1, DType::I64, c.device)?.mul(spots as i64)?.unsqueeze(1)?;
    let flat = flat.reshape([lead, each])?.add(&base)?.reshape([lead * each])?;
    Ok(moved(elem, x.reshape([lead * spots, width])?.index_select(0, &flat)?.reshape(shape)?))
}

fn reduction(c: &Call<'_>) -> Result<Option<ScatterReduction>> {
    Ok(match c.text("reduction", "none")? {
        "none" => None,
        "add" => Some(ScatterReduction::Sum),
        "mul" => Some(ScatterReduction::Prod),
        "max" => Some(ScatterReduction::Amax),
        "min" => Some(ScatterReduction::Amin),
        other => return Err(Error::argument("onnx", format!("reduction = `{other}`"))),
    })
}

fn scatter_elements(c: &Call<'_>) -> Values {
    let ((elem, x), index, (_, updates)) = (c.stored(0)?, c.tensor(1)?, c.stored(2)?);
    let at = axis(c.int("axis", 0)?, x.rank())?;
    let index = wrapped(&index, x.shape()[at])?;
    Ok(moved(
        elem,
        match reduction(c)? {
            None => x.scatter(at as isize, &index, &updates)?,
            Some(how) => x.scatter_reduce(at as isize, &index, &updates, how, true)?.to_dtype(x.dtype())?,
        },
    ))
}

fn scatter_nd(c: &Call<'_>) -> Values {
    let ((elem, x), index, (_, updates)) = (c.stored(0)?, c.tensor(1)?, c.stored(2)?);
    let depth = index.shape().last().copied().unwrap_or(0);
    if index.rank() == 0 || depth > x.rank() {
        return Err(Error::shape("onnx", format!("indices {:?} into {:?}", index.shape(), x.shape())));
    }
    let (picked, rest) = x.shape().split_at(depth);
    let (spots, width) = (picked.iter().product::<usize>(), rest.iter().product::<usize>());
    let flat = positions(&index, picked)?;
    let n = flat.numel();
    let (rows, updates) = (x.reshape([spots, width])?, updates.reshape([n, width])?);
    let flat = flat.reshape([n, 1])?.expand([n, width])?.contiguous()?;
    let y = match reduction(c)? {
        None => rows.scatter(0, &flat, &updates)?,
        Some(how) => rows.scatter_reduce(0, &flat, &updates, how, true)?.to_dtype(x.dtype())?,
    };
    Ok(moved(elem, y.reshape(x.shape())?))
}

/// Writes new steps into a cache `[batch, .., sequence, ..]`, each sequence at its own position.
fn tensor_scatter(c: &Call<'_>) -> Values {
    let ((elem, past), (_, update)) = (c.stored(0)?, c.stored(1)?);
    let at = axis(c.int("axis", -2)?, past.rank())?;
    let (batch, room, steps) = (past.shape()[0], past.shape()[at], update.shape().get(at).copied().unwrap_or(0));
    let starts = match c.optional_ints(2)? {
        Some(starts) if starts.len() == batch => starts.to_vec(),
        Some(starts) => return Err(Error::argument("onnx", format!("{} places for {batch} sequences", starts.len()))),
        // At most the size of an axis of the input.
        None => vec![0; batch],
    };
    let circular = match c.text("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        other => return Err(Error::argument("onnx", format!("mode = `{other}`"))),
    };
    if at == 0 || room == 0 || starts.iter().any(|&s| s < 0 || (!circular && s as usize + steps > room)) {
        return Err(Error::argument("onnx", format!("{steps} steps from {starts:?} into {room}")));
    }
    let place = |b: usize, t: usize| ((starts[b] as usize + t) % room) as i64;
    // At most the number of elements of the update.
    let index: Vec<i64> = (0..batch).flat_map(|b| (0..steps).map(move |t| (b, t))).map(|(b, t)| place(b, t)).collect();
    let mut index = Tensor::from_vec(index, [batch, steps], c.device)?;
    for _ in 1..at {
        index = index.unsqueeze(1)?;
    }
    for _ in at + 1..past.rank() {
        index = index.unsqueeze(-1)?;
    }
    Ok(moved(elem, past.scatter(at as isize, &index.expand(update.shape())?.contiguous()?, &update)?))
}

fn compress(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let (x, at) = match c.has("axis") {
        true => {
            let at = axis(c.int("axis", 0)?, x.rank())?;
            (x, at)
        }
        false => (x.reshape([x.numel()])?, 0),
    };
    let kept: Vec<i64> = c.host_ints(1)?.iter().enumerate().filter(|(_, k)| **k != 0).map(|(i, _)| i as i64).collect();
    Ok(moved(elem, x.index_select(at as isize, &Tensor::from_vec(&kept, [kept.len()], c.device)?)?))
}

/// The corners of a box, the lower one first.
fn corners(b: &[f32], centred: bool) -> [f32; 4] {
    let &[p, q, r, s] = b else { return [0.0; 4] };
    if centred {
        return [q - s / 2.0, p - r / 2.0, q + s / 2.0, p + r / 2.0];
    }
    [p.min(r), q.min(s), p.max(r), q.max(s)]
}

fn overlap(a: [f32; 4], b: [f32; 4]) -> f32 {
    let side = |i: usize| (a[i + 2].min(b[i + 2]) - a[i].max(b[i])).max(0.0);
    let area = |x: [f32; 4]| (x[2] - x[0]) * (x[3] - x[1]);
    let both = side(0) * side(1);
    let whole = area(a) + area(b) - both;
    if whole > 0.0 { both / whole } else { 0.0 }
}

/// Selects the boxes that do not overlap a box with a higher score. Runs on the host.
fn non_max_suppression(c: &Call<'_>) -> Values {
    let (boxes, scores) = (c.tensor(0)?, c.tensor(1)?);
    let (&[batches, spots, 4], &[of, classes, per_class]) = (boxes.shape(), scores.shape()) else {
        return Err(Error::shape("onnx", format!("boxes {:?} and scores {:?}", boxes.shape(), scores.shape())));
    };
    if of != batches || per_class != spots {
        return Err(Error::shape("onnx", format!("boxes {:?} and scores {:?}", boxes.shape(), scores.shape())));
    }
    let most = c.number(2)?.unwrap_or(0.0).max(0.0) as usize;
    let (max_overlap, threshold) = (c.number(3)?.unwrap_or(0.0) as f32, c.number(4)?.map(|t| t as f32));
    let centred = c.flag("center_point_box", false)?;
    let (boxes, scores) = (boxes.to_vec::<f32>()?, scores.to_vec::<f32>()?);
    let mut picked = Vec::new();
    for batch in 0..batches {
        let box_at = |i: usize| {
            corners(boxes.get((batch * spots + i) * 4..).and_then(|b| b.get(..4)).unwrap_or_default(), centred)
        };
        for class in 0..classes {
            let score = |i: usize| scores[(batch * classes + class) * spots + i];
            // At most the number of boxes.
            let mut order: Vec<usize> = (0..spots).filter(|&i| threshold.is_none_or(|t| score(i) > t)).collect();
            order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
            let mut kept: Vec<usize> = Vec::new();
            for i in order {
                if kept.len() >= most {
                    break;
                }
                if kept.iter().all(|&k| overlap(box_at(k), box_at(i)) <= max_overlap) {
                    kept.push(i);
                    picked.extend([batch as i64, class as i64, i as i64]);
                }
            }
        }
    }
    Ok(vec![OnnxValue::Tensor(Array::stored(Elem::I64, Tensor::from_vec(&picked, [picked.len() / 3, 3], c.device)?))])
}
