//! Runs the jobs on numr. Its operations are methods of a client or, if gradients are needed, functions of variables.
//! Attention is composed of other operations.

use std::process::ExitCode;

use numr::autograd::{
    GradStore, Var, backward, var_add, var_conv2d, var_gather, var_log_softmax, var_matmul, var_mean, var_mul,
    var_mul_scalar, var_permute, var_relu, var_silu_mul, var_softmax, var_sum,
};
use numr::ops::PaddingMode;
use numr::prelude::*;
use peer_harness::inputs::{Parameters, SEED, conv2d_shape, integers, transposed, values};
use peer_harness::{Bench, Job, Outcome};

type Array = Tensor<CpuRuntime>;
type Variable = Var<CpuRuntime>;

fn array(values: &[f32], shape: &[usize]) -> Result<Array> {
    Array::from_slice(values, shape, &CpuDevice::new())
}

fn tensor(stream: u32, shape: &[usize]) -> Result<Array> {
    array(&values(stream, shape.iter().product(), 1.0), shape)
}

fn leaf(stream: u32, shape: &[usize]) -> Result<Variable> {
    Ok(Var::new(tensor(stream, shape)?, true))
}

fn read(results: &[Array], client: &CpuClient) -> Result<Vec<Vec<f32>>> {
    results.iter().map(|t| Ok(client.cast(&t.contiguous()?, DType::F32)?.to_vec())).collect()
}

/// Times `f` without gradients.
fn forward(bench: &mut Bench, client: &CpuClient, f: impl Fn() -> Result<Array>) -> Outcome {
    bench.time(f, |y| read(&[y], client))
}

/// Times `f`, whose result has this shape, together with its gradients for a given gradient of the result. In numr,
/// that gradient must be a factor in a sum.
fn gradients(
    bench: &mut Bench,
    client: &CpuClient,
    leaves: &[&Variable],
    shape: &[usize],
    f: impl Fn() -> Result<Variable>,
) -> Outcome {
    let (seed, axes) = (Var::new(tensor(SEED, shape)?, false), (0..shape.len()).collect::<Vec<_>>());
    let job = || {
        let y = f()?;
        let gradients = backward(&var_sum(&var_mul(&y, &seed, client)?, &axes, false, client)?, client)?;
        Ok((y, gradients))
    };
    bench.time(job, |(y, gradients): (Variable, GradStore<CpuRuntime>)| {
        let missing = || Error::Internal("no gradient".into());
        let of = |leaf: &&Variable| gradients.get(leaf.id()).cloned().ok_or_else(missing);
        let results = [Ok(y.tensor().clone())].into_iter().chain(leaves.iter().map(of));
        read(&results.collect::<Result<Vec<_>>>()?, client)
    })
}

/// A mask that is 0 where a query may attend to a key, and minus infinity elsewhere.
fn causal_mask(t: usize) -> Result<Array> {
    let mask: Vec<f32> = (0..t * t).map(|i| if i % t > i / t { f32::NEG_INFINITY } else { 0.0 }).collect();
    array(&mask, &[1, 1, t, t])
}

/// Times training steps of a perceptron with Adam, which is written out because numr has none. Weights are `[in, out]`.
/// The fused product with bias and activation would be slower here, because its gradient computes the product again.
fn train_mlp(bench: &mut Bench, client: &CpuClient, sizes: &[usize]) -> Outcome {
    let &[n, features, width, classes] = sizes else { return Err("four sizes".into()) };
    let mut source = Parameters::new();
    let mut parameters = Vec::new();
    for [i, o] in [[features, width], [width, width], [width, classes]] {
        parameters.push(Var::new(array(&transposed(&source.next(i * o, i), o), &[i, o])?, true));
        parameters.push(Var::new(array(&source.next(o, i), &[o])?, true));
    }
    let zeros = |p: &Variable| Array::zeros(p.shape(), DType::F32, &CpuDevice::new());
    let mut m = parameters.iter().map(zeros).collect::<Result<Vec<_>>>()?;
    let mut v = parameters.iter().map(zeros).collect::<Result<Vec<_>>>()?;
    let x = Var::new(tensor(5, &[n, features])?, false);
    let y = Array::from_slice(&integers(2, n, classes), &[n, 1], &CpuDevice::new())?;
    let mut steps = 0;
    let step = || {
        let mut h = x.alias();
        for (i, layer) in parameters.chunks(2).enumerate() {
            let h2 = var_add(&var_matmul(&h, &layer[0], client)?, &layer[1], client)?;
            h = if i < 2 { var_relu(&h2, client)? } else { h2 };
        }
        let picked = var_gather(&var_log_softmax(&h, -1, client)?, 1, &y, client)?;
        let loss = var_mul_scalar(&var_mean(&picked, &[0, 1], false, client)?, -1.0, client)?;
        let gradients = backward(&loss, client)?;
        steps += 1;
        let (scale_m, scale_v) = (1.0 / (1.0 - 0.9f64.powi(steps)), 1.0 / (1.0 - 0.999f64.powi(steps)));
        for (i, parameter) in parameters.iter_mut().enumerate() {
            let g = gradients.get(parameter.id()).ok_or_else(|| Error::Internal("no gradient".into()))?;
            m[i] = client.add(&client.mul_scalar(&m[i], 0.9)?, &client.mul_scalar(g, 0.1)?)?;
            v[i] = client.add(&client.mul_scalar(&v[i], 0.999)?, &client.mul_scalar(&client.mul(g, g)?, 0.001)?)?;
            let root = client.add_scalar(&client.sqrt(&client.mul_scalar(&v[i], scale_v)?)?, 1e-8)?;
            let change = client.div(&client.mul_scalar(&m[i], 1e-3 * scale_m)?, &root)?;
            *parameter = Var::new(client.sub(parameter.tensor(), &change)?, true);
        }
        Ok::<_, Error>(loss)
    };
    bench.train(step, |loss| loss.tensor().item())
}

fn run(job: &Job, bench: &mut Bench) -> Outcome {
    let client = &CpuRuntime::default_client(&CpuDevice::new());
    let sizes = &job.sizes[..];
    match job.kind {
        "gemm_f32" | "gemm_bf16" => {
            let dtype = if job.kind == "gemm_f32" { DType::F32 } else { DType::BF16 };
            let a = client.cast(&tensor(1, &[sizes[0], sizes[0]])?, dtype)?;
            let b = client.cast(&tensor(2, &[sizes[0], sizes[0]])?, dtype)?;
            forward(bench, client, || client.matmul(&a, &b))
        }
        "chain" => {
            let (a, b) = (tensor(1, &sizes[..1])?, tensor(2, &sizes[..1])?);
            forward(bench, client, || (0..sizes[1]).try_fold(a.clone(), |y, _| client.add(&y, &b)))
        }
        "chain_backward" => {
            let (w, b) = (leaf(1, &sizes[..1])?, Var::new(tensor(2, &sizes[..1])?, false));
            let chain = || (0..sizes[1]).try_fold(w.alias(), |y, _| var_add(&y, &b, client));
            gradients(bench, client, &[&w], &sizes[..1], chain)
        }
        "add" | "silu_mul" | "gelu_tanh" | "exp" | "sum" => {
            let (a, b) = (tensor(1, sizes)?, tensor(2, sizes)?);
            forward(bench, client, || match job.kind {
                "add" => client.add(&a, &b),
                "silu_mul" => client.silu_mul(&a, &b),
                "gelu_tanh" => client.gelu(&a),
                "exp" => client.exp(&a),
                _ => client.sum(&a, &[0], false),
            })
        }
        "silu_mul_backward" => {
            let (a, b) = (leaf(1, sizes)?, leaf(2, sizes)?);
            gradients(bench, client, &[&a, &b], sizes, || var_silu_mul(&a, &b, client))
        }
        "softmax" => {
            let x = tensor(1, sizes)?;
            forward(bench, client, || client.softmax(&x, -1))
        }
        "layer_norm" => {
            let (x, w, b) = (tensor(1, sizes)?, tensor(2, &sizes[1..])?, tensor(3, &sizes[1..])?);
            forward(bench, client, || client.layer_norm(&x, &w, &b, 1e-5))
        }
        "attention" => {
            let (q, k, v) = (tensor(1, sizes)?, tensor(2, sizes)?, tensor(3, sizes)?);
            let (mask, scale) = (causal_mask(sizes[2])?, (sizes[3] as f64).powf(-0.5));
            forward(bench, client, || {
                let scores = client.mul_scalar(&client.matmul(&q, &k.transpose(-2, -1)?)?, scale)?;
                client.matmul(&client.softmax(&client.add(&scores, &mask)?, -1)?, &v)
            })
        }
        "attention_backward" => {
            let (q, k, v) = (leaf(1, sizes)?, leaf(2, sizes)?, leaf(3, sizes)?);
            let (mask, scale) = (Var::new(causal_mask(sizes[2])?, false), (sizes[3] as f64).powf(-0.5));
            gradients(bench, client, &[&q, &k, &v], sizes, || {
                let scores = var_matmul(&q, &var_permute(&k, &[0, 1, 3, 2])?, client)?;
                let scores = var_add(&var_mul_scalar(&scores, scale, client)?, &mask, client)?;
                var_matmul(&var_softmax(&scores, -1, client)?, &v, client)
            })
        }
        "conv2d" | "conv2d_backward" => {
            let &[n, c, h, o, k, s] = sizes else { return Err("six sizes".into()) };
            if job.kind == "conv2d_backward" && k > 1 {
                return bench.absent("a call takes from 10 s to minutes");
            }
            let (mut source, fan_in) = (Parameters::new(), c * k * k);
            let weight = Var::new(array(&source.next(o * fan_in, fan_in), &[o, c, k, k])?, true);
            let bias = Var::new(array(&source.next(o, fan_in), &[o])?, true);
            let x = leaf(1, &[n, c, h, h])?;
            let padding = PaddingMode::uniform(k / 2);
            if job.kind == "conv2d" {
                return forward(bench, client, || {
                    client.conv2d(x.tensor(), weight.tensor(), Some(bias.tensor()), (s, s), padding, (1, 1), 1)
                });
            }
            gradients(bench, client, &[&x, &weight, &bias], &conv2d_shape(sizes), || {
                var_conv2d(&x, &weight, Some(&bias), (s, s), padding, (1, 1), 1, client)
            })
        }
        "train_mlp" => train_mlp(bench, client, sizes),
        "train_cnn" => bench.absent("no pooling"),
        kind => {
            bench.absent(&format!("the kind {kind} is not there: numr has operations, but no layers and optimisers"))
        }
    }
}

fn main() -> ExitCode {
    peer_harness::main(run)
}
