//! Runs the jobs on RUMUS, which supports only f32, and convolves and pools one sample at a time.

use std::process::ExitCode;

use peer_harness::inputs::{Parameters, SEED, conv2d_shape, integers, transposed, values};
use peer_harness::{Bench, Job, Outcome};
use rumus::autograd::context::no_grad;
use rumus::autograd::{AutogradError, GradientStore, backward, backward_with_grad};
use rumus::nn::{self, Conv2d, Linear, MaxPool2d, Module, Parameter};
use rumus::optim::{Adam, Optimizer};
use rumus::tensor::{self, Tensor};

fn tensor(stream: u32, shape: &[usize]) -> Tensor {
    Tensor::new(values(stream, shape.iter().product(), 1.0), shape.to_vec())
}

fn leaf(stream: u32, shape: &[usize]) -> Tensor {
    Parameter::new(tensor(stream, shape)).tensor
}

fn read(results: &[&Tensor]) -> Vec<Vec<f32>> {
    results.iter().map(|tensor| tensor.contiguous().data().to_vec()).collect()
}

/// Times `f` without gradients.
fn forward(bench: &mut Bench, f: impl Fn() -> Tensor) -> Outcome {
    let job = || {
        let _guard = no_grad();
        Ok::<_, AutogradError>(f())
    };
    bench.time(job, |y| Ok(read(&[&y])))
}

/// Times `f`, whose result has this shape, together with its gradients for a given gradient of the result.
fn gradients(bench: &mut Bench, leaves: &[&Tensor], shape: &[usize], f: impl Fn() -> Tensor) -> Outcome {
    let seed = tensor(SEED, shape);
    let job = || {
        let y = f();
        let gradients = backward_with_grad(&y, seed.clone())?;
        Ok::<_, AutogradError>((y, gradients))
    };
    bench.time(job, |(y, gradients): (Tensor, GradientStore)| {
        let of = |leaf: &&Tensor| leaf.grad_id().and_then(|id| gradients.get(id)).ok_or(AutogradError::NoGraph);
        Ok(read(&[Ok(&y)].into_iter().chain(leaves.iter().map(of)).collect::<Result<Vec<_>, _>>()?))
    })
}

/// A linear layer. RUMUS stores weights as `[in, out]`.
fn linear(source: &mut Parameters, inputs: usize, outputs: usize) -> Linear {
    let weight = transposed(&source.next(inputs * outputs, inputs), outputs);
    let weight = Parameter::new(Tensor::new(weight, vec![inputs, outputs]));
    Linear { weight, bias: Some(Parameter::new(Tensor::new(source.next(outputs, inputs), vec![outputs]))) }
}

fn conv(
    source: &mut Parameters,
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
) -> Conv2d {
    let fan_in = inputs * kernel * kernel;
    let mut layer = Conv2d::new(inputs, outputs, kernel, stride, padding, true);
    layer.weight = Parameter::new(Tensor::new(source.next(outputs * fan_in, fan_in), vec![outputs, fan_in]));
    layer.bias = Some(Parameter::new(Tensor::new(source.next(outputs, fan_in), vec![outputs])));
    layer
}

/// Times training steps with Adam.
fn train(bench: &mut Bench, layers: Vec<&dyn Module>, loss: impl Fn() -> Tensor) -> Outcome {
    let mut adam = Adam::new(layers.iter().flat_map(|layer| layer.parameters()).collect(), 1e-3);
    let step = || {
        let loss = loss();
        adam.step(&mut backward(&loss)?)?;
        Ok::<_, AutogradError>(loss)
    };
    bench.train(step, |loss| Ok(loss.data()[0]))
}

/// Classes as f32, which is the only dtype of RUMUS.
fn classes(n: usize, below: usize) -> Tensor {
    Tensor::new(integers(2, n, below).into_iter().map(|class| class as f32).collect(), vec![n])
}

fn run(job: &Job, bench: &mut Bench) -> Outcome {
    let sizes = &job.sizes[..];
    match job.kind {
        "gemm_f32" => {
            let (a, b) = (tensor(1, &[sizes[0], sizes[0]]), tensor(2, &[sizes[0], sizes[0]]));
            forward(bench, || a.matmul(&b))
        }
        "chain" => {
            let (a, b) = (tensor(1, &sizes[..1]), tensor(2, &sizes[..1]));
            forward(bench, || (0..sizes[1]).fold(a.clone(), |y, _| y.add(&b)))
        }
        "chain_backward" => {
            let (w, b) = (leaf(1, &sizes[..1]), tensor(2, &sizes[..1]));
            gradients(bench, &[&w], &sizes[..1], || (0..sizes[1]).fold(w.clone(), |y, _| y.add(&b)))
        }
        "add" | "silu_mul" | "gelu_tanh" => {
            let (a, b) = (tensor(1, sizes), tensor(2, sizes));
            forward(bench, || match job.kind {
                "add" => a.add(&b),
                "silu_mul" => a.mul(&a.sigmoid()).mul(&b),
                _ => a.gelu(),
            })
        }
        "silu_mul_backward" => {
            let (a, b) = (leaf(1, sizes), leaf(2, sizes));
            gradients(bench, &[&a, &b], sizes, || a.mul(&a.sigmoid()).mul(&b))
        }
        "softmax" => {
            let x = tensor(1, sizes);
            forward(bench, || x.softmax())
        }
        "layer_norm" => {
            let (x, w, b) = (tensor(1, sizes), tensor(2, &sizes[1..]), tensor(3, &sizes[1..]));
            forward(bench, || x.layer_norm(&w, &b, 1e-5))
        }
        "attention" | "attention_backward" => {
            // The operands have rank 3: batch and heads are a single axis.
            let &[b, h, t, d] = sizes else { return Err("four sizes".into()) };
            let (q, k, v) = (leaf(1, &[b * h, t, d]), leaf(2, &[b * h, t, d]), leaf(3, &[b * h, t, d]));
            let mask = (0..t * t).map(|i| if i % t > i / t { -1e9 } else { 0.0 }).collect();
            let mask = Tensor::new(mask, vec![1, t, t]);
            let f = || nn::scaled_dot_product_attention(&q, &k, &v, Some(&mask));
            if job.kind == "attention" { forward(bench, f) } else { gradients(bench, &[&q, &k, &v], q.shape(), f) }
        }
        "conv2d" | "conv2d_backward" => {
            let &[n, c, h, o, k, s] = sizes else { return Err("six sizes".into()) };
            let layer = conv(&mut Parameters::new(), c, o, k, s, k / 2);
            let x = leaf(1, &[n, c, h, h]);
            let f = || layer.forward(&x);
            if job.kind == "conv2d" {
                return forward(bench, f);
            }
            let bias = &layer.bias.as_ref().ok_or("a bias")?.tensor;
            gradients(bench, &[&x, &layer.weight.tensor, bias], &conv2d_shape(sizes), f)
        }
        "train_mlp" => {
            let &[n, features, width, outputs] = sizes else { return Err("four sizes".into()) };
            let mut source = Parameters::new();
            let first = linear(&mut source, features, width);
            let second = linear(&mut source, width, width);
            let third = linear(&mut source, width, outputs);
            let (x, y) = (tensor(5, &[n, features]), classes(n, outputs));
            train(bench, vec![&first, &second, &third], || {
                let h = second.forward(&first.forward(&x).relu()).relu();
                nn::cross_entropy_loss(&third.forward(&h), &y)
            })
        }
        "train_cnn" => {
            let &[n, side] = sizes else { return Err("two sizes".into()) };
            let mut source = Parameters::new();
            let (first, second) = (conv(&mut source, 1, 32, 3, 1, 0), conv(&mut source, 32, 64, 3, 1, 0));
            let (hidden, output) = (linear(&mut source, 9216, 128), linear(&mut source, 128, 10));
            let (x, y, pool) = (tensor(1, &[n, 1, side, side]), classes(n, 10), MaxPool2d::new(2, 2));
            train(bench, vec![&first, &second, &hidden, &output], || {
                let h = second.forward(&first.forward(&x).relu()).relu();
                let pooled: Vec<Tensor> = (0..n).map(|i| pool.forward(&h.slice_batch(i))).collect();
                let h = tensor::stack(&pooled).reshape_tracked(vec![n, 9216]);
                nn::cross_entropy_loss(&output.forward(&hidden.forward(&h).relu()), &y)
            })
        }
        "exp" | "sum" => bench.absent("no such function of tensors"),
        "gemm_bf16" => bench.absent("no bf16 on the CPU"),
        kind => bench.absent(&format!("no model of the kind {kind}: embeddings and attention are of other shapes")),
    }
}

fn main() -> ExitCode {
    peer_harness::main(run)
}
