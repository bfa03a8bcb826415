//! Operations along axes: reduce, arg-reduce, scan and sort.

use std::cmp::Ordering;

use gradus_backend::host::wide;
use gradus_backend::{ArgReduceOp, Axes, DType, Error, Layout, ReduceOp, Result, Scalar, ScanOp, View, ViewMut, check};

use super::OracleBackend;
use super::sum::{Sum, rounded};

pub(super) fn reduce(o: &OracleBackend, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()> {
    let name = op.name();
    check::reduce(op, x, axes, out)?;
    let shape = *out.layout.shape();
    let values = o.memory.read(name, x)?;
    // For every element of `x`, its offset in `out`, which is broadcast over the reduced axes.
    let to = Layout::contiguous(shape).expand(*x.layout.shape())?;
    let mut groups = vec![Vec::new(); shape.numel()];
    for (group, value) in to.positions().zip(values) {
        groups[group].push(value);
    }
    let results = groups.iter().map(|g| combine(o, op, g, x.dtype)).collect::<Result<Vec<_>>>()?;
    o.memory.write(name, out, &results)
}

/// The reduction of any number of elements.
fn combine(o: &OracleBackend, op: ReduceOp, values: &[Scalar], dtype: DType) -> Result<Scalar> {
    let truth = |v: &Scalar| v.to_f64() != 0.0;
    let ints = || values.iter().map(|&v| wide(v, dtype));
    Ok(match op {
        ReduceOp::Any => Scalar::Bool(values.iter().any(truth)),
        ReduceOp::All => Scalar::Bool(values.iter().all(truth)),
        ReduceOp::Sum if dtype.is_float() => {
            let mut sum = Sum::new(o.precision, dtype);
            values.iter().for_each(|v| sum.add(v.to_f64()));
            Scalar::Float(sum.value())
        }
        ReduceOp::Prod if dtype.is_float() => Scalar::Float(running_product(o, values, dtype)),
        ReduceOp::Sum => Scalar::Int(ints().fold(0, i128::wrapping_add) as i64),
        ReduceOp::Prod => Scalar::Int(ints().fold(1i64, |p, v| p.wrapping_mul(v as i64))),
        ReduceOp::Max | ReduceOp::Min => {
            let nothing = || Error::argument(op.name(), "the reduced axes have no elements, so there is no result");
            values[extreme(op == ReduceOp::Max, values, dtype).ok_or_else(nothing)?]
        }
    })
}

fn running_product(o: &OracleBackend, values: &[Scalar], dtype: DType) -> f64 {
    let naive = o.precision == super::Precision::Naive;
    values.iter().fold(1.0, |p, v| {
        let p = p * v.to_f64();
        if naive { rounded(p, dtype) } else { p }
    })
}

/// The position of the first NaN, otherwise of the first maximum (or minimum).
fn extreme(largest: bool, values: &[Scalar], dtype: DType) -> Option<usize> {
    let is_nan = |v: &Scalar| v.to_f64().is_nan();
    if let Some(i) = values.iter().position(is_nan) {
        return Some(i);
    }
    let mut best = 0;
    for i in 1..values.len() {
        let order = compare(values[i], values[best], dtype);
        if order == if largest { Ordering::Greater } else { Ordering::Less } {
            best = i;
        }
    }
    (!values.is_empty()).then_some(best)
}

/// Numeric order. NaN equals NaN and is greater than every number. Positive and negative zeros are equal.
fn compare(a: Scalar, b: Scalar, dtype: DType) -> Ordering {
    if !dtype.is_float() {
        return wide(a, dtype).cmp(&wide(b, dtype));
    }
    let (a, b) = (a.to_f64(), b.to_f64());
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The offsets of the elements of every lane along an axis; lanes are in row-major order.
fn lanes(x: &View<'_>, axis: usize) -> Result<Vec<Vec<usize>>> {
    let size = x.layout.dims()[axis];
    let shape = *x.layout.shape();
    if shape.numel() == 0 {
        return Ok(Vec::new());
    }
    let all = Layout::contiguous(shape);
    let step = all.strides()[axis] as usize;
    let first = all.narrow(axis, 0, 1)?;
    Ok(first.positions().map(|start| (0..size).map(|i| start + i * step).collect()).collect())
}

pub(super) fn arg_reduce(
    o: &OracleBackend,
    op: ArgReduceOp,
    x: View<'_>,
    axis: usize,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let name = if op == ArgReduceOp::Max { "argmax" } else { "argmin" };
    check::arg_reduce(op, x, axis, out)?;
    let values = o.memory.read(name, x)?;
    let mut results = Vec::new();
    for lane in lanes(&x, axis)? {
        let lane: Vec<_> = lane.iter().map(|&i| values[i]).collect();
        let best = extreme(op == ArgReduceOp::Max, &lane, x.dtype).unwrap_or(0);
        results.push(Scalar::Int(best as i64));
    }
    o.memory.write(name, out, &results)
}

pub(super) fn scan(o: &OracleBackend, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "scan";
    check::scan(op, x, axis, out)?;
    let values = o.memory.read(OP, x)?;
    let mut results = values.clone();
    for lane in lanes(&x, axis)? {
        let lane_values: Vec<_> = lane.iter().map(|&i| values[i]).collect();
        for (n, &place) in lane.iter().enumerate() {
            let prefix = &lane_values[..=n];
            results[place] = match op {
                ScanOp::Sum => combine(o, ReduceOp::Sum, prefix, x.dtype)?,
                ScanOp::Prod => combine(o, ReduceOp::Prod, prefix, x.dtype)?,
                ScanOp::Max => combine(o, ReduceOp::Max, prefix, x.dtype)?,
                ScanOp::Min => combine(o, ReduceOp::Min, prefix, x.dtype)?,
                ScanOp::LogSumExp => Scalar::Float(log_sum_exp(o, prefix, x.dtype)),
            };
        }
    }
    o.memory.write(OP, out, &results)
}

fn log_sum_exp(o: &OracleBackend, values: &[Scalar], dtype: DType) -> f64 {
    let largest = values.iter().fold(f64::NEG_INFINITY, |m, v| m.max(v.to_f64()));
    let shift = if largest.is_finite() { largest } else { 0.0 };
    let mut sum = Sum::new(o.precision, dtype);
    values.iter().for_each(|v| sum.add(libm::exp(v.to_f64() - shift)));
    shift + libm::log(sum.value())
}

pub(super) fn sort(
    o: &OracleBackend,
    x: View<'_>,
    axis: usize,
    descending: bool,
    values: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "sort";
    check::sort(x, axis, values, indices)?;
    let all = o.memory.read(OP, x)?;
    let mut sorted = all.clone();
    let mut places = all.clone();
    for lane in lanes(&x, axis)? {
        let mut order: Vec<usize> = (0..lane.len()).collect();
        order.sort_by(|&a, &b| {
            let order = compare(all[lane[a]], all[lane[b]], x.dtype);
            if descending { order.reverse() } else { order }
        });
        for (to, from) in order.into_iter().enumerate() {
            sorted[lane[to]] = all[lane[from]];
            places[lane[to]] = Scalar::Int(from as i64);
        }
    }
    o.memory.write(OP, values, &sorted)?;
    o.memory.write(OP, indices, &places)
}
