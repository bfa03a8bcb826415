//! The domain `ai.onnx.preview.training`: steps of optimisers as functions of parameters, gradients and state.

use gradus_tensor::{Error, Result, Tensor};

use crate::graph::{Call, Row, row};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[row("Adagrad", &[1], adagrad), row("Adam", &[1], adam), row("Momentum", &[1], momentum)];

/// The inputs in groups: parameters, gradients, and `states` kinds of state.
fn groups(c: &Call<'_>, kinds: usize) -> Result<(usize, impl Fn(usize, usize) -> Result<Tensor>)> {
    let n = c.inputs.len().saturating_sub(2) / kinds;
    Ok((n, move |kind, i| c.tensor(2 + kind * n + i)))
}

/// Calls `step` for each parameter, and lists the results by kind.
fn each<const N: usize>(n: usize, step: impl Fn(usize) -> Result<[Tensor; N]>) -> Values {
    let mut kinds: [Vec<OnnxValue>; N] = std::array::from_fn(|_| Vec::new());
    for i in 0..n {
        for (to, value) in kinds.iter_mut().zip(step(i)?) {
            to.push(value.into());
        }
    }
    Ok(kinds.into_iter().flatten().collect())
}

fn adagrad(c: &Call<'_>) -> Values {
    let (decay, eps) = (c.float("decay_factor", 0.0)?, c.float("epsilon", 1e-6)?);
    let norm = c.float("norm_coefficient", 0.0)?;
    let (rate, t) = (c.number(0)?.unwrap_or(0.0), c.number(1)?.unwrap_or(0.0));
    let (n, input) = groups(c, 3)?;
    each(n, |i| {
        let (x, g, h) = (input(0, i)?, input(1, i)?, input(2, i)?);
        let g = x.mul(norm)?.add(g)?;
        let h = h.add(g.square()?)?;
        Ok([x.sub(g.mul(rate / (1.0 + t * decay))?.div(h.sqrt()?.add(eps)?)?)?, h])
    })
}

fn adam(c: &Call<'_>) -> Values {
    let (alpha, beta, eps) = (c.float("alpha", 0.9)?, c.float("beta", 0.999)?, c.float("epsilon", 1e-6)?);
    let (norm, after) = (c.float("norm_coefficient", 0.0)?, c.float("norm_coefficient_post", 0.0)?);
    let (mut rate, t) = (c.number(0)?.unwrap_or(0.0), c.number(1)?.unwrap_or(0.0));
    if t > 0.0 {
        rate *= (1.0 - beta.powf(t)).sqrt() / (1.0 - alpha.powf(t));
    }
    let (n, input) = groups(c, 4)?;
    each(n, |i| {
        let (x, g, v, h) = (input(0, i)?, input(1, i)?, input(2, i)?, input(3, i)?);
        let g = x.mul(norm)?.add(g)?;
        let v = v.mul(alpha)?.add(g.mul(1.0 - alpha)?)?;
        let h = h.mul(beta)?.add(g.square()?.mul(1.0 - beta)?)?;
        let x = x.sub(v.div(h.sqrt()?.add(eps)?)?.mul(rate)?)?.mul(1.0 - after)?;
        Ok([x, v, h])
    })
}

fn momentum(c: &Call<'_>) -> Values {
    let (alpha, beta) = (c.float("alpha", 0.9)?, c.float("beta", 1.0)?);
    let norm = c.float("norm_coefficient", 0.0)?;
    let nesterov = match c.text("mode", "standard")? {
        "standard" => false,
        "nesterov" => true,
        other => return Err(Error::argument("onnx", format!("mode = `{other}`"))),
    };
    let (rate, t) = (c.number(0)?.unwrap_or(0.0), c.number(1)?.unwrap_or(0.0));
    let beta = if t > 0.0 { beta } else { 1.0 };
    let (n, input) = groups(c, 3)?;
    each(n, |i| {
        let (x, g, v) = (input(0, i)?, input(1, i)?, input(2, i)?);
        let g = x.mul(norm)?.add(g)?;
        let v = v.mul(alpha)?.add(g.mul(beta)?)?;
        let step = if nesterov { g.add(v.mul(alpha)?)? } else { v.clone() };
        Ok([x.sub(step.mul(rate)?)?, v])
    })
}
