//! Optimiser steps, each one pass over its tensors; the formulas are PyTorch's.
//!
//! * SGD: `d = g + wd * p`; `v = mu * v + d`; `p -= lr * (d + mu * v)` with Nesterov, else `p -= lr * v`.
//! * Adam: `g += wd * p` (or, decoupled, `p *= 1 - lr * wd`); `m = b1 * m + (1 - b1) * g`;
//!   `v = b2 * v + (1 - b2) * g^2`; `p -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)`.
//!
//! All is computed in the compute dtype of the parameter, whatever the other tensors are stored in; the numbers that
//! depend on the step are computed in f64 on the host and passed as scalars, so that one kernel serves every step.

use super::{Body, expect, expect_float, expect_parameter, run};
use crate::{AdamParams, Backend, Error, Expr, MapArg, Result, Scalar, SgdParams, View, ViewMut};

fn number(v: f64) -> MapArg<'static> {
    MapArg::Scalar(Scalar::Float(v))
}

/// Checks a tensor that goes with a parameter: any float dtype, the parameter's shape.
fn expect_like<B: Backend + ?Sized>(b: &B, op: &'static str, name: &str, x: View<'_>, param: View<'_>) -> Result<()> {
    expect_float(op, x)?;
    expect(b, op, name, x, x.dtype, param.layout.dims())
}

/// Checks what both optimisers have.
fn expect_rates(op: &'static str, lr: f64, weight_decay: f64) -> Result<()> {
    expect_parameter(op, "learning rate", lr, lr.is_finite(), "finite")?;
    let ok = weight_decay.is_finite() && weight_decay >= 0.0;
    expect_parameter(op, "weight decay", weight_decay, ok, "finite and at least 0")
}

/// See [`Backend::sgd_step`].
pub fn sgd<B: Backend + ?Sized>(
    b: &B,
    params: &SgdParams,
    param: &mut ViewMut<'_>,
    grad: View<'_>,
    momentum: Option<&mut ViewMut<'_>>,
) -> Result<()> {
    const OP: &str = "sgd_step";
    expect_rates(OP, params.lr, params.weight_decay)?;
    let mu = params.momentum;
    expect_parameter(OP, "momentum", mu, mu.is_finite() && mu >= 0.0, "finite and at least 0")?;
    expect_float(OP, param.as_view())?;
    expect_like(b, OP, "grad", grad, param.as_view())?;
    if let Some(v) = &momentum {
        expect_like(b, OP, "momentum", v.as_view(), param.as_view())?;
    }
    // d = g + wd * p
    fn decayed<'k>(v: &[Expr<'k>]) -> Expr<'k> {
        v[1].cast(v[0].dtype()) + v[3] * v[0]
    }
    let [p, g, lr, wd] = [MapArg::Output(0), MapArg::View(grad), number(params.lr), number(params.weight_decay)];
    let decays = params.weight_decay != 0.0;
    let momentum = match momentum {
        Some(v) if mu != 0.0 => v,
        None if mu != 0.0 => return Err(Error::argument(OP, "momentum needs a velocity buffer")),
        _ if params.nesterov => return Err(Error::argument(OP, "Nesterov's form needs a momentum above 0")),
        _ => {
            let outs = &mut [param.with(param.layout)];
            return if decays {
                run(b, "sgd_decay", &[p, g, lr, wd], outs, |v| vec![v[0] - v[2] * decayed(v)])
            } else {
                run(b, "sgd", &[p, g, lr], outs, |v| vec![v[0] - v[2] * v[1].cast(v[0].dtype())])
            };
        }
    };
    // One place an argument: p, g, lr, wd, mu, v. Without decay wd is not read, and an infinite p does no harm.
    fn velocity<'k>(v: &[Expr<'k>], d: Expr<'k>) -> Expr<'k> {
        v[4] * v[5].cast(v[0].dtype()) + d
    }
    fn plain<'k>(v: &[Expr<'k>], d: Expr<'k>) -> Vec<Expr<'k>> {
        let velocity = velocity(v, d);
        vec![v[0] - v[2] * velocity, velocity]
    }
    fn nesterov<'k>(v: &[Expr<'k>], d: Expr<'k>) -> Vec<Expr<'k>> {
        let velocity = velocity(v, d);
        vec![v[0] - v[2] * (d + v[4] * velocity), velocity]
    }
    let (name, body): (_, Body) = match (params.nesterov, decays) {
        (false, false) => ("sgd_momentum", |v| plain(v, v[1].cast(v[0].dtype()))),
        (false, true) => ("sgd_momentum_decay", |v| plain(v, decayed(v))),
        (true, false) => ("sgd_nesterov", |v| nesterov(v, v[1].cast(v[0].dtype()))),
        (true, true) => ("sgd_nesterov_decay", |v| nesterov(v, decayed(v))),
    };
    let args = [p, g, lr, wd, number(mu), MapArg::Output(1)];
    run(b, name, &args, &mut [param.with(param.layout), momentum.with(momentum.layout)], body)
}

/// See [`Backend::adam_step`].
pub fn adam<B: Backend + ?Sized>(
    b: &B,
    params: &AdamParams,
    param: &mut ViewMut<'_>,
    grad: View<'_>,
    m: &mut ViewMut<'_>,
    v: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "adam_step";
    let AdamParams { lr, beta1, beta2, eps, weight_decay, decoupled, step } = *params;
    expect_rates(OP, lr, weight_decay)?;
    expect_parameter(OP, "beta1", beta1, (0.0..1.0).contains(&beta1), "at least 0 and below 1")?;
    expect_parameter(OP, "beta2", beta2, (0.0..1.0).contains(&beta2), "at least 0 and below 1")?;
    expect_parameter(OP, "eps", eps, eps.is_finite() && eps >= 0.0, "finite and at least 0")?;
    if step == 0 {
        return Err(Error::argument(OP, "step is 0; the first step has number 1"));
    }
    expect_float(OP, param.as_view())?;
    expect_like(b, OP, "grad", grad, param.as_view())?;
    expect_like(b, OP, "m", m.as_view(), param.as_view())?;
    expect_like(b, OP, "v", v.as_view(), param.as_view())?;

    let correction = |beta: f64| 1.0 - libm::pow(beta, step as f64);
    let args = [
        MapArg::Output(0),
        MapArg::View(grad),
        MapArg::Output(1),
        MapArg::Output(2),
        number(beta1),
        number(1.0 - beta1),
        number(beta2),
        number(1.0 - beta2),
        number(lr / correction(beta1)),
        number(1.0 / libm::sqrt(correction(beta2))),
        number(eps),
        number(if decoupled { 1.0 - lr * weight_decay } else { weight_decay }),
    ];
    /// The step from the decayed parameter and gradient.
    fn moments<'k>(x: &[Expr<'k>], p: Expr<'k>, g: Expr<'k>) -> Vec<Expr<'k>> {
        let m = x[4] * x[2].cast(p.dtype()) + x[5] * g;
        let v = x[6] * x[3].cast(p.dtype()) + x[7] * (g * g);
        vec![p - x[8] * m / (v.sqrt() * x[9] + x[10]), m, v]
    }
    let (name, body): (_, Body) = match (weight_decay != 0.0, decoupled) {
        (false, _) => ("adam", |x| moments(x, x[0], x[1].cast(x[0].dtype()))),
        (true, false) => ("adam_l2", |x| moments(x, x[0], x[1].cast(x[0].dtype()) + x[11] * x[0])),
        (true, true) => ("adamw", |x| moments(x, x[0] * x[11], x[1].cast(x[0].dtype()))),
    };
    run(b, name, &args, &mut [param.with(param.layout), m.with(m.layout), v.with(v.layout)], body)
}
