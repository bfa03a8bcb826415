//! Layers, optimisers and schedules.

use gradus::nn::init::{Fan, Gain};
use gradus::nn::*;
use gradus::prelude::{DType, Result, Tensor};

use super::window::images;
use super::{Row, SHORT, rows};
use crate::calls::Draw;

/// Creates a layer, and runs it on the input that `input` draws.
fn run<L: Forward>(
    d: &mut Draw,
    make: impl FnOnce(&mut Draw, &mut Init<'_>) -> Result<L>,
    input: impl FnOnce(&mut Draw) -> Result<Tensor>,
) -> Result<Tensor> {
    let (device, dtype) = (d.device.clone(), if d.once_in(12) { d.dtype() } else { d.float_dtype() });
    let mut generator = d.generator.clone();
    let mut layer = make(d, &mut Init::new(dtype, &device, &mut generator))?;
    if d.once_in(3) {
        layer.eval();
    }
    let x = input(d)?;
    let x = if d.once_in(6) { x } else { x.to_dtype(dtype)? };
    let mut text = String::new();
    for (name, p) in layer.named_parameters() {
        text += &format!("{name} {:?}", p.shape());
    }
    layer.forward(&x)
}

/// A float tensor, usually of shape `[batch, n]` or `[n]`.
fn features(d: &mut Draw, n: usize) -> Result<Tensor> {
    if n > 64 {
        return d.float();
    }
    let dims = [1 + d.below(4), n, 1 + d.below(4)];
    let (first, last) = (d.flag(), d.flag());
    d.floats(match (first, last) {
        (true, _) => &dims[..2],
        (false, true) => &dims[1..2],
        _ => &dims,
    })
}

macro_rules! convolutions {
    ($($layer:ident $n:literal)*) => {
        rows! { SHORT; $(nn::$layer |d| {
            let (c, k) = (1 + d.below(3), d.size());
            run(d, |d, init| {
                let config = ConvConfig { stride: d.sizes(), padding: d.sizes(), bias: d.flag(), ..Default::default() };
                $layer::new(c, k, d.sizes(), config, init)
            }, |d| images(d, c, $n))
        };)* }
    };
}
const CONVOLUTIONS: &[Row] = convolutions! { Conv1d 1 Conv2d 2 Conv3d 3 };

macro_rules! transposed {
    ($($layer:ident $n:literal)*) => {
        rows! { SHORT; $(nn::$layer |d| {
            let (c, k) = (1 + d.below(3), d.size());
            run(d, |d, init| {
                let config = ConvTransposeConfig { stride: d.sizes(), output_padding: if d.flag() { d.sizes() } else { [0; $n] }, ..Default::default() };
                $layer::new(c, k, d.sizes(), config, init)
            }, |d| images(d, c, $n))
        };)* }
    };
}
const TRANSPOSED: &[Row] = transposed! { ConvTranspose1d 1 ConvTranspose2d 2 ConvTranspose3d 3 };

macro_rules! pools {
    ($($max:ident $avg:ident $amax:ident $aavg:ident $n:literal)*) => {
        rows! { SHORT; $(
            nn::$max |d| run(d, |d, _| $max::new(d.sizes(), d.sizes(), d.sizes()), |d| images(d, 2, $n));
            nn::$avg |d| run(d, |d, _| $avg::new(d.sizes(), d.sizes(), d.sizes(), d.flag()), |d| images(d, 2, $n));
            nn::$amax |d| run(d, |d, _| $amax::new(d.sizes()), |d| images(d, 2, $n));
            nn::$aavg |d| run(d, |d, _| $aavg::new(d.sizes()), |d| images(d, 2, $n));
        )* }
    };
}
const POOLS: &[Row] = pools! {
    MaxPool1d AvgPool1d AdaptiveMaxPool1d AdaptiveAvgPool1d 1
    MaxPool2d AvgPool2d AdaptiveMaxPool2d AdaptiveAvgPool2d 2
    MaxPool3d AvgPool3d AdaptiveMaxPool3d AdaptiveAvgPool3d 3
};

const LAYERS: &[Row] = rows! { SHORT;
    nn::Linear |d| {
        let n = d.size();
        run(d, |d, init| if d.flag() { Linear::new(n, d.size(), init) } else { Linear::without_bias(n, d.size(), init) }, |d| features(d, n))
    };
    nn::Embedding |d| {
        let n = d.size();
        run(d, |d, init| Embedding::new(n, d.size(), Some(d.size()).filter(|_| d.flag()), init), |d| { let dims = d.dims(); d.indices(&dims, n) })
    };
    nn::LayerNorm |d| {
        let dims = d.shape();
        let config = LayerNormConfig { eps: d.fraction(), weight: d.flag(), bias: d.flag() };
        run(d, |_, init| LayerNorm::new(&dims, config, init), |d| d.sized(&dims, DType::F32))
    };
    nn::RmsNorm |d| {
        let dims = d.shape();
        let config = RmsNormConfig { eps: d.fraction(), weight: d.flag() };
        run(d, |_, init| RmsNorm::new(&dims, config, init), |d| d.sized(&dims, DType::F32))
    };
    nn::GroupNorm |d| {
        let config = GroupNormConfig { eps: d.fraction(), affine: d.flag() };
        run(d, |d, init| GroupNorm::new(d.size(), 4, config, init), |d| images(d, 4, 2))
    };
    nn::InstanceNorm |d| {
        let config = InstanceNormConfig { eps: d.fraction(), affine: d.flag() };
        run(d, |d, init| InstanceNorm::new(if d.flag() { 3 } else { d.size() }, config, init), |d| images(d, 3, 2))
    };
    nn::BatchNorm |d| {
        let config = BatchNormConfig { eps: d.fraction(), momentum: d.fraction(), affine: d.flag() };
        run(d, |d, init| BatchNorm::new(if d.flag() { 3 } else { d.size() }, config, init), |d| images(d, 3, 2))
    };
    nn::Dropout |d| {
        let (p, mut generator) = (d.fraction(), d.generator.clone());
        run(d, |_, _| Dropout::new(p, &mut generator), Draw::float)
    };
    nn::MultiheadAttention |d| {
        let size = if d.once_in(4) { d.size() } else { 4 };
        let config = MultiheadAttentionConfig { dropout: d.fraction(), bias: d.flag(), ..Default::default() };
        run(d, |d, init| MultiheadAttention::new(size, d.of(&[1, 2, 2, 3, 0]), config, init), |d| {
            let dims = [1 + d.below(2), d.below(4), size.min(64)];
            d.floats(&dims)
        })
    };
    nn::activations |d| match d.below(8) {
        0 => run(d, |_, _| Ok(Relu), Draw::float),
        1 => run(d, |_, _| Ok(GeluTanh), Draw::float),
        2 => run(d, |_, _| Ok(Silu), Draw::float),
        3 => run(d, |_, _| Ok(Softplus), Draw::float),
        4 => { let axis = d.axis(3); run(d, |_, _| Ok(Softmax { axis }), Draw::float) }
        5 => { let axis = d.axis(3); run(d, |_, _| Ok(LogSoftmax { axis }), Draw::float) }
        6 => run(d, |_, _| Ok(Identity), Draw::float),
        _ => run(d, |_, _| Ok(Tanh), Draw::float),
    };
    nn::Sequential |d| {
        let n = d.below(5);
        run(d, |d, init| {
            let first = Linear::new(n, d.below(5), init)?;
            let second = Linear::new(first.weight.shape()[0], 3, init)?;
            Ok(Sequential::new().add(first).add(Relu).add(second))
        }, |d| features(d, n))
    };
    nn::init |d| {
        let (device, dtype, shape) = (d.device.clone(), d.dtype(), d.shape());
        let mut generator = d.generator.clone();
        let mut init = Init::new(dtype, &device, &mut generator);
        let (fan, gain) = (d.of(&[Fan::In, Fan::Out]), d.of(&[Gain::Linear, Gain::Tanh, Gain::Relu]));
        match d.below(8) {
            0 => init.constant(shape, d.number()),
            1 => init.uniform(shape, d.number(), d.number()),
            2 => init.truncated_normal(shape, d.number(), d.number(), d.number(), d.number()),
            3 => init.xavier_uniform(shape, gain),
            4 => init.xavier_normal(shape, gain),
            5 => init.kaiming_uniform(shape, fan, gain),
            6 => init.kaiming_normal(shape, fan, gain),
            _ => init.orthogonal(shape, gain),
        }
    };
};

/// A model with one layer, and the gradients of a loss.
fn trained(d: &mut Draw) -> Result<(Linear, gradus::Gradients)> {
    let device = d.device.clone();
    let mut generator = d.generator.clone();
    let layer = Linear::new(3, 2, &mut Init::new(d.float_dtype(), &device, &mut generator))?;
    let x = d.made(&[4, 3], layer.weight.dtype())?.detach();
    let gradients = layer.forward(&x)?.square()?.sum_all()?.backward()?;
    Ok((layer, gradients))
}

const TRAINING: &[Row] = rows! { SHORT;
    nn::Sgd |d| {
        let (layer, gradients) = trained(d)?;
        let config = SgdConfig { lr: d.fraction(), momentum: d.fraction(), weight_decay: d.fraction(), nesterov: d.flag() };
        let mut optimizer = Sgd::new(layer.named_parameters(), config)?;
        optimizer.step(&gradients)?;
        optimizer.step(&gradients)
    };
    nn::AdamW |d| {
        let (layer, gradients) = trained(d)?;
        let config = AdamConfig { lr: d.fraction(), beta1: d.fraction(), beta2: d.fraction(), eps: d.fraction(), weight_decay: d.fraction() };
        let mut optimizer = AdamW::new(layer.named_parameters(), config)?;
        optimizer.step(&gradients)?;
        let state = optimizer.state_dict()?;
        optimizer.load_state_dict(&state, d.of(&[Strict::Yes, Strict::No]))?;
        optimizer.step(&gradients)
    };
    nn::clip |d| {
        let (layer, mut gradients) = trained(d)?;
        let parameters: Vec<Parameter> = layer.named_parameters().into_iter().map(|(_, p)| p).collect();
        clip_grad_value(&mut gradients, &parameters, d.number())?;
        clip_grad_norm(&mut gradients, &parameters, d.number())
    };
    nn::Schedule |d| {
        let schedule = match d.below(4) {
            0 => Schedule::step(d.size() as u64, d.number()),
            1 => Schedule::multi_step(vec![d.size() as u64, d.size() as u64], d.number()),
            2 => Schedule::exponential(d.number()),
            _ => Schedule::cosine(d.size() as u64, d.number()),
        }?;
        Ok::<_, gradus::Error>(schedule.after_warmup(d.size() as u64).factor(d.size() as u64))
    };
    nn::StateDict |d| {
        let (layer, _) = trained(d)?;
        let mut state = layer.state_dict()?;
        if d.flag() {
            state.insert("weight", d.any()?.detach());
        }
        let (mut other, _) = trained(d)?;
        other.load_state_dict(&state, if d.flag() { Strict::Yes } else { Strict::No }).map(|r| r.is_complete())
    };
};

pub(super) const ROWS: &[&[Row]] = &[CONVOLUTIONS, TRANSPOSED, POOLS, LAYERS, TRAINING];
