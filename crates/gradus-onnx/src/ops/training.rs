//! The domain `ai.onnx.preview.training`: steps of optimisers as functions of parameters, gradients and state.

use gradus_tensor::{BackwardOptions, Error, Result, Tensor, enable_grad_guard, grad};

use crate::graph::{Call, Row, row};
use crate::run::run;
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

/// The operator that differentiates a part of its own graph. The planner passes that part as the attribute `body`.
pub(crate) const GRADIENT: &str = "Gradient";

pub(super) const ROWS: &[Row] = &[
    row(GRADIENT, &[1], gradient),
    row("Adagrad", &[1], adagrad),
    row("Adam", &[1], adam),
    row("Momentum", &[1], momentum),
];

fn gradient(c: &Call<'_>) -> Values {
    c.skip(&["zs", "y"]);
    let count = c.texts("xs")?.unwrap_or_default().len();
    let further = (0..count).any(|i| c.tensor(i).is_ok_and(|x| x.requires_grad()));
    let mut xs = Vec::new();
    let mut inputs = Vec::new();
    for i in 0..c.inputs.len() {
        let x = c.tensor(i)?;
        let x = if i < count && !x.requires_grad() { x.detach().with_grad()? } else { x };
        inputs.push(Some(OnnxValue::from(x.clone())));
        if i < count {
            xs.push(x);
        }
    }
    let _recording = enable_grad_guard();
    let y = match run(c.graph("body")?, inputs, c.around, c.state)?.pop() {
        Some(OnnxValue::Tensor(array)) => array.tensor(c.device)?,
        _ => return Err(Error::argument("onnx", "a gradient of what is not a tensor")),
    };
    let options = if further { BackwardOptions::new().create_graph() } else { BackwardOptions::new() };
    let ones = y.ones_like()?;
    let gradients = grad(&[&y], &xs.iter().collect::<Vec<_>>(), Some(&[&ones]), options)?;
    // If y does not depend on an input, the gradient of that input is 0.
    let or_zero = |(g, x): (Option<Tensor>, &Tensor)| Ok(g.map_or_else(|| x.zeros_like(), Ok)?.into());
    gradients.into_iter().zip(&xs).map(or_zero).collect()
}

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
