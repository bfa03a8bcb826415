//! Operators that combine the elements along axes: sums, extremes, scans, sorting.

use gradus_tensor::{DType, Error, Result, Tensor};

use super::host;
use crate::elem::Elem;
use crate::graph::{Call, Row, axis, one, row, size};
use crate::value::{Array, OnnxValue, host_floats};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("ReduceSum", &[1, 11, 13], |c| reduce(c, 13, sum)),
    row("ReduceMean", &[1, 11, 13, 18], |c| reduce(c, 18, |x, axes, keep| x.mean(axes, keep))),
    row("ReduceMax", &[1, 11, 12, 13, 18, 20], |c| reduce(c, 18, |x, axes, keep| extreme(x, axes, keep, true))),
    row("ReduceMin", &[1, 11, 12, 13, 18, 20], |c| reduce(c, 18, |x, axes, keep| extreme(x, axes, keep, false))),
    row("ReduceProd", &[1, 11, 13, 18], |c| reduce(c, 18, |x, axes, keep| x.prod(axes, keep))).host(host::reduce_prod),
    row("ReduceL1", &[1, 11, 13, 18], |c| reduce(c, 18, |x, axes, keep| sum(&x.abs()?, axes, keep))),
    row("ReduceL2", &[1, 11, 13, 18], |c| {
        reduce(c, 18, |x, axes, keep| x.to_dtype(x.dtype().to_float())?.norm(2.0, axes, keep))
    }),
    row("ReduceLogSum", &[1, 11, 13, 18], |c| reduce(c, 18, |x, axes, keep| sum(x, axes, keep)?.log())),
    row("ReduceLogSumExp", &[1, 11, 13, 18], |c| reduce(c, 18, log_sum_exp)),
    row("ReduceSumSquare", &[1, 11, 13, 18], |c| reduce(c, 18, |x, axes, keep| sum(&x.square()?, axes, keep))),
    row("ArgMax", &[1, 11, 12, 13], |c| arg(c, Tensor::argmax)),
    row("ArgMin", &[1, 11, 12, 13], |c| arg(c, Tensor::argmin)),
    row("CumSum", &[11, 14], |c| scan(c, Tensor::cumsum, 0.0)),
    row("CumProd", &[26], |c| scan(c, Tensor::cumprod, 1.0)),
    row("TopK", &[1, 10, 11, 24], top_k),
    row("Unique", &[11], unique),
    row("NonZero", &[9, 13], |c| {
        let x = c.tensor(0)?;
        let x = if x.dtype() == DType::Bool { x.to_dtype(DType::U8)? } else { x };
        Ok(one(x.nonzero()?.t()?))
    }),
];

fn sum(x: &Tensor, axes: &[isize], keep: bool) -> Result<Tensor> {
    x.sum(axes, keep)
}

/// The axes: an input from opset `as_input` on, and an attribute in earlier opsets.
pub(super) fn axes_of(c: &Call<'_>, input: usize, as_input: i64) -> Result<Option<Vec<i64>>> {
    if c.opset() >= as_input {
        return Ok(c.optional_ints(input)?.map(|axes| axes.to_vec()));
    }
    Ok(c.ints("axes")?.map(<[i64]>::to_vec))
}

fn reduce(c: &Call<'_>, as_input: i64, f: fn(&Tensor, &[isize], bool) -> Result<Tensor>) -> Values {
    let x = c.tensor(0)?;
    let axes = axes_of(c, 1, as_input)?.unwrap_or_default();
    let (keep, noop) = (c.flag("keepdims", true)?, c.flag("noop_with_empty_axes", false)?);
    let axes: Vec<isize> = match axes.is_empty() {
        false => axes.iter().map(|&a| axis(a, x.rank()).map(|a| a as isize)).collect::<Result<_>>()?,
        true if noop => Vec::new(),
        true => (0..x.rank() as isize).collect(),
    };
    Ok(one(f(&x, &axes, keep)?.to_dtype(x.dtype())?))
}

fn log_sum_exp(x: &Tensor, axes: &[isize], keep: bool) -> Result<Tensor> {
    if x.numel() == 0 {
        return sum(x, axes, keep)?.log();
    }
    x.to_dtype(x.dtype().to_float())?.logsumexp(axes, keep)
}

/// The largest or smallest element. Without elements, it is the end of the dtype's range.
fn extreme(x: &Tensor, axes: &[isize], keep: bool, largest: bool) -> Result<Tensor> {
    if x.dtype() == DType::Bool {
        return if largest { x.any(axes, keep) } else { x.all(axes, keep) };
    }
    let empty = axes.iter().any(|&a| x.shape().get(a as usize) == Some(&0));
    if empty {
        let shape = x.sum(axes, keep)?.shape().to_vec();
        let (lo, hi) = (Elem::of_dtype(x.dtype()).range()).unwrap_or((0, 0));
        return match (x.dtype().is_float(), largest) {
            (true, true) => Tensor::full(shape, f64::NEG_INFINITY, x.dtype(), x.device()),
            (true, false) => Tensor::full(shape, f64::INFINITY, x.dtype(), x.device()),
            (false, true) => Tensor::full(shape, lo, x.dtype(), x.device()),
            (false, false) => Tensor::full(shape, hi, x.dtype(), x.device()),
        };
    }
    if largest { x.max(axes, keep) } else { x.min(axes, keep) }
}

fn arg(c: &Call<'_>, f: fn(&Tensor, isize, bool) -> Result<Tensor>) -> Values {
    let x = c.tensor(0)?;
    let at = axis(c.int("axis", 0)?, x.rank())?;
    let keep = c.flag("keepdims", true)?;
    if !c.flag("select_last_index", false)? {
        return Ok(one(f(&x, at as isize, keep)?));
    }
    let last = x.shape()[at] as i64 - 1;
    Ok(one(f(&x.flip(at as isize)?, at as isize, keep)?.neg()?.add(last)?))
}

fn scan(c: &Call<'_>, f: fn(&Tensor, isize) -> Result<Tensor>, neutral: f64) -> Values {
    let x = c.tensor(0)?;
    let along = c.host_ints(1)?.first().copied().unwrap_or(0);
    let at = axis(along, x.rank())?;
    let (exclusive, reverse) = (c.flag("exclusive", false)?, c.flag("reverse", false)?);
    let mut y = if reverse { x.flip(at as isize)? } else { x.clone() };
    if exclusive && x.shape()[at] > 0 {
        let first = y.narrow(at as isize, 0, 1)?.full_like(neutral as i64)?;
        y = Tensor::cat(&[&first, &y.narrow(at as isize, 0, x.shape()[at] - 1)?], at as isize)?;
    }
    y = f(&y, at as isize)?;
    if reverse {
        y = y.flip(at as isize)?;
    }
    Ok(one(y.to_dtype(x.dtype())?))
}

fn top_k(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let at = axis(c.int("axis", -1)?, x.rank())?;
    let k = if c.opset() < 10 { c.int("k", 0)? } else { c.number(1)?.unwrap_or(0.0) as i64 };
    let (largest, sorted) = (c.flag("largest", true)?, c.flag("sorted", true)?);
    let (values, indices) = x.topk(size(k)?, at as isize, largest, sorted)?;
    Ok(vec![values.into(), indices.into()])
}

/// Compares rows lexicographically.
fn compare(a: &[f64], b: &[f64]) -> std::cmp::Ordering {
    let mut pairs = a.iter().zip(b);
    pairs.find_map(|(x, y)| Some(x.total_cmp(y)).filter(|o| o.is_ne())).unwrap_or(std::cmp::Ordering::Equal)
}

/// The distinct elements, or distinct slices along an axis. Runs on the host.
fn unique(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let sorted = c.flag("sorted", true)?;
    let at = if c.has("axis") { Some(axis(c.int("axis", 0)?, x.rank())?) } else { None };
    let rows = match at {
        Some(at) => x.movedim(&[at as isize], &[0])?,
        None => x.reshape([x.numel()])?,
    };
    let (count, width) = (rows.shape()[0], rows.shape()[1..].iter().product::<usize>());
    if matches!(x.dtype(), DType::I64 | DType::U64)
        && x.detach().abs()?.gt(1i64 << 53)?.any(&all(&x), false)?.item()? != 0.0
    {
        return Err(Error::argument("onnx", "Unique of integers beyond 2^53 is not supported"));
    }
    let values = host_floats(&rows)?;
    let row = |i: usize| values.get(i * width..(i + 1) * width).unwrap_or_default();
    // At most the number of elements of an input.
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| compare(row(a), row(b)));
    // The groups of equal rows, each with its first position.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for i in order {
        match groups.last_mut() {
            Some(group) if compare(row(group[0]), row(i)).is_eq() => group.push(i),
            _ => groups.push(vec![i]),
        }
    }
    if !sorted {
        groups.sort_by_key(|group| group[0]);
    }
    let firsts: Vec<i64> = groups.iter().map(|g| g[0] as i64).collect();
    // At most the number of elements of an input.
    let mut inverse = vec![0i64; count];
    for (i, group) in groups.iter().enumerate() {
        for &at in group {
            inverse[at] = i as i64;
        }
    }
    let counts: Vec<i64> = groups.iter().map(|g| g.len() as i64).collect();
    let ints = |values: Vec<i64>| OnnxValue::Tensor(Array::host(Elem::I64, vec![values.len()], values));
    let index = Tensor::from_vec(&firsts, [firsts.len()], c.device)?;
    let mut y = rows.index_select(0, &index)?;
    if let Some(at) = at {
        y = y.movedim(&[0], &[at as isize])?;
    }
    Ok(vec![y.into(), ints(firsts), ints(inverse), ints(counts)])
}

fn all(x: &Tensor) -> Vec<isize> {
    (0..x.rank() as isize).collect()
}
