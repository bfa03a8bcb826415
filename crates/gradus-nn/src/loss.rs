//! Loss functions, for code that selects a loss by value. Each calls the [`Tensor`] method named in its documentation
//! and leaves the less common arguments at their defaults. As with those methods, the operands are not broadcast.

use gradus_tensor::ops::{Reduction, Target};
use gradus_tensor::{Result, Tensor};

/// Binary cross-entropy between logits and target probabilities: see [`Tensor::bce_with_logits`].
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

/// Quadratic where the error is at most `delta`, linear beyond: see [`Tensor::huber_loss`].
#[track_caller]
pub fn huber(input: &Tensor, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
    input.huber_loss(target, delta, reduction)
}

/// Cross-entropy between logits `[n, c, ..]` and target probabilities of the same shape: see
/// [`Tensor::cross_entropy_with`].
#[track_caller]
pub fn soft_cross_entropy(logits: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    logits.cross_entropy_with(Target::Probabilities(target), None, None, 0.0, reduction)
}
