//! Matrix products.

use gradus_tensor::{Error, Result, Tensor};

use crate::graph::{Call, Row, one, row};
use crate::value::{OnnxValue, device_floats, host_floats};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("MatMul", &[1, 9, 13], |c| Ok(one(c.tensor(0)?.matmul(&c.tensor(1)?)?))),
    row("Gemm", &[1, 6, 7, 9, 11, 13], gemm),
    row("Einsum", &[12], |c| {
        let operands: Vec<Tensor> = (0..c.inputs.len()).map(|i| c.tensor(i)).collect::<Result<_>>()?;
        let equation: String = c.text("equation", "")?.chars().filter(|ch| !ch.is_whitespace()).collect();
        Ok(one(Tensor::einsum(&equation, &operands.iter().collect::<Vec<_>>())?))
    }),
    row("Det", &[11, 22], det),
];

fn gemm(c: &Call<'_>) -> Values {
    c.skip(&["broadcast"]);
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    let a = if c.flag("transA", false)? { a.t()? } else { a };
    let b = if c.flag("transB", false)? { b.t()? } else { b };
    let (alpha, beta) = (c.float("alpha", 1.0)?, c.float("beta", 1.0)?);
    let dtype = a.dtype();
    let bias = c.optional(2)?;
    if alpha == 1.0 && beta == 1.0 && bias.as_ref().is_some_and(|v| v.shape() == [b.shape()[1]] && dtype.is_float()) {
        return Ok(one(a.linear(&b.t()?, bias.as_ref())?));
    }
    let mut y = a.matmul(&b)?;
    if alpha != 1.0 {
        y = y.mul(alpha)?;
    }
    if let Some(bias) = bias {
        y = y.add(if beta == 1.0 { bias } else { bias.mul(beta)? })?;
    }
    Ok(one(y.to_dtype(dtype)?))
}

/// The determinants of matrices, by elimination on the host.
fn det(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let &[.., rows, n] = x.shape() else { return Err(Error::shape("onnx", "matrices belong here")) };
    if rows != n {
        return Err(Error::shape("onnx", format!("a matrix of {rows} x {n} has no determinant")));
    }
    if x.requires_grad() {
        return Err(crate::graph::unsupported("the gradient of Det is not supported"));
    }
    let values = host_floats(&x)?;
    let lead = &x.shape()[..x.rank() - 2];
    let one_of = |matrix: &[f64]| {
        let mut m = matrix.to_vec();
        let mut product = 1.0;
        for k in 0..n {
            let best = (k..n).max_by(|&a, &b| m[a * n + k].abs().total_cmp(&m[b * n + k].abs())).unwrap_or(k);
            if best != k {
                for j in 0..n {
                    m.swap(k * n + j, best * n + j);
                }
                product = -product;
            }
            product *= m[k * n + k];
            if m[k * n + k] == 0.0 {
                return 0.0;
            }
            for i in k + 1..n {
                let factor = m[i * n + k] / m[k * n + k];
                for j in k..n {
                    m[i * n + j] -= factor * m[k * n + j];
                }
            }
        }
        product
    };
    let results: Vec<f64> = match n {
        // The determinant of an empty matrix is an empty product.
        0 => (0..lead.iter().product::<usize>()).map(|_| 1.0).collect(),
        _ => values.chunks_exact(n * n).map(one_of).collect(),
    };
    Ok(one(device_floats(&results, lead, x.dtype(), c.device)?))
}
