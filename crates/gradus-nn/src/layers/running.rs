//! Running statistics of the channels, for [`BatchNorm`](crate::BatchNorm) and [`InstanceNorm`](crate::InstanceNorm).

use gradus_tensor::ops::Class;
use gradus_tensor::{DType, Elementwise, Operand, Result, Tensor};

use crate::{Buffer, Init};

/// The buffers of a layer: mean `[c]`, variance `[c]`, and the number of batches. The first two are f32 or wider. All
/// are absent if the layer does not track statistics.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) mean: Option<Buffer>,
    pub(super) var: Option<Buffer>,
    pub(super) count: Option<Buffer>,
}

impl Buffers {
    #[track_caller]
    pub(super) fn new(features: usize, tracks: bool, init: &Init<'_>) -> Result<Self> {
        if !tracks {
            return Ok(Buffers::default());
        }
        let (device, kept) = (init.device, init.dtype.compute());
        Ok(Buffers {
            mean: Some(Buffer::new(Tensor::zeros([features], kept, device)?)?),
            var: Some(Buffer::new(Tensor::ones([features], kept, device)?)?),
            count: Some(Buffer::new(Tensor::zeros([], DType::I64, device)?)?),
        })
    }
}

/// The arguments are the running value, the batch value and the momentum.
static MOVE: Elementwise =
    Elementwise::new("moving_average", Class::Float, 3, |v| vec![v[0] * (1.0 - v[2]) + v[1] * v[2]]);

/// Moves one statistic towards that of a batch, and tries again if another thread moved it in the meantime.
#[track_caller]
pub(super) fn shift(running: &Buffer, batch: &Tensor, momentum: Operand<'_>) -> Result<()> {
    loop {
        let (old, seen) = running.versioned();
        let new = MOVE.apply(&[Operand::Tensor(&old), Operand::Tensor(batch), momentum])?;
        let new = new.to_dtype(old.dtype())?;
        if running.replace(new, seen) {
            return Ok(());
        }
    }
}

/// Counts one batch more, and returns the new count.
#[track_caller]
pub(super) fn increment(count: &Buffer) -> Result<Tensor> {
    loop {
        let (old, seen) = count.versioned();
        let new = old.add(1)?;
        if count.replace(new.clone(), seen) {
            return Ok(new);
        }
    }
}
