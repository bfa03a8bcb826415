//! Runs the jobs on Gradus, written as a user of the facade would write them.

mod growth;
mod models;

use std::process::ExitCode;

use gradus::models::{Bert, BertConfig, ResNet, ViT, ViTConfig};
use gradus::prelude::*;
use peer_harness::inputs::{Parameters, SEED, conv2d_shape, integers, values};
use peer_harness::{Bench, Job, Outcome};

use models::{Cnn, Gpt, Sequences, mlp, set_parameters};

/// A tensor with the values of the input formula.
fn tensor(stream: u32, shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(values(stream, shape.iter().product(), 1.0), shape, &Device::cpu()?)
}

fn leaf(stream: u32, shape: &[usize]) -> Result<Tensor> {
    tensor(stream, shape)?.with_grad()
}

fn classes(stream: u32, shape: &[usize], below: usize) -> Result<Tensor> {
    Tensor::from_vec(integers(stream, shape.iter().product(), below), shape, &Device::cpu()?)
}

fn read(results: &[Tensor]) -> Result<Vec<Vec<f32>>> {
    results.iter().map(|tensor| tensor.to_dtype(DType::F32)?.to_vec()).collect()
}

/// Times `f` without gradients.
fn forward(bench: &mut Bench, f: impl Fn() -> Result<Tensor>) -> Outcome {
    bench.time(|| no_grad(&f), |y| read(&[y]))
}

/// Times `f`, whose result has this shape, together with its gradients for a given gradient of the result.
fn backward(bench: &mut Bench, leaves: &[&Tensor], shape: &[usize], f: impl Fn() -> Result<Tensor>) -> Outcome {
    let seed = tensor(SEED, shape)?;
    let job = || {
        let y = f()?;
        let gradients = grad(&[&y], leaves, Some(&[&seed]), BackwardOptions::new())?;
        Ok((y, gradients))
    };
    let read = |(y, gradients): (Tensor, Vec<Option<Tensor>>)| {
        read(&[y].into_iter().chain(gradients.into_iter().flatten()).collect::<Vec<_>>())
    };
    bench.time(job, read)
}

fn chain(x: &Tensor, b: &Tensor, n: usize) -> Result<Tensor> {
    let mut y = x.clone();
    for _ in 0..n {
        y = (&y + b)?;
    }
    Ok(y)
}

/// Times training steps of a model with its optimiser.
fn train(bench: &mut Bench, mut optimizer: impl Optimizer, loss: impl Fn() -> Result<Tensor>) -> Outcome {
    let step = || {
        let loss = loss()?;
        optimizer.step(&loss.backward()?)?;
        Ok::<_, Error>(loss)
    };
    bench.train(step, |loss| Ok(loss.item()? as f32))
}

/// Times training steps of a network with AdamW.
fn train_network(bench: &mut Bench, model: impl Forward, x: &Tensor, y: &Tensor) -> Outcome {
    set_parameters(&model)?;
    let config = AdamConfig { weight_decay: 0.01, ..AdamConfig::default() };
    train(bench, AdamW::new(model.named_parameters(), config)?, || model.forward(x)?.cross_entropy(y))
}

/// Times a captured `f` of `inputs` without gradients.
fn forward_captured(bench: &mut Bench, inputs: &[&Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Outcome {
    let mut step = capture(|x| Ok(vec![no_grad(|| f(x))?]));
    bench.time(|| step.call(inputs), |y| read(&y))
}

/// Times captured training steps of a model with its optimiser.
fn train_captured(
    bench: &mut Bench,
    mut optimizer: impl Optimizer,
    inputs: &[&Tensor],
    loss: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Outcome {
    let mut step = capture(|x| {
        let loss = loss(x)?;
        optimizer.step(&loss.backward()?)?;
        Ok(vec![loss.detach()])
    });
    bench.train(|| step.call(inputs), |loss| Ok(loss[0].item()? as f32))
}

/// Ten elementwise operations.
fn ten(x: &[Tensor]) -> Result<Tensor> {
    let y = x[0].mul(1.5)?.add(&x[1])?.relu()?.mul(&x[0])?.sub(0.25)?;
    y.mul(&x[1])?.abs()?.add(&x[0])?.clamp(-3.0, 3.0)?.mul(0.5)
}

fn run(job: &Job, bench: &mut Bench) -> Outcome {
    let sizes = &job.sizes[..];
    match job.kind {
        "elementwise10" | "elementwise10_captured" => {
            let inputs = [tensor(1, sizes)?, tensor(2, sizes)?];
            match job.kind {
                "elementwise10" => forward(bench, || ten(&inputs)),
                _ => forward_captured(bench, &[&inputs[0], &inputs[1]], ten),
            }
        }
        "conv_norm_relu" | "conv_norm_relu_captured" => {
            let &[n, c, h, o, k, s] = sizes else { return Err("six sizes".into()) };
            let (mut source, device, mut rng) = (Parameters::new(), Device::cpu()?, Generator::new(0));
            let weight = Tensor::from_vec(source.next(o * c * k * k, c * k * k), [o, c, k, k], &device)?;
            let bias = Tensor::from_vec(source.next(o, c * k * k), [o], &device)?;
            let mut norm =
                BatchNorm2d::new(o, BatchNormConfig::default(), &mut Init::new(DType::F32, &device, &mut rng))?;
            norm.eval();
            let x = tensor(1, &[n, c, h, h])?;
            let options = ConvOptions::new().stride([s, s]).padding([k / 2, k / 2]);
            let f = |x: &Tensor| norm.forward(&x.conv2d(&weight, Some(&bias), options)?)?.relu();
            match job.kind {
                "conv_norm_relu" => forward(bench, || f(&x)),
                _ => forward_captured(bench, &[&x], |x| f(&x[0])),
            }
        }
        "gemm_f32" | "gemm_bf16" | "matmul_bf16" => {
            let dtype = if job.kind == "gemm_f32" { DType::F32 } else { DType::BF16 };
            let [m, k, n] = if let &[m, k, n] = sizes { [m, k, n] } else { [sizes[0]; 3] };
            let (a, b) = (tensor(1, &[m, k])?.to_dtype(dtype)?, tensor(2, &[k, n])?.to_dtype(dtype)?);
            forward(bench, || a.matmul(&b))
        }
        "chain" => {
            let (a, b) = (tensor(1, &sizes[..1])?, tensor(2, &sizes[..1])?);
            forward(bench, || chain(&a, &b, sizes[1]))
        }
        "chain_backward" => {
            let (w, b) = (leaf(1, &sizes[..1])?, tensor(2, &sizes[..1])?);
            backward(bench, &[&w], &sizes[..1], || chain(&w, &b, sizes[1]))
        }
        "add" | "silu_mul" | "gelu_tanh" | "exp" | "sum" => {
            let (a, b) = (tensor(1, sizes)?, tensor(2, sizes)?);
            match job.kind {
                "add" => forward(bench, || &a + &b),
                "silu_mul" => forward(bench, || a.silu_mul(&b)),
                "gelu_tanh" => forward(bench, || a.gelu_tanh()),
                "exp" => forward(bench, || a.exp()),
                _ => forward(bench, || a.sum_all()),
            }
        }
        "silu_mul_backward" => {
            let (a, b) = (leaf(1, sizes)?, leaf(2, sizes)?);
            backward(bench, &[&a, &b], sizes, || a.silu_mul(&b))
        }
        "sum_rows" => {
            let x = tensor(1, sizes)?;
            forward(bench, || x.sum(&[-1], false))
        }
        "softmax" | "softmax_backward" => {
            let x = leaf(1, sizes)?;
            let f = || x.softmax(-1);
            if job.kind == "softmax" { forward(bench, f) } else { backward(bench, &[&x], sizes, f) }
        }
        "layer_norm" | "layer_norm_backward" => {
            let (x, w, b) = (leaf(1, sizes)?, leaf(2, &sizes[1..])?, leaf(3, &sizes[1..])?);
            let f = || x.layer_norm(&sizes[1..], Some(&w), Some(&b), 1e-5);
            if job.kind == "layer_norm" { forward(bench, f) } else { backward(bench, &[&x, &w, &b], sizes, f) }
        }
        "attention" | "attention_backward" => {
            let (q, k, v) = (leaf(1, sizes)?, leaf(2, sizes)?, leaf(3, sizes)?);
            let causal = || AttentionOptions::new().causal(Causal::TopLeft);
            let f = || q.scaled_dot_product_attention(&k, &v, causal());
            if job.kind == "attention" { forward(bench, f) } else { backward(bench, &[&q, &k, &v], sizes, f) }
        }
        "conv2d" | "conv2d_backward" => {
            let &[n, c, h, o, k, s] = sizes else { return Err("six sizes".into()) };
            let mut source = Parameters::new();
            let (fan_in, device) = (c * k * k, Device::cpu()?);
            let weight = Tensor::from_vec(source.next(o * fan_in, fan_in), [o, c, k, k], &device)?.with_grad()?;
            let bias = Tensor::from_vec(source.next(o, fan_in), [o], &device)?.with_grad()?;
            let x = leaf(1, &[n, c, h, h])?;
            let options = ConvOptions::new().stride([s, s]).padding([k / 2, k / 2]);
            let f = || x.conv2d(&weight, Some(&bias), options);
            if job.kind == "conv2d" {
                return forward(bench, f);
            }
            backward(bench, &[&x, &weight, &bias], &conv2d_shape(sizes), f)
        }
        "train_mlp" | "train_mlp_captured" => {
            let &[n, features, width, outputs] = sizes else { return Err("four sizes".into()) };
            let model = mlp(features, width, outputs)?;
            set_parameters(&model)?;
            let (x, y) = (tensor(5, &[n, features])?, classes(2, &[n], outputs)?);
            let adam = Adam::new(model.named_parameters(), AdamConfig::default())?;
            if job.kind == "train_mlp_captured" {
                return train_captured(bench, adam, &[&x, &y], |x| model.forward(&x[0])?.cross_entropy(&x[1]));
            }
            train(bench, adam, || model.forward(&x)?.cross_entropy(&y))
        }
        "train_cnn" => {
            let &[n, side] = sizes else { return Err("two sizes".into()) };
            let model = Cnn::new()?;
            set_parameters(&model)?;
            let (x, y) = (tensor(1, &[n, 1, side, side])?, classes(2, &[n], 10)?);
            let adam = Adam::new(model.named_parameters(), AdamConfig::default())?;
            train(bench, adam, || model.forward(&x)?.cross_entropy(&y))
        }
        "train_gpt" | "train_gpt_captured" | "forward_gpt" => {
            let model = Gpt::new(256, 256, 384, 6, 6)?;
            set_parameters(&model)?;
            let (ids, y) = (classes(1, sizes, 256)?, classes(2, sizes, 256)?);
            if job.kind == "forward_gpt" {
                return forward(bench, || model.forward(&ids));
            }
            let y = y.flatten(0, -1)?;
            let adam =
                AdamW::new(model.named_parameters(), AdamConfig { weight_decay: 0.01, ..AdamConfig::default() })?;
            if job.kind == "train_gpt_captured" {
                let loss = |x: &[Tensor]| model.forward(&x[0])?.flatten(0, 1)?.cross_entropy(&x[1]);
                return train_captured(bench, adam, &[&ids, &y], loss);
            }
            train(bench, adam, || model.forward(&ids)?.flatten(0, 1)?.cross_entropy(&y))
        }
        "train_resnet18" | "forward_resnet18" | "train_vit" => {
            let &[n, side, outputs] = sizes else { return Err("three sizes".into()) };
            let (device, mut generator) = (Device::cpu()?, Generator::new(0));
            let mut init = Init::new(DType::F32, &device, &mut generator);
            let (x, y) = (tensor(1, &[n, 3, side, side])?, classes(2, &[n], outputs)?);
            if job.kind == "train_vit" {
                let size = ViTConfig { image_size: [side; 2], num_classes: outputs, ..ViTConfig::tiny() };
                return train_network(bench, ViT::new(size, &mut init)?, &x, &y);
            }
            let mut model = ResNet::resnet18(outputs, 3, &mut init)?;
            if job.kind == "train_resnet18" {
                return train_network(bench, model, &x, &y);
            }
            set_parameters(&model)?;
            model.eval();
            forward(bench, || model.forward(&x))
        }
        "train_bert" => {
            let (device, mut generator) = (Device::cpu()?, Generator::new(0));
            let config = BertConfig {
                pad_token_id: None,
                hidden_dropout_prob: 0.0,
                attention_probs_dropout_prob: 0.0,
                ..BertConfig::default()
            };
            let model = Bert::new(config, &mut Init::new(DType::F32, &device, &mut generator))?;
            set_parameters(&model)?;
            let (ids, y) = (classes(1, sizes, 30522)?, classes(2, &sizes[..1], 768)?);
            let config = AdamConfig { weight_decay: 0.01, ..AdamConfig::default() };
            let optimizer = AdamW::new(model.named_parameters(), config)?;
            train(bench, optimizer, || model.pooled(&model.encode(&ids, None, None)?)?.cross_entropy(&y))
        }
        "train_lstm" => {
            let &[n, steps, width, outputs] = sizes else { return Err("four sizes".into()) };
            let model = Sequences::new(width, width, 2, outputs)?;
            train_network(bench, model, &tensor(1, &[n, steps, width])?, &classes(2, &[n], outputs)?)
        }
        kind => bench.absent(&format!("the kind {kind} is not there")),
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some("--growth") {
        return peer_harness::main(run);
    }
    match growth::check(&arguments.next().unwrap_or_default(), run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
