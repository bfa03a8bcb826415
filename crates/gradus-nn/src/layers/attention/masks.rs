//! [`Masks`]: what a query may see.

use gradus_tensor::{Causal, DType, Error, Result, Tensor};

pub(super) const OP: &str = "multihead_attention";

/// What a query may see. By default it sees every key.
///
/// As everywhere in Gradus, a bool mask keeps what is true. PyTorch's `attn_mask`, `key_padding_mask` and their kin hide
/// what is true: pass `mask.logical_not()?`. A float mask is added to the scores.
#[derive(Debug, Clone, Copy, Default)]
pub struct Masks<'a> {
    /// A mask that broadcasts with the scores `[n, heads, lq, lk]`.
    pub mask: Option<&'a Tensor>,
    /// A mask of the keys of each sample, `[n, lk]`.
    pub key_mask: Option<&'a Tensor>,
    /// The causal rule, which limits the keys in addition to the masks.
    pub causal: Causal,
}

impl<'a> Masks<'a> {
    /// Masks by the causal rule alone.
    pub fn causal(causal: Causal) -> Self {
        Masks { causal, ..Self::default() }
    }

    /// The two masks as one that broadcasts with the scores. Errors if one is neither bool nor float.
    #[track_caller]
    pub(super) fn merged(&self) -> Result<Option<Tensor>> {
        for (name, mask) in [("mask", self.mask), ("key_mask", self.key_mask)] {
            let Some(mask) = mask else { continue };
            if mask.dtype() != DType::Bool && !mask.dtype().is_float() {
                let e = Error::dtype(OP, mask.dtype(), "bool, true to keep, or floats, which are added to the scores");
                let e = e.operand(name, mask.shape(), mask.dtype(), mask.device());
                return Err(e.help("convert it: mask.to_dtype(DType::Bool)?"));
            }
        }
        let Some(keys) = self.key_mask else { return Ok(self.mask.cloned()) };
        if keys.rank() != 2 {
            let e = Error::shape(OP, "a mask of the keys is [n, lk]");
            return Err(e.operand("key_mask", keys.shape(), keys.dtype(), keys.device()));
        }
        let keys = keys.unsqueeze(1)?.unsqueeze(1)?;
        if let Some(mask) = self.mask { both(mask, &keys).map(Some) } else { Ok(Some(keys)) }
    }
}

/// The mask that hides what either mask hides.
#[track_caller]
pub(super) fn both(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (a.dtype() == DType::Bool, b.dtype() == DType::Bool) {
        (true, true) => a.logical_and(b),
        (true, false) => a.where_(b, f64::NEG_INFINITY),
        (false, true) => b.where_(a, f64::NEG_INFINITY),
        (false, false) => a.add(b),
    }
}
