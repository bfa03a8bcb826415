//! A gradient penalty (WGAN-GP: Gulrajani et al., 2017) on a critic with attention and layer norm. The norm of the
//! critic's gradient with respect to its input is part of the loss, so the gradient of the loss involves second
//! derivatives.
//!
//! ```sh
//! cargo run --release -p gradus --example gradient_penalty_through_attention
//! ```
#![allow(clippy::print_stdout)]

use gradus::prelude::*;

/// Scores sequences: maps `[n, length, features]` to `[n]`.
#[derive(Module)]
struct Critic {
    norm: LayerNorm,
    attention: MultiheadAttention,
    score: Linear,
}

impl Forward for Critic {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = (x + self.attention.forward(&self.norm.forward(x)?))?;
        self.score.forward(&x.silu()?.mean(&[1], false)?)?.squeeze(1)
    }
}

/// `mean((|d critic / d x| - 1)^2)`: how far the norm of the critic's gradient is from 1 at `x`.
fn gradient_penalty(critic: &Critic, x: &Tensor) -> Result<Tensor> {
    let x = x.detach().with_grad()?;
    // Each score depends on one sample only, so the gradient of the sum contains the gradient of each score.
    let score = critic.forward(&x)?.sum_all()?;
    let slopes = grad(&[&score], &[&x], None, BackwardOptions::new().create_graph())?;
    let slope = slopes[0].as_ref().expect("the score depends on the input");
    (slope.flatten(1, -1)?.norm(2.0, &[1], false)? - 1.0)?.square()?.mean_all()
}

/// The measurements of [`run`].
#[derive(Debug)]
pub(crate) struct Findings {
    /// The number of parameters whose gradient was compared.
    pub(crate) parameters: usize,
    /// The largest element of the penalty's gradient.
    pub(crate) largest: f64,
    /// The largest difference between that gradient and finite differences of the penalty.
    pub(crate) error: f64,
    /// The penalty before and after `steps` steps of Adam, which minimise only the penalty.
    pub(crate) penalty: (f64, f64),
}

/// Checks the penalty's gradient for every parameter, then minimises the penalty.
pub(crate) fn run(seed: u64, steps: usize) -> Result<Findings> {
    let (device, mut generator) = (Device::cpu()?, Generator::new(seed));
    let x = Tensor::randn([5, 4, 6], DType::F64, &device, &mut generator)?;
    let mut init = Init::new(DType::F64, &device, &mut generator);
    let critic = Critic {
        norm: LayerNorm::new([6], LayerNormConfig::default(), &mut init)?,
        attention: MultiheadAttention::new(6, 2, MultiheadAttentionConfig::default(), &mut init)?,
        score: Linear::new(6, 1, &mut init)?,
    };

    let penalty = || gradient_penalty(&critic, &x);
    let gradients = penalty()?.backward()?;
    let (mut count, mut largest, mut error, step) = (0, 0.0f64, 0.0f64, 1e-5);
    for parameter in critic.parameters() {
        // The penalty does not depend on the bias of `score`, so that bias has no gradient, which counts as 0.
        let exact = match gradients.get(&parameter) {
            Some(g) => g.flatten(0, -1)?.to_vec::<f64>()?,
            None => vec![0.0; parameter.numel()],
        };
        for (i, exact) in exact.into_iter().enumerate() {
            let nudge = |by: f64| parameter.values().flatten(0, -1)?.narrow(0, i, 1)?.add_(by);
            nudge(step)?;
            let up = penalty()?.item()?;
            nudge(-2.0 * step)?;
            let down = penalty()?.item()?;
            nudge(step)?;
            error = error.max((exact - (up - down) / (2.0 * step)).abs());
            largest = largest.max(exact.abs());
            count += 1;
        }
    }

    let first = penalty()?.item()?;
    let mut optimizer = Adam::new(critic.named_parameters(), AdamConfig { lr: 0.02, ..Default::default() })?;
    for _ in 0..steps {
        optimizer.step(&penalty()?.backward()?)?;
    }
    Ok(Findings { parameters: count, largest, error, penalty: (first, penalty()?.item()?) })
}

fn main() -> Result<()> {
    let found = run(0, 100)?;
    println!("gradient of the penalty for {} parameters, the largest {:.4}", found.parameters, found.largest);
    println!("differs from finite differences by {:.1e}", found.error);
    println!("penalty {:.4} at first, {:.6} after 100 steps along it", found.penalty.0, found.penalty.1);
    Ok(())
}
