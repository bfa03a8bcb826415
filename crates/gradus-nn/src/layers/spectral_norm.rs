//! [`SpectralNorm`]: a layer whose weight has the spectral norm 1.

use gradus_tensor::{Error, Here, Result, Tensor, autograd, no_grad_guard};

use super::norm::check_eps;
use super::weighted::Weighted;
use crate::{Buffer, Forward, Init, Mode, Module, Visitor, VisitorMut};

/// Spectral normalisation (Miyato et al., 2018): the layer computes with `weight / sigma`, where `sigma` is the largest
/// singular value of the weight as a matrix `[outputs, rest]`. It is found by power iteration, which in training takes
/// `n_power_iterations` steps at each call, and none in evaluation.
///
/// It is PyTorch's `torch.nn.utils.parametrizations.spectral_norm`, with its names: `parametrizations.weight.original`
/// is the former `weight`, and the buffers `parametrizations.weight.0._u` and `parametrizations.weight.0._v` hold the
/// singular vectors. Other parameters keep their names. (The older `torch.nn.utils.spectral_norm` calls them
/// `weight_orig`, `weight_u` and `weight_v`.)
#[derive(Clone)]
pub struct SpectralNorm<L> {
    layer: L,
    n_power_iterations: usize,
    eps: f64,
    u: Buffer,
    v: Buffer,
    mode: Mode,
}

/// Steps of the power iteration when a layer is made.
const FIRST_STEPS: usize = 15;

impl<L: Weighted> SpectralNorm<L> {
    /// Wraps a layer. PyTorch's defaults are 1 power iteration and `eps` 1e-12, the smallest length by which a singular
    /// vector is divided. Errors if there is no iteration or `eps` is not above 0, or if the weight has fewer than two
    /// axes or no elements.
    #[track_caller]
    pub fn new(layer: L, n_power_iterations: usize, eps: f64, init: &mut Init<'_>) -> Result<Self> {
        let op = "spectral_norm";
        layer.weight().check_whole(op).map_err(|e| e.help("leave the weight of the layer out of the plan"))?;
        let weight = layer.weight().values();
        if n_power_iterations == 0 {
            return Err(Error::argument(op, "n_power_iterations is 0; it is at least 1"));
        }
        check_eps(op, eps)?;
        if weight.rank() < 2 || weight.numel() == 0 {
            let e = Error::shape(op, "the weight has two axes or more, and elements");
            return Err(e.operand("weight", weight.shape(), weight.dtype(), weight.device()));
        }
        let matrix = matrix(weight, layer.output_axis())?;
        let mut start = |size: usize| init.normal([size], 0.0, 1.0)?.to_dtype(weight.dtype())?.normalize(2.0, 0, eps);
        let (u, v) = (start(matrix.shape()[0]).here()?, start(matrix.shape()[1]).here()?);
        let (u, v) = iterate(&matrix, (u, v), FIRST_STEPS, eps)?;
        let (u, v) = (Buffer::new(u)?, Buffer::new(v)?);
        Ok(SpectralNorm { layer, n_power_iterations, eps, u, v, mode: Mode::Train })
    }

    /// The weight with which the layer computes.
    #[track_caller]
    fn weight(&self) -> Result<Tensor> {
        let weight = self.layer.weight();
        weight.check_whole("spectral_norm").map_err(|e| e.help("leave the weight of the layer out of the plan"))?;
        let matrix = matrix(weight, self.layer.output_axis())?;
        if self.mode.is_training() {
            autograd::once(|| self.improve(&matrix))?;
        }
        let (u, v) = (self.u.tensor(), self.v.tensor());
        let sigma = matrix.mul(&v)?.sum(&[1], false)?.mul(&u)?.sum_all()?;
        weight.div(&sigma)
    }

    /// Improves the singular vectors.
    #[track_caller]
    fn improve(&self, matrix: &Tensor) -> Result<()> {
        let _guard = no_grad_guard();
        let start = (self.u.tensor(), self.v.tensor());
        let (u, v) = iterate(&matrix.detach(), start, self.n_power_iterations, self.eps)?;
        self.u.set(&u)?;
        self.v.set(&v)
    }
}

/// The weight as a matrix `[outputs, rest]`.
#[track_caller]
fn matrix(weight: &Tensor, axis: usize) -> Result<Tensor> {
    let rows = weight.shape()[axis];
    weight.movedim(&[axis as isize], &[0])?.reshape([rows, weight.numel() / rows.max(1)])
}

/// Steps of the power iteration.
#[track_caller]
fn iterate(matrix: &Tensor, (mut u, mut v): (Tensor, Tensor), steps: usize, eps: f64) -> Result<(Tensor, Tensor)> {
    for _ in 0..steps {
        u = matrix.matmul(&v)?.normalize(2.0, 0, eps)?;
        v = matrix.t()?.matmul(&u)?.normalize(2.0, 0, eps)?;
    }
    Ok((u, v))
}

const FROM: &str = "weight";
const ORIGINAL: &str = "parametrizations.weight.original";
const U: &str = "parametrizations.weight.0._u";
const V: &str = "parametrizations.weight.0._v";

impl<L: Weighted> Module for SpectralNorm<L> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.fields_of(&self.layer, FROM, ORIGINAL);
        visitor.child(U, &self.u);
        visitor.child(V, &self.v);
        visitor.child("mode", &self.mode);
        visitor.kind("SpectralNorm");
    }
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        visitor.fields_of(&mut self.layer, FROM, ORIGINAL);
        visitor.child(U, &mut self.u);
        visitor.child(V, &mut self.v);
        visitor.child("mode", &mut self.mode);
    }
}

impl<L: Weighted> Forward for SpectralNorm<L> {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.layer.compute_with(&self.weight()?, input).here()
    }
}

impl<L: Weighted> std::fmt::Display for SpectralNorm<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tree().fmt(f)
    }
}

impl<L: Weighted> std::fmt::Debug for SpectralNorm<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
