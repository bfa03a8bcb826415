//! Layers, optimisers and schedules.

use gradus::nn::init::{Fan, Gain};
use gradus::nn::*;
use gradus::prelude::{DType, Interpolation, Result, Tensor};

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
        let config = GroupNormConfig { eps: d.fraction(), affine: d.flag(), bias: d.flag() };
        run(d, |d, init| GroupNorm::new(d.size(), 4, config, init), |d| images(d, 4, 2))
    };
    nn::InstanceNorm |d| {
        let config = InstanceNormConfig { eps: d.fraction(), momentum: d.fraction(), affine: d.flag(), bias: d.flag(), track_running_stats: d.flag() };
        run(d, |d, init| InstanceNorm::new(if d.flag() { 3 } else { d.size() }, config, init), |d| images(d, 3, 2))
    };
    nn::BatchNorm |d| {
        let config = BatchNormConfig { eps: d.fraction(), momentum: Some(d.fraction()).filter(|_| d.flag()), affine: d.flag(), bias: d.flag(), track_running_stats: d.flag() };
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
    nn::recurrent |d| {
        let (n, hidden, dims) = (d.below(4), d.below(4), [d.below(4), d.below(3), d.below(4)]);
        let config = RecurrentConfig {
            num_layers: d.below(3), bias: d.flag(), batch_first: d.flag(), dropout: d.fraction(), bidirectional: d.flag(),
            proj_size: if d.once_in(4) { d.below(4) } else { 0 },
        };
        let input = |d: &mut Draw| { let dims = if d.once_in(8) { dims } else { [dims[0], dims[1], n] }; d.floats(&dims) };
        match d.below(3) {
            0 => run(d, |_, init| Rnn::new(n, hidden, Nonlinearity::Relu, config, init), input),
            1 => run(d, |_, init| Lstm::new(n, hidden, config, init), input),
            _ => run(d, |_, init| Gru::new(n, hidden, config, init), input),
        }
    };
    nn::TransformerEncoder |d| {
        let config = TransformerConfig {
            dim_feedforward: d.below(5), dropout: d.fraction(), layer_norm_eps: d.fraction(), norm_first: d.flag(),
            bias: d.flag(), batch_first: d.flag(), ..Default::default()
        };
        let dims = [d.below(3), d.below(4), 4];
        run(d, |d, init| TransformerEncoder::new(d.below(3), 4, d.of(&[1, 2, 3]), config, d.flag(), init), |d| d.floats(&dims))
    };
    nn::LoraLinear |d| {
        let (n, config) = (d.below(4), LoraConfig { alpha: d.number(), dropout: d.fraction() });
        run(d, |d, init| {
            let layer = LoraLinear::new(Linear::new(n, d.below(4), init)?, d.below(3), config, init)?;
            if d.flag() { let _ = layer.merge_and_unload()?; }
            Ok(layer)
        }, |d| features(d, n))
    };
    nn::positions |d| match d.below(3) {
        0 => {
            let rotary = RotaryEmbedding::new(d.size(), d.number())?;
            let rotary = if d.flag() { rotary.half_split() } else { rotary };
            rotary.apply(&d.float()?, d.size())
        }
        1 => run(d, |_, _| Ok(SinusoidalPositions::new()), Draw::float),
        _ => { let device = d.device.clone(); alibi_bias(d.below(9), d.size(), d.below(5), d.dtype(), &device) }
    };
    nn::activations |d| match d.below(8) {
        0 => run(d, |_, _| Ok(Relu), Draw::float),
        1 => run(d, |_, _| Ok(GeluTanh), Draw::float),
        2 => run(d, |_, _| Ok(Silu), Draw::float),
        3 => run(d, |_, _| Ok(Softplus::default()), Draw::float),
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
        let config = SgdConfig { lr: d.fraction(), momentum: d.fraction(), weight_decay: d.fraction(), dampening: d.fraction(), nesterov: d.flag() };
        let mut optimizer = Sgd::new(layer.named_parameters(), config)?;
        optimizer.step(&gradients)?;
        optimizer.step(&gradients)
    };
    nn::AdamW |d| {
        let (layer, gradients) = trained(d)?;
        let config = AdamConfig { lr: d.fraction(), beta1: d.fraction(), beta2: d.fraction(), eps: d.fraction(), weight_decay: d.fraction(), amsgrad: d.flag() };
        let mut optimizer = AdamW::new(layer.named_parameters(), config)?;
        optimizer.step(&gradients)?;
        let state = optimizer.state_dict()?;
        optimizer.load_state_dict(&state, d.of(&[Strict::Yes, Strict::No]))?;
        optimizer.step(&gradients)
    };
    nn::optimizers |d| {
        let (layer, gradients) = trained(d)?;
        let matrices = [("weight".to_owned(), layer.weight.clone())];
        let (all, lr, weight_decay, eps) = (layer.named_parameters(), d.fraction(), d.fraction(), d.fraction());
        let (beta1, beta2, decoupled_weight_decay) = (d.fraction(), d.fraction(), d.flag());
        let mut optimizer: Box<dyn Optimizer> = match d.below(9) {
            0 => Box::new(RmsProp::new(all, RmsPropConfig { lr, alpha: beta1, eps, weight_decay, momentum: beta2, centered: d.flag() })?),
            1 => Box::new(Adagrad::new(all, AdagradConfig { lr, lr_decay: beta1, weight_decay, initial_accumulator_value: beta2, eps })?),
            2 => Box::new(Adadelta::new(all, AdadeltaConfig { lr, rho: beta1, eps, weight_decay })?),
            3 => Box::new(Adamax::new(all, AdamaxConfig { lr, beta1, beta2, eps, weight_decay })?),
            4 => Box::new(NAdam::new(all, NAdamConfig { lr, beta1, beta2, eps, weight_decay, momentum_decay: d.fraction(), decoupled_weight_decay })?),
            5 => Box::new(RAdam::new(all, RAdamConfig { lr, beta1, beta2, eps, weight_decay, decoupled_weight_decay })?),
            6 => Box::new(Lamb::new(all, LambConfig { lr, beta1, beta2, eps, weight_decay })?),
            7 => Box::new(Lion::new(all, LionConfig { lr, beta1, beta2, weight_decay })?.maximize()),
            _ => {
                let config = MuonConfig { lr, weight_decay, momentum: beta1, eps, ns_steps: d.size() as u32, ..Default::default() };
                if d.flag() { Box::new(Muon::new(all, config)?) } else { Box::new(Muon::new(matrices, config)?) }
            }
        };
        optimizer.step(&gradients)?;
        let state = optimizer.state_dict()?;
        optimizer.load_state_dict(&state, Strict::Yes)?;
        optimizer.step(&gradients)
    };
    nn::Lbfgs |d| {
        let (layer, _) = trained(d)?;
        let config = LbfgsConfig {
            lr: d.fraction(),
            max_iter: d.below(5),
            max_eval: d.flag().then_some(d.below(5)),
            history_size: d.below(3),
            line_search_fn: d.flag().then_some(LineSearch::StrongWolfe),
            maximize: d.flag(),
            ..Default::default()
        };
        let mut optimizer = Lbfgs::new(layer.named_parameters(), config)?;
        optimizer.step(|| layer.weight.square()?.sum_all())?;
        let state = optimizer.state_dict()?;
        optimizer.load_state_dict(&state)?;
        optimizer.step(|| layer.weight.sin()?.sum_all())
    };
    nn::GradScaler |d| {
        let (layer, gradients) = trained(d)?;
        let config = GradScalerConfig {
            init_scale: d.number(),
            growth_factor: d.number(),
            backoff_factor: d.fraction(),
            growth_interval: d.size() as u64,
            enabled: d.flag(),
        };
        let mut scaler = GradScaler::new(config)?;
        let mut sgd = Sgd::new(layer.named_parameters(), SgdConfig::default())?;
        let mut sum = gradients.clone();
        sum.add(gradients)?;
        sum.scale(d.number())?;
        scaler.step(&mut sgd, sum)?;
        scaler.update()?;
        scaler.load_state_dict(&scaler.state_dict())
    };
    nn::AveragedModel |d| {
        let (mut layer, _) = trained(d)?;
        let mut average = if d.flag() { AveragedModel::swa(&layer)? } else { AveragedModel::ema(&layer, d.fraction())? };
        average.update(&layer)?;
        average.update(&trained(d)?.0)?;
        average.load_state_dict(&layer.state_dict()?).unwrap_or_default();
        let x = d.float()?;
        average.within(&mut layer, |layer| update_bn(layer, [Ok(x)], |layer, x| layer.forward(x).map(|_| ())))
    };
    nn::clip |d| {
        let (layer, mut gradients) = trained(d)?;
        let parameters: Vec<Parameter> = layer.named_parameters().into_iter().map(|(_, p)| p).collect();
        clip_grad_value(&mut gradients, &parameters, d.number())?;
        clip_grad_norm_with(&mut gradients, &parameters, d.number(), d.number())?;
        clip_grad_norm(&mut gradients, &parameters, d.number())
    };
    nn::Schedule |d| {
        let (a, b) = (d.size() as u64, d.size() as u64);
        let schedule = match d.below(13) {
            0 => Schedule::step(d.size() as u64, d.number()),
            1 => Schedule::multi_step(vec![d.size() as u64, d.size() as u64], d.number()),
            2 => Schedule::exponential(d.number()),
            3 => Schedule::constant_for(a, d.number()),
            4 => Schedule::linear(a, d.number(), d.number()),
            5 => Schedule::polynomial(a, d.number()),
            6 => Schedule::cosine_restarts(a, b, d.number()),
            7 => Schedule::inverse_sqrt(a),
            8 => Schedule::one_cycle(a, OneCycleConfig { pct_start: d.fraction(), div_factor: d.number(), three_phase: d.flag(), momentum: d.flag().then(|| [d.number(), d.number()]), ..Default::default() }),
            9 => Schedule::cyclic(CyclicConfig { max_factor: d.number(), step_size_up: a, step_size_down: d.flag().then_some(b), mode: CyclicMode::ExpRange(d.number()), momentum: d.flag().then(|| [d.number(), d.number()]) }),
            10 => Schedule::chained(vec![Schedule::linear(a, 0.5, 1.0)?, Schedule::exponential(d.fraction())?]),
            11 => Schedule::sequential([Schedule::linear(a, 0.5, 1.0)?, Schedule::exponential(d.fraction())?], [b]),
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

const MORE_LAYERS: &[Row] = rows! { SHORT;
    nn::more_activations |d| {
        let (a, b, axis) = (d.number(), d.number(), d.axis(3));
        match d.below(10) {
            0 => run(d, |_, _| Ok(Celu { alpha: a }), Draw::float),
            1 => run(d, |_, _| Ok(Softplus { beta: a, threshold: b }), Draw::float),
            2 => run(d, |_, _| Ok(Hardtanh { min_val: a, max_val: b }), Draw::float),
            3 => run(d, |_, _| Ok(Softshrink { lambda: a }), Draw::float),
            4 => run(d, |_, _| Ok(Threshold { threshold: a, value: b }), Draw::float),
            5 => run(d, |_, _| Ok(Glu { axis }), Draw::float),
            6 => run(d, |_, _| Ok(Softmin { axis }), Draw::float),
            7 => run(d, |_, _| Ok(Softmax2d), Draw::float),
            8 => run(d, |d, init| PRelu::new(d.size(), a, init), Draw::float),
            _ => run(d, |_, _| Ok(Tanhshrink), Draw::float),
        }
    };
    nn::random |d| {
        let (p, q, mut generator) = (d.fraction(), d.number(), d.generator.clone());
        match d.below(6) {
            0 => run(d, |_, _| Dropout1d::new(p, &mut generator), |d| images(d, 3, 1)),
            1 => run(d, |_, _| Dropout3d::new(p, &mut generator), |d| images(d, 3, 3)),
            2 => run(d, |_, _| AlphaDropout::new(p, &mut generator), Draw::float),
            3 => run(d, |_, _| FeatureAlphaDropout::new(p, &mut generator), Draw::float),
            4 => run(d, |_, _| StochasticDepth::new(p, &mut generator), Draw::float),
            _ => run(d, |_, _| RRelu::new(p, q, &mut generator), Draw::float),
        }
    };
    nn::pads |d| {
        let side = |d: &mut Draw| if d.once_in(12) { d.int() as isize } else { d.below(5) as isize - 1 };
        let one = [(side(d), side(d))];
        let two = [(side(d), side(d)), one[0]];
        match d.below(5) {
            0 => run(d, |_, _| Ok(ZeroPad2d::new(two)), Draw::float),
            1 => run(d, |d, _| Ok(ConstantPad1d::new(one, d.number())), Draw::float),
            2 => run(d, |_, _| Ok(ReflectionPad2d::new(two)), Draw::float),
            3 => run(d, |_, _| Ok(ReplicationPad1d::new(one)), Draw::float),
            _ => run(d, |_, _| Ok(CircularPad2d::new(two)), Draw::float),
        }
    };
    nn::moves |d| {
        let n = d.size();
        match d.below(7) {
            0 => run(d, |_, _| Ok(PixelShuffle { upscale_factor: n }), |d| images(d, 4, 2)),
            1 => run(d, |_, _| Ok(PixelUnshuffle { downscale_factor: n }), |d| images(d, 2, 2)),
            2 => run(d, |_, _| Ok(ChannelShuffle { groups: n }), |d| images(d, 6, 2)),
            3 => run(d, |d, _| Ok(Unflatten { axis: d.axis(3), sizes: d.shape() }), Draw::float),
            4 => run(d, |d, _| Ok(Unfold::new(d.sizes()).stride(d.sizes()).padding(d.sizes()).dilation(d.sizes())), |d| images(d, 2, 2)),
            5 => run(d, |d, _| Ok(Fold::new(d.sizes(), d.sizes()).stride(d.sizes()).padding(d.sizes())), |d| features(d, 4)),
            _ => {
                let mode = d.of(&[Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Area, Interpolation::Trilinear]);
                let sizes: [usize; 2] = d.sizes();
                run(d, |d, _| Ok(if d.flag() { Upsample::to(sizes, mode) } else { Upsample::by([d.number(), d.number()], mode) }), |d| images(d, 2, 2))
            }
        }
    };
    nn::LpPool2d |d| run(d, |d, _| Ok(LpPool2d::new(d.number(), d.sizes(), d.sizes())?.ceil_mode(d.flag())), |d| images(d, 2, 2));
    nn::AvgPool2d::divisor_override |d| {
        run(d, |d, _| AvgPool2d::new(d.sizes(), d.sizes(), d.sizes(), true)?.ceil_mode(d.flag()).divisor_override(d.size()), |d| images(d, 2, 2))
    };
    nn::MaxUnpool2d |d| {
        let x = images(d, 2, 2)?;
        let (kernel, stride, padding) = (d.sizes(), d.sizes(), d.sizes());
        let (y, indices) = MaxPool2d::new(kernel, stride, padding)?.forward_with_indices(&x)?;
        let output = if d.flag() { Some(d.sizes()) } else { None };
        MaxUnpool2d::new(kernel, stride, padding)?.forward(&y, &indices, output)
    };
    nn::Conv2d::padded |d| {
        let padding_mode = d.of(&[PaddingMode::Zeros, PaddingMode::Reflect, PaddingMode::Replicate, PaddingMode::Circular]);
        run(d, |d, init| {
            let config = Conv2dConfig { padding: if d.flag() { d.sizes() } else { [0; 2] }, same: d.flag(), padding_mode, dilation: d.sizes(), ..Default::default() };
            // A window of any size fits with `same` padding.
            let kernel: [usize; 2] = d.sizes();
            Conv2d::new(2, 3, kernel.map(|k| k.min(64)), config, init)
        }, |d| images(d, 2, 2))
    };
    nn::EmbeddingBag |d| {
        let (device, dtype) = (d.device.clone(), d.float_dtype());
        let mut generator = d.generator.clone();
        let n = d.size();
        let config = EmbeddingBagConfig {
            mode: d.of(&[BagMode::Sum, BagMode::Mean, BagMode::Max]),
            include_last_offset: d.flag(),
            padding_idx: Some(d.size()).filter(|_| d.flag()),
        };
        let bags = EmbeddingBag::new(n, d.size(), config, &mut Init::new(dtype, &device, &mut generator))?;
        let dims = d.dims();
        let index = d.indices(&dims, n)?;
        let weights = d.maybe(|d| d.floats(&dims))?;
        let (choice, count) = (d.below(3), d.below(4));
        match choice {
            0 => bags.forward(&index),
            1 => bags.forward_weighted(&index, weights.as_ref()),
            _ => bags.forward_bags(&index, &d.indices(&[count], 5)?, weights.as_ref()),
        }
    };
    nn::two_inputs |d| {
        let (x, mut generator) = (d.float()?, d.generator.clone());
        let y = d.like(&x)?;
        match d.below(3) {
            0 => CosineSimilarity { axis: d.axis(3), eps: d.number() }.forward(&x, &y),
            1 => PairwiseDistance { p: d.number(), eps: d.number(), keepdim: d.flag() }.forward(&x, &y),
            _ => {
                let mut init = Init::new(x.dtype(), x.device(), &mut generator);
                let last = |t: &Tensor| t.shape().last().copied().unwrap_or(1);
                Bilinear::new(last(&x), last(&y), d.size(), d.flag(), &mut init)?.forward(&x, &y)
            }
        }
    };
    nn::parametrised |d| {
        let (n, steps) = (d.size().min(4096), d.size());
        match d.below(3) {
            0 => run(d, |d, init| WeightNorm::new(Linear::new(n, d.size(), init)?, Some(d.size()).filter(|_| d.flag())), |d| features(d, n)),
            1 => run(d, |d, init| SpectralNorm::new(Linear::new(n, d.size(), init)?, steps.min(99), d.fraction(), init), |d| features(d, n)),
            _ => run(d, |d, init| WeightNorm::new(Conv1d::new(2, 3, d.sizes(), ConvConfig::default(), init)?, Some(1)), |d| images(d, 2, 1)),
        }
    };
    nn::summary |d| {
        let (device, dtype, n) = (d.device.clone(), d.float_dtype(), d.below(6));
        let mut generator = d.generator.clone();
        let mut init = Init::new(dtype, &device, &mut generator);
        let model = Sequential::new().add(Linear::new(n, 3, &mut init)?).add(Relu);
        let mut shape = d.dims();
        shape.push(n);
        let found = summary(&model, &shape)?;
        // The prediction for a batch of any size takes no memory for it.
        let predicted = step_memory(&model, [d.size(), n])?;
        let text = found.to_string() + &predicted.to_string();
        Tensor::scalar(text.len() as f64 + predicted.peak(d.size().min(1 << 20)) as f64, &device)
    };
};

pub(super) const ROWS: &[&[Row]] = &[CONVOLUTIONS, TRANSPOSED, POOLS, LAYERS, MORE_LAYERS, TRAINING];
