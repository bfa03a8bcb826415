//! Runs the jobs on candle. The fused functions of `candle-nn` are used where they have gradients or need none.

mod models;

use std::process::ExitCode;

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Error, Result, Tensor, Var};
use candle_nn::{AdamW, Conv2d, Conv2dConfig, Module, Optimizer, ParamsAdamW};
use peer_harness::inputs::{Parameters, SEED, conv2d_shape, integers, values};
use peer_harness::{Bench, Job, Outcome};

use models::{Source, attention, causal_mask, cnn, gpt, mlp};

fn tensor(stream: u32, shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(values(stream, shape.iter().product(), 1.0), shape, &Device::Cpu)
}

fn leaf(stream: u32, shape: &[usize]) -> Result<Tensor> {
    Ok(Var::from_tensor(&tensor(stream, shape)?)?.into_inner())
}

fn classes(stream: u32, shape: &[usize], below: usize) -> Result<Tensor> {
    let values: Vec<u32> = integers(stream, shape.iter().product(), below).into_iter().map(|v| v as u32).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

fn read(results: &[Tensor]) -> Result<Vec<Vec<f32>>> {
    results.iter().map(|tensor| tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()).collect()
}

/// Times `f`, none of whose operands is a variable.
fn forward(bench: &mut Bench, f: impl Fn() -> Result<Tensor>) -> Outcome {
    bench.time(f, |y| read(&[y]))
}

/// Times `f`, whose result has this shape, together with its gradients for a given gradient of the result. In candle,
/// that gradient must be a factor in a sum.
fn backward(bench: &mut Bench, leaves: &[&Tensor], shape: &[usize], f: impl Fn() -> Result<Tensor>) -> Outcome {
    let seed = tensor(SEED, shape)?;
    let job = || {
        let y = f()?;
        let gradients = (&y * &seed)?.sum_all()?.backward()?;
        Ok((y, gradients))
    };
    bench.time(job, |(y, gradients): (Tensor, GradStore)| {
        let of = |leaf: &&Tensor| gradients.get(leaf).cloned().ok_or_else(|| Error::Msg("no gradient".into()));
        read(&[Ok(y)].into_iter().chain(leaves.iter().map(of)).collect::<Result<Vec<_>>>()?)
    })
}

fn chain(x: &Tensor, b: &Tensor, n: usize) -> Result<Tensor> {
    let mut y = x.clone();
    for _ in 0..n {
        y = (&y + b)?;
    }
    Ok(y)
}

/// Times training steps. Adam is AdamW without weight decay.
fn train(bench: &mut Bench, source: Source, weight_decay: f64, loss: impl Fn() -> Result<Tensor>) -> Outcome {
    let mut optimizer = AdamW::new(source.variables(), ParamsAdamW { weight_decay, ..ParamsAdamW::default() })?;
    let step = || {
        let loss = loss()?;
        optimizer.backward_step(&loss)?;
        Ok::<_, Error>(loss)
    };
    bench.train(step, |loss| loss.to_scalar())
}

fn run(job: &Job, bench: &mut Bench) -> Outcome {
    let sizes = &job.sizes[..];
    match job.kind {
        "gemm_f32" | "gemm_bf16" => {
            let dtype = if job.kind == "gemm_f32" { DType::F32 } else { DType::BF16 };
            let a = tensor(1, &[sizes[0], sizes[0]])?.to_dtype(dtype)?;
            let b = tensor(2, &[sizes[0], sizes[0]])?.to_dtype(dtype)?;
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
                "silu_mul" => forward(bench, || a.silu()? * &b),
                "gelu_tanh" => forward(bench, || a.gelu()),
                "exp" => forward(bench, || a.exp()),
                _ => forward(bench, || a.sum_all()),
            }
        }
        "silu_mul_backward" => {
            let (a, b) = (leaf(1, sizes)?, leaf(2, sizes)?);
            backward(bench, &[&a, &b], sizes, || a.silu()? * &b)
        }
        "softmax" => {
            let x = tensor(1, sizes)?;
            forward(bench, || candle_nn::ops::softmax_last_dim(&x))
        }
        "layer_norm" => {
            let (x, w, b) = (tensor(1, sizes)?, tensor(2, &sizes[1..])?, tensor(3, &sizes[1..])?);
            forward(bench, || candle_nn::ops::layer_norm(&x, &w, &b, 1e-5))
        }
        "attention" => {
            let (q, k, v) = (tensor(1, sizes)?, tensor(2, sizes)?, tensor(3, sizes)?);
            forward(bench, || attention(&q, &k, &v, None))
        }
        "attention_backward" => {
            let (q, k, v) = (leaf(1, sizes)?, leaf(2, sizes)?, leaf(3, sizes)?);
            let mask = causal_mask(sizes[2])?;
            backward(bench, &[&q, &k, &v], sizes, || attention(&q, &k, &v, Some(&mask)))
        }
        "conv2d" | "conv2d_backward" => {
            let &[n, c, h, o, k, s] = sizes else { return Err("six sizes".into()) };
            let (mut source, fan_in) = (Parameters::new(), c * k * k);
            let mut weight = Tensor::from_vec(source.next(o * fan_in, fan_in), (o, c, k, k), &Device::Cpu)?;
            let mut bias = Tensor::from_vec(source.next(o, fan_in), o, &Device::Cpu)?;
            let mut x = tensor(1, &[n, c, h, h])?;
            if job.kind == "conv2d_backward" {
                for tensor in [&mut weight, &mut bias, &mut x] {
                    *tensor = Var::from_tensor(tensor)?.into_inner();
                }
            }
            let config = Conv2dConfig { padding: k / 2, stride: s, ..Conv2dConfig::default() };
            let conv = Conv2d::new(weight.clone(), Some(bias.clone()), config);
            let f = || conv.forward(&x);
            if job.kind == "conv2d" {
                return forward(bench, f);
            }
            backward(bench, &[&x, &weight, &bias], &conv2d_shape(sizes), f)
        }
        "train_mlp" => {
            let &[n, features, width, outputs] = sizes else { return Err("four sizes".into()) };
            let mut source = Source::new(true);
            let model = mlp(&mut source, features, width, outputs)?;
            let (x, y) = (tensor(5, &[n, features])?, classes(2, &[n], outputs)?);
            train(bench, source, 0.0, || candle_nn::loss::cross_entropy(&model.forward(&x)?, &y))
        }
        "train_cnn" => {
            let &[n, side] = sizes else { return Err("two sizes".into()) };
            let mut source = Source::new(true);
            let model = cnn(&mut source)?;
            let (x, y) = (tensor(1, &[n, 1, side, side])?, classes(2, &[n], 10)?);
            train(bench, source, 0.0, || candle_nn::loss::cross_entropy(&model.forward(&x)?, &y))
        }
        "train_gpt" | "forward_gpt" => {
            let mut source = Source::new(job.kind == "train_gpt");
            let model = gpt(&mut source, 256, 256, 384, 6, 6, sizes[1])?;
            let (ids, y) = (classes(1, sizes, 256)?, classes(2, sizes, 256)?.flatten_all()?);
            if job.kind == "forward_gpt" {
                return forward(bench, || model.forward(&ids));
            }
            train(bench, source, 0.01, || {
                candle_nn::loss::cross_entropy(&model.forward(&ids)?.flatten_to(D::Minus2)?, &y)
            })
        }
        kind => bench.absent(&format!("the kind {kind} is not there")),
    }
}

fn main() -> ExitCode {
    peer_harness::main(run)
}
