//! [`Panels`]: a matrix that products of a step read in panels, copied again after it has changed.

use std::sync::{Mutex, PoisonError, Weak};

use gradus_tensor::ops::over_storage;
use gradus_tensor::{DType, Error, Layout, Result, Storage, Tensor, no_grad};

/// A matrix of f32 that outlives the calls of a step, and its copy in panels `[n / columns, k, columns]`. Plans for
/// arguments of other sizes share it.
#[derive(Debug)]
pub struct Panels {
    storage: Weak<Storage>,
    /// The panels in the storage.
    layout: Layout,
    /// The version of the storage that was copied, and the copy.
    copied: Mutex<Option<(u64, Tensor)>>,
}

impl Panels {
    /// The matrix whose panels lie so in `storage`. It is copied when it is first read.
    pub(crate) fn new(storage: Weak<Storage>, layout: Layout) -> Panels {
        Panels { storage, layout, copied: Mutex::new(None) }
    }

    /// Whether `other` is the same matrix.
    pub(crate) fn is_same(&self, other: &Panels) -> bool {
        self.storage.ptr_eq(&other.storage) && self.layout == other.layout
    }

    /// The bytes of the copy.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.numel() * DType::F32.size()
    }

    /// The panels of the matrix as it is now.
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
        let panels = no_grad(|| over_storage(storage, self.layout, DType::F32)?.copy())?;
        *copied = Some((version, panels.clone()));
        Ok(panels)
    }
}
