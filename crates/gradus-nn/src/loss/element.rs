//! Losses of single elements: distances, binary labels and likelihoods.

use gradus_tensor::{Reduction, Result, Tensor};

use super::{losses, tensor_of};
use crate::{Buffer, Module};

losses! {
    /// `|input - target|`, see [`Tensor::l1_loss`].
    L1Loss {}: |it, input, target| input.l1_loss(target, it.reduction);
    /// `(input - target)^2`, see [`Tensor::mse_loss`].
    ///
    /// ```
    /// # use gradus_nn::MseLoss; use gradus_tensor::*;
    /// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
    /// let (a, b) = (Tensor::from_vec([1.0f32, 2.0], [2], &device)?, Tensor::from_vec([1.0f32, 5.0], [2], &device)?);
    /// assert_eq!(MseLoss::default().forward(&a, &b)?.item()?, 4.5);
    /// assert_eq!(MseLoss { reduction: Reduction::Sum }.forward(&a, &b)?.item()?, 9.0);
    /// # Ok::<(), Error>(())
    /// ```
    MseLoss {}: |it, input, target| input.mse_loss(target, it.reduction);
    /// Quadratic where the error is at most `beta`, linear beyond, see [`Tensor::smooth_l1_loss`].
    SmoothL1Loss {
        /// Where the pieces meet. Default 1.
        beta: f64 = 1.0,
    }: |it, input, target| input.smooth_l1_loss(target, it.beta, it.reduction);
    /// Quadratic where the error is at most `delta`, linear beyond, see [`Tensor::huber_loss`].
    HuberLoss {
        /// Where the pieces meet. Default 1.
        delta: f64 = 1.0,
    }: |it, input, target| input.huber_loss(target, it.delta, it.reduction);
    /// Binary cross-entropy of probabilities, see [`Tensor::binary_cross_entropy`].
    BceLoss {
        /// Factors of the losses, which broadcast to the input. Default none.
        weight: Option<Buffer> = None,
    }: |it, input, target| input.binary_cross_entropy(target, tensor_of(&it.weight).as_ref(), it.reduction);
    /// Binary cross-entropy of logits, see [`Tensor::bce_with_logits`].
    BceWithLogitsLoss {
        /// Factors of the losses, which broadcast to the input. Default none.
        weight: Option<Buffer> = None,
        /// Factors of the positive class, which broadcast to the input. Default none.
        pos_weight: Option<Buffer> = None,
    }: |it, input, target| {
        let (weight, positive) = (tensor_of(&it.weight), tensor_of(&it.pos_weight));
        input.bce_with_logits(target, weight.as_ref(), positive.as_ref(), it.reduction)
    };
    /// `ln(1 + e^(-target * input))` for targets 1 and -1, see [`Tensor::soft_margin_loss`].
    SoftMarginLoss {}: |it, input, target| input.soft_margin_loss(target, it.reduction);
    /// Negative log-likelihood of counts under Poisson rates, see [`Tensor::poisson_nll_loss`].
    PoissonNllLoss {
        /// Whether the input is the logarithm of the rate. Default true.
        log_input: bool = true,
        /// Whether Stirling's approximation of `ln target!` is added. Default false.
        full: bool = false,
        /// Added to the rate in the logarithm, unless the input is a logarithm. Default 1e-8.
        eps: f64 = 1e-8,
    }: |it, input, target| input.poisson_nll_loss(target, it.log_input, it.full, it.eps, it.reduction);
    /// Negative log-likelihood under normal distributions with means `input` and variances `var`, see
    /// [`Tensor::gaussian_nll_loss`].
    GaussianNllLoss {
        /// Whether `ln(2 pi) / 2` is added. Default false.
        full: bool = false,
        /// The smallest variance. Default 1e-6.
        eps: f64 = 1e-6,
    }: |it, input, target, var| input.gaussian_nll_loss(target, var, it.full, it.eps, it.reduction);
}

/// How the terms of a Kullback-Leibler divergence are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KlDivReduction {
    /// Not at all.
    None,
    /// Their mean over all elements, PyTorch's default.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// Their sum divided by the size of the first axis: the mean divergence of a batch.
    BatchMean,
}

/// The Kullback-Leibler divergence between log-probabilities `input` and probabilities `target`, see
/// [`Tensor::kl_div`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Module)]
pub struct KlDivLoss {
    /// How the terms are combined. Default mean; the divergence itself is `BatchMean`.
    pub reduction: KlDivReduction,
    /// Whether the target holds log-probabilities too. Default false.
    pub log_target: bool,
}

impl KlDivLoss {
    /// Computes the loss.
    #[track_caller]
    pub fn forward(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let reduction = match self.reduction {
            KlDivReduction::None => Reduction::None,
            KlDivReduction::Mean => Reduction::Mean,
            KlDivReduction::Sum => Reduction::Sum,
            KlDivReduction::BatchMean => return input.kl_div_batch_mean(target, self.log_target),
        };
        input.kl_div(target, self.log_target, reduction)
    }
}
