//! Gather, scatter and random numbers.

use gradus_backend::{
    DType, Distribution, Error, ErrorKind, Layout, Result, Scalar, ScatterOp, Shape, View, ViewMut, philox,
};

use super::access::{axis as check_axis, indices, same};
use super::sum::Sum;
use super::value::converted;
use super::{OracleBackend, wide};

/// For every index of `index`, the place in a contiguous tensor of shape `x` that it points to along `axis`.
fn targets(o: &OracleBackend, op: &str, x: &Shape, axis: usize, index: View<'_>) -> Result<Vec<usize>> {
    if !matches!(index.dtype, DType::I64 | DType::I32 | DType::U32) {
        return Err(Error::dtype(op, index.dtype, "indices as i64, i32 or u32"));
    }
    let all = Layout::contiguous(*x);
    let size = x[axis];
    let values = o.read(op, "index", index)?;
    let place = |(pos, mut at): (usize, Vec<usize>)| {
        let i = wide(values[pos], index.dtype) as i64;
        at[axis] = usize::try_from(i).ok().filter(|&i| i < size).ok_or_else(|| {
            let m = format!("index {i} at position {pos} is outside axis {axis} of size {size}");
            Error::new(ErrorKind::IndexOutOfBounds { pos, index: i, size }, op, m)
        })?;
        Ok(all.position(&at))
    };
    indices(*index.layout.shape()).enumerate().map(place).collect()
}

pub(super) fn gather(
    o: &OracleBackend,
    x: View<'_>,
    axis: usize,
    index: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "gather";
    let axis = check_axis(OP, axis, &x)?;
    let size = out.layout.dims().get(axis).copied().unwrap_or(0);
    same(OP, "out", &out.as_view(), x.dtype, &x.layout.shape().with(axis, size)?)?;
    same(OP, "index", &index, index.dtype, out.layout.dims())?;
    let values = o.read(OP, "x", x)?;
    let results: Vec<_> = targets(o, OP, x.layout.shape(), axis, index)?.into_iter().map(|p| values[p]).collect();
    o.write(OP, "out", out, &results)
}

pub(super) fn scatter(
    o: &OracleBackend,
    op: ScatterOp,
    axis: usize,
    index: View<'_>,
    src: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "scatter";
    let axis = check_axis(OP, axis, &out.as_view())?;
    let size = src.layout.dims().get(axis).copied().unwrap_or(0);
    same(OP, "src", &src, out.dtype, &out.layout.shape().with(axis, size)?)?;
    same(OP, "index", &index, index.dtype, src.layout.dims())?;
    if op == ScatterOp::Add && out.dtype == DType::Bool {
        return Err(Error::dtype(OP, out.dtype, "numbers"));
    }
    let targets = targets(o, OP, out.layout.shape(), axis, index)?;
    let values = o.read(OP, "src", src)?;
    let mut results = o.read(OP, "out", out.as_view())?;
    match op {
        ScatterOp::Set => targets.into_iter().zip(values).for_each(|(p, v)| results[p] = v),
        ScatterOp::Add if out.dtype.is_float() => {
            let mut sums = Vec::new();
            for old in &results {
                let mut sum = Sum::new(o.precision, out.dtype);
                sum.add(old.to_f64());
                sums.push(sum);
            }
            targets.into_iter().zip(values).for_each(|(p, v)| sums[p].add(v.to_f64()));
            results = sums.into_iter().map(|s| Scalar::Float(s.value())).collect();
        }
        ScatterOp::Add => {
            for (p, v) in targets.into_iter().zip(values) {
                let sum = wide(results[p], out.dtype).wrapping_add(wide(v, out.dtype));
                results[p] = Scalar::Int(sum as i64);
            }
        }
    }
    o.write(OP, "out", out, &results)
}

pub(super) fn random(
    o: &OracleBackend,
    dist: Distribution,
    seed: u64,
    offset: u64,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "random";
    let refuse = |m: String| Err(Error::argument(OP, m));
    match dist {
        Distribution::Uniform { .. } | Distribution::Normal { .. } if !out.dtype.is_float() => {
            return Err(Error::dtype(OP, out.dtype, "floats"));
        }
        Distribution::Uniform { lo, hi } if !(lo.is_finite() && hi.is_finite() && lo <= hi) => {
            return refuse(format!("uniform from {lo} to {hi}: ends are finite and in order"));
        }
        Distribution::Normal { mean, std } if !(mean.is_finite() && std.is_finite() && std >= 0.0) => {
            return refuse(format!(
                "normal with mean {mean} and deviation {std}: both are finite, the latter not negative"
            ));
        }
        Distribution::Bernoulli { p } if !(0.0..=1.0).contains(&p) => {
            return refuse(format!("probability {p} is not between 0 and 1"));
        }
        Distribution::Int { lo, hi } => {
            if lo >= hi {
                return refuse(format!("there is no integer from {lo} to below {hi}"));
            }
            Scalar::Int(lo).check(out.dtype)?;
            Scalar::Int(hi - 1).check(out.dtype)?;
        }
        _ => {}
    }
    let element = |i| converted(philox::element(dist, out.dtype, seed, offset, i as u64), out.dtype);
    let values: Vec<_> = (0..out.layout.numel()).map(element).collect();
    o.write(OP, "out", out, &values)
}
