//! Normalisations, softmax and dropout.

use gradus_tensor::{DType, Error, Result, Tensor};

use super::elementwise::like;
use super::random::draw;
use crate::graph::{Call, Row, axis, one, row, size};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("BatchNormalization", &[1, 6, 7, 9, 14, 15], batch_norm),
    row("InstanceNormalization", &[1, 6, 22], |c| {
        c.skip(&["consumed_inputs"]);
        Ok(one(c.tensor(0)?.instance_norm(Some(&c.tensor(1)?), Some(&c.tensor(2)?), c.float("epsilon", 1e-5)?)?))
    }),
    row("LayerNormalization", &[17], layer_norm),
    row("RMSNormalization", &[23], rms_norm),
    // What ONNX Runtime calls the same, in the default domain.
    row("SimplifiedLayerNormalization", &[1], rms_norm),
    row("GroupNormalization", &[18, 21], group_norm),
    row("LpNormalization", &[1, 22], |c| {
        let x = c.tensor(0)?;
        let (at, p) = (axis(c.int("axis", -1)?, x.rank())?, c.int("p", 2)?);
        let norm = x.norm(p as f64, &[at as isize], true)?;
        like(&x, norm.eq(0.0)?.where_(x.zeros_like()?, x.div(&norm)?))
    }),
    row("MeanVarianceNormalization", &[9, 13], |c| {
        let x = c.tensor(0)?;
        let axes = c.ints("axes")?.unwrap_or(&[0, 2, 3]);
        let axes: Vec<isize> = axes.iter().map(|&a| axis(a, x.rank()).map(|a| a as isize)).collect::<Result<_>>()?;
        let centred = x.sub(x.mean(&axes, true)?)?;
        let deviation = centred.square()?.mean(&axes, true)?.sqrt()?;
        like(&x, centred.div(deviation.add(1e-9)?))
    }),
    row("LRN", &[1, 13], |c| {
        let x = c.tensor(0)?;
        let (alpha, beta, bias) = (c.float("alpha", 1e-4)?, c.float("beta", 0.75)?, c.float("bias", 1.0)?);
        Ok(one(x.local_response_norm(size(c.int("size", 1)?)?, alpha, beta, bias)?))
    }),
    row("Softmax", &[1, 11, 13], |c| softmax(c, Tensor::softmax)),
    row("LogSoftmax", &[1, 11, 13], |c| softmax(c, Tensor::log_softmax)),
    row("Hardmax", &[1, 11, 13], |c| {
        softmax(c, |x, at| {
            let best = x.argmax(at, true)?;
            x.zeros_like()?.scatter(at, &best, 1.0)
        })
    }),
    row("Dropout", &[1, 6, 7, 10, 12, 13, 22], dropout),
];

/// Before opset 13, the axes from `axis` on are treated as one.
fn softmax(c: &Call<'_>, f: fn(&Tensor, isize) -> Result<Tensor>) -> Values {
    let x = c.tensor(0)?;
    if c.opset() >= 13 {
        return Ok(one(f(&x, axis(c.int("axis", -1)?, x.rank())? as isize)?));
    }
    let at = axis(c.int("axis", 1)?, x.rank())?;
    let (rows, columns) = x.shape().split_at(at);
    let flat = x.reshape([rows.iter().product::<usize>(), columns.iter().product()])?;
    Ok(one(f(&flat, 1)?.reshape(x.shape())?))
}

/// Reshapes one value per channel to broadcast along axis 1 of `rank` axes.
fn channels(v: &Tensor, rank: usize) -> Result<Tensor> {
    let mut v = v.clone();
    for _ in 2..rank {
        v = v.unsqueeze(-1)?;
    }
    Ok(v)
}

fn batch_norm(c: &Call<'_>) -> Values {
    c.skip(&["consumed_inputs", "spatial", "is_test"]);
    let x = c.tensor(0)?;
    let (weight, bias, mean, var) = (c.tensor(1)?, c.tensor(2)?, c.tensor(3)?, c.tensor(4)?);
    let (eps, momentum) = (c.float("epsilon", 1e-5)?, c.float("momentum", 0.9)?);
    let training = if c.opset() >= 14 {
        c.flag("training_mode", false)?
    } else {
        // Before opset 14, the number of outputs tells whether this is training; before opset 7, `is_test` does too.
        c.node.outputs.len() > 1 && (c.opset() >= 7 || c.int("is_test", 0)? == 0)
    };
    if !training {
        return Ok(one(x.batch_norm_eval(&mean, &var, Some(&weight), Some(&bias), eps)?));
    }
    if c.opset() < 14 && c.node.outputs.len() > 3 {
        return Err(crate::graph::unsupported("BatchNormalization in training before opset 14"));
    }
    let axes: Vec<isize> = (0..x.rank() as isize).filter(|&a| a != 1).collect();
    let (now_mean, now_var) = (x.mean(&axes, false)?, x.var(&axes, 0, false)?);
    let scale = weight.div(now_var.add(eps)?.sqrt()?)?;
    let y = x.sub(channels(&now_mean, x.rank())?)?.mul(channels(&scale, x.rank())?)?.add(channels(&bias, x.rank())?)?;
    let moved = |old: &Tensor, new: &Tensor| old.mul(momentum)?.add(new.mul(1.0 - momentum)?)?.to_dtype(old.dtype());
    Ok(vec![y.to_dtype(x.dtype())?.into(), moved(&mean, &now_mean)?.into(), moved(&var, &now_var)?.into()])
}

/// The dtype in which a norm is computed: at least f32.
fn stash(c: &Call<'_>, x: &Tensor) -> Result<DType> {
    match c.elem_attribute("stash_type")? {
        None => Ok(x.dtype().compute()),
        Some(elem) => elem.dtype().ok_or_else(|| crate::graph::unsupported(format!("stash_type = {}", elem.name()))),
    }
}

fn layer_norm(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let at = axis(c.int("axis", -1)?, x.rank())?;
    let (eps, dtype) = (c.float("epsilon", 1e-5)?, stash(c, &x)?);
    let (weight, bias) = (c.tensor(1)?, c.optional(2)?);
    let shape = x.shape()[at..].to_vec();
    if c.node.outputs.len() < 2 && weight.shape() == shape && bias.as_ref().is_none_or(|b| b.shape() == shape) {
        return Ok(one(x.layer_norm(&shape, Some(&weight), bias.as_ref(), eps)?));
    }
    let axes: Vec<isize> = (at as isize..x.rank() as isize).collect();
    let wide = x.to_dtype(dtype)?;
    let mean = wide.mean(&axes, true)?;
    let centred = wide.sub(&mean)?;
    let inverse = centred.square()?.mean(&axes, true)?.add(eps)?.rsqrt()?;
    let mut y = centred.mul(&inverse)?.to_dtype(x.dtype())?.mul(&weight)?;
    if let Some(bias) = bias {
        y = y.add(bias)?;
    }
    Ok(vec![y.to_dtype(x.dtype())?.into(), mean.into(), inverse.into()])
}

fn rms_norm(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let at = axis(c.int("axis", -1)?, x.rank())?;
    let (eps, dtype, weight) = (c.float("epsilon", 1e-5)?, stash(c, &x)?, c.tensor(1)?);
    let shape = x.shape()[at..].to_vec();
    if weight.shape() == shape && weight.dtype() == x.dtype() {
        return Ok(one(x.rms_norm(&shape, Some(&weight), eps)?));
    }
    let axes: Vec<isize> = (at as isize..x.rank() as isize).collect();
    let wide = x.to_dtype(dtype)?;
    let inverse = wide.square()?.mean(&axes, true)?.add(eps)?.rsqrt()?;
    like(&x, wide.mul(inverse)?.mul(&weight))
}

fn group_norm(c: &Call<'_>) -> Values {
    c.skip(&["stash_type"]);
    let x = c.tensor(0)?;
    let (eps, groups) = (c.float("epsilon", 1e-5)?, size(c.int("num_groups", 0)?)?);
    let (mut weight, mut bias) = (c.tensor(1)?, c.tensor(2)?);
    let count = x.shape().get(1).copied().unwrap_or(0);
    if groups == 0 || !count.is_multiple_of(groups) {
        return Err(Error::argument("onnx", format!("{groups} groups of {count} channels")));
    }
    if c.opset() < 21 {
        // One number per group.
        (weight, bias) = (weight.repeat_interleave(count / groups, 0)?, bias.repeat_interleave(count / groups, 0)?);
    }
    Ok(one(x.group_norm(groups, Some(&weight), Some(&bias), eps)?))
}

fn dropout(c: &Call<'_>) -> Values {
    c.skip(&["consumed_inputs", "is_test", "seed"]);
    let x = c.tensor(0)?;
    let mask_dtype = if c.opset() < 10 { x.dtype() } else { DType::Bool };
    let all = |c: &Call<'_>| Tensor::ones(x.shape(), mask_dtype, c.device);
    let (ratio, training) = if c.opset() < 12 {
        (c.float("ratio", 0.5)?, c.opset() < 7 && c.int("is_test", 0)? == 0)
    } else {
        (c.number(1)?.unwrap_or(0.5), c.number(2)?.unwrap_or(0.0) != 0.0)
    };
    if !training || ratio == 0.0 {
        return Ok(vec![x.clone().into(), all(c)?.into()]);
    }
    if !(0.0..1.0).contains(&ratio) {
        return Err(Error::argument("onnx", format!("a ratio of {ratio}")));
    }
    let kept = draw(c, |g| Tensor::rand(x.shape(), DType::F32, c.device, g))?.ge(ratio)?;
    let y = kept.where_(x.mul(1.0 / (1.0 - ratio))?, 0.0)?.to_dtype(x.dtype())?;
    Ok(vec![y.into(), kept.to_dtype(mask_dtype)?.into()])
}
