//! Matrix products.

use gradus_backend::{DType, Error, Result, Scalar, Shape, View, ViewMut};

use super::access::same;
use super::sum::{Sum, rounded};
use super::value::converted;
use super::{OracleBackend, Precision, wide};

pub(super) fn gemm(
    o: &OracleBackend,
    alpha: Scalar,
    a: View<'_>,
    b: View<'_>,
    beta: Scalar,
    c: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "gemm";
    let dtype = a.dtype;
    if dtype == DType::Bool {
        return Err(Error::dtype(OP, dtype, "numbers"));
    }
    let rank = c.layout.rank();
    if rank < 2 || a.layout.rank() != rank || b.layout.rank() != rank {
        let ranks = [a.layout.rank(), b.layout.rank(), rank];
        return Err(Error::shape(
            OP,
            format!("matrices or batches of them of one rank are needed, not ranks {ranks:?}"),
        ));
    }
    let batch = &c.layout.dims()[..rank - 2];
    let [m, n] = [c.layout.dims()[rank - 2], c.layout.dims()[rank - 1]];
    let k = a.layout.dims()[rank - 1];
    same(OP, "a", &a, dtype, &[batch, &[m, k]].concat())?;
    same(OP, "b", &b, dtype, &[batch, &[k, n]].concat())?;
    same(OP, "c", &c.as_view(), dtype, c.layout.dims())?;
    for s in [alpha, beta] {
        s.check(dtype).map_err(|e| Error::argument(OP, e.message()))?;
    }
    let batches = Shape::new(batch)?.numel();
    let keeps = beta.to_f64() != 0.0;
    let old = if keeps { o.read(OP, "c", c.as_view())? } else { vec![Scalar::Int(0); batches * m * n] };
    let mut results = Vec::with_capacity(old.len());
    if dtype.is_float() {
        let (x, y) = (o.read_floats(OP, "a", a)?, o.read_floats(OP, "b", b)?);
        let (alpha, beta) = (alpha.to_f64(), beta.to_f64());
        let naive = o.precision == Precision::Naive;
        let round = |v: f64| if naive { rounded(v, dtype) } else { v };
        for (at, old) in old.iter().enumerate() {
            let (batch, i, j) = (at / (m * n), at / n % m, at % n);
            let mut sum = Sum::new(o.precision, dtype);
            for l in 0..k {
                sum.add_product(x[(batch * m + i) * k + l], y[(batch * k + l) * n + j]);
            }
            // With k = 0 only the old value is left.
            let product = if k == 0 { 0.0 } else { round(alpha * sum.value()) };
            let value = if keeps { product + round(beta * old.to_f64()) } else { product };
            results.push(Scalar::Float(value));
        }
    } else {
        let ints = |v: Vec<Scalar>| -> Vec<i128> { v.into_iter().map(|s| wide(s, dtype)).collect() };
        let (x, y) = (ints(o.read(OP, "a", a)?), ints(o.read(OP, "b", b)?));
        let [alpha, beta] = [alpha, beta].map(|s| wide(converted(s, dtype), dtype));
        for (at, &old) in old.iter().enumerate() {
            let (batch, i, j) = (at / (m * n), at / n % m, at % n);
            let mut sum = 0i128;
            for l in 0..k {
                sum = sum.wrapping_add(x[(batch * m + i) * k + l].wrapping_mul(y[(batch * k + l) * n + j]));
            }
            let value = alpha.wrapping_mul(sum).wrapping_add(beta.wrapping_mul(wide(old, dtype)));
            results.push(Scalar::Int(value as i64));
        }
    }
    o.write(OP, "c", c, &results)
}
