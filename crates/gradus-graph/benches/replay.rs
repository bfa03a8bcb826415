//! Compares the median times of eager calls and of replays, which are run in turn.
//!
//! ```sh
//! cargo bench -p gradus-graph
//! ```
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use gradus_cpu::CpuBackend;
use gradus_graph::capture;
use gradus_nn::layers::*;
use gradus_nn::{Forward, Init, Module};
use gradus_tensor::{DType, Device, Generator, Result, Tensor, UpdateFn, no_grad};

static DESCEND: UpdateFn = UpdateFn::new("descend", |x| vec![x[0] - x[2] * x[1]]);

/// Prints the medians of eager calls and of replays.
fn compare(name: &str, rounds: usize, mut f: impl FnMut(&[Tensor]) -> Result<Vec<Tensor>>, inputs: &[Tensor]) {
    let f = std::cell::RefCell::new(&mut f);
    let mut step = capture(|x| (f.borrow_mut())(x));
    let refs: Vec<&Tensor> = inputs.iter().collect();
    (0..4).for_each(|_| drop(step.call(&refs).unwrap()));
    let (mut eager, mut replayed) = (vec![], vec![]);
    for _ in 0..rounds {
        let start = Instant::now();
        drop((f.borrow_mut())(inputs).unwrap());
        eager.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        drop(step.call(&refs).unwrap());
        replayed.push(start.elapsed().as_secs_f64());
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] * 1e6
    };
    let (eager, replayed) = (median(&mut eager), median(&mut replayed));
    println!("{name:<28} eager {eager:>10.2} us   replay {replayed:>10.2} us   {:>6.2}", replayed / eager);
}

fn main() {
    let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
    let mut rng = Generator::new(1);
    let mut random = |shape: &[usize]| Tensor::randn(shape, DType::F32, &device, &mut rng).unwrap();
    let chain = |x: &[Tensor]| {
        let y = x[0].mul(1.5)?.add(&x[1])?.relu()?.mul(&x[0])?.sub(0.25)?;
        Ok(vec![y.mul(&x[1])?.abs()?.add(&x[0])?.clamp(-3.0, 3.0)?.mul(0.5)?])
    };
    compare("one add of 16", 20_000, |x| Ok(vec![x[0].add(&x[1])?]), &[random(&[16]), random(&[16])]);
    compare("ten elementwise, 1 K", 5_000, chain, &[random(&[1000]), random(&[1000])]);
    compare("ten elementwise, 1 M", 100, chain, &[random(&[1_000_000]), random(&[1_000_000])]);
    compare("ten elementwise, 16 M", 9, chain, &[random(&[16_000_000]), random(&[16_000_000])]);
    // What a kernel computes where it is read.
    let (x, y, mask) = (random(&[8, 8, 256, 256]), random(&[8, 8, 256, 256]), random(&[256, 256]));
    let softmax = |x: &[Tensor]| Ok(vec![x[0].mul(0.125)?.add(&x[1])?.softmax(-1)?]);
    compare("masked softmax, 4 M", 40, softmax, &[x.clone(), mask]);
    let squares = |x: &[Tensor]| Ok(vec![x[0].sub(&x[1])?.square()?.mean_all()?]);
    compare("mean squared difference, 4 M", 40, squares, &[x.clone(), y.clone()]);
    compare("row sums of products, 4 M", 40, |x| Ok(vec![x[0].mul(&x[1])?.sum(&[-1], false)?]), &[x, y]);
    let mut rng = Generator::new(2);
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let conv = Conv2d::new(64, 64, [3, 3], Conv2dConfig { padding: [1, 1], ..Default::default() }, &mut init).unwrap();
    let mut norm = BatchNorm2d::new(64, BatchNormConfig::default(), &mut init).unwrap();
    norm.eval();
    let evaluation = |x: &[Tensor]| Ok(vec![no_grad(|| norm.forward(&conv.forward(&x[0])?)?.relu())?]);
    compare("conv, batch norm, ReLU", 30, evaluation, &[random(&[16, 64, 56, 56])]);
    let labels: Vec<i64> = (0..32).map(|i| i % 10).collect();
    let labels = Tensor::from_vec(labels, [32], &device).unwrap();
    let x = random(&[32, 64]);
    let mut rng = Generator::new(2);
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let model = Sequential::new()
        .add(Linear::new(64, 128, &mut init).unwrap())
        .add(Relu)
        .add(Linear::new(128, 128, &mut init).unwrap())
        .add(Relu)
        .add(Linear::new(128, 10, &mut init).unwrap());
    let parameters = model.parameters();
    let step = |x: &[Tensor]| {
        let loss = model.forward(&x[0])?.cross_entropy(&x[1])?;
        let gradients = loss.backward()?;
        no_grad(|| {
            parameters.iter().try_for_each(|p| {
                let g = gradients.get(p.tensor()).unwrap();
                DESCEND.apply(&[p.values()], &[p.values(), g], &[0.01])
            })
        })?;
        Ok(vec![loss.detach()])
    };
    compare("MLP step, batch 32", 2_000, step, &[x, labels]);
}
