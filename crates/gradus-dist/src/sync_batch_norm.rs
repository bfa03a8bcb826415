//! [`SyncBatchNorm`]: batch normalisation over the batch of all ranks.

use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{BatchNorm, BatchNormConfig, Buffer, Forward, Init, Mode, Module, Parameter};
use gradus_tensor::{DType, Error, Result, Tensor, autograd, no_grad};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::reduce::Reduce;

/// A [`BatchNorm`] whose mean and variance are those of the inputs of all ranks, `[n, c, ..]` on each, where `n` may
/// differ. Its parameters and running statistics have the same names, and the same values on all ranks.
///
/// All ranks call it at the same time, so that a rank computes its part of a batch at once:
/// `DataParallel::with_shards(comm, comm.size())`, with at least as many rows as ranks. The bits then depend on the number
/// of ranks. Such a step is not captured. Without running statistics, evaluation needs all ranks at the same time too.
#[derive(Clone, Module)]
pub struct SyncBatchNorm {
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
    #[module(skip)]
    comm: Arc<dyn Communicator>,
}

impl SyncBatchNorm {
    /// Creates a layer for `num_features` channels.
    ///
    /// # Errors
    /// Those of [`BatchNorm::new`].
    #[track_caller]
    pub fn new(
        num_features: usize,
        config: BatchNormConfig,
        comm: &Arc<dyn Communicator>,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        let norm = BatchNorm::new(num_features, config, init)?;
        Ok(SyncBatchNorm {
            num_features,
            eps: config.eps,
            momentum: config.momentum,
            weight: norm.weight,
            bias: norm.bias,
            running_mean: norm.running_mean,
            running_var: norm.running_var,
            num_batches_tracked: norm.num_batches_tracked,
            mode: Mode::Train,
            comm: comm.clone(),
        })
    }

    /// The sum over ranks of the sums of each channel, divided by the number of its elements on all ranks.
    fn mean(&self, x: &Tensor, axes: &[isize], count: f64, line: Line) -> Result<Tensor> {
        self.comm.differentiable(Collective::AllReduce(Reduce::Sum), &x.sum(axes, false)?, line)?.div(count)
    }

    /// Moves the running statistics towards those of a batch of `count` elements a channel.
    fn update(&self, mean: &Tensor, var: &Tensor, count: f64) -> Result<()> {
        let Some(batches) = &self.num_batches_tracked else { return Ok(()) };
        let seen = batches.tensor().add(1)?;
        batches.set(&seen)?;
        let share = match self.momentum {
            Some(momentum) => momentum,
            None => seen.item()?.recip(),
        };
        let unbiased = var.mul(count / (count - 1.0))?;
        for (running, batch) in [(&self.running_mean, mean), (&self.running_var, &unbiased)] {
            if let Some(running) = running {
                let old = running.tensor();
                running.set(&old.mul(1.0 - share)?.add(&batch.to_dtype(old.dtype())?.mul(share)?)?)?;
            }
        }
        Ok(())
    }

    fn normalised(&self, x: &Tensor, line: Line) -> Result<Tensor> {
        // f16 and bf16 are summed in f32, as everywhere.
        let wide = x.to_dtype(x.dtype().compute())?;
        let axes: Vec<isize> = (0..x.rank() as isize).filter(|&axis| axis != 1).collect();
        let mut channels = vec![1; x.rank()];
        channels[1] = self.num_features;
        let mine = (x.numel() / self.num_features.max(1)) as f64;
        let counts =
            self.comm.run_on_host(Collective::AllReduce(Reduce::Sum), DType::F64, vec![mine.to_bits()], line)?;
        let count = counts.first().map_or(mine, |&bits| f64::from_bits(bits));
        if count < 2.0 {
            let m = format!("{count} element a channel on all ranks has no variance");
            let e = Error::shape("sync_batch_norm", m).operand("input", x.shape(), x.dtype(), x.device());
            return Err(e.help("give a larger batch, or call eval()"));
        }
        let mean = self.mean(&wide, &axes, count, line)?;
        let centred = wide.sub(&mean.reshape(&channels)?)?;
        let var = self.mean(&centred.square()?, &axes, count, line)?;
        if self.mode.is_training() {
            autograd::once(|| no_grad(|| self.update(&mean.detach(), &var.detach(), count)))?;
        }
        let mut y = centred.mul(&var.add(self.eps)?.rsqrt()?.reshape(&channels)?)?;
        if let Some(weight) = &self.weight {
            y = y.mul(&weight.tensor().reshape(&channels)?)?;
        }
        if let Some(bias) = &self.bias {
            y = y.add(&bias.tensor().reshape(&channels)?)?;
        }
        y.to_dtype(x.dtype())
    }
}

impl Forward for SyncBatchNorm {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let line = Location::caller();
        if x.rank() < 2 || x.shape()[1] != self.num_features {
            let m = format!("the input has no {} channels on axis 1", self.num_features);
            let e = Error::shape("sync_batch_norm", m).operand("input", x.shape(), x.dtype(), x.device());
            return Err(e.at(line));
        }
        let running = self.running_mean.as_ref().zip(self.running_var.as_ref());
        if let Some((mean, var)) = running.filter(|_| !self.mode.is_training()) {
            let (weight, bias) = (self.weight.as_deref(), self.bias.as_deref());
            return x.batch_norm_eval(&mean.tensor(), &var.tensor(), weight, bias, self.eps);
        }
        self.normalised(x, line).map_err(|e| e.at(line))
    }
}
