//! Runs the jobs on burn's Flex backend, with its thread pool and vector instructions.

mod models;

use std::error::Error;
use std::process::ExitCode;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::module::{attention, conv2d, layer_norm};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, FloatDType, Gradients, Int, Tensor, TensorData, activation};
use peer_harness::inputs::{Parameters, SEED, conv2d_shape, integers, values};
use peer_harness::{Bench, Job, Outcome};

use models::{Model, causal, cnn, gpt, mlp};

fn tensor<const D: usize>(stream: u32, shape: [usize; D]) -> Tensor<D> {
    made(values(stream, shape.iter().product(), 1.0), shape, &Device::flex())
}

fn made<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// A leaf tensor, for which gradients are computed.
fn leaf<const D: usize>(stream: u32, shape: [usize; D]) -> Tensor<D> {
    tensor(stream, shape).autodiff().with_grad()
}

fn classes<const D: usize>(stream: u32, shape: [usize; D], below: usize, device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(integers(stream, shape.iter().product(), below), shape), device)
}

type Fallible<T> = Result<T, Box<dyn Error>>;

fn numbers<const D: usize>(tensor: Tensor<D>) -> Fallible<Vec<f32>> {
    tensor.cast(FloatDType::F32).into_data().try_to_vec().map_err(|e| format!("{e:?}").into())
}

fn gradient<const D: usize>(leaf: &Tensor<D>, gradients: &Gradients) -> Fallible<Vec<f32>> {
    numbers(leaf.grad(gradients).ok_or("no gradient")?)
}

/// Times `f` without gradients.
fn forward<const D: usize>(bench: &mut Bench, f: impl Fn() -> Tensor<D>) -> Outcome {
    bench.time(|| Fallible::Ok(f()), |y| Ok(vec![numbers(y)?]))
}

/// Times `f`, whose result has this shape, together with its gradients for a given gradient of the result. In burn,
/// that gradient must be a factor in a sum. `read` extracts the computed gradients.
fn backward<const D: usize>(
    bench: &mut Bench,
    read: impl FnOnce(&Gradients) -> Fallible<Vec<Vec<f32>>>,
    shape: [usize; D],
    f: impl Fn() -> Tensor<D>,
) -> Outcome {
    let seed = tensor(SEED, shape).autodiff();
    let job = || {
        let y = f();
        let gradients = (y.clone() * seed.clone()).sum().backward();
        Fallible::Ok((y, gradients))
    };
    bench.time(job, |(y, gradients): (Tensor<D>, Gradients)| {
        Ok([numbers(y.inner())?].into_iter().chain(read(&gradients)?).collect())
    })
}

/// Times training steps of a model with its optimiser.
fn train<M: Model>(
    bench: &mut Bench,
    model: M,
    mut optimizer: ModuleOptimizer,
    input: M::Input,
    y: Tensor<1, Int>,
) -> Outcome {
    let loss_of = CrossEntropyLossConfig::new().init(&y.device());
    let mut model = Some(model);
    let step = || {
        let current = model.take().ok_or("the model is gone")?;
        let loss = loss_of.forward(current.logits(input.clone()), y.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &current);
        model = Some(optimizer.step(1e-3, current, gradients));
        Ok::<_, &str>(loss)
    };
    bench.train(step, |loss| Ok(loss.into_scalar::<f32>()))
}

fn run(job: &Job, bench: &mut Bench) -> Outcome {
    let sizes = &job.sizes[..];
    let trained = Device::flex().autodiff();
    match job.kind {
        "gemm_f32" | "gemm_bf16" => {
            let dtype = if job.kind == "gemm_f32" { FloatDType::F32 } else { FloatDType::BF16 };
            let [a, b] = [1, 2].map(|stream| tensor(stream, [sizes[0], sizes[0]]).cast(dtype));
            forward(bench, || a.clone().matmul(b.clone()))
        }
        "chain" => {
            let (a, b) = (tensor(1, [sizes[0]]), tensor(2, [sizes[0]]));
            forward(bench, || (0..sizes[1]).fold(a.clone(), |y, _| y + b.clone()))
        }
        "chain_backward" => {
            let (w, b) = (leaf(1, [sizes[0]]), tensor(2, [sizes[0]]).autodiff());
            let read = |g: &Gradients| Ok(vec![gradient(&w, g)?]);
            backward(bench, read, [sizes[0]], || (0..sizes[1]).fold(w.clone(), |y, _| y + b.clone()))
        }
        "add" | "silu_mul" | "gelu_tanh" | "exp" | "sum" => {
            let (a, b) = (tensor(1, [sizes[0]]), tensor(2, [sizes[0]]));
            forward(bench, || match job.kind {
                "add" => a.clone() + b.clone(),
                "silu_mul" => activation::silu(a.clone()) * b.clone(),
                "gelu_tanh" => activation::gelu_approximate(a.clone()),
                "exp" => a.clone().exp(),
                _ => a.clone().sum(),
            })
        }
        "silu_mul_backward" => {
            let (a, b) = (leaf(1, [sizes[0]]), leaf(2, [sizes[0]]));
            let read = |g: &Gradients| Ok(vec![gradient(&a, g)?, gradient(&b, g)?]);
            backward(bench, read, [sizes[0]], || activation::silu(a.clone()) * b.clone())
        }
        "softmax" => {
            let x = tensor(1, [sizes[0], sizes[1]]);
            forward(bench, || activation::softmax(x.clone(), 1))
        }
        "layer_norm" => {
            let (x, w, b) = (tensor(1, [sizes[0], sizes[1]]), tensor(2, [sizes[1]]), tensor(3, [sizes[1]]));
            forward(bench, || layer_norm(x.clone(), w.clone(), Some(b.clone()), 1e-5))
        }
        "attention" => {
            let &[b, h, t, d] = sizes else { return Err("four sizes".into()) };
            let [q, k, v] = [1, 2, 3].map(|stream| tensor(stream, [b, h, t, d]));
            forward(bench, || attention(q.clone(), k.clone(), v.clone(), None, None, causal()))
        }
        "attention_backward" => {
            let &[b, h, t, d] = sizes else { return Err("four sizes".into()) };
            let [q, k, v] = [1, 2, 3].map(|stream| leaf(stream, [b, h, t, d]));
            let read = |g: &Gradients| [&q, &k, &v].into_iter().map(|leaf| gradient(leaf, g)).collect();
            backward(bench, read, [b, h, t, d], || attention(q.clone(), k.clone(), v.clone(), None, None, causal()))
        }
        "conv2d" | "conv2d_backward" => {
            let &[n, c, h, o, k, s] = sizes else { return Err("six sizes".into()) };
            let (mut source, fan_in) = (Parameters::new(), c * k * k);
            let device = if job.kind == "conv2d" { Device::flex() } else { trained };
            let mut weight = made(source.next(o * fan_in, fan_in), [o, c, k, k], &device);
            let mut bias = made(source.next(o, fan_in), [o], &device);
            let options = ConvOptions::new([s, s], [k / 2, k / 2], [1, 1], 1);
            let mut x = tensor(1, [n, c, h, h]);
            if job.kind == "conv2d" {
                return forward(bench, || conv2d(x.clone(), weight.clone(), Some(bias.clone()), options.clone()));
            }
            (weight, bias, x) = (weight.with_grad(), bias.with_grad(), x.autodiff().with_grad());
            let read = |g: &Gradients| Ok(vec![gradient(&x, g)?, gradient(&weight, g)?, gradient(&bias, g)?]);
            backward(bench, read, conv2d_shape(sizes), || {
                conv2d(x.clone(), weight.clone(), Some(bias.clone()), options.clone())
            })
        }
        "train_mlp" => {
            let &[n, features, width, outputs] = sizes else { return Err("four sizes".into()) };
            let (x, y) = (tensor(5, [n, features]).autodiff(), classes(2, [n], outputs, &trained));
            let adam = AdamConfig::new().with_epsilon(1e-8).init();
            train(bench, mlp(&trained, features, width, outputs), adam, x, y)
        }
        "train_cnn" => {
            let &[n, side] = sizes else { return Err("two sizes".into()) };
            let (x, y) = (tensor(1, [n, 1, side, side]).autodiff(), classes(2, [n], 10, &trained));
            train(bench, cnn(&trained), AdamConfig::new().with_epsilon(1e-8).init(), x, y)
        }
        "train_gpt" => {
            let &[n, t] = sizes else { return Err("two sizes".into()) };
            let (ids, y) = (classes(1, [n, t], 256, &trained), classes(2, [n * t], 256, &trained));
            let adam = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.01).init();
            train(bench, gpt(&trained, 256, 256, 384, 6, 6), adam, ids, y)
        }
        "forward_gpt" => {
            let &[n, t] = sizes else { return Err("two sizes".into()) };
            let (model, ids) = (gpt(&Device::flex(), 256, 256, 384, 6, 6), classes(1, [n, t], 256, &Device::flex()));
            forward(bench, || model.logits(ids.clone()))
        }
        kind => bench.absent(&format!("the kind {kind} is not there")),
    }
}

fn main() -> ExitCode {
    peer_harness::main(run)
}
