//! Products, convolutions and activations of `com.microsoft`, each several operators of ONNX in one.

use gradus_tensor::{Error, Result, Tensor};

use super::super::conv::{Window, convolved, kernel_of};
use super::super::elementwise::like;
use crate::graph::{Call, Row, one, row, size};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("FusedMatMul", &[1], fused_mat_mul),
    row("TransposeMatMul", &[1], fused_mat_mul),
    row("FusedGemm", &[1], fused_gemm),
    row("FusedConv", &[1], fused_conv),
    row("Gelu", &[1], |c| Ok(one(c.tensor(0)?.gelu()?))),
    row("BiasGelu", &[1], |c| Ok(one(c.tensor(0)?.add(c.tensor(1)?)?.gelu()?))),
    row("FastGelu", &[1], |c| {
        let x = c.tensor(0)?;
        let x = c.optional(1)?.map_or(Ok(x.clone()), |bias| x.add(bias))?;
        Ok(one(x.gelu_tanh()?))
    }),
    row("QuickGelu", &[1], |c| {
        let x = c.tensor(0)?;
        like(&x, x.mul(c.float("alpha", 1.702)?)?.sigmoid()?.mul(&x))
    }),
];

/// `alpha * a @ b`. `transA` swaps the last two axes; before that, `transBatchA` moves the first axis behind the other
/// batch axes.
fn fused_mat_mul(c: &Call<'_>) -> Values {
    let operand = |input: usize, swap: &str, batch: &str| -> Result<Tensor> {
        let mut x = c.tensor(input)?;
        let rank = x.rank();
        if c.flag(batch, false)? && rank > 2 {
            let mut order: Vec<isize> = (1..rank as isize - 1).collect();
            order.extend([0, rank as isize - 1]);
            x = x.permute(&order)?;
        }
        if c.flag(swap, false)? && rank > 1 { x.transpose(-2, -1) } else { Ok(x) }
    };
    let (a, b) = (operand(0, "transA", "transBatchA")?, operand(1, "transB", "transBatchB")?);
    let alpha = c.float("alpha", 1.0)?;
    let y = a.matmul(&b)?;
    if alpha == 1.0 { Ok(one(y)) } else { like(&a, y.mul(alpha)) }
}

/// The activation that a node names, with its parameters in `numbers`.
fn activated(y: &Tensor, name: &str, numbers: &[f64]) -> Result<Tensor> {
    let number = |i: usize, default: f64| numbers.get(i).copied().unwrap_or(default);
    match name {
        "" => Ok(y.clone()),
        "Relu" => y.relu(),
        "Sigmoid" => y.sigmoid(),
        "Tanh" => y.tanh(),
        "LeakyRelu" => y.leaky_relu(number(0, 0.01)),
        "Clip" => y.clamp(number(0, f64::from(f32::MIN)), number(1, f64::from(f32::MAX))),
        "HardSigmoid" => y.mul(number(0, 0.2))?.add(number(1, 0.5))?.hardtanh(0.0, 1.0),
        other => Err(Error::argument("onnx", format!("the activation `{other}`"))),
    }
}

fn fused_gemm(c: &Call<'_>) -> Values {
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    let a = if c.flag("transA", false)? { a.t()? } else { a };
    let b = if c.flag("transB", false)? { b.t()? } else { b };
    let mut y = a.matmul(&b)?.mul(c.float("alpha", 1.0)?)?;
    let beta = c.float("beta", 1.0)?;
    if let Some(bias) = c.optional(2)? {
        y = y.add(bias.mul(beta)?)?;
    }
    let mut numbers = Vec::new();
    for name in ["activation_alpha", "activation_beta"] {
        if c.has(name) {
            numbers.push(c.float(name, 0.0)?);
        }
    }
    c.skip(&["activation_gamma"]);
    like(&a, activated(&y, c.text("activation", "")?, &numbers))
}

/// A convolution; a further input is added to its result before the activation.
fn fused_conv(c: &Call<'_>) -> Values {
    let (x, w) = (c.tensor(0)?, c.tensor(1)?);
    let window = Window::of(c, &x, Some(kernel_of(&w)?))?;
    let mut y = convolved(&x, &w, c.optional(2)?.as_ref(), &window, size(c.int("group", 1)?)?)?;
    if let Some(more) = c.optional(3)? {
        y = y.add(more)?;
    }
    let numbers: Vec<f64> = c.floats("activation_params")?.unwrap_or_default().iter().map(|&v| f64::from(v)).collect();
    like(&x, activated(&y, c.text("activation", "")?, &numbers))
}
