//! The full Hessian of a network's loss by double backward, compared with finite differences of its gradient.
//!
//! ```sh
//! cargo run --release -p gradus --example hessian_of_a_network
//! ```
#![allow(clippy::print_stdout)]

use gradus::prelude::*;

/// The measurements of [`run`].
#[derive(Debug)]
pub(crate) struct Findings {
    /// The number of parameters, which is also the number of rows and columns of the Hessian `H`.
    pub(crate) parameters: usize,
    /// The largest difference between `H` and its transpose.
    pub(crate) asymmetry: f64,
    /// The largest difference between `H` and finite differences of the gradient.
    pub(crate) error: f64,
    /// The largest element of `H d`, where `d` adds the same number to all three logits. That leaves the probabilities
    /// unchanged, so `H d` should be 0.
    pub(crate) null: f64,
    /// The sum of the eigenvalues.
    pub(crate) trace: f64,
    /// Bounds on all eigenvalues, from Gershgorin's circles.
    pub(crate) bounds: (f64, f64),
}

/// Concatenates gradients into one vector; `None` counts as 0.
fn flat(gradients: Vec<Option<Tensor>>, parameters: &[&Tensor]) -> Result<Tensor> {
    let pieces = gradients.into_iter().zip(parameters).map(|(g, p)| match g {
        Some(g) => g.flatten(0, -1),
        None => Tensor::zeros([p.numel()], p.dtype(), p.device()),
    });
    let pieces = pieces.collect::<Result<Vec<_>>>()?;
    Tensor::cat(&pieces.iter().collect::<Vec<_>>(), 0)
}

/// Computes the Hessian of a network with 39 parameters that sorts points into three classes.
pub(crate) fn run(seed: u64) -> Result<Findings> {
    let (device, mut generator) = (Device::cpu()?, Generator::new(seed));
    let points = Tensor::randn([24, 2], DType::F64, &device, &mut generator)?;
    let classes = Tensor::randint(0, 3, [24], DType::I64, &device, &mut generator)?;
    let mut init = Init::new(DType::F64, &device, &mut generator);
    let model = Sequential::new().add(Linear::new(2, 6, &mut init)?).add(Tanh).add(Linear::new(6, 3, &mut init)?);
    let owned = model.parameters();
    let parameters: Vec<&Tensor> = owned.iter().map(|p| p.tensor()).collect();
    let gradient = || {
        let loss = model.forward(&points)?.cross_entropy(&classes)?;
        flat(grad(&[&loss], &parameters, None, BackwardOptions::new().create_graph())?, &parameters)
    };

    // Row i of the Hessian is the gradient of element i of the gradient; a seed vector selects the element.
    let first = gradient()?;
    let n = first.numel();
    let picks = Tensor::eye(n, DType::F64, &device)?.unbind(0)?;
    let row = |pick: &Tensor| {
        let again = BackwardOptions::new().retain_graph();
        flat(grad(&[&first], &parameters, Some(&[pick]), again)?, &parameters)
    };
    let rows = picks.iter().map(row).collect::<Result<Vec<_>>>()?;
    let hessian = Tensor::stack(&rows.iter().collect::<Vec<_>>(), 0)?;

    // The Hessian again, by central differences: each parameter in turn is moved a little up and a little down.
    let step = 1e-5;
    let mut columns = Vec::new();
    for parameter in &owned {
        for i in 0..parameter.numel() {
            let nudge = |by: f64| parameter.values().flatten(0, -1)?.narrow(0, i, 1)?.add_(by);
            nudge(step)?;
            let up = gradient()?.detach();
            nudge(-2.0 * step)?;
            let down = gradient()?.detach();
            nudge(step)?;
            columns.push(((up - down)? / (2.0 * step))?);
        }
    }
    let numeric = Tensor::stack(&columns.iter().collect::<Vec<_>>(), 1)?;

    let largest = |t: Tensor| t.abs()?.max_all()?.item();
    // The last three parameters are the biases of the logits.
    let (zeros, ones) = (Tensor::zeros([n - 3], DType::F64, &device)?, Tensor::ones([3], DType::F64, &device)?);
    let shift = Tensor::cat(&[&zeros, &ones], 0)?;
    let diagonal = hessian.diagonal(0, 0, 1)?;
    let radius = (hessian.abs()?.sum(&[1], false)? - diagonal.abs()?)?;
    Ok(Findings {
        parameters: n,
        asymmetry: largest((&hessian - hessian.t()?)?)?,
        error: largest((&hessian - numeric)?)?,
        null: largest(hessian.matmul(&shift)?)?,
        trace: hessian.trace()?.item()?,
        bounds: ((&diagonal - &radius)?.min_all()?.item()?, (&diagonal + &radius)?.max_all()?.item()?),
    })
}

fn main() -> Result<()> {
    let found = run(0)?;
    println!("Hessian of {} parameters: trace {:.6}", found.parameters, found.trace);
    println!("eigenvalues between {:.3} and {:.3}", found.bounds.0, found.bounds.1);
    println!("differs from its transpose by {:.1e}, from finite differences by {:.1e}", found.asymmetry, found.error);
    println!("curvature along a shift of all logits, which is 0 on paper: {:.1e}", found.null);
    Ok(())
}
