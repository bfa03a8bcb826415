//! Losses beyond the tensor's own [`cross_entropy`](gradus_tensor::Tensor::cross_entropy) and
//! [`mse_loss`](gradus_tensor::Tensor::mse_loss). Like these they broadcast nothing.

use gradus_tensor::ops::{Class, Elementwise, Operand, Reduction};
use gradus_tensor::{Error, ErrorKind, Result, Tensor};

/// Of (logit, target). The form without a difference of large numbers.
static BCE: Elementwise = Elementwise::new("bce_with_logits", Class::Float, 2, |v| {
    vec![v[1] * (-v[0]).softplus() + (1.0 - v[1]) * v[0].softplus()]
});

/// Of (difference, delta).
static HUBER: Elementwise = Elementwise::new("huber", Class::Float, 2, |v| {
    let size = v[0].abs();
    vec![size.le(v[1]).select(v[0] * v[0] * 0.5, v[1] * (size - v[1] * 0.5))]
});

fn same_shape(op: &str, input: &Tensor, target: &Tensor) -> Result<()> {
    if input.shape() == target.shape() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::ShapeMismatch, op, "shapes differ")
        .operand("input", input.shape(), input.dtype(), input.device())
        .operand("target", target.shape(), target.dtype(), target.device())
        .help("a loss broadcasts nothing; reshape one"))
}

/// Binary cross-entropy of logits and probabilities, of one shape and float dtype, without overflow:
/// `t ln(1 + e^-x) + (1 - t) ln(1 + e^x)`.
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
    same_shape("bce_with_logits", logits, target)?;
    reduction.apply(&BCE.apply(&[Operand::Tensor(logits), Operand::Tensor(target)])?)
}

/// `|input - target|`, of one shape.
#[track_caller]
pub fn l1(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("l1", input, target)?;
    reduction.apply(&input.sub(target)?.abs()?)
}

/// With `d = input - target`: `d^2 / 2` for `|d| <= delta`, else `delta (|d| - delta / 2)` (Huber, 1964). `delta` is
/// above 0.
#[track_caller]
pub fn huber(input: &Tensor, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
    if !(delta > 0.0 && delta.is_finite()) {
        return Err(Error::argument("huber", format!("delta is {delta}; it is above 0")));
    }
    same_shape("huber", input, target)?;
    reduction.apply(&HUBER.apply(&[Operand::Tensor(&input.sub(target)?), delta.into()])?)
}

/// Cross-entropy of logits `[n, c, ..]` and probabilities of that shape, along axis 1: `-sum(t log_softmax(x))`. The mean
/// is over everything but the classes. For class indices use the tensor's `cross_entropy`.
#[track_caller]
pub fn soft_cross_entropy(logits: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    same_shape("soft_cross_entropy", logits, target)?;
    if logits.rank() < 2 {
        let e = Error::shape("soft_cross_entropy", "logits are [n, c, ..]");
        return Err(e.operand("logits", logits.shape(), logits.dtype(), logits.device()));
    }
    reduction.apply(&logits.log_softmax(1)?.mul(target)?.sum(&[1], false)?.neg()?)
}
