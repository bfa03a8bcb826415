//! Gather, scatter and random numbers.

use gradus_backend::host::{converted, wide};
use gradus_backend::{
    Distribution, Error, Layout, MAX_RANK, Result, Scalar, ScatterOp, Shape, View, ViewMut, check, philox,
};

use super::OracleBackend;
use super::sum::Sum;

/// For every element of `index`, the offset that it selects in a contiguous tensor of shape `x`, indexed along `axis`.
fn targets(o: &OracleBackend, op: &str, x: &Shape, axis: usize, index: View<'_>) -> Result<Vec<usize>> {
    let all = Layout::contiguous(*x);
    let size = x[axis];
    let values = o.memory.read(op, index)?;
    let place = |(pos, mut at): (usize, [usize; MAX_RANK])| {
        at[axis] = check::index(op, pos, wide(values[pos], index.dtype) as i64, size)?;
        Ok(all.position(&at[..x.rank()]))
    };
    index.layout.shape().indices().enumerate().map(place).collect()
}

pub(super) fn gather(
    o: &OracleBackend,
    x: View<'_>,
    axis: usize,
    index: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "gather";
    check::gather(x, axis, index, out)?;
    let values = o.memory.read(OP, x)?;
    let results: Vec<_> = targets(o, OP, x.layout.shape(), axis, index)?.into_iter().map(|p| values[p]).collect();
    o.memory.write(OP, out, &results)
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
    check::scatter(op, axis, index, src, out)?;
    let targets = targets(o, OP, out.layout.shape(), axis, index)?;
    let values = o.memory.read(OP, src)?;
    let mut results = o.memory.read(OP, out.as_view())?;
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
    o.memory.write(OP, out, &results)
}

pub(super) fn arange(o: &OracleBackend, start: i64, step: i64, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "arange";
    let element = |i| {
        let value = Scalar::Int(start.wrapping_add(step.wrapping_mul(i)));
        value.check(out.dtype).map_err(|e| Error::argument(OP, e.message()))?;
        Ok(converted(value, out.dtype))
    };
    let values = (0..out.layout.numel() as i64).map(element).collect::<Result<Vec<_>>>()?;
    o.memory.write(OP, out, &values)
}

pub(super) fn random(
    o: &OracleBackend,
    dist: Distribution,
    seed: u64,
    offset: u64,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "random";
    check::random(dist, out)?;
    let element = |i| converted(philox::element(dist, out.dtype, seed, offset, i as u64), out.dtype);
    let values: Vec<_> = (0..out.layout.numel()).map(element).collect();
    o.memory.write(OP, out, &values)
}
