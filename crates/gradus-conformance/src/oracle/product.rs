//! Matrix products.

use gradus_backend::check::{self, Product};
use gradus_backend::host::{converted, wide};
use gradus_backend::{Result, Scalar, View, ViewMut};

use super::sum::{Sum, rounded};
use super::{OracleBackend, Precision};

pub(super) fn gemm(
    o: &OracleBackend,
    alpha: Scalar,
    a: View<'_>,
    b: View<'_>,
    beta: Scalar,
    c: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "gemm";
    let Product { batches, m, k, n } = check::gemm(alpha, a, b, beta, c)?;
    let dtype = a.dtype;
    let keeps = beta.to_f64() != 0.0;
    let old = if keeps { o.memory.read(OP, c.as_view())? } else { vec![Scalar::Int(0); batches * m * n] };
    let mut results = Vec::with_capacity(old.len());
    if dtype.is_float() {
        let (x, y) = (o.floats(OP, a)?, o.floats(OP, b)?);
        let (alpha, beta) = (alpha.to_f64(), beta.to_f64());
        let naive = o.precision == Precision::Naive;
        let round = |v: f64| if naive { rounded(v, dtype) } else { v };
        for (at, old) in old.iter().enumerate() {
            let (batch, i, j) = (at / (m * n), at / n % m, at % n);
            let mut sum = Sum::new(o.precision, dtype);
            for l in 0..k {
                sum.add_product(x[(batch * m + i) * k + l], y[(batch * k + l) * n + j]);
            }
            // With k = 0 there is no product, and only `beta` times the old value remains.
            let product = if k == 0 { 0.0 } else { round(alpha * sum.value()) };
            let value = if keeps { product + round(beta * old.to_f64()) } else { product };
            results.push(Scalar::Float(value));
        }
    } else {
        let ints = |v: Vec<Scalar>| -> Vec<i128> { v.into_iter().map(|s| wide(s, dtype)).collect() };
        let (x, y) = (ints(o.memory.read(OP, a)?), ints(o.memory.read(OP, b)?));
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
    o.memory.write(OP, c, &results)
}
