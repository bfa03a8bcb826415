//! The [`Muon`] optimiser.

use gradus_tensor::{DType, Error, Result, Scalar, Tensor, UpdateFn};

use super::rule::{Hyper, Rule};
use super::stepper::{Stepper, apply, at_least_zero};

/// Muon (Jordan et al., 2024), as PyTorch's: momentum whose update is made orthogonal, for the weight matrices of
/// hidden layers. Parameters have two axes; embeddings, biases, scales and the last layer belong to another optimiser,
/// such as [`AdamW`](crate::AdamW). One step computes
///
/// - `b = momentum * b + (1 - momentum) * g`
/// - `u = momentum * b + (1 - momentum) * g` with Nesterov momentum, else `u = b`
/// - `o`, the result of `ns_steps` Newton-Schulz iterations on `u`, which moves its singular values towards 1
/// - `p = p * (1 - lr * weight_decay) - r * lr * o`, where `r` is given by [`AdjustLr`]
///
/// As in PyTorch, the iterations compute in bf16, so two implementations agree to its 8 bits. A step needs memory for
/// an update of all parameters, beside the state.
pub struct Muon(Stepper<MuonConfig>);

/// How [`Muon`] scales the learning rate of a matrix `[rows, columns]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdjustLr {
    /// By `sqrt(max(1, rows / columns))`, as in the original implementation.
    #[default]
    Original,
    /// By `0.2 * sqrt(max(rows, columns))`, so that learning rate and weight decay of AdamW can be used.
    MatchRmsAdamW,
    /// By `sqrt(rows / columns)`.
    SpectralUnclamped,
}

impl AdjustLr {
    fn ratio(self, rows: f64, columns: f64) -> f64 {
        match self {
            AdjustLr::Original => (rows / columns).max(1.0).sqrt(),
            AdjustLr::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
            AdjustLr::SpectralUnclamped => (rows / columns).sqrt(),
        }
    }
}

/// Hyper-parameters of [`Muon`]. A [`Group`](crate::Group) may override the learning rate and weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MuonConfig {
    /// Learning rate, default 0.001.
    pub lr: f64,
    /// Decoupled weight decay, default 0.1.
    pub weight_decay: f64,
    /// Decay rate of the momentum, 0 to 1. Default 0.95.
    pub momentum: f64,
    /// Whether to use Nesterov momentum. Default true.
    pub nesterov: bool,
    /// Coefficients of the iteration `x = a x + (b x x^T + c (x x^T)^2) x`. Default 3.4445, -4.7750, 2.0315.
    pub ns_coefficients: [f64; 3],
    /// The least norm that the update is divided by. Default 1e-7.
    pub eps: f64,
    /// The number of iterations, below 100. Default 5.
    pub ns_steps: u32,
    /// How the learning rate depends on the shape.
    pub adjust_lr: AdjustLr,
}

impl Default for MuonConfig {
    fn default() -> Self {
        MuonConfig {
            lr: 1e-3,
            weight_decay: 0.1,
            momentum: 0.95,
            nesterov: true,
            ns_coefficients: [3.4445, -4.7750, 2.0315],
            eps: 1e-7,
            ns_steps: 5,
            adjust_lr: AdjustLr::default(),
        }
    }
}

/// The new p and momentum from p, g, the momentum, the orthogonal update; the factors of p and of the update, momentum
/// and 1 - momentum.
static MUON: UpdateFn = UpdateFn::new("muon", |x| vec![x[0] * x[4] - x[5] * x[3], x[6] * x[2] + x[7] * x[1]]);

super::constructors!(Muon, MuonConfig);
super::optimizer!(Muon);

impl MuonConfig {
    /// The result of the Newton-Schulz iterations on a matrix, in bf16.
    #[track_caller]
    fn orthogonal(&self, update: &Tensor) -> Result<Tensor> {
        let [a, b, c] = self.ns_coefficients.map(Scalar::Float);
        let wide = update.shape()[0] <= update.shape()[1];
        let x = update.to_dtype(DType::BF16)?;
        let mut x = if wide { x } else { x.t()? };
        x = x.div(&x.norm(2.0, &[0, 1], false)?.maximum(self.eps)?)?;
        for _ in 0..self.ns_steps {
            let gram = x.matmul(&x.t()?)?;
            let poly = gram.addmm(&gram, &gram, b, c)?;
            x = x.addmm(&poly, &x, a, 1.0)?;
        }
        if wide { Ok(x) } else { x.t() }
    }
}

impl Rule for MuonConfig {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, self.weight_decay)
    }

    fn check(&self) -> Result<()> {
        at_least_zero("muon", "momentum", self.momentum)?;
        at_least_zero("muon", "1 - momentum", 1.0 - self.momentum)?;
        at_least_zero("muon", "eps", self.eps)?;
        if self.ns_steps >= 100 {
            return Err(Error::argument("muon", format!("ns_steps is {}; it is below 100", self.ns_steps)));
        }
        match self.ns_coefficients.iter().find(|c| !c.is_finite()) {
            Some(c) => Err(Error::argument("muon", format!("a coefficient of ns_coefficients is {c}"))),
            None => Ok(()),
        }
    }

    #[track_caller]
    fn check_parameter(&self, name: &str, values: &Tensor) -> Result<()> {
        if values.rank() == 2 && values.numel() > 0 {
            return Ok(());
        }
        let e = Error::shape("muon", format!("{name} is no matrix"));
        let e = e.operand("parameter", values.shape(), values.dtype(), values.device());
        Err(e.help("give Muon the matrices of hidden layers, and AdamW the other parameters"))
    }

    fn mixes(&self) -> bool {
        true
    }

    fn slots(&self) -> &'static [&'static str] {
        &["momentum_buffer"]
    }

    #[track_caller]
    fn derive(&self, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<Vec<Tensor>> {
        let [buffer] = slots else { return Err(Error::argument("muon", "one momentum is needed")) };
        let gradient = gradient.to_dtype(target.dtype())?;
        let momentum = buffer.lerp(&gradient, 1.0 - self.momentum)?;
        let update = if self.nesterov { gradient.lerp(&momentum, self.momentum)? } else { momentum };
        Ok(vec![self.orthogonal(&update)?])
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()> {
        let Hyper { lr, weight_decay, .. } = hyper;
        let [rows, columns] = [target.shape()[0] as f64, target.shape()[1] as f64];
        let step = lr * self.adjust_lr.ratio(rows, columns);
        let numbers = [1.0 - lr * weight_decay, step, self.momentum, 1.0 - self.momentum];
        apply(&MUON, target, gradient, slots, 1, &numbers)
    }
}
