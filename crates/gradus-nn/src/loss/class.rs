//! Losses of classes and of sequences of classes.

use gradus_tensor::ops::Target;
use gradus_tensor::{Reduction, Result, Tensor};

use super::{losses, tensor_of};
use crate::{Buffer, Module};

losses! {
    /// Negative log-likelihood of log-probabilities `[n, c, ..]` and classes `[n, ..]`, see [`Tensor::nll_loss`].
    NllLoss {
        /// The weights of the classes, `[c]`. Default none.
        weight: Option<Buffer> = None,
        /// The target of rows that do not count. Default -100.
        ignore_index: i64 = -100,
    }: |it, input, target| {
        input.nll_loss(target, tensor_of(&it.weight).as_ref(), Some(it.ignore_index), it.reduction)
    };
}

/// Cross-entropy of logits `[n, c, ..]` and classes `[n, ..]` or probabilities `[n, c, ..]`, see
/// [`Tensor::cross_entropy_with`].
///
/// ```
/// # use gradus_nn::{Buffer, CrossEntropyLoss}; use gradus_tensor::{*, ops::Target};
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let logits = Tensor::zeros([2, 4], DType::F32, &device)?;
/// let classes = Tensor::from_vec([3i64, -100], [2], &device)?; // the second row does not count
/// let loss = CrossEntropyLoss::default().forward(&logits, &classes)?.item()?;
/// assert!((loss - 4f64.ln()).abs() < 1e-6);
/// let smooth = CrossEntropyLoss { label_smoothing: 0.1, ..Default::default() };
/// let soft = Tensor::full([2, 4], 0.25, DType::F32, &device)?;
/// assert!((smooth.forward(&logits, Target::Probabilities(&soft))?.item()? - 4f64.ln()).abs() < 1e-6);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct CrossEntropyLoss {
    /// The weights of the classes, `[c]`. Default none.
    pub weight: Option<Buffer>,
    /// The class of rows that do not count. Default -100. With probabilities, an index of 0 or above is an error.
    pub ignore_index: i64,
    /// The share of each target, 0 to 1, that is spread over all classes. Default 0.
    pub label_smoothing: f64,
    /// How the losses are combined. Default mean.
    pub reduction: Reduction,
}

impl Default for CrossEntropyLoss {
    fn default() -> Self {
        CrossEntropyLoss { weight: None, ignore_index: -100, label_smoothing: 0.0, reduction: Reduction::Mean }
    }
}

impl CrossEntropyLoss {
    /// Computes the loss.
    #[track_caller]
    pub fn forward<'a>(&self, input: &Tensor, target: impl Into<Target<'a>>) -> Result<Tensor> {
        let (target, weight) = (target.into(), tensor_of(&self.weight));
        // A negative index is no class, so it means nothing to probabilities.
        let ignored = match target {
            Target::Probabilities(_) if self.ignore_index < 0 => None,
            _ => Some(self.ignore_index),
        };
        input.cross_entropy_with(target, weight.as_ref(), ignored, self.label_smoothing, self.reduction)
    }
}

/// Connectionist temporal classification, see [`Tensor::ctc_loss`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct CtcLoss {
    /// The class that is no label. Default 0.
    pub blank: usize,
    /// How the losses are combined. Default mean, of the losses divided by the lengths of their targets.
    pub reduction: Reduction,
    /// Whether infinite losses become 0. Default false.
    pub zero_infinity: bool,
}

impl Default for CtcLoss {
    fn default() -> Self {
        CtcLoss { blank: 0, reduction: Reduction::Mean, zero_infinity: false }
    }
}

impl CtcLoss {
    /// Computes the loss of log-probabilities `[t, n, c]` and targets, padded `[n, s]` or concatenated.
    #[track_caller]
    pub fn forward(
        &self,
        log_probs: &Tensor,
        targets: &Tensor,
        input_lengths: &[usize],
        target_lengths: &[usize],
    ) -> Result<Tensor> {
        let CtcLoss { blank, reduction, zero_infinity } = *self;
        log_probs.ctc_loss(targets, input_lengths, target_lengths, blank, zero_infinity, reduction)
    }
}
