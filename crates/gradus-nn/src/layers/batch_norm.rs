//! The [`BatchNorm`] layer.

use gradus_tensor::ops::Class;
use gradus_tensor::{DType, Elementwise, Error, Operand, Result, Tensor, autograd, no_grad_guard};

use crate::{Buffer, Forward, Init, Mode, Module, Parameter};

/// Batch normalisation (Ioffe and Szegedy, 2015): normalises each channel over the batch. The input is `[n, c, ..]`,
/// for example images `[n, c, h, w]` or vectors `[n, c]`; the output has the same shape.
///
/// In training, it normalises with the mean and the biased variance of the batch. It also updates the running
/// statistics once per call, with the unbiased variance: `running = (1 - momentum) * running + momentum * batch`. The
/// recomputation of a [`checkpoint`](gradus_tensor::autograd::checkpoint) does not update them again. In evaluation, it
/// normalises with the running statistics. These are kept in f32 or wider.
///
/// ```
/// # use gradus_nn::{BatchNorm2d, BatchNormConfig, Forward, Init, Module}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// let mut norm = BatchNorm2d::new(1, BatchNormConfig::default(), &mut Init::new(DType::F32, &device, &mut generator))?;
/// let x = Tensor::from_vec(vec![1.0f32, 3.0], [2, 1], &device)?;
/// let y = norm.forward(&x)?.to_vec::<f32>()?;
/// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 1.0).abs() < 1e-4);
/// assert!((norm.running_mean.tensor().item()? - 0.2).abs() < 1e-6); // 0.1 * 2
/// assert!((norm.running_var.tensor().item()? - 1.1).abs() < 1e-6); // 0.9 + 0.1 * 2
/// norm.eval();
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct BatchNorm {
    num_features: usize,
    eps: f64,
    momentum: f64,
    /// Scale of each channel, `[c]`, initially 1.
    pub weight: Option<Parameter>,
    /// Shift of each channel, `[c]`, initially 0.
    pub bias: Option<Parameter>,
    /// Running mean of each channel, `[c]`, initially 0.
    pub running_mean: Buffer,
    /// Running variance of each channel, `[c]`, initially 1.
    pub running_var: Buffer,
    /// Number of training batches seen so far, i64.
    pub num_batches_tracked: Buffer,
    mode: Mode,
}

/// Options of [`BatchNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNormConfig {
    /// Added to the variance; above 0. Default 1e-5.
    pub eps: f64,
    /// Weight of the new batch in the running statistics, 0 to 1. Default 0.1.
    pub momentum: f64,
    /// Whether the layer has a weight and a bias. Default true.
    pub affine: bool,
}

impl Default for BatchNormConfig {
    fn default() -> Self {
        BatchNormConfig { eps: 1e-5, momentum: 0.1, affine: true }
    }
}

/// The arguments are the running value, the batch value and the momentum.
static MOVE: Elementwise =
    Elementwise::new("moving_average", Class::Float, 3, |v| vec![v[0] * (1.0 - v[2]) + v[1] * v[2]]);

impl BatchNorm {
    /// Creates a layer for `num_features` channels.
    #[track_caller]
    pub fn new(num_features: usize, config: BatchNormConfig, init: &mut Init<'_>) -> Result<Self> {
        let BatchNormConfig { eps, momentum, affine } = config;
        if !(eps > 0.0 && eps.is_finite()) {
            return Err(Error::argument("batch_norm", format!("eps is {eps}; it is above 0")));
        }
        if !(0.0..=1.0).contains(&momentum) {
            return Err(Error::argument("batch_norm", format!("momentum is {momentum}; it is 0 to 1")));
        }
        let (device, kept) = (init.device, init.dtype.compute());
        let weight = if affine { Some(Parameter::new(init.ones([num_features])?)?) } else { None };
        let bias = if affine { Some(Parameter::new(init.zeros([num_features])?)?) } else { None };
        Ok(BatchNorm {
            num_features,
            eps,
            momentum,
            weight,
            bias,
            running_mean: Buffer::new(Tensor::zeros([num_features], kept, device)?)?,
            running_var: Buffer::new(Tensor::ones([num_features], kept, device)?)?,
            num_batches_tracked: Buffer::new(Tensor::zeros([], DType::I64, device)?)?,
            mode: Mode::Train,
        })
    }

    /// Updates the running statistics with those of a batch.
    #[track_caller]
    fn update(&self, mean: &Tensor, var: &Tensor) -> Result<()> {
        let _guard = no_grad_guard();
        self.shift(&self.running_mean, mean)?;
        self.shift(&self.running_var, var)?;
        loop {
            let (count, seen) = self.num_batches_tracked.versioned();
            if self.num_batches_tracked.replace(count.add(1)?, seen) {
                return Ok(());
            }
        }
    }

    /// Updates one statistic, and tries again if another thread updated it in the meantime.
    #[track_caller]
    fn shift(&self, running: &Buffer, batch: &Tensor) -> Result<()> {
        loop {
            let (old, seen) = running.versioned();
            let new = MOVE.apply(&[Operand::Tensor(&old), Operand::Tensor(batch), self.momentum.into()])?;
            let new = new.to_dtype(old.dtype())?;
            if running.replace(new, seen) {
                return Ok(());
            }
        }
    }
}

impl Forward for BatchNorm {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        if input.rank() < 2 || input.shape()[1] != self.num_features {
            let e = Error::shape("batch_norm", format!("the input is [n, {}, ..]", self.num_features));
            return Err(e.operand("input", input.shape(), input.dtype(), input.device()));
        }
        let (weight, bias) = (self.weight.as_deref(), self.bias.as_deref());
        if !self.mode.is_training() {
            let (mean, var) = (self.running_mean.tensor(), self.running_var.tensor());
            return input.batch_norm_eval(&mean, &var, weight, bias, self.eps);
        }
        let (y, batch) = input.batch_norm(weight, bias, self.eps)?;
        autograd::once(|| self.update(&batch.mean, &batch.var))?;
        Ok(y)
    }
}
