//! [`SyncBatchNorm`]: batch normalisation over the batch of all ranks.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{BatchNorm, BatchNormConfig, Forward, Init, Module, Visitor, VisitorMut};
use gradus_tensor::{Error, Result, Tensor};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::reduce::Reduce;

/// A [`BatchNorm`] whose mean and variance are those of the inputs of all ranks, `[n, c, ..]` on each, where `n` may
/// differ. Its parameters and running statistics have the same names, and the same values on all ranks.
///
/// All ranks call it at the same time, so that a rank computes its part of a batch at once:
/// `DataParallel::with_shards(comm, comm.size())`, with at least as many rows as ranks. The bits then depend on the number
/// of ranks. Without running statistics, evaluation needs all ranks at the same time too.
#[derive(Clone)]
pub struct SyncBatchNorm {
    /// What it normalises with, apart from the statistics of a batch.
    pub norm: BatchNorm,
    num_features: usize,
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
        Ok(SyncBatchNorm { norm: BatchNorm::new(num_features, config, init)?, num_features, comm: comm.clone() })
    }

    /// The sum over ranks of the sums of each channel, divided by the number of its elements on all ranks.
    fn mean(&self, x: &Tensor, axes: &[isize], count: &Tensor, line: Line) -> Result<Tensor> {
        self.comm.differentiable(Collective::AllReduce(Reduce::Sum), &x.sum(axes, false)?, line)?.div(count)
    }

    /// The mean and the biased variance of each channel over the inputs of all ranks, and the number of its elements.
    fn statistics(&self, x: &Tensor, line: Line) -> Result<(Tensor, Tensor, Tensor)> {
        // f16 and bf16 are summed in f32, as everywhere.
        let wide = x.to_dtype(x.dtype().compute())?;
        let axes: Vec<isize> = (0..x.rank() as isize).filter(|&axis| axis != 1).collect();
        let mut channels = vec![1; x.rank()];
        channels[1] = self.num_features;
        let mine = (x.numel() / self.num_features.max(1)) as f64;
        let count = Tensor::full([], mine, wide.dtype(), x.device())?;
        let count = self.comm.run(Collective::AllReduce(Reduce::Sum), &count, line)?;
        // The number is read where it may be too small, since a captured step cannot read it.
        let all = if mine < 2.0 { count.item()? } else { mine };
        if all < 2.0 {
            let m = format!("{all} element a channel on all ranks has no variance");
            let e = Error::shape("sync_batch_norm", m).operand("input", x.shape(), x.dtype(), x.device());
            return Err(e.help("give a larger batch, or call eval()"));
        }
        let mean = self.mean(&wide, &axes, &count, line)?;
        let centred = wide.sub(&mean.reshape(&channels)?)?;
        let var = self.mean(&centred.square()?, &axes, &count, line)?;
        Ok((mean, var, count))
    }
}

impl Module for SyncBatchNorm {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.wrapped(&self.norm);
    }

    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        visitor.wrapped(&mut self.norm);
    }
}

impl fmt::Display for SyncBatchNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree().fmt(f)
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
        if let Some((mean, var)) = self.norm.fixed_statistics() {
            return self.norm.normalize(x, &mean, &var).map_err(|e| e.at(line));
        }
        let shared = || {
            let (mean, var, count) = self.statistics(x, line)?;
            self.norm.track(&mean.detach(), &var.detach().mul(count.div(&count.sub(1.0)?)?)?)?;
            self.norm.normalize(x, &mean, &var)
        };
        shared().map_err(|e: Error| e.at(line))
    }
}
