//! The [`BatchNorm`] layer.

use gradus_tensor::{Operand, Result, Tensor, autograd, no_grad_guard};

use super::norm::{affine, check_channels, check_eps, check_momentum};
use super::running::{Buffers, increment, shift};
use crate::{Buffer, Forward, Init, Mode, Module, Parameter};

/// Batch normalisation (Ioffe and Szegedy, 2015): normalises each channel over the batch. The input is `[n, c, ..]`,
/// for example images `[n, c, h, w]` or vectors `[n, c]`; the output has the same shape.
///
/// In training, it normalises with the mean and the biased variance of the batch. It also updates the running
/// statistics once per call, with the unbiased variance: `running = (1 - momentum) * running + momentum * batch`. The
/// recomputation of a [`checkpoint`](gradus_tensor::autograd::checkpoint) does not update them again. In evaluation, it
/// normalises with the running statistics. These are kept in f32 or wider. A layer without running statistics always
/// normalises with those of the batch.
///
/// ```
/// # use gradus_nn::{BatchNorm2d, BatchNormConfig, Forward, Init, Module}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// let mut norm = BatchNorm2d::new(1, BatchNormConfig::default(), &mut Init::new(DType::F32, &device, &mut generator))?;
/// let x = Tensor::from_vec(vec![1.0f32, 3.0], [2, 1], &device)?;
/// let y = norm.forward(&x)?.to_vec::<f32>()?;
/// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 1.0).abs() < 1e-4);
/// let state = norm.state_dict()?;
/// assert!((state.get("running_mean").unwrap().item()? - 0.2).abs() < 1e-6); // 0.1 * 2
/// assert!((state.get("running_var").unwrap().item()? - 1.1).abs() < 1e-6); // 0.9 + 0.1 * 2
/// norm.eval();
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct BatchNorm {
    num_features: usize,
    eps: f64,
    momentum: Option<f64>,
    /// Scale of each channel, `[c]`, initially 1.
    pub weight: Option<Parameter>,
    /// Shift of each channel, `[c]`, initially 0.
    pub bias: Option<Parameter>,
    /// Running mean of each channel, `[c]`, initially 0.
    pub running_mean: Option<Buffer>,
    /// Running variance of each channel, `[c]`, initially 1.
    pub running_var: Option<Buffer>,
    /// Number of training batches seen so far, i64.
    pub num_batches_tracked: Option<Buffer>,
    mode: Mode,
}

/// Options of [`BatchNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNormConfig {
    /// Added to the variance; above 0. Default 1e-5.
    pub eps: f64,
    /// Weight of the new batch in the running statistics, 0 to 1. With `None` it is 1 over the number of batches, so
    /// that the running statistics are the mean over all batches. Default 0.1.
    pub momentum: Option<f64>,
    /// Whether the layer has a weight, and a bias unless that is left out. Default true.
    pub affine: bool,
    /// Whether the layer has a bias, if it is affine. Default true.
    pub bias: bool,
    /// Whether the layer has running statistics. Default true.
    pub track_running_stats: bool,
}

impl Default for BatchNormConfig {
    fn default() -> Self {
        BatchNormConfig { eps: 1e-5, momentum: Some(0.1), affine: true, bias: true, track_running_stats: true }
    }
}

impl BatchNorm {
    /// Creates a layer for `num_features` channels.
    #[track_caller]
    pub fn new(num_features: usize, config: BatchNormConfig, init: &mut Init<'_>) -> Result<Self> {
        let BatchNormConfig { eps, momentum, affine: has_weight, bias: has_bias, track_running_stats } = config;
        check_eps("batch_norm", eps)?;
        check_momentum("batch_norm", momentum.unwrap_or(0.0))?;
        let (weight, bias) = affine(num_features, has_weight, has_bias, init)?;
        let Buffers { mean, var, count } = Buffers::new(num_features, track_running_stats, init)?;
        Ok(BatchNorm {
            num_features,
            eps,
            momentum,
            weight,
            bias,
            running_mean: mean,
            running_var: var,
            num_batches_tracked: count,
            mode: Mode::Train,
        })
    }

    /// The statistics `[c]` with which an input is normalised in evaluation, mean and variance. There are none in training,
    /// and none if the layer has no running statistics: it then takes those of the batch.
    pub fn fixed_statistics(&self) -> Option<(Tensor, Tensor)> {
        let running = self.running_mean.as_ref().zip(self.running_var.as_ref());
        running.filter(|_| !self.mode.is_training()).map(|(mean, var)| (mean.tensor(), var.tensor()))
    }

    /// Normalises `[n, c, ..]` with the given mean and variance `[c]` in place of those of the input, and applies weight and
    /// bias.
    ///
    /// # Errors
    /// Those of [`Tensor::batch_norm_eval`].
    #[track_caller]
    pub fn normalize(&self, input: &Tensor, mean: &Tensor, var: &Tensor) -> Result<Tensor> {
        input.batch_norm_eval(mean, var, self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }

    /// Moves the running statistics towards the mean and the unbiased variance `[c]` of a batch, in training. Does nothing
    /// in evaluation, and in the recomputation of a [`checkpoint`](gradus_tensor::autograd::checkpoint).
    ///
    /// # Errors
    /// Those of the sums, such as another shape or too little memory.
    #[track_caller]
    pub fn track(&self, mean: &Tensor, var: &Tensor) -> Result<()> {
        if !self.mode.is_training() {
            return Ok(());
        }
        autograd::once(|| self.update(mean, var))
    }

    #[track_caller]
    fn update(&self, mean: &Tensor, var: &Tensor) -> Result<()> {
        let _guard = no_grad_guard();
        let Some(count) = &self.num_batches_tracked else { return Ok(()) };
        let share = increment(count)?.to_dtype(mean.dtype().compute())?.recip()?;
        let momentum = self.momentum.map_or(Operand::Tensor(&share), Operand::from);
        for (running, batch) in [(&self.running_mean, mean), (&self.running_var, var)] {
            if let Some(running) = running {
                shift(running, batch, momentum)?;
            }
        }
        Ok(())
    }
}

impl Forward for BatchNorm {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        check_channels("batch_norm", input, self.num_features)?;
        if let Some((mean, var)) = self.fixed_statistics() {
            return self.normalize(input, &mean, &var);
        }
        let (y, batch) = input.batch_norm(self.weight.as_deref(), self.bias.as_deref(), self.eps)?;
        self.track(&batch.mean, &batch.var)?;
        Ok(y)
    }
}
