//! [`Panels`]: a weight that operations of a step read from a copy, which is made again after it has changed.

use std::sync::{Mutex, PoisonError, Weak};

use gradus_tensor::ops::{Conv, LinearPanels, over_storage};
use gradus_tensor::{DType, Error, ErrorKind, Layout, Result, Storage, Tensor, no_grad};

/// A weight of f32 that outlives the calls of a step, and its copy in the form that the device reads in place. Plans for
/// arguments of other sizes share it.
#[derive(Debug)]
pub struct Panels {
    storage: Weak<Storage>,
    /// The weight in the storage.
    weight: Layout,
    form: Form,
    /// The version of the storage that was copied, and the copy.
    copied: Mutex<Option<(u64, Tensor)>>,
}

/// How a weight is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A matrix `[k, n]` in [panels](LinearPanels) with so many columns.
    Columns(usize),
    /// The weight of a convolution with [adjacent output channels](Conv::adjacent_channels).
    Channels,
}

impl Panels {
    /// The weight that lies so in `storage`. It is copied when it is first read.
    pub(crate) fn new(storage: Weak<Storage>, weight: Layout, form: Form) -> Panels {
        Panels { storage, weight, form, copied: Mutex::new(None) }
    }

    /// Whether `other` is the same weight in the same form.
    pub(crate) fn is_same(&self, other: &Panels) -> bool {
        self.storage.ptr_eq(&other.storage) && (self.weight, self.form) == (other.weight, other.form)
    }

    /// The copy of the weight as it is now. That there is no memory for it is not an error of the device, which would
    /// end the call: the function may do without.
    #[track_caller]
    pub(crate) fn now(&self) -> Result<Tensor> {
        let storage = self.storage.upgrade();
        let storage = storage.ok_or_else(|| Error::argument("replay", "a tensor of the step is gone"))?;
        let mut copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        // A write that comes after this line is seen by the next call.
        let version = storage.version();
        if let Some((_, panels)) = copied.as_ref().filter(|(of, _)| *of == version) {
            return Ok(panels.clone());
        }
        // The old copy is freed first.
        *copied = None;
        let pack = || {
            let weight = over_storage(storage, self.weight, DType::F32)?;
            match self.form {
                Form::Columns(width) => LinearPanels::pack(&weight, width),
                Form::Channels => Conv::adjacent_channels(&weight),
            }
        };
        let panels = no_grad(pack).map_err(|e| match e.kind() {
            ErrorKind::OutOfMemory { .. } => Error::argument("replay", "there is no memory for a copy of a weight"),
            _ => e,
        })?;
        *copied = Some((version, panels.clone()));
        Ok(panels)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gradus_cpu::CpuBackend;
    use gradus_tensor::{DType, Device, Result, Tensor};

    use super::{Form, Panels};

    #[test]
    fn a_matrix_is_copied_once_and_again_after_a_write() -> Result<()> {
        let device = Device::from_backend(Arc::new(CpuBackend::new()?));
        let w = Tensor::arange(0, 12, 1, DType::F32, &device)?.reshape([2, 6])?;
        let panels = Panels::new(Arc::downgrade(w.storage()), *w.layout(), Form::Columns(4));
        let (first, second) = (panels.now()?, panels.now()?);
        assert!(Arc::ptr_eq(first.storage(), second.storage()));
        let want = |by: f32| [0, 1, 2, 3, 6, 7, 8, 9, 4, 5, -1, -1, 10, 11, -1, -1].map(|v| (v as f32 * by).max(0.0));
        assert_eq!((first.shape(), first.to_vec::<f32>()?), (&[2, 2, 4][..], want(1.0).to_vec()));
        w.mul_(2.0)?;
        assert_eq!(panels.now()?.to_vec::<f32>()?, want(2.0));
        drop(w);
        assert!(panels.now().is_err());
        Ok(())
    }
}
