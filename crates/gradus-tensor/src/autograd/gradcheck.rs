//! Checks gradients against finite differences.

use gradus_backend::{DType, Error, ErrorKind, Result};

use super::{BackwardOptions, grad};
use crate::{Tensor, no_grad};

/// Compares the gradient of `f` with central finite differences at `inputs`, which must be f64.
///
/// `f` may give a tensor of any shape; it is weighted with fixed irregular numbers, so that no entry can hide behind
/// another. Every input is taken as a leaf. An error names the first entry that differs by more than
/// `1e-6 * (1 + |numeric| + scale)` (step 1e-5; `scale` is the largest gradient entry).
pub fn gradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor]) -> Result<()> {
    let weighted = |x: &[Tensor]| -> Result<Tensor> {
        let y = f(x)?;
        let w = weights(&y)?;
        y.mul(&w)?.sum_all()
    };
    check("gradcheck", &weighted, inputs)
}

/// Compares the second derivatives of `f` with finite differences of its gradient. As [`gradcheck`].
pub fn gradgradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor]) -> Result<()> {
    let directional = |x: &[Tensor]| -> Result<Tensor> {
        // The inputs may be plain numbers here (finite differences) or leaves (the analytic side); both need a graph.
        let _mode = crate::enable_grad();
        let leaves: Vec<Tensor> = x
            .iter()
            .map(|t| if t.requires_grad() { Ok(t.clone()) } else { t.require_grad() })
            .collect::<Result<_>>()?;
        let y = f(&leaves)?;
        let refs: Vec<&Tensor> = leaves.iter().collect();
        let loss = y.mul(&weights(&y)?)?.sum_all()?;
        if !loss.requires_grad() {
            return Tensor::zeros([], DType::F64, x[0].device());
        }
        let mut total: Option<Tensor> = None;
        for g in grad(&[&loss], &refs, None, BackwardOptions::new().create_graph())?.into_iter().flatten() {
            let part = g.mul(&weights(&g)?)?.sum_all()?;
            total = Some(match total {
                Some(t) => t.add(&part)?,
                None => part,
            });
        }
        total.map_or_else(|| Tensor::zeros([], DType::F64, x[0].device()), Ok)
    };
    check("gradgradcheck", &directional, inputs)
}

/// Fixed irregular weights of the shape of `y`.
fn weights(y: &Tensor) -> Result<Tensor> {
    let w: Vec<f64> = (0..y.numel()).map(|i| 0.3 + (i as f64 * 1.7 + 0.9).sin()).collect();
    Tensor::from_vec(w, y.shape(), y.device())?.to_dtype(y.dtype())
}

fn check(name: &str, f: &dyn Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor]) -> Result<()> {
    if let Some(t) = inputs.iter().find(|t| t.dtype() != DType::F64) {
        return Err(
            t.describe(Error::dtype(name, t.dtype(), "f64, since finite differences need the precision"), "input")
        );
    }
    // Keep the layout of each input: strided and stretched inputs are part of what is checked.
    let leaves: Vec<Tensor> = inputs.iter().map(|t| t.detach().require_grad()).collect::<Result<_>>()?;
    let refs: Vec<&Tensor> = leaves.iter().collect();
    let y = f(&leaves)?;
    let analytic: Vec<Option<Tensor>> =
        if y.requires_grad() { grad(&[&y], &refs, None, BackwardOptions::new())? } else { vec![None; leaves.len()] };
    let _guard = no_grad();
    let step = 1e-5;
    for (i, input) in inputs.iter().enumerate() {
        let values = input.to_vec::<f64>()?;
        let gradient = match &analytic[i] {
            Some(g) => g.to_vec::<f64>()?,
            None => vec![0.0; values.len()],
        };
        let scale = gradient.iter().fold(0.0f64, |m, g| m.max(g.abs()));
        for k in 0..values.len() {
            let at = |h: f64| -> Result<f64> {
                let mut v = values.clone();
                v[k] += h;
                let mut moved: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
                moved[i] = Tensor::from_vec(v, input.shape(), input.device())?;
                f(&moved)?.item()
            };
            let numeric = (at(step)? - at(-step)?) / (2.0 * step);
            let difference = (numeric - gradient[k]).abs();
            if difference.is_nan() || difference > 1e-6 * (1.0 + numeric.abs() + scale) {
                let m = format!(
                    "input {i}, element {k}: the gradient is {}, finite differences say {numeric}",
                    gradient[k]
                );
                return Err(input.describe(Error::new(ErrorKind::Autograd, name, m), "input"));
            }
        }
    }
    Ok(())
}
