//! The causal rule of attention, and its mask.

use gradus_backend::{DType, Error, Here, Result};

use crate::{Device, Tensor};

/// The causal rule: which keys a query may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Causal {
    /// All keys.
    #[default]
    No,
    /// Query `i` of `lq` sees keys up to `i + lk - lq`. The last query sees all `lk` keys, as it should when earlier
    /// keys are cached.
    BottomRight,
    /// Query `i` sees keys up to `i`.
    TopLeft,
}

/// The causal rule as a bool mask `[lq, lk]`: true where query `i` may see key `j`. PyTorch's
/// `generate_square_subsequent_mask` is the float form of `causal_mask(n, n, Causal::TopLeft, device)`. As an
/// [option](super::AttentionOptions::causal), the rule has the same effect without a matrix.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let mask = ops::causal_mask(2, 3, Causal::BottomRight, &device)?;
/// assert_eq!(mask.to_vec::<bool>()?, [true, true, false, true, true, true]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn causal_mask(lq: usize, lk: usize, causal: Causal, device: &Device) -> Result<Tensor> {
    let sizes = i64::try_from(lq).ok().zip(i64::try_from(lk).ok()).filter(|(q, k)| q.checked_add(*k).is_some());
    let (q, k) = sizes.ok_or_else(|| Error::argument("causal_mask", "the lengths are too large")).here()?;
    let offset = match causal {
        Causal::No => k,
        Causal::TopLeft => 0,
        Causal::BottomRight => k - q,
    };
    let last = Tensor::arange(offset, offset + q, 1, DType::I64, device)?.unsqueeze(1)?;
    Tensor::arange(0, k, 1, DType::I64, device)?.le(&last)
}
