//! A physics-informed network (Raissi et al., 2019) solves the heat equation `u_t = k u_xx` on a rod of length 1 with
//! cold ends. It never sees a solution: the loss measures how far its derivatives are from satisfying the equation.
//!
//! ```sh
//! cargo run --release -p gradus --example pinn
//! ```
//! The initial temperature is `sin(pi x)`, so the exact solution is `e^(-k pi^2 t) sin(pi x)`. After 600 steps the
//! error of the network is below 0.005 everywhere (0.0021 to 0.0028 for the seeds 0 to 5).
#![allow(clippy::print_stdout)]

use std::f64::consts::PI;

use gradus::prelude::*;

/// The conductivity.
const K: f64 = 0.2;

/// The temperature at positions `x` and times `t`, both `[n, 1]`. The factors make it exact at the start and at the
/// ends of the rod, whatever the network computes (Lagaris et al., 1998).
fn temperature(network: &Sequential, x: &Tensor, t: &Tensor) -> Result<Tensor> {
    let free = network.forward(&Tensor::cat(&[x, t], 1)?)?;
    fused!(|x, t, free, pi| (x * pi).sin() + t * x * (1.0 - x) * free)(x, t, &free, PI)
}

/// The derivatives of `u [n, 1]` with respect to the inputs, which can be differentiated again. Each element of `u`
/// depends only on its own row, so the gradient of the sum contains the derivative of each element.
fn derivatives<const N: usize>(u: &Tensor, inputs: [&Tensor; N]) -> Result<[Tensor; N]> {
    let found = grad(&[&u.sum_all()?], &inputs, None, BackwardOptions::new().create_graph())?;
    Ok(std::array::from_fn(|i| found[i].clone().expect("the temperature depends on place and time")))
}

/// `mean((u_t - k u_xx)^2)`
fn residual(network: &Sequential, x: &Tensor, t: &Tensor) -> Result<Tensor> {
    let (x, t) = (x.with_grad()?, t.with_grad()?);
    let u = temperature(network, &x, &t)?;
    let [u_x, u_t] = derivatives(&u, [&x, &t])?;
    let [u_xx] = derivatives(&u_x, [&x])?;
    fused!(|u_t, u_xx, k| (u_t - u_xx * k).square())(&u_t, &u_xx, K)?.mean_all()
}

/// The measurements of [`run`].
#[derive(Debug)]
pub(crate) struct Findings {
    /// The residual in the last step.
    pub(crate) residual: f64,
    /// The largest error before and after training.
    pub(crate) error: (f64, f64),
}

/// The largest error on a grid of 41 positions and 21 times.
fn error(network: &Sequential, device: &Device) -> Result<f64> {
    let x = Tensor::linspace(0.0, 1.0, 41, DType::F32, device)?.reshape([41, 1])?.expand([21, 41, 1])?;
    let t = Tensor::linspace(0.0, 1.0, 21, DType::F32, device)?.reshape([21, 1, 1])?.expand([21, 41, 1])?;
    let (x, t) = (x.reshape([21 * 41, 1])?, t.reshape([21 * 41, 1])?);
    let truth = fused!(|x, t, pi, rate| (t * rate).exp() * (x * pi).sin())(&x, &t, PI, -K * PI * PI)?;
    no_grad(|| (temperature(network, &x, &t)? - truth)?.abs()?.max_all()?.item())
}

/// Trains for `steps` steps, each on a batch of 128 random positions and times.
pub(crate) fn run(seed: u64, steps: usize) -> Result<Findings> {
    let (device, mut rng) = (Device::cpu()?, Generator::new(seed));
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let network = Sequential::new()
        .add(Linear::new(2, 24, &mut init)?)
        .add(Tanh)
        .add(Linear::new(24, 24, &mut init)?)
        .add(Tanh)
        .add(Linear::new(24, 1, &mut init)?);
    let before = error(&network, &device)?;
    let mut optimizer = Adam::new(network.named_parameters(), AdamConfig::default())?;
    let mut last = f64::NAN;
    for step in 0..steps {
        // The learning rate falls from 0.02 to 0 along a cosine.
        optimizer.set_lr(0, 0.01 * (1.0 + (PI * step as f64 / steps as f64).cos()))?;
        let x = Tensor::rand([128, 1], DType::F32, &device, &mut rng)?;
        let t = Tensor::rand([128, 1], DType::F32, &device, &mut rng)?;
        let loss = residual(&network, &x, &t)?;
        optimizer.step(&loss.backward()?)?;
        last = loss.item()?;
    }
    Ok(Findings { residual: last, error: (before, error(&network, &device)?) })
}

fn main() -> Result<()> {
    let found = run(0, 600)?;
    println!("largest error {:.4} before training", found.error.0);
    println!("largest error {:.4} after 600 steps, residual {:.1e}", found.error.1, found.residual);
    Ok(())
}
