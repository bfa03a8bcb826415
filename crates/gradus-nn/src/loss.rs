//! The losses of a tensor as functions, for call sites that choose one by value. Each is the method of
//! [`Tensor`] of the same family, without its rarer arguments; like these they broadcast nothing.

use gradus_tensor::ops::{Reduction, Target};
use gradus_tensor::{Result, Tensor};

/// Binary cross-entropy of logits and probabilities: see [`Tensor::bce_with_logits`].
///
/// ```
/// # use gradus_nn::loss; use gradus_tensor::{*, ops::Reduction};
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let logits = Tensor::from_vec([0.0f32, 100.0], [2], &device)?;
/// let target = Tensor::from_vec([1.0f32, 1.0], [2], &device)?;
/// let losses = loss::bce_with_logits(&logits, &target, Reduction::None)?.to_vec::<f32>()?;
/// assert!((losses[0] - 2f32.ln()).abs() < 1e-6 && losses[1] < 1e-40);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn bce_with_logits(logits: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    logits.bce_with_logits(target, None, None, reduction)
}

/// `|input - target|`: see [`Tensor::l1_loss`].
#[track_caller]
pub fn l1(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    input.l1_loss(target, reduction)
}

/// Quadratic within `delta` and linear outside: see [`Tensor::huber_loss`].
#[track_caller]
pub fn huber(input: &Tensor, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
    input.huber_loss(target, delta, reduction)
}

/// Cross-entropy of logits `[n, c, ..]` and probabilities of that shape: see [`Tensor::cross_entropy_with`].
#[track_caller]
pub fn soft_cross_entropy(logits: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    logits.cross_entropy_with(Target::Probabilities(target), None, None, 0.0, reduction)
}
